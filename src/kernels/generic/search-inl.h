// Choosing the scale and min of groups. Float operations are done lane by lane and none is fused
// unless its product is exact, and errors are integers: all instruction sets choose the same.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_SEARCH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#undef HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#else
#define HIFC_KERNELS_GENERIC_SEARCH_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/errors-inl.h"
#include "kernels/generic/fixed-inl.h"
#include "kernels/generic/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// What the groups of a batch are encoded with.
struct Choices {
  alignas(64) float min[kBatchGroups];
  alignas(64) float scale[kBatchGroups];
};

// Scales are rounded up, so that the full range is covered, whatever its size; but not for what
// lies within the error of single precision, so that 0 .. 15 in 4 bits has the scale 1.
inline constexpr float kRoundUpFrom = 1.0f - 0x1p-22f;

// The shares of the span that are cut off, below and in all.
struct Cuts {
  FloatVector below, all;
};

// Those of the least errors. totals: sums of what ErrorTables say, 16 bits for each candidate.
template <size_t kBits>
HWY_INLINE Cuts least_error(const uint64_t* totals) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> words;
  WordVector low, high;
  hn::LoadInterleaved2(WordTag(), reinterpret_cast<const uint32_t*>(totals), low, high);
  const auto first = hn::BitCast(words, low), second = hn::BitCast(words, high);
  const auto low_half = hn::Set(words, 0xffff);
  const hn::Vec<decltype(words)> sums[kCandidates] = {
      hn::And(first, low_half), hn::ShiftRight<16>(first), hn::And(second, low_half),
      hn::ShiftRight<16>(second)};
  auto least = hn::Set(words, kClearlyBetter);
  Cuts cuts{hn::Zero(d), hn::Zero(d)};
  HIFC_UNROLL
  for (size_t i = 0; i < kCandidates; ++i) {
    const Cut cut = kCuts<kBits>[i];
    const auto better =
        hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(words, hn::Lt(sums[i], least))));
    least = hn::Min(least, sums[i]);
    cuts.below = hn::IfThenElse(better, hn::Set(d, cut.below), cuts.below);
    cuts.all = hn::IfThenElse(better, hn::Set(d, cut.below + cut.above), cuts.all);
  }
  return cuts;
}

// Whether F16 has values close enough to each other for a range that is to begin within another
// one: elsewhere candidates would not be what their errors are of. (The full range begins at a
// value.)
template <size_t kBits>
HWY_INLINE auto is_fine(FloatVector low, FloatVector span) {
  const FloatTag d;
  const FloatVector largest = hn::Max(hn::Abs(low), hn::Abs(hn::Add(low, span)));
  const FloatVector spacing = hn::Mul(half_binade(largest), hn::Set(d, 0x1p-10f));
  return hn::Lt(spacing, hn::Mul(span, hn::Set(d, 0.25f / kCodeMax<kBits>)));
}

// Min and scale of the groups from `g` on, as many as a vector has lanes. totals: [kBatchGroups],
// not for 8 bits.
template <size_t kBits>
HWY_INLINE void choose(const Ranges& ranges, const uint64_t* totals, size_t g, Choices& choices) {
  const FloatTag d;
  const FloatVector low = hn::Load(d, ranges.low + g), span = hn::Load(d, ranges.span + g);
  Cuts cuts{hn::Zero(d), hn::Zero(d)};
  if constexpr (kBits < 8) {
    cuts = least_error<kBits>(totals + g);
    const auto fine = is_fine<kBits>(low, span);
    cuts = {hn::IfThenElseZero(fine, cuts.below), hn::IfThenElseZero(fine, cuts.all)};
  }
  const FloatVector share =
      hn::Mul(hn::Sub(hn::Set(d, 1.0f), cuts.all), hn::Set(d, kRoundUpFrom / kCodeMax<kBits>));
  hn::Store(round_to_half(hn::Add(low, hn::Mul(span, cuts.below))), d, choices.min + g);
  hn::Store(round_up_to_half(hn::Mul(span, share)), d, choices.scale + g);
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_SEARCH_INL_H_
