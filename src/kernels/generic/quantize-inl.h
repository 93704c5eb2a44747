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

#include "hwy/highway.h"
#include "kernels/generic/planes-inl.h"
#include "kernels/generic/range-inl.h"
#include "kernels/generic/search-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Scale and min of a group as its encoder uses them.
struct Quantizer {
  float min = 0, inverse = 0;
};

template <size_t kBits, size_t kWidth>
HWY_INLINE void write_codes(const uint16_t* values, const Quantizer& quantizer, std::byte* out) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> words;
  const hn::Rebind<uint8_t, FloatTag> bytes;
  const FloatVector min = hn::Set(d, quantizer.min), inverse = hn::Set(d, quantizer.inverse);
  alignas(64) uint8_t codes[kWidth];
  HIFC_UNROLL
  for (size_t i = 0; i < kWidth; i += kFloatLanes) {
    const FloatVector exact = hn::Mul(hn::Sub(load_floats(values + i), min), inverse);
    const auto code = hn::BitCast(words, round_to_code(exact, kCodeMax<kBits>));
    hn::StoreU(hn::TruncateTo(bytes, code), bytes, codes + i);
  }
  pack_codes<kBits, kWidth>(codes, out);
}

// Where a batch of groups goes.
struct EncodedRows {
  std::byte* parameters = nullptr;  // {scale, min}
  size_t parameters_stride = 0;     // bytes from one row to the next
  std::byte* codes = nullptr;
  size_t codes_stride = 0;
};

inline constexpr size_t kParameterBytes = 4;

HWY_INLINE void write_parameters(float scale, float min, std::byte* out) {
  const uint16_t halves[] = {half_of_float(scale), half_of_float(min)};
  std::memcpy(out, halves, kParameterBytes);
}

// Scale 0, min NaN, codes 0.
template <size_t kBits, size_t kWidth>
HWY_INLINE void write_not_finite(std::byte* parameters, std::byte* codes) {
  constexpr uint16_t kHalves[] = {0, 0x7e00};
  std::memcpy(parameters, kHalves, kParameterBytes);
  std::memset(codes, 0, kWidth * kBits / 8);
}

template <size_t kBits, size_t kWidth>
HWY_NOINLINE void encode_batch(const GroupRows& rows, const EncodedRows& encoded) {
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
    std::byte* parameters = encoded.parameters + g * encoded.parameters_stride;
    std::byte* codes = encoded.codes + g * encoded.codes_stride;
    if (!ranges.finite[g]) {
      write_not_finite<kBits, kWidth>(parameters, codes);
      continue;
    }
    write_parameters(choices.scale[g], choices.min[g], parameters);
    write_codes<kBits, kWidth>(rows.values + g * rows.stride, {choices.min[g], choices.inverse[g]},
                               codes);
  }
}

// One group: floats [kWidth]. Scale and code have 11 and at most 8 significant bits, so that their
// product is exact and a multiplication and an addition give the bits of a fused one.
template <size_t kBits, size_t kWidth>
HWY_INLINE void decode_group(const std::byte* parameters, const std::byte* codes, float* out) {
  const FloatTag d;
  const hn::Rebind<uint8_t, FloatTag> bytes;
  const hn::RebindToSigned<FloatTag> words;
  uint16_t halves[2];
  std::memcpy(halves, parameters, kParameterBytes);
  const FloatVector scale = hn::Set(d, float_of_half(halves[0]));
  const FloatVector min = hn::Set(d, float_of_half(halves[1]));
  alignas(64) uint8_t unpacked[kWidth];
  unpack_codes<kBits, kWidth>(codes, unpacked);
  HIFC_UNROLL
  for (size_t i = 0; i < kWidth; i += kFloatLanes) {
    const auto code = hn::PromoteTo(words, hn::LoadU(bytes, unpacked + i));
    hn::StoreU(hn::MulAdd(scale, hn::ConvertTo(d, code), min), d, out + i);
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
