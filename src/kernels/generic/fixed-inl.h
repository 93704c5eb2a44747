// Values of groups as 16-bit integers. Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_FIXED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_FIXED_INL_H_
#undef HIFC_KERNELS_GENERIC_FIXED_INL_H_
#else
#define HIFC_KERNELS_GENERIC_FIXED_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/codes-inl.h"
#include "kernels/generic/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

template <size_t kBits>
inline constexpr float kCodeMax = (1 << kBits) - 1;

// 1.5 * 2^23: a float this large has no fraction, and holds small integers in its lowest bits.
inline constexpr float kInteger = 0x1.8p23f;

// value * factor + offset is kInteger plus an integer. Codes of 8 bits are the upper bytes of such
// 16-bit integers. Those of fewer bits are made of 10 bits, the lowest ones of numbers from 1024 to
// 2048, which F16 can compute; they count from kTenBits on.
//
// Factors have at most 13 significant bits and F16 has 11, so that products are exact, and a
// multiplication and an addition give the bits of a fused one.
struct FixedPoint {
  alignas(64) float factor[kBatchGroups];
  alignas(64) float offset[kBatchGroups];
  // For F16 arithmetic, each twice in a word. It gives the same bits where `fits_halves` is set.
  alignas(64) uint32_t half_factor[kBatchGroups];
  alignas(64) uint32_t half_offset[kBatchGroups];
  bool fits_halves = true;
};
inline constexpr float kTenBits = 0x6400;  // F16 bits of 1024

// Bits of `yes` where those of `mask` are set. (Highway's scalar target knows whole lanes only.)
HWY_INLINE WordVector select_bits(WordVector mask, WordVector yes, WordVector no) {
#if HWY_TARGET != HWY_SCALAR
  return hn::IfVecThenElse(mask, yes, no);
#else
  return hn::Or(hn::And(mask, yes), hn::AndNot(mask, no));
#endif
}

// `x` with so many significant bits.
template <size_t kSignificant>
HWY_INLINE FloatVector round_significant(FloatVector x) {
  const WordTag words;
  constexpr uint32_t kUnit = 1u << (24 - kSignificant);
  const auto rounded = hn::Add(hn::BitCast(words, x), hn::Set(words, kUnit / 2));
  return hn::BitCast(FloatTag(), hn::And(rounded, hn::Set(words, ~(kUnit - 1))));
}

// The integers of a group, two in a word: `even` has those of the bytes 0 and 2 of Quads, `odd`
// those of the bytes 1 and 3.
struct FixedQuads {
  WordVector even[kQuadVectors], odd[kQuadVectors];
};

// Columns that a narrow group lacks are those it has once more.
template <size_t kWidth>
HWY_INLINE FixedQuads fixed_quads(const uint16_t* values, float factor, float offset) {
  const FloatTag d;
  const FloatVector f = hn::Set(d, factor), o = hn::Set(d, offset);
  const WordVector low_half = hn::Set(WordTag(), 0xffffu);
  FixedQuads quads;
  HIFC_UNROLL
  for (size_t i = 0; i < kQuadVectors; ++i) {
    WordVector x[4];
    HIFC_UNROLL
    for (size_t k = 0; k < 4; ++k) {
      const uint16_t* from = values + k * kQuads % kWidth + i * kFloatLanes;
      x[k] = hn::BitCast(WordTag(), hn::MulAdd(load_floats(from), f, o));
    }
    quads.even[i] = select_bits(low_half, x[0], hn::ShiftLeft<16>(x[2]));
    quads.odd[i] = select_bits(low_half, x[1], hn::ShiftLeft<16>(x[3]));
  }
  return quads;
}

// Of each integer the 8 bits from `kShift` on.
template <int kShift>
HWY_INLINE Quads bytes_of(const FixedQuads& fixed) {
  const WordVector even_bytes = hn::Set(WordTag(), 0x00ff00ffu);
  Quads quads;
  HIFC_UNROLL
  for (size_t i = 0; i < kQuadVectors; ++i)
    quads.words[i] = select_bits(even_bytes, hn::ShiftRight<kShift>(fixed.even[i]),
                                 hn::ShiftLeft<8 - kShift>(fixed.odd[i]));
  return quads;
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_FIXED_INL_H_
