// Values to codes and back, for groups. Every float operation is done lane by lane and none is
// fused: all instruction sets arrive at the same bytes. Included once per Highway target, hence the
// toggling guard.
#if defined(HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#undef HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#else
#define HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/generic/codes-inl.h"
#include "kernels/generic/planes-inl.h"
#include "kernels/generic/range-inl.h"
#include "kernels/generic/search-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Scale and min of a group as its encoder uses them.
struct Quantizer {
  float min = 0, inverse = 0;
};

HWY_INLINE WordVector codes_of(const uint16_t* values, const Quantizer& quantizer, float code_max) {
  const FloatTag d;
  const FloatVector min = hn::Set(d, quantizer.min), inverse = hn::Set(d, quantizer.inverse);
  const FloatVector exact = hn::Mul(hn::Sub(load_floats(values), min), inverse);
  const WordVector rounded = hn::BitCast(WordTag(), round_to_code(exact, code_max));
  return hn::And(rounded, hn::Set(WordTag(), 0xff));
}

template <size_t kBits, size_t kWidth>
HWY_INLINE void write_codes(const uint16_t* values, const Quantizer& quantizer, std::byte* out) {
  if constexpr (kWidth == kGroupColumns) {
    WordVector codes[kGroupVectors];
    HIFC_UNROLL
    for (size_t i = 0; i < kGroupVectors; ++i)
      codes[i] = codes_of(values + i * kFloatLanes, quantizer, kCodeMax<kBits>);
    pack_codes<kBits>(codes, out);
  } else {
    const hn::Rebind<uint8_t, FloatTag> bytes;
    alignas(64) uint8_t codes[kWidth];
    HIFC_UNROLL
    for (size_t i = 0; i < kWidth; i += kFloatLanes)
      hn::StoreU(hn::TruncateTo(bytes, codes_of(values + i, quantizer, kCodeMax<kBits>)), bytes,
                 codes + i);
    pack_narrow<kBits, kWidth>(codes, out);
  }
}

// Where a batch of groups goes: the same group of consecutive rows.
struct EncodedGroups {
  std::byte* scales = nullptr;  // F16, as are mins
  std::byte* mins = nullptr;
  std::byte* codes = nullptr;
};

inline void write_half(float value, std::byte* out) {
  const uint16_t half = half_of_float(value);
  std::memcpy(out, &half, sizeof(half));
}
inline float read_half(const std::byte* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return float_of_half(half);
}

template <size_t kBits, size_t kWidth>
HWY_NOINLINE void encode_batch(const GroupRows& rows, const EncodedGroups& encoded) {
  Ranges ranges;
  for (size_t g = 0; g < rows.count; ++g) {
    const uint16_t* values = rows.values + g * rows.stride;
    // The next batch, or what follows the page: likely the next one.
    prefetch(reinterpret_cast<const char*>(values + kBatchGroups * rows.stride), kWidth * 2);
    find_range<kWidth>(values, g, ranges);
  }
  find_fixed_factors(ranges);
  Candidates<kBits> candidates;
  for (size_t g = 0; g < kBatchGroups; g += kFloatLanes)
    make_candidates<kBits>(ranges, g, candidates);
  Choices choices = {};
  if constexpr (kShrinks<kBits> > 1) {
    search<kBits, kWidth>(rows, ranges, candidates, choices);
  } else {
    std::memcpy(choices.min, candidates.min[0], sizeof(choices.min));
    std::memcpy(choices.scale, candidates.scale[0], sizeof(choices.scale));
    std::memcpy(choices.inverse, candidates.inverse[0], sizeof(choices.inverse));
  }

  for (size_t g = 0; g < rows.count; ++g) {
    std::byte* codes = encoded.codes + g * kWidth * kBits / 8;
    if (!ranges.finite[g]) {
      choices.scale[g] = 0, choices.min[g] = std::numeric_limits<float>::quiet_NaN();
      std::memset(codes, 0, kWidth * kBits / 8);
    } else {
      write_codes<kBits, kWidth>(rows.values + g * rows.stride,
                                 {choices.min[g], choices.inverse[g]}, codes);
    }
    write_half(choices.scale[g], encoded.scales + g * sizeof(uint16_t));
    write_half(choices.min[g], encoded.mins + g * sizeof(uint16_t));
  }
}

// Calls use(column, codes) for each vector of the codes of a group.
template <size_t kBits, size_t kWidth, class Use>
HWY_INLINE void for_codes(const std::byte* from, const Use& use) {
  if constexpr (kWidth == kGroupColumns) {
    const CodeReader<kBits> codes(*reinterpret_cast<const Codes<kBits>*>(from));
    HIFC_UNROLL
    for (size_t i = 0; i < kGroupVectors; ++i) use(i * kFloatLanes, codes.vector(i));
  } else {
    const hn::Rebind<uint8_t, FloatTag> bytes;
    const hn::RebindToSigned<FloatTag> words;
    alignas(64) uint8_t codes[kWidth];
    unpack_narrow<kBits, kWidth>(from, codes);
    HIFC_UNROLL
    for (size_t i = 0; i < kWidth; i += kFloatLanes)
      use(i, hn::ConvertTo(FloatTag(), hn::PromoteTo(words, hn::LoadU(bytes, codes + i))));
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
