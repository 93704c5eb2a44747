// The ranges of groups of F16 values, and rounding to F16.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_RANGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_RANGE_INL_H_
#undef HIFC_KERNELS_GENERIC_RANGE_INL_H_
#else
#define HIFC_KERNELS_GENERIC_RANGE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/generic/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

inline constexpr size_t kFloatLanes = hn::MaxLanes(FloatTag());
inline constexpr size_t kUnitColumns = 16;  // of which groups are made
static_assert(kUnitColumns % kFloatLanes == 0);

// Groups whose parameters are computed side by side: these computations wait for each other, and a
// quarter as many groups would take a tenth longer.
inline constexpr size_t kBatchGroups = 64;

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

// Rounds to the nearest F16; what is too large becomes infinite.
HWY_INLINE void store_halves(FloatVector x, uint16_t* out) {
#if HWY_TARGET <= HWY_AVX2
  const hn::Rebind<hwy::float16_t, FloatTag> halves;
  const hn::Rebind<uint16_t, FloatTag> bits;
  hn::StoreU(hn::BitCast(bits, hn::DemoteTo(halves, x)), bits, out);
#else
  // Highway's conversion for these targets cuts off.
  alignas(64) float lanes[kFloatLanes];
  hn::Store(x, FloatTag(), lanes);
  for (size_t i = 0; i < kFloatLanes; ++i) out[i] = half_of_float(lanes[i]);
#endif
}

// Groups of one width at the same columns of consecutive rows.
struct GroupRows {
  const uint16_t* group(size_t g) const { return values + g * stride; }
  const uint16_t* values = nullptr;  // F16 bits
  size_t stride = 0;                 // values from one row to the next
  size_t count = 0;                  // at most kBatchGroups
};

// Unsigned integers that have the order of F16 values, with what is not finite at both ends: of
// bits with the sign bit flipped, or all bits of negative numbers.
template <class D>
HWY_INLINE hn::Vec<D> keys_of_bits(D d, hn::Vec<D> bits) {
  const hn::RebindToSigned<D> with_sign;
  const auto negative = hn::BitCast(d, hn::ShiftRight<15>(hn::BitCast(with_sign, bits)));
  return hn::Xor(bits, hn::Or(negative, hn::Set(d, 0x8000)));
}
template <class D>
HWY_INLINE hn::Vec<D> bits_of_keys(D d, hn::Vec<D> keys) {
  const hn::RebindToSigned<D> with_sign;
  const auto positive = hn::BitCast(d, hn::ShiftRight<15>(hn::BitCast(with_sign, keys)));
  return hn::Xor(keys, hn::Or(hn::Not(positive), hn::Set(d, 0x8000)));
}

// The least keys of the groups of a batch, and all bits of the greatest ones flipped: so that both
// are minima.
struct Extremes {
  alignas(64) uint16_t least[kBatchGroups] = {};
  alignas(64) uint16_t most[kBatchGroups] = {};
};

template <size_t kWidth>
using KeyTag = hn::CappedTag<uint16_t, kWidth % 32 == 0 ? 32 : 16>;

#if HWY_TARGET != HWY_SCALAR
// Reduces pairs of lanes: those of `a` to half of the lanes, those of `b` to the others, by turns.
// T is as wide as what takes a turn.
template <class T, class D, class Reduce>
HWY_INLINE hn::Vec<D> merge(D d, hn::Vec<D> a, hn::Vec<D> b, const Reduce& reduce) {
  const hn::Repartition<T, D> turns;
  const auto turns_a = hn::BitCast(turns, a), turns_b = hn::BitCast(turns, b);
  return reduce(hn::BitCast(d, hn::InterleaveLower(turns, turns_a, turns_b)),
                hn::BitCast(d, hn::InterleaveUpper(turns, turns_a, turns_b)));
}

template <class D, class Reduce>
HWY_INLINE hn::Vec<D> merge_four(D d, const hn::Vec<D> (&of)[4], const Reduce& reduce) {
  return merge<uint16_t>(d, merge<uint16_t>(d, of[0], of[2], reduce),
                         merge<uint16_t>(d, of[1], of[3], reduce), reduce);
}

// The least and greatest keys of four groups from `g` on; rows that are missing are the last one
// again. Merging vectors takes half the time of reducing each of them.
template <size_t kWidth>
HWY_INLINE void find_extremes(const GroupRows& rows, size_t g, Extremes& extremes) {
  const KeyTag<kWidth> d;
  const auto min = [](auto a, auto b) HWY_ATTR { return hn::Min(a, b); };
  const auto max = [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); };
  hn::Vec<KeyTag<kWidth>> least[4], most[4];
  HIFC_UNROLL
  for (size_t i = 0; i < 4; ++i) {
    const uint16_t* values = rows.group(std::min(g + i, rows.count - 1));
    least[i] = most[i] = keys_of_bits(d, hn::LoadU(d, values));
    HIFC_UNROLL
    for (size_t j = hn::MaxLanes(d); j < kWidth; j += hn::MaxLanes(d)) {
      const auto keys = keys_of_bits(d, hn::LoadU(d, values + j));
      least[i] = hn::Min(least[i], keys);
      most[i] = hn::Max(most[i], keys);
    }
  }
  const auto both =
      merge<uint64_t>(d, merge_four(d, least, min), hn::Not(merge_four(d, most, max)), min);
  alignas(16) uint16_t lanes[8];
  hn::Store(fold<8>(d, both, min), hn::CappedTag<uint16_t, 8>(), lanes);
  std::memcpy(extremes.least + g, lanes, 4 * sizeof(uint16_t));
  std::memcpy(extremes.most + g, lanes + 4, 4 * sizeof(uint16_t));
}
#else
template <size_t kWidth>
HWY_INLINE void find_extremes(const GroupRows& rows, size_t first, Extremes& extremes) {
  const KeyTag<kWidth> d;
  for (size_t g = first; g < std::min(first + 4, rows.count); ++g) {
    uint16_t least = 0xffff, most = 0xffff;
    for (size_t i = 0; i < kWidth; ++i) {
      const uint16_t key = hn::GetLane(keys_of_bits(d, hn::Set(d, rows.group(g)[i])));
      least = std::min(least, key);
      most = std::min(most, static_cast<uint16_t>(~key));
    }
    extremes.least[g] = least, extremes.most[g] = most;
  }
}
#endif

struct Ranges {
  alignas(64) float low[kBatchGroups];
  alignas(64) float span[kBatchGroups];
  alignas(64) float damage[kBatchGroups];  // NaN where a value is not finite, which has no range
  bool all_finite = true;
};

// The ranges of groups from `g` on, as many as a vector has lanes.
HWY_INLINE void make_ranges(const Extremes& extremes, size_t g, Ranges& ranges) {
  const FloatTag d;
  const hn::Rebind<uint16_t, FloatTag> halves;
  alignas(64) uint16_t low_bits[kFloatLanes], high_bits[kFloatLanes];
  const auto least = hn::Load(halves, extremes.least + g);
  const auto most = hn::Not(hn::Load(halves, extremes.most + g));
  hn::Store(bits_of_keys(halves, least), halves, low_bits);
  hn::Store(bits_of_keys(halves, most), halves, high_bits);
  const FloatVector low = load_floats(low_bits), span = hn::Sub(load_floats(high_bits), low);
  const auto finite = hn::Le(span, hn::Set(d, 2 * 65504.0f));  // which infinity and NaN are not
  const FloatVector nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  hn::Store(hn::IfThenElseZero(finite, hn::Add(low, hn::Zero(d))), d, ranges.low + g);  // not -0
  hn::Store(hn::IfThenElseZero(finite, span), d, ranges.span + g);
  hn::Store(hn::IfThenZeroElse(finite, nan), d, ranges.damage + g);
  ranges.all_finite = ranges.all_finite && hn::AllTrue(d, finite);
}

template <size_t kWidth>
HWY_INLINE void find_ranges(const GroupRows& rows, Ranges& ranges) {
  Extremes extremes;
  for (size_t g = 0; g < rows.count; g += 4) {
    find_extremes<kWidth>(rows, g, extremes);
  }
  for (size_t g = 0; g < rows.count; g += kFloatLanes) make_ranges(extremes, g, ranges);
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_RANGE_INL_H_
