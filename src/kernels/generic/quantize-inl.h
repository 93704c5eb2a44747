// Values to codes, for batches of groups: their ranges are found and chosen from side by side, then
// each group is encoded. Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#undef HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#else
#define HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/generic/errors-inl.h"
#include "kernels/generic/fixed-inl.h"
#include "kernels/generic/operations-inl.h"
#include "kernels/generic/planes-inl.h"
#include "kernels/generic/search-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// Where a batch of groups goes: the same group of consecutive rows.
struct EncodedGroups {
  std::byte* scales = nullptr;  // F16, as are mins
  std::byte* mins = nullptr;
  std::byte* codes = nullptr;
};

// For 8 bits, the groups from `g` on, as many as a vector has lanes.
HWY_INLINE void make_wide_fixed_point(FloatVector low, FloatVector scale, size_t g,
                                      FixedPoint& fixed) {
  const FloatTag d;
  const FloatVector exact = hn::Mul(inverse_or_zero(scale), hn::Set(d, 256.0f));
  const FloatVector factor = round_significant<13>(exact);
  // 256 times a code is cut off to it: half a step more rounds.
  const FloatVector offset = hn::Sub(hn::Set(d, kInteger + 128), hn::Mul(low, factor));
  hn::Store(factor, d, fixed.factor + g);
  hn::Store(offset, d, fixed.offset + g);
}

// As F16, each twice in a word.
HWY_INLINE void store_half_pairs(FloatVector x, uint32_t* out) {
  const hn::Rebind<uint16_t, FloatTag> halves;
  alignas(64) uint16_t bits[kFloatLanes];
  store_halves(x, bits);
  const WordVector words = hn::PromoteTo(WordTag(), hn::Load(halves, bits));
  hn::Store(hn::Or(words, hn::ShiftLeft<16>(words)), WordTag(), out);
}

// For fewer bits. F16 has the multiples of 4 up to 8192: that far, offsets are the same in F16.
HWY_INLINE void make_fixed_point(const Ranges& ranges, size_t g, FixedPoint& fixed) {
  const FloatTag d;
  const FloatVector low = hn::Load(d, ranges.low + g), span = hn::Load(d, ranges.span + g);
  const FloatVector factor =
      round_significant<11>(hn::Mul(inverse_or_zero(span), hn::Set(d, kFixedSpan)));
  const FloatVector exact = hn::Sub(hn::Set(d, 1024 + kFixedLow), hn::Mul(low, factor));
  const FloatVector multiples = hn::Set(d, 4 * kInteger);
  const FloatVector offset = hn::Sub(hn::Add(exact, multiples), multiples);
  hn::Store(factor, d, fixed.factor + g);
  hn::Store(hn::Add(offset, hn::Set(d, kInteger + kTenBits - 1024)), d, fixed.offset + g);
  store_half_pairs(factor, fixed.half_factor + g);
  store_half_pairs(offset, fixed.half_offset + g);
  const auto fits =
      hn::And(hn::Le(factor, hn::Set(d, 65504.0f)), hn::Le(hn::Abs(offset), hn::Set(d, 8192.0f)));
  fixed.fits_halves = fixed.fits_halves && hn::AllTrue(d, fits);
}

// (fixed - start) * multiplier / 2^16 is 32 times a code, which is cut off to it: `start` lies half
// a step below min.
struct Quantizers {
  alignas(64) uint32_t start[kBatchGroups];  // two equal 16-bit numbers each
  alignas(64) uint32_t multiplier[kBatchGroups];
};
inline constexpr int kCodeShift = 5;

// Rounded to 16 bits, twice in a word.
HWY_INLINE void store_limited(FloatVector x, uint32_t* out) {
  const FloatTag d;
  const FloatVector limited = hn::Min(hn::Max(x, hn::Zero(d)), hn::Set(d, 65535.0f));
  const WordVector word = hn::BitCast(WordTag(), hn::Add(limited, hn::Set(d, kInteger)));
  const WordVector low = hn::And(word, hn::Set(WordTag(), 0xffffu));
  hn::Store(hn::Or(low, hn::ShiftLeft<16>(word)), WordTag(), out);
}

HWY_INLINE void make_quantizers(const Choices& choices, const FixedPoint& fixed, size_t g,
                                Quantizers& quantizers) {
  const FloatTag d;
  const FloatVector factor = hn::Load(d, fixed.factor + g);
  const FloatVector offset = hn::Sub(hn::Load(d, fixed.offset + g), hn::Set(d, kInteger));
  const FloatVector min = hn::Add(hn::Mul(hn::Load(d, choices.min + g), factor), offset);
  const FloatVector step = hn::Mul(hn::Load(d, choices.scale + g), factor);
  store_limited(hn::Sub(min, hn::Mul(step, hn::Set(d, 0.5f))), quantizers.start + g);
  constexpr float kUnit = 65536 << kCodeShift;
  store_limited(hn::Mul(inverse_or_zero(step), hn::Set(d, kUnit)), quantizers.multiplier + g);
}

// Two integers in each word.
HWY_INLINE WordVector multiply_pairs(WordVector pairs, uint32_t start, uint32_t multiplier) {
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<uint16_t, WordTag> d;
  const auto starts = hn::BitCast(d, hn::Set(WordTag(), start));
  const auto multipliers = hn::BitCast(d, hn::Set(WordTag(), multiplier));
  const auto offsets = hn::SaturatedSub(hn::BitCast(d, pairs), starts);
  return hn::BitCast(WordTag(), hn::MulHigh(offsets, multipliers));
#else
  const auto multiply = [&](uint32_t x) {
    return x < start >> 16 ? 0 : (x - (start >> 16)) * (multiplier >> 16) >> 16;
  };
  const uint32_t both = hn::GetLane(pairs);
  return hn::Set(WordTag(), multiply(both & 0xffff) | multiply(both >> 16) << 16);
#endif
}

HWY_INLINE WordVector clamp_bytes(WordVector bytes, uint8_t most) {
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<uint8_t, WordTag> d;
  return hn::BitCast(WordTag(), hn::Min(hn::BitCast(d, bytes), hn::Set(d, most)));
#else
  uint32_t words = hn::GetLane(bytes), clamped = 0;
  for (int shift = 0; shift < 32; shift += 8)
    clamped |= std::min<uint32_t>(words >> shift & 0xff, most) << shift;
  return hn::Set(WordTag(), clamped);
#endif
}

template <size_t kBits>
HWY_INLINE Quads codes_of(FixedQuads fixed, uint32_t start, uint32_t multiplier) {
  HIFC_UNROLL
  for (size_t i = 0; i < kQuadVectors; ++i) {
    fixed.even[i] = multiply_pairs(fixed.even[i], start, multiplier);
    fixed.odd[i] = multiply_pairs(fixed.odd[i], start, multiplier);
  }
  Quads codes = bytes_of<kCodeShift>(fixed);
  for (WordVector& words : codes.words) words = clamp_bytes(words, (1 << kBits) - 1);
  return codes;
}

template <size_t kBits, size_t kWidth, class Operations>
HWY_INLINE void write_codes(const Quads (&codes)[kBatchGroups], size_t count, std::byte* out) {
  if constexpr (kWidth == kGroupColumns) {
    Operations::template pack_batch<kBits>(codes, count, out);
  } else {
    for (size_t g = 0; g < count; ++g) {
      alignas(64) uint8_t columns[kWidth];
      Operations::template store_columns<kWidth>(codes[g], columns);
      pack_narrow<kBits, kWidth>(columns, out + g * kWidth * kBits / 8);
    }
  }
}

// Scales, mins, and what stands for groups that are not finite.
template <size_t kBits, size_t kWidth>
HWY_INLINE void write_parameters(const Ranges& ranges, const Choices& choices, size_t count,
                                 const EncodedGroups& encoded) {
  const FloatTag d;
  alignas(64) uint16_t scales[kBatchGroups], mins[kBatchGroups];
  for (size_t g = 0; g < count; g += kFloatLanes) {
    store_halves(hn::Load(d, choices.scale + g), scales + g);
    const FloatVector damage = hn::Load(d, ranges.damage + g);
    store_halves(hn::Add(damage, hn::Load(d, choices.min + g)), mins + g);
  }
  std::memcpy(encoded.scales, scales, count * sizeof(uint16_t));
  std::memcpy(encoded.mins, mins, count * sizeof(uint16_t));
  if (ranges.all_finite) return;
  constexpr size_t kBytes = kWidth * kBits / 8;
  for (size_t g = 0; g < count; ++g)
    if (ranges.damage[g] != 0) std::memset(encoded.codes + g * kBytes, 0, kBytes);
}

// The next batch, or what follows the page: likely the next one.
template <size_t kWidth>
HWY_INLINE void prefetch_next(const GroupRows& rows, size_t g) {
  prefetch(reinterpret_cast<const char*>(rows.group(kBatchGroups + g)), kWidth * sizeof(uint16_t));
}

// Codes of 8 bits have the full range and are the upper bytes of fixed-point values.
template <size_t kWidth, class Operations>
HWY_INLINE void encode_bytes(const GroupRows& rows, const Ranges& ranges, Choices& choices,
                             std::byte* codes) {
  const FloatTag d;
  FixedPoint fixed;
  for (size_t g = 0; g < rows.count; g += kFloatLanes) {
    choose<8>(ranges, nullptr, g, choices);
    make_wide_fixed_point(hn::Load(d, ranges.low + g), hn::Load(d, choices.scale + g), g, fixed);
  }
  for (size_t g = 0, count = rows.count; g < count; ++g) {
    prefetch_next<kWidth>(rows, g);
    const FixedQuads quads = fixed_quads<kWidth>(rows.group(g), fixed.factor[g], fixed.offset[g]);
    auto* bytes = reinterpret_cast<uint8_t*>(codes + g * kWidth);
    Operations::template store_columns<kWidth>(bytes_of<8>(quads), bytes);
  }
}

// Fewer bits: errors are summed, a range is chosen, and codes are made of the same integers.
template <size_t kBits, size_t kWidth, class Operations>
HWY_INLINE void encode_bits(const GroupRows& rows, const Ranges& ranges, const FixedPoint& fixed,
                            Choices& choices, std::byte* codes) {
  FixedQuads quads[kBatchGroups];
  typename Operations::Sums sums[kBatchGroups];
  const size_t count = rows.count;
  for (size_t g = 0; g < count; ++g) {
    prefetch_next<kWidth>(rows, g);
    quads[g] = Operations::template fixed_words<kWidth>(rows.group(g), fixed, g);
    sums[g] = Operations::template sum_differences<kBits>(bytes_of<kLevelShift>(quads[g]));
  }
  alignas(64) uint64_t totals[kBatchGroups] = {};
  Operations::add_up(sums, count, totals);
  Quantizers quantizers;
  for (size_t g = 0; g < rows.count; g += kFloatLanes) {
    choose<kBits>(ranges, totals, g, choices);
    make_quantizers(choices, fixed, g, quantizers);
  }
  Quads bytes[kBatchGroups];
  for (size_t g = 0; g < count; ++g)
    bytes[g] = Operations::in_order(
        codes_of<kBits>(quads[g], quantizers.start[g], quantizers.multiplier[g]));
  write_codes<kBits, kWidth, Operations>(bytes, count, codes);
}

template <size_t kBits, size_t kWidth, class Operations>
HWY_NOINLINE void encode_batch(const GroupRows& rows, const EncodedGroups& encoded) {
  Ranges ranges;
  find_ranges<kWidth>(rows, ranges);
  Choices choices;
  if constexpr (kBits == 8) {
    encode_bytes<kWidth, Operations>(rows, ranges, choices, encoded.codes);
  } else {
    FixedPoint fixed;
    for (size_t g = 0; g < rows.count; g += kFloatLanes) make_fixed_point(ranges, g, fixed);
    constexpr bool kHalves = Operations::kHalves && kWidth == kGroupColumns;
    using Otherwise = typename Operations::Otherwise;
    using Fast = std::conditional_t<kHalves, Operations, Otherwise>;
    if (kHalves && fixed.fits_halves)
      encode_bits<kBits, kWidth, Fast>(rows, ranges, fixed, choices, encoded.codes);
    else
      encode_bits<kBits, kWidth, Otherwise>(rows, ranges, fixed, choices, encoded.codes);
  }
  write_parameters<kBits, kWidth>(ranges, choices, rows.count, encoded);
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_QUANTIZE_INL_H_
