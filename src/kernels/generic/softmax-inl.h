// Exponentials and the softmax of one row over one split, written once for every ISA.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_SOFTMAX_INL_H_
#undef HIFC_KERNELS_GENERIC_SOFTMAX_INL_H_
#else
#define HIFC_KERNELS_GENERIC_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/product-inl.h"
#include "kernels/generic/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// exp(x) for x <= 0: exactly 1 at 0, and 0 below -86, where results near the denormals no longer
// matter. A few ulp off, and as much again as rounding x costs. Own code and not Highway's Exp,
// which serves all x: this is the inner loop of softmax, some 15 % of a prefill with 64 channels.
HWY_INLINE FloatVector exp_of_nonpositive(FloatVector x) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> integers;
  // Adding 1.5 * 2^23 rounds x / ln 2 to an integer n and leaves n in the low mantissa bits.
  const FloatVector magic = hn::Set(d, 0x1.8p23f);
  const FloatVector shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p+0f), magic);
  const FloatVector n = hn::Sub(shifted, magic);
  const FloatVector r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e43p-1f), x);
  // exp(r) for |r| <= ln 2 / 2; the coefficients are those of Arm's optimized routines.
  FloatVector p = hn::Set(d, 0x1.0e4020p-7f);
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.573e2ep-5f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.555e66p-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.fffdb6p-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 0x1.ffffecp-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(integers, shifted));
  const FloatVector power = hn::BitCast(d, hn::Add(hn::BitCast(integers, p), exponent));
  // Not `x >= -86`: a NaN has to stay visible.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -86.0f)), power);
}

HWY_INLINE float exp_of_nonpositive(float x) {
  return hn::GetLane(exp_of_nonpositive(hn::Set(FloatTag(), x)));
}

// Lanes outside `range` become `otherwise`; the vector's first lane is token `first`.
HWY_INLINE FloatVector mask_outside(FloatVector x, uint32_t first, Range range, float otherwise) {
  if (first >= range.begin && first + hn::Lanes(FloatTag()) <= range.end) return x;
  const FloatTag d;
  const FloatVector token = hn::Iota(d, static_cast<float>(first));
  const auto inside = hn::And(hn::Ge(token, hn::Set(d, static_cast<float>(range.begin))),
                              hn::Lt(token, hn::Set(d, static_cast<float>(range.end))));
  return hn::IfThenElse(inside, x, hn::Set(d, otherwise));
}

// Scales (and caps) the dot products in [begin, end) in place and returns their maximum; whole
// vectors are written, with -infinity in the lanes outside `range`.
template <class Cap>
HWY_INLINE float scale_scores(float* scores, Range range, float scale, Cap cap) {
  const FloatTag d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  FloatVector max = hn::Set(d, kMinusInfinity);
  for (uint32_t t = range.begin / lanes * lanes; t < range.end; t += lanes) {
    FloatVector s = cap(hn::Mul(hn::LoadU(d, scores + t), hn::Set(d, scale)));
    s = mask_outside(s, t, range, kMinusInfinity);
    hn::StoreU(s, d, scores + t);
    max = hn::Max(max, s);
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// softcap * tanh(s / softcap); out of line because few models cap.
HWY_NOINLINE float scale_and_cap_scores(float* scores, Range range, const HeadParameters& head) {
  struct Cap {
    FloatVector cap, inverse;
    FloatVector operator()(FloatVector s) const {
      return hn::Mul(cap, hn::Tanh(FloatTag(), hn::Mul(s, inverse)));
    }
  };
  const FloatTag d;
  return scale_scores(scores, range, head.scale,
                      Cap{hn::Set(d, head.softcap), hn::Set(d, 1.0f / head.softcap)});
}

// Turns scores into weights exp(s - max) over the vectors that touch `range`, zero in the rest of
// the split, and returns their sum. The sum's order depends on positions alone: the vectors that
// are skipped would have added zero.
HWY_INLINE float weigh_row(float* scores, Range range, float max) {
  const FloatTag d;
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(d));
  FloatVector sum = hn::Zero(d);
  if (range.empty()) range = Range{};
  uint32_t t = 0;
  for (; t + lanes <= range.begin; t += lanes) hn::StoreU(hn::Zero(d), d, scores + t);
  for (; t < range.end; t += lanes) {
    const FloatVector p = exp_of_nonpositive(hn::Sub(hn::LoadU(d, scores + t), hn::Set(d, max)));
    hn::StoreU(p, d, scores + t);
    sum = hn::Add(sum, p);
  }
  for (; t < kSplitTokens; t += lanes) hn::StoreU(hn::Zero(d), d, scores + t);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The weights of each page of a row, added.
HWY_INLINE void sum_pages(const float* weights, float* sums) {
  const FloatTag d;
  for (uint32_t page = 0; page < kSplitPages; ++page) {
    FloatVector sum = hn::Zero(d);
    for (uint32_t t = 0; t < kv::kPageTokens; t += static_cast<uint32_t>(hn::Lanes(d)))
      sum = hn::Add(sum, hn::LoadU(d, weights + page * kv::kPageTokens + t));
    sums[page] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// Turns one row's dot products with the kSplitTokens tokens into scores, and returns the maximum.
HWY_INLINE float score_row(float* scores, Range range, const HeadParameters& head) {
  if (range.empty()) return kMinusInfinity;
  if (head.softcap != 0.0f) return scale_and_cap_scores(scores, range, head);
  return scale_scores(scores, range, head.scale, [](FloatVector s) HWY_ATTR { return s; });
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_SOFTMAX_INL_H_
