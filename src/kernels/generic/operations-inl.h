// The parts of encoding that instruction sets beyond Highway's targets make faster, for any CPU and
// with AVX-512's extensions. All give the same bits.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_OPERATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_OPERATIONS_INL_H_
#undef HIFC_KERNELS_GENERIC_OPERATIONS_INL_H_
#else
#define HIFC_KERNELS_GENERIC_OPERATIONS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/generic/errors-inl.h"
#include "kernels/generic/fixed-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// For any CPU.
struct AnyOperations {
  using Otherwise = AnyOperations;        // for groups that are narrow or do not fit F16
  static constexpr bool kHalves = false;  // whether F16 arithmetic is used

  // Sums of what ErrorTables say, 16 bits for each candidate, and their totals by group.
  using Sums = uint64_t;
  template <size_t kBits>
  HWY_INLINE static Sums sum_differences(const Quads& levels) {
    alignas(64) uint8_t bytes[kGroupColumns];
    std::memcpy(bytes, levels.words, sizeof(bytes));
    uint64_t sums = 0;
    for (const uint8_t byte : bytes) sums += kErrorTables<kBits>.together[byte % kLevels];
    return sums;
  }
  HWY_INLINE static void add_up(const Sums (&sums)[kBatchGroups], size_t count, uint64_t* totals) {
    std::memcpy(totals, sums, count * sizeof(Sums));
  }

  template <size_t kWidth>
  HWY_INLINE static FixedQuads fixed_words(const uint16_t* values, const FixedPoint& fixed,
                                           size_t g) {
    return fixed_quads<kWidth>(values, fixed.factor[g], fixed.offset[g]);
  }
  // The bytes of `fixed_words` in the order of Quads.
  HWY_INLINE static Quads in_order(const Quads& bytes) { return bytes; }

  // The planes of full groups.
  template <size_t kBits>
  HWY_INLINE static void pack_batch(const Quads (&codes)[kBatchGroups], size_t count,
                                    std::byte* out) {
    for (size_t g = 0; g < count; ++g) pack_codes<kBits>(codes[g], out + g * sizeof(Codes<kBits>));
  }

  // Codes in the order of columns, [kWidth].
  template <size_t kWidth>
  HWY_INLINE static void store_columns(const Quads& codes, uint8_t* out) {
    HIFC_UNROLL
    for (size_t i = 0; i < kQuadVectors; ++i) {
      const WordVector words = codes.words[i];
      uint8_t* to = out + i * kFloatLanes;
      store_bytes(words, to);
      if constexpr (kWidth > 1 * kQuads) store_bytes(hn::ShiftRight<8>(words), to + 1 * kQuads);
      if constexpr (kWidth > 2 * kQuads) store_bytes(hn::ShiftRight<16>(words), to + 2 * kQuads);
      if constexpr (kWidth > 3 * kQuads) store_bytes(hn::ShiftRight<24>(words), to + 3 * kQuads);
    }
  }

 private:
  HWY_INLINE static void store_bytes(WordVector words, uint8_t* out) {
    const hn::Rebind<uint8_t, FloatTag> d;
    hn::StoreU(hn::TruncateTo(d, words), d, out);
  }
};

// Inline assembly, since Highway's targets that have these instructions require much else.
#if HWY_TARGET == HWY_AVX3

using ByteTag = hn::ScalableTag<uint8_t>;
using ByteVector = hn::Vec<ByteTag>;
using LongTag = hn::ScalableTag<uint64_t>;
using LongVector = hn::Vec<LongTag>;

// Where bytes come from: among Quads, those of columns in ascending order, and of all even columns
// before all odd ones; among words of pairs of columns (Fp16Operations), those of Quads.
struct ByteOrder {
  constexpr ByteOrder() {
    for (size_t i = 0; i < kGroupColumns; ++i) {
      const size_t quad = 4 * (i % kQuads) + i / kQuads;
      const size_t pair = 2 * (i % 32) + i / 32;
      columns[i] = static_cast<uint8_t>(quad);
      plane[i % 2 * 32 + i / 2] = static_cast<uint8_t>(quad);
      quads[quad] = static_cast<uint8_t>(pair);
    }
  }
  alignas(64) uint8_t columns[kGroupColumns] = {};
  alignas(64) uint8_t plane[kGroupColumns] = {};
  alignas(64) uint8_t quads[kGroupColumns] = {};
};
inline constexpr ByteOrder kByteOrder;

// With AVX-512 VBMI: permutations of bytes.
struct VbmiOperations : AnyOperations {
  using Otherwise = VbmiOperations;
  using Sums = LongVector;
  template <size_t kBits>
  HWY_INLINE static Sums sum_differences(const Quads& levels) {
    Sums sums[kCandidates];
    HIFC_UNROLL
    for (size_t i = 0; i < kCandidates; ++i) {
      const ByteVector table = hn::Load(ByteTag(), kErrorTables<kBits>.by_candidate[i]);
      sums[i] = hn::SumsOf8(permute(table, hn::BitCast(ByteTag(), levels.words[0])));
    }
    const auto low = hn::Or(sums[0], hn::ShiftLeft<16>(sums[1]));
    const auto high = hn::Or(sums[2], hn::ShiftLeft<16>(sums[3]));
    return hn::Or(low, hn::ShiftLeft<32>(high));
  }
  // What lies beyond `count` has any totals.
  HWY_INLINE static void add_up(const Sums (&sums)[kBatchGroups], size_t count, uint64_t* totals) {
    for (size_t g = 0; g < count; g += 8) {
      const Sums* s = sums + g;
      const auto add = [](Sums a, Sums b) HWY_ATTR { return hn::Add(a, b); };
      const Sums first = merge_blocks(add_pairs(s[0], s[1]), add_pairs(s[2], s[3]), add);
      const Sums last = merge_blocks(add_pairs(s[4], s[5]), add_pairs(s[6], s[7]), add);
      hn::Store(merge_blocks(first, last, add), LongTag(), totals + g);
    }
  }
  template <size_t kBits>
  HWY_INLINE static void pack_batch(const Quads (&codes)[kBatchGroups], size_t count,
                                    std::byte* out) {
    if (count % 4 != 0) return AnyOperations::pack_batch<kBits>(codes, count, out);
    if constexpr (kBits == 4) {
      for (size_t g = 0; g < count; g += 2)
        store_longs(join_halves(shifted<4>(codes[g]), shifted<4>(codes[g + 1])), out + g * 32);
    } else if constexpr (kBits == 2) {
      for (size_t g = 0; g < count; g += 4) store_longs(pack_pairs(codes + g), out + g * 16);
    } else {
      for (size_t g = 0; g < count; g += 4) pack_threes(codes + g, out + g * 24);
    }
  }
  template <size_t kWidth>
  HWY_INLINE static void store_columns(const Quads& codes, uint8_t* out) {
    if constexpr (kWidth < kGroupColumns) return AnyOperations::store_columns<kWidth>(codes, out);
    const ByteVector order = hn::Load(ByteTag(), kByteOrder.columns);
    hn::StoreU(permute(hn::BitCast(ByteTag(), codes.words[0]), order), ByteTag(), out);
  }

 protected:
  // Bytes of a table by the lowest 6 bits of indexes.
  HWY_INLINE static ByteVector permute(ByteVector table, ByteVector indexes) {
    ByteVector out;
    asm("vpermb %1, %2, %0" : "=v"(out.raw) : "v"(table.raw), "v"(indexes.raw));
    return out;
  }

 private:
  // Sums of pairs of lanes of `a` and of `b`, by turns.
  HWY_INLINE static Sums add_pairs(Sums a, Sums b) {
    return hn::Add(hn::InterleaveLower(LongTag(), a, b), hn::InterleaveUpper(LongTag(), a, b));
  }
  // Reduces neighbouring blocks of two lanes: those of `a` to the lower half, those of `b` to the
  // upper one.
  template <class Reduce>
  HWY_INLINE static LongVector merge_blocks(LongVector a, LongVector b, const Reduce& reduce) {
    return reduce(LongVector{_mm512_shuffle_i64x2(a.raw, b.raw, 0x88)},
                  LongVector{_mm512_shuffle_i64x2(a.raw, b.raw, 0xdd)});
  }
  // The same with halves.
  HWY_INLINE static LongVector join_halves(LongVector a, LongVector b) {
    return hn::Or(LongVector{_mm512_shuffle_i64x2(a.raw, b.raw, 0x44)},
                  LongVector{_mm512_shuffle_i64x2(a.raw, b.raw, 0xee)});
  }
  template <size_t kBits>
  HWY_INLINE static LongVector shifted(const Quads& codes) {
    return hn::BitCast(LongTag(), codes.words[0] << shifts_from<kBits>(0));
  }
  HWY_INLINE static void store_longs(LongVector longs, std::byte* out) {
    hn::StoreU(longs, LongTag(), reinterpret_cast<uint64_t*>(out));
  }
  // The planes of 2 bits of four groups.
  HWY_INLINE static LongVector pack_pairs(const Quads* codes) {
    const auto join = [](LongVector a, LongVector b) HWY_ATTR { return hn::Or(a, b); };
    return merge_blocks(merge_blocks(shifted<2>(codes[0]), shifted<2>(codes[1]), join),
                        merge_blocks(shifted<2>(codes[2]), shifted<2>(codes[3]), join), join);
  }
  // Four groups of 3 bits.
  HWY_INLINE static void pack_threes(const Quads* codes, std::byte* out) {
    const WordTag d;
    Quads low[4];
    alignas(64) std::byte planes[4][sizeof(Codes<2>)];
    HIFC_UNROLL
    for (size_t i = 0; i < 4; ++i)
      low[i].words[0] = hn::And(codes[i].words[0], hn::Set(d, 0x03030303u));
    store_longs(pack_pairs(low), planes[0]);
    HIFC_UNROLL
    for (size_t i = 0; i < 4; ++i) {
      std::byte* to = out + i * sizeof(Codes<3>);
      std::memcpy(to, planes[i], sizeof(Codes<2>));
      const ByteVector order = hn::Load(ByteTag(), kByteOrder.plane);
      const ByteVector bytes = permute(hn::BitCast(ByteTag(), codes[i].words[0]), order);
      const auto high = hn::TestBit(bytes, hn::Set(ByteTag(), 4));
      hn::StoreMaskBits(ByteTag(), high, reinterpret_cast<uint8_t*>(to + sizeof(Codes<2>)));
    }
  }
};

// With AVX-512 FP16 too: 32 values at a time.
struct Fp16Operations : VbmiOperations {
  static constexpr bool kHalves = true;

  // `even` has columns 0 to 31, `odd` the others.
  template <size_t kWidth>
  HWY_INLINE static FixedQuads fixed_words(const uint16_t* values, const FixedPoint& fixed,
                                           size_t g) {
    static_assert(kWidth == kGroupColumns);
    const auto factor = hn::Set(WordTag(), fixed.half_factor[g]);
    const auto offset = hn::Set(WordTag(), fixed.half_offset[g]);
    FixedQuads words;
    words.even[0] = multiply_add(values, factor, offset);
    words.odd[0] = multiply_add(values + 32, factor, offset);
    return words;
  }
  HWY_INLINE static Quads in_order(const Quads& quads) {
    const ByteVector order = hn::Load(ByteTag(), kByteOrder.quads);
    const ByteVector bytes = permute(hn::BitCast(ByteTag(), quads.words[0]), order);
    return {{hn::BitCast(WordTag(), bytes)}};
  }

 private:
  HWY_INLINE static WordVector multiply_add(const uint16_t* values, WordVector factor,
                                            WordVector offset) {
    asm("vfmadd132ph %1, %2, %0"
        : "+v"(factor.raw)
        : "m"(*reinterpret_cast<const __m512i_u*>(values)), "v"(offset.raw));
    return factor;
  }
};
#endif  // HWY_TARGET == HWY_AVX3

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_OPERATIONS_INL_H_
