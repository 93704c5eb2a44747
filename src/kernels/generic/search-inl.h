// Choosing the scale and min of groups. Float operations are done lane by lane and none is fused,
// and errors are summed as integers: all instruction sets choose the same. Included once per
// Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_SEARCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#undef HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#else
#define HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/generic/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Codes below 8 bits gain from a range that clips the outermost values: kShrinks positions are
// tried for each end of the range, shrink_of(1) of the full range apart. The error (root mean
// square, relative to normal data, groups of 64) without, with, and with an exhaustive search over
// 14 x 14 ranges:
//
//   4 bits   0.0895   0.0829   0.0820
//   3 bits   0.192    0.167    0.164
//   2 bits   0.449    0.329    0.319
//
// Eight ranges that shrink both ends alike reach only 0.0855, 0.172 and 0.333.
template <size_t kBits>
inline constexpr size_t kShrinks = kBits == 8 ? 1 : 3;
template <size_t kBits>
constexpr float shrink_of(size_t steps) {
  return (kBits == 4 ? 0.03f : kBits == 3 ? 0.05f : 0.1f) * static_cast<float>(steps);
}
template <size_t kBits>
inline constexpr float kCodeMax = (1 << kBits) - 1;

// Where the search works, values are 15-bit integers: 0 .. kFixedMax from the low to the high end
// of a group's range.
inline constexpr float kFixedMax = 32767.0f;

// The fraction of a code in the search's integers: codes have at most 14 bits with it, and 64
// squared errors are below 2^31. (Values are clipped by less than two steps: by one where min is
// where it is meant to be, by up to 1.9 where F16 has no value close to that.)
template <size_t kBits>
inline constexpr size_t kFractionBits = kBits == 4 ? 10 : 11;

// Shrinking the range by i steps from below and j from above gives min[i] and scale[i + j].
template <size_t kBits>
struct Candidates {
  static constexpr size_t kScales = 2 * kShrinks<kBits> - 1;
  alignas(64) float min[kShrinks<kBits>][kBatchGroups];
  alignas(64) float scale[kScales][kBatchGroups];
  alignas(64) float inverse[kScales][kBatchGroups];  // 1 / scale; 0 for scale 0

  // For the search: min as a fixed-point value, and what makes codes of fixed-point values.
  alignas(64) int32_t fixed_min[kShrinks<kBits>][kBatchGroups];
  alignas(64) int32_t multiplier[kScales][kBatchGroups];
};

// Scales are rounded up, so that the full range is covered, whatever its size; but not for what
// lies within the error of single precision, so that 0 .. 15 in 4 bits has the scale 1.
inline constexpr float kRoundUpFrom = 1.0f - 0x1p-22f;

// Column `g` of `candidates` and the next ones, as many as a vector has.
template <size_t kBits>
HWY_INLINE void make_candidates(const Ranges& ranges, size_t g, Candidates<kBits>& candidates) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> words;
  const FloatVector low = hn::Load(d, ranges.low + g), span = hn::Load(d, ranges.span + g);
  const FloatVector to_fixed = hn::Load(d, ranges.to_fixed + g);
  for (size_t i = 0; i < kShrinks<kBits>; ++i) {
    const FloatVector shift = hn::Mul(span, hn::Set(d, shrink_of<kBits>(i)));
    const FloatVector min = round_to_half(hn::Add(low, shift));
    hn::Store(min, d, candidates.min[i] + g);
    const FloatVector fixed = hn::Mul(hn::Sub(min, low), to_fixed);
    hn::Store(hn::NearestInt(fixed), words, candidates.fixed_min[i] + g);
  }
  constexpr float kUnits = (1 << kFractionBits<kBits>)*32768.0f / kFixedMax;
  for (size_t i = 0; i < Candidates<kBits>::kScales; ++i) {
    const float share = (1.0f - shrink_of<kBits>(i)) / kCodeMax<kBits> * kRoundUpFrom;
    const FloatVector scale = round_up_to_half(hn::Mul(span, hn::Set(d, share)));
    const FloatVector inverse = inverse_or_zero(scale);
    hn::Store(scale, d, candidates.scale[i] + g);
    hn::Store(inverse, d, candidates.inverse[i] + g);
    const FloatVector multiplier = hn::Mul(hn::Mul(span, inverse), hn::Set(d, kUnits));
    hn::Store(hn::NearestInt(multiplier), words, candidates.multiplier[i] + g);
  }
}

// 1.5 * 2^23: a float this large has no fraction, and holds small integers in its lowest bits.
inline constexpr float kInteger = 0x1.8p23f;

// Adds kInteger to `x`, clamped to [0, code_max]: rounds to the nearest code.
HWY_INLINE FloatVector round_to_code(FloatVector x, float code_max) {
  const FloatTag d;
  const FloatVector code = hn::Min(hn::Max(x, hn::Zero(d)), hn::Set(d, code_max));
  return hn::Add(code, hn::Set(d, kInteger));
}

HWY_INLINE void find_fixed_factors(Ranges& ranges) {
  const FloatTag d;
  for (size_t g = 0; g < kBatchGroups; g += kFloatLanes) {
    const FloatVector inverse = inverse_or_zero(hn::Load(d, ranges.span + g));
    hn::Store(hn::Mul(inverse, hn::Set(d, kFixedMax)), d, ranges.to_fixed + g);
  }
}

template <size_t kWidth>
HWY_INLINE void make_fixed(const uint16_t* values, float low, float to_fixed, int16_t* fixed) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> words;
  const hn::Rebind<uint16_t, FloatTag> half_words;
  HIFC_UNROLL
  for (size_t i = 0; i < kWidth; i += kFloatLanes) {
    const FloatVector offset = hn::Sub(load_floats(values + i), hn::Set(d, low));
    const FloatVector exact = hn::Mul(offset, hn::Set(d, to_fixed));
    const auto rounded = hn::BitCast(words, hn::Add(exact, hn::Set(d, kInteger)));
    const auto integers = hn::TruncateTo(half_words, rounded);
    hn::StoreU(integers, half_words, reinterpret_cast<uint16_t*>(fixed + i));
  }
}

template <size_t kWidth>
using FixedTag = hn::CappedTag<int16_t, kWidth % 32 == 0 ? 32 : 16>;

// Squared errors of offsets (fixed-point values minus min), in units of the scale times
// 2^-kFractionBits: up to four sums that make up the whole, written to sums[4].
template <size_t kBits, class D, size_t kVectors>
HWY_INLINE void sum_errors(D d, const hn::Vec<D> (&offsets)[kVectors], int32_t multiplier,
                           int32_t* sums) {
  constexpr int16_t kOne = 1 << kFractionBits<kBits>;
#if HWY_TARGET != HWY_SCALAR
  const hn::RepartitionToWide<D> wide;
#else
  const hn::Rebind<int32_t, D> wide;
#endif
  auto sum = hn::Zero(wide), more = hn::Zero(wide);
  const auto factor = hn::Set(d, static_cast<int16_t>(multiplier));
  const auto code_max = hn::Set(d, static_cast<int16_t>(kOne * ((1 << kBits) - 1)));
  HIFC_UNROLL
  for (size_t i = 0; i < kVectors; ++i) {
    const auto exact = hn::MulFixedPoint15(offsets[i], factor);
    const auto clamped = hn::Min(hn::Max(exact, hn::Zero(d)), code_max);
    const auto code = hn::And(hn::Add(clamped, hn::Set(d, kOne / 2)), hn::Set(d, -kOne));
    const auto error = hn::Sub(exact, code);
    sum = hn::ReorderWidenMulAccumulate(wide, error, error, sum, more);
  }
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  hn::StoreU(fold<4>(wide, hn::Add(sum, more), add), hn::CappedTag<int32_t, 4>(), sums);
}

// Errors of all groups with candidates [i * kShrinks + j], in units of their scales: four sums
// each.
template <size_t kBits>
struct Errors {
  alignas(64) int32_t sums[kShrinks<kBits> * kShrinks<kBits>][kBatchGroups][4];
};

template <size_t kBits, size_t kWidth>
HWY_INLINE void try_candidates(const int16_t* fixed, size_t index,
                               const Candidates<kBits>& candidates, Errors<kBits>& errors) {
  const FixedTag<kWidth> d;
  constexpr size_t kVectors = kWidth / hn::MaxLanes(d);
  HIFC_UNROLL
  for (size_t i = 0; i < kShrinks<kBits>; ++i) {
    const auto min = hn::Set(d, static_cast<int16_t>(candidates.fixed_min[i][index]));
    hn::Vec<decltype(d)> offsets[kVectors];
    HIFC_UNROLL
    for (size_t v = 0; v < kVectors; ++v)
      offsets[v] = hn::Sub(hn::LoadU(d, fixed + v * hn::MaxLanes(d)), min);
    HIFC_UNROLL
    for (size_t j = 0; j < kShrinks<kBits>; ++j)
      sum_errors<kBits>(d, offsets, candidates.multiplier[i + j][index],
                        errors.sums[i * kShrinks<kBits> + j][index]);
  }
}

// What the groups of a batch are encoded with.
struct Choices {
  alignas(64) float min[kBatchGroups];
  alignas(64) float scale[kBatchGroups];
  alignas(64) float inverse[kBatchGroups];
};

// Integers know errors to about a thousandth: other candidates have to be clearly better than the
// full range, so that the search never makes an error worse.
inline constexpr float kClearlyBetter = 1.0f - 0x1p-8f;

using QuadTag = hn::CappedTag<float, 4>;

// The candidates of least squared error for the groups from `g` on, as many as QuadTag has lanes.
// Side by side and without branches, which nobody could predict.
template <size_t kBits>
HWY_INLINE void choose(const Candidates<kBits>& candidates, const Errors<kBits>& errors, size_t g,
                       Choices& choices) {
  const QuadTag d;
  const hn::RebindToSigned<QuadTag> words;
  auto least = hn::Set(d, std::numeric_limits<float>::infinity());
  auto best_min = hn::Zero(d), best_scale = hn::Zero(d), best_inverse = hn::Zero(d);
  HIFC_UNROLL
  for (size_t i = 0; i < kShrinks<kBits>; ++i) {
    HIFC_UNROLL
    for (size_t j = 0; j < kShrinks<kBits>; ++j) {
      hn::Vec<decltype(words)> s0, s1, s2, s3;
      hn::LoadInterleaved4(words, errors.sums[i * kShrinks<kBits> + j][g], s0, s1, s2, s3);
      const auto sum = hn::ConvertTo(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
      const auto scale = hn::Load(d, candidates.scale[i + j] + g);
      const auto handicap = hn::Set(d, i + j == 0 ? kClearlyBetter : 1.0f);
      const auto error = hn::Mul(hn::Mul(sum, handicap), hn::Mul(scale, scale));
      const auto better = hn::Lt(error, least);
      least = hn::Min(error, least);
      best_min = hn::IfThenElse(better, hn::Load(d, candidates.min[i] + g), best_min);
      best_scale = hn::IfThenElse(better, scale, best_scale);
      best_inverse =
          hn::IfThenElse(better, hn::Load(d, candidates.inverse[i + j] + g), best_inverse);
    }
  }
  hn::Store(best_min, d, choices.min + g);
  hn::Store(best_scale, d, choices.scale + g);
  hn::Store(best_inverse, d, choices.inverse + g);
}

// Finds the ranges that encode a batch best.
template <size_t kBits, size_t kWidth>
HWY_INLINE void search(const GroupRows& rows, const Ranges& ranges,
                       const Candidates<kBits>& candidates, Choices& choices) {
  alignas(64) int16_t fixed[kBatchGroups][kWidth];
  for (size_t g = 0; g < rows.count; ++g)
    make_fixed<kWidth>(rows.values + g * rows.stride, ranges.low[g], ranges.to_fixed[g], fixed[g]);
  Errors<kBits> errors = {};
  for (size_t g = 0; g < rows.count; ++g)
    try_candidates<kBits, kWidth>(fixed[g], g, candidates, errors);
  for (size_t g = 0; g < rows.count; g += hn::MaxLanes(QuadTag()))
    choose<kBits>(candidates, errors, g, choices);
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_SEARCH_INL_H_
