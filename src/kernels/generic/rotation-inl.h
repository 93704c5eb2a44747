// The Walsh-Hadamard transform. Each stage adds and subtracts pairs of channels; which pairs, and
// in which order, does not depend on the width of vectors. Included once per Highway target, hence
// the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_ROTATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_ROTATION_INL_H_
#undef HIFC_KERNELS_GENERIC_ROTATION_INL_H_
#else
#define HIFC_KERNELS_GENERIC_ROTATION_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Exchanges neighbouring runs of kDistance lanes.
template <size_t kDistance>
HWY_INLINE FloatVector swap_lanes(FloatVector v) {
  if constexpr (kDistance == 1) return hn::Shuffle2301(v);
  if constexpr (kDistance == 2) return hn::Shuffle1032(v);
  if constexpr (kDistance == 4) return hn::SwapAdjacentBlocks(v);
  if constexpr (kDistance == 8) return hn::ConcatLowerUpper(FloatTag(), v, v);
}

// The stage of kDistance within a vector: lanes (a, b) become (a + b, a - b).
template <size_t kDistance>
HWY_INLINE FloatVector add_and_subtract(FloatVector v) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> bits;
  const auto second = hn::And(hn::Iota(bits, 0), hn::Set(bits, uint32_t{kDistance}));
  const auto sign = hn::ShiftLeft<31 - std::countr_zero(kDistance)>(second);
  return hn::Add(swap_lanes<kDistance>(v), hn::Xor(v, hn::BitCast(d, sign)));
}

HWY_INLINE FloatVector transform_lanes(FloatVector v) {
  constexpr size_t kLanes = hn::MaxLanes(FloatTag());
  v = add_and_subtract<2>(add_and_subtract<1>(v));
  if constexpr (kLanes > 4) v = add_and_subtract<4>(v);
  if constexpr (kLanes > 8) v = add_and_subtract<8>(v);
  return v;
}
#else
HWY_INLINE FloatVector transform_lanes(FloatVector v) {
  return v;
}
#endif

// A block of kSize channels, held in registers as far as there are enough.
template <size_t kSize>
HWY_INLINE void transform_block(float* block) {
  constexpr size_t kLanes = hn::MaxLanes(FloatTag()), kVectors = kSize / kLanes;
  const FloatTag d;
  const FloatVector norm = hn::Set(d, 1.0f / std::sqrt(static_cast<float>(kSize)));
  FloatVector v[kVectors];
  for (size_t i = 0; i < kVectors; ++i) v[i] = transform_lanes(hn::LoadU(d, block + i * kLanes));
  for (size_t distance = 1; distance < kVectors; distance *= 2)
    for (size_t i = 0; i < kVectors; ++i) {
      if ((i & distance) != 0) continue;
      const FloatVector a = v[i], b = v[i + distance];
      v[i] = hn::Add(a, b);
      v[i + distance] = hn::Sub(a, b);
    }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(hn::Mul(v[i], norm), d, block + i * kLanes);
}

HWY_INLINE void transform_vector(uint32_t head_dim, float* vector) {
  for (uint32_t left = head_dim; left > 0;) {
    const uint32_t size = std::bit_floor(left);
    switch (size) {
      case 16: transform_block<16>(vector); break;
      case 32: transform_block<32>(vector); break;
      case 64: transform_block<64>(vector); break;
      case 128: transform_block<128>(vector); break;
      case 256: transform_block<256>(vector); break;
      default: transform_block<512>(vector); break;
    }
    vector += size;
    left -= size;
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_ROTATION_INL_H_
