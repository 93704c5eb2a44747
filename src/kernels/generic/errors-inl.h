// What candidate ranges do to a group, by tables of errors. Included once per Highway target, hence
// the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_ERRORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_ERRORS_INL_H_
#undef HIFC_KERNELS_GENERIC_ERRORS_INL_H_
#else
#define HIFC_KERNELS_GENERIC_ERRORS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/fixed-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Codes below 8 bits gain from a range that clips the outermost values: besides the full one
// kCandidates are tried, which lack these shares of it. The error (root mean square, relative to
// normal data, groups of 64) of the full range and of the choice by tables, as
// kernels_codec_benchmark tells:
//
//   4 bits   0.0898   0.0838
//   3 bits   0.192    0.1685
//   2 bits   0.450    0.3291
//
// The shares are those that are best for normal data, which rotated K and V are; with 2 bits nearly
// so, for the sake of data with outliers.
struct Cut {
  float below, above;
};
inline constexpr size_t kCandidates = 4;
template <size_t kBits>
inline constexpr Cut kCuts[kCandidates] = {};
template <>
inline constexpr Cut kCuts<4>[kCandidates] = {{.04f, 0}, {0, .04f}, {.03f, .01f}, {.02f, .03f}};
template <>
inline constexpr Cut kCuts<3>[kCandidates] = {{.06f, .08f}, {.08f, .06f}, {.02f, .1f}, {.1f, .02f}};
template <>
inline constexpr Cut kCuts<2>[kCandidates] = {{.1f, .1f}, {.16f, .16f}, {.24f, .12f}, {.12f, .24f}};

// A range lies between these integers (FixedPoint), give or take two for the rounding of offsets.
// The upper 6 bits are a level, the index of the tables.
inline constexpr float kFixedLow = 16, kFixedSpan = 1024 - 32;
inline constexpr int kLevelShift = 4;
inline constexpr size_t kLevels = 64;

// What a table says: how much more a candidate's squared error is than that of the full range, the
// mean over a level's values, in units that make the largest of all kLargest; plus kNoDifference.
inline constexpr int kNoDifference = 128, kLargest = 127;
// Sums below this are clearly less than those of no difference.
inline constexpr int32_t kClearlyBetter = kGroupColumns * kNoDifference - 16;

// The squared error at `x`, 0 to 1 being the range.
constexpr double squared_error(double x, Cut cut, double code_max) {
  const double below = static_cast<double>(cut.below), above = static_cast<double>(cut.above);
  const double step = (1 - below - above) / code_max;
  const double exact = std::clamp((x - below) / step, 0.0, code_max);
  const double code = static_cast<int>(exact + 0.5);
  const double error = x - below - step * code;
  return error * error;
}

// The mean over a level of what the squared error of `cut` is more than the full range's.
constexpr double mean_difference(Cut cut, size_t level, double code_max) {
  constexpr int kValues = 1 << kLevelShift;
  double sum = 0;
  for (int i = 0; i < kValues; ++i) {
    const double fixed = static_cast<double>(level * kValues) + i - static_cast<double>(kFixedLow);
    const double x = std::clamp(fixed / static_cast<double>(kFixedSpan), 0.0, 1.0);
    sum += squared_error(x, cut, code_max) - squared_error(x, {0, 0}, code_max);
  }
  return sum / kValues;
}

template <size_t kBits>
struct ErrorTables {
  constexpr ErrorTables() {
    double means[kCandidates][kLevels] = {}, largest = 0;
    for (size_t i = 0; i < kCandidates; ++i)
      for (size_t level = 0; level < kLevels; ++level) {
        means[i][level] =
            mean_difference(kCuts<kBits>[i], level, static_cast<double>(kCodeMax<kBits>));
        largest = std::max({largest, means[i][level], -means[i][level]});
      }
    for (size_t i = 0; i < kCandidates; ++i)
      for (size_t level = 0; level < kLevels; ++level) {
        const double exact = kNoDifference + means[i][level] / largest * kLargest;
        by_candidate[i][level] = static_cast<uint8_t>(exact + 0.5);
        together[level] |= uint64_t{by_candidate[i][level]} << 16 * i;
      }
  }
  alignas(64) uint8_t by_candidate[kCandidates][kLevels] = {};
  uint64_t together[kLevels] = {};  // 16 bits for each candidate
};
template <size_t kBits>
inline constexpr ErrorTables<kBits> kErrorTables;

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_ERRORS_INL_H_
