// Packing the codes of narrow groups, a byte each, into bit planes and back (the layout is in
// kernels/codec.h).
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_PLANES_INL_H_
#undef HIFC_KERNELS_GENERIC_PLANES_INL_H_
#else
#define HIFC_KERNELS_GENERIC_PLANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Words of bytes in general registers: compilers turn these short loops of known length into
// vector code by themselves. Strides of narrow groups may be less than a word.
template <size_t kStride>
inline constexpr size_t kWordBytes = kStride % 8 == 0   ? 8
                                     : kStride % 4 == 0 ? 4
                                                        : 2;

// The lowest `bits` of every byte of a word.
constexpr uint64_t low_bits(size_t bits) {
  return 0x0101010101010101u * ((1u << bits) - 1);
}

// Codes [kWidth] of a byte each, shifted right by `first_bit`, into a plane of kBits per code.
template <size_t kBits, size_t kWidth>
HWY_INLINE void pack_plane(const uint8_t* codes, size_t first_bit, std::byte* plane) {
  constexpr size_t kStride = kWidth * kBits / 8, kStep = kWordBytes<kStride>;
  for (size_t i = 0; i < kStride; i += kStep) {
    uint64_t packed = 0;
    for (size_t j = 0; j < 8 / kBits; ++j) {
      uint64_t word = 0;
      std::memcpy(&word, codes + i + j * kStride, kStep);
      packed |= (word >> first_bit & low_bits(kBits)) << j * kBits;
    }
    std::memcpy(plane + i, &packed, kStep);
  }
}

enum class Unpack : uint8_t { kSet, kAdd };

// Sets codes [kWidth] from a plane, or adds its bits, shifted left by `first_bit`, to them.
template <size_t kBits, size_t kWidth, Unpack kUnpack>
HWY_INLINE void unpack_plane(const std::byte* plane, size_t first_bit, uint8_t* codes) {
  constexpr size_t kStride = kWidth * kBits / 8, kStep = kWordBytes<kStride>;
  for (size_t i = 0; i < kStride; i += kStep) {
    uint64_t packed = 0;
    std::memcpy(&packed, plane + i, kStep);
    for (size_t j = 0; j < 8 / kBits; ++j) {
      uint64_t word = (packed >> j * kBits & low_bits(kBits)) << first_bit;
      uint8_t* to = codes + i + j * kStride;
      if constexpr (kUnpack == Unpack::kAdd) {
        uint64_t others = 0;
        std::memcpy(&others, to, kStep);
        word |= others;
      }
      std::memcpy(to, &word, kStep);
    }
  }
}

template <size_t kBits, size_t kWidth>
HWY_INLINE void pack_narrow(const uint8_t* codes, std::byte* out) {
  if constexpr (kBits == 3) {
    pack_plane<2, kWidth>(codes, 0, out);
    pack_plane<1, kWidth>(codes, 2, out + kWidth / 4);
  } else {
    pack_plane<kBits, kWidth>(codes, 0, out);
  }
}

template <size_t kBits, size_t kWidth>
HWY_INLINE void unpack_narrow(const std::byte* from, uint8_t* codes) {
  if constexpr (kBits == 3) {
    unpack_plane<2, kWidth, Unpack::kSet>(from, 0, codes);
    unpack_plane<1, kWidth, Unpack::kAdd>(from + kWidth / 4, 2, codes);
  } else {
    unpack_plane<kBits, kWidth, Unpack::kSet>(from, 0, codes);
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_PLANES_INL_H_
