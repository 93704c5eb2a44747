// The ranges of groups of F16 values, and rounding to F16.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_RANGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_RANGE_INL_H_
#undef HIFC_KERNELS_GENERIC_RANGE_INL_H_
#else
#define HIFC_KERNELS_GENERIC_RANGE_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

inline constexpr size_t kFloatLanes = hn::MaxLanes(FloatTag());
inline constexpr size_t kUnitColumns = 16;  // of which groups are made
static_assert(kUnitColumns % kFloatLanes == 0);

inline constexpr size_t kBatchGroups = 16;  // groups whose parameters are computed side by side

// The least distance of F16 values around x, times 1024: the power of two below |x|, or that of the
// subnormals.
HWY_INLINE FloatVector half_binade(FloatVector x) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> bits;
  const auto exponent = hn::And(hn::BitCast(bits, x), hn::Set(bits, 0x7f800000u));
  return hn::Max(hn::BitCast(d, exponent), hn::Set(d, 0x1p-14f));
}

// The nearest F16 value: adding a number whose last place is F16's rounds there. |x| <= 65504.
HWY_INLINE FloatVector round_to_half(FloatVector x) {
  const FloatTag d;
  const FloatVector magic = hn::Mul(half_binade(x), hn::Set(d, 0x1.8p13f));
  return hn::Sub(hn::Add(x, magic), magic);
}

// The least F16 value that is not below x. |x| < 65504.
HWY_INLINE FloatVector round_up_to_half(FloatVector x) {
  const FloatTag d;
  const FloatVector nearest = round_to_half(x);
  const FloatVector step = hn::Mul(half_binade(x), hn::Set(d, 0x1p-10f));
  return hn::Add(nearest, hn::IfThenElseZero(hn::Lt(nearest, x), step));
}

HWY_INLINE FloatVector inverse_or_zero(FloatVector x) {
  const FloatTag d;
  return hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), x));
}

// Groups of one width at the same columns of consecutive rows.
struct GroupRows {
  const uint16_t* values = nullptr;  // F16 bits
  size_t stride = 0;                 // values from one row to the next
  size_t count = 0;                  // at most kBatchGroups
};

struct Ranges {
  alignas(64) float low[kBatchGroups] = {};
  alignas(64) float span[kBatchGroups] = {};
  alignas(64) float to_fixed[kBatchGroups] = {};  // kFixedMax / span; 0 for span 0
  bool finite[kBatchGroups] = {};
};

// Reduces a vector to at most kLanes lanes. (Highway's scalar target knows no halves.)
template <size_t kLanes, class D, class V, class Reduce>
HWY_INLINE auto fold(D, V v, [[maybe_unused]] const Reduce& reduce) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > kLanes) {
    const hn::Half<D> half;
    return fold<kLanes>(half, reduce(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), reduce);
  } else {
    return v;
  }
#else
  return v;
#endif
}

inline float float_of_half(uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

inline uint16_t half_of_float(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

// F16 bits of the order-preserving key of `find_range`.
inline uint16_t bits_of_key(uint16_t key) {
  return key & 0x8000 ? key ^ 0x8000 : static_cast<uint16_t>(~key);
}

// F16 bits are compared as integers: with the sign bit flipped, or all bits of negative numbers,
// they have the order of their values, with what is not finite at both ends.
template <size_t kWidth>
HWY_INLINE void find_range(const uint16_t* values, size_t index, Ranges& ranges) {
  const hn::CappedTag<uint16_t, kUnitColumns> d;
  const hn::RebindToSigned<decltype(d)> with_sign;
  const auto sign = hn::Set(d, 0x8000);
  auto least = hn::Set(d, 0xffff), most = hn::Zero(d);
  HIFC_UNROLL
  for (size_t i = 0; i < kWidth; i += hn::MaxLanes(d)) {
    const auto bits = hn::LoadU(d, values + i);
    const auto negative = hn::BitCast(d, hn::ShiftRight<15>(hn::BitCast(with_sign, bits)));
    const auto key = hn::Xor(bits, hn::Or(negative, sign));
    least = hn::Min(least, key);
    most = hn::Max(most, key);
  }
  const hn::CappedTag<uint16_t, 8> d8;
  const auto low8 = fold<8>(d, least, [](auto a, auto b) HWY_ATTR { return hn::Min(a, b); });
  const auto high8 = fold<8>(d, most, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
  const uint16_t low = bits_of_key(hn::GetLane(hn::MinOfLanes(d8, low8)));
  const uint16_t high = bits_of_key(hn::GetLane(hn::MaxOfLanes(d8, high8)));

  ranges.finite[index] = (low & 0x7c00) != 0x7c00 && (high & 0x7c00) != 0x7c00;
  if (!ranges.finite[index]) return;
  ranges.low[index] = float_of_half(low) + 0.0f;  // not -0
  ranges.span[index] = float_of_half(high) - float_of_half(low);
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_RANGE_INL_H_
