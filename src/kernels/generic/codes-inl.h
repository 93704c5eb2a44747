// The codes of full groups, packed from vectors and unpacked to vectors of floats (the layout is in
// kernels/codec.h). Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_CODES_INL_H_
#undef HIFC_KERNELS_GENERIC_CODES_INL_H_
#else
#define HIFC_KERNELS_GENERIC_CODES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/codec.h"
#include "kernels/generic/product-inl.h"
#include "kernels/generic/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using WordVector = hn::Vec<WordTag>;

inline constexpr size_t kGroupVectors = kGroupColumns / kFloatLanes;

// The codes of one full group.
template <size_t kBits>
struct Codes {
  std::byte bytes[kGroupColumns * kBits / 8];
};

// Words of a plane of one full group.
template <size_t kBits>
inline constexpr size_t kPlaneWords = kGroupColumns * kBits / 32;

// By how much the code of each column is shifted within its word.
template <size_t kBits>
struct ColumnShifts {
  constexpr ColumnShifts() {
    for (size_t column = 0; column < kGroupColumns; ++column)
      by_column[column] = static_cast<uint32_t>(kBits * (column / kPlaneWords<kBits>));
  }
  alignas(64) uint32_t by_column[kGroupColumns] = {};
};
template <size_t kBits>
inline constexpr ColumnShifts<kBits> kColumnShifts;

template <size_t kBits>
HWY_INLINE WordVector shifts_from(size_t column) {
  return hn::Load(WordTag(), kColumnShifts<kBits>.by_column + column);
}

// The codes of a group as an encoder has them, a byte each: byte k of word i is that of column
// i + 16 * k.
inline constexpr size_t kQuads = kGroupColumns / 4;
inline constexpr size_t kQuadVectors = kQuads / kFloatLanes;
struct Quads {
  WordVector words[kQuadVectors];
};

// A plane's words are made of quads that lie kPlaneWords apart, each shifted to its place. The
// vectors' ports are the bottleneck of encoding: the rest is left to general registers.
template <size_t kBits>
HWY_INLINE void pack_words(const Quads& codes, std::byte* plane) {
  constexpr size_t kWords = kPlaneWords<kBits>;
  alignas(64) uint32_t shifted[kQuads];
  HIFC_UNROLL
  for (size_t i = 0; i < kQuadVectors; ++i)
    hn::Store(codes.words[i] << shifts_from<kBits>(i * kFloatLanes), WordTag(),
              shifted + i * kFloatLanes);
  for (size_t word = 0; word < kWords; word += 2) {
    uint64_t packed = 0;
    for (size_t i = word; i < kQuads; i += kWords) {
      uint64_t both = 0;
      std::memcpy(&both, shifted + i, sizeof(both));
      packed |= both;
    }
    std::memcpy(plane + word * sizeof(uint32_t), &packed, sizeof(packed));
  }
}

template <size_t kBits>
HWY_INLINE void pack_codes(const Quads& codes, std::byte* out) {
  if constexpr (kBits == 3) {
    Quads low, high;
    for (size_t i = 0; i < kQuadVectors; ++i) {
      low.words[i] = hn::And(codes.words[i], hn::Set(WordTag(), 0x03030303u));
      high.words[i] = hn::And(hn::ShiftRight<2>(codes.words[i]), hn::Set(WordTag(), 0x01010101u));
    }
    pack_words<2>(low, out);
    pack_words<1>(high, out + sizeof(Codes<2>));
  } else {
    pack_words<kBits>(codes, out);
  }
}

// The words that hold the codes of a vector's columns, the first of which is `column`. (Highway's
// scalar target has no halves.)
template <size_t kBits>
HWY_INLINE WordVector load_words(const std::byte* plane, [[maybe_unused]] size_t column) {
  constexpr size_t kWords = kPlaneWords<kBits>;
  const WordTag d;
  const auto* words = reinterpret_cast<const uint32_t*>(plane);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kWords == 2) {
    uint64_t both = 0;
    std::memcpy(&both, plane, sizeof(both));
    return hn::BitCast(d, hn::Set(hn::Repartition<uint64_t, WordTag>(), both));
  } else if constexpr (kWords == 4 && kFloatLanes > 4) {
    return hn::LoadDup128(d, words);
  } else if constexpr (kWords == 8 && kFloatLanes > 8) {
    const auto half = hn::LoadU(hn::Half<WordTag>(), words);
    return hn::Combine(d, half, half);
  }
#endif
  return hn::LoadU(d, words + column % kWords);
}

template <size_t kBits>
HWY_INLINE WordVector unpack_words(const std::byte* plane, size_t column) {
  const WordVector shifted = load_words<kBits>(plane, column) >> shifts_from<kBits>(column);
  return hn::And(shifted, hn::Set(WordTag(), (1u << kBits) - 1));
}

HWY_INLINE FloatVector to_floats(WordVector codes) {
  return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), codes));
}

// Gives the codes of a full group as floats, vector by vector.
template <size_t kBits>
class CodeReader {
 public:
  HWY_INLINE explicit CodeReader(const Codes<kBits>& codes) : plane_(codes.bytes) {}
  HWY_INLINE FloatVector vector(size_t i) const {
    return to_floats(unpack_words<kBits>(plane_, i * kFloatLanes));
  }

 private:
  const std::byte* plane_;
};

template <>
class CodeReader<8> {
 public:
  HWY_INLINE explicit CodeReader(const Codes<8>& codes)
      : bytes_(reinterpret_cast<const uint8_t*>(codes.bytes)) {}
  HWY_INLINE FloatVector vector(size_t i) const {
    const hn::Rebind<uint8_t, FloatTag> d;
    const auto code = hn::LoadU(d, bytes_ + i * kFloatLanes);
    return hn::ConvertTo(FloatTag(), hn::PromoteTo(hn::RebindToSigned<FloatTag>(), code));
  }

 private:
  const uint8_t* bytes_;
};

#if HWY_TARGET != HWY_AVX3
template <>
class CodeReader<3> {
 public:
  HWY_INLINE explicit CodeReader(const Codes<3>& codes) : planes_(codes.bytes) {}
  HWY_INLINE FloatVector vector(size_t i) const {
    const WordVector low = unpack_words<2>(planes_, i * kFloatLanes);
    const WordVector high = unpack_words<1>(planes_ + sizeof(Codes<2>), i * kFloatLanes);
    return to_floats(hn::Or(low, hn::ShiftLeft<2>(high)));
  }

 private:
  const std::byte* planes_;
};
#else
// A code's float is looked up by its lowest 4 bits, so that the codes above it need no masking.
struct CodeTable {
  HWY_INLINE FloatVector look_up(WordVector indexes) const {
    return hn::TableLookupLanes(hn::Load(FloatTag(), floats), hn::Indices512<float>{indexes.raw});
  }
  alignas(64) float floats[16];
};
inline constexpr CodeTable kCodes2{{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}};
inline constexpr CodeTable kCodes4{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
// Bits 0 and 1 are the low ones, bit 3 is the high one, bit 2 anything.
inline constexpr CodeTable kCodes3{{0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7}};

template <>
class CodeReader<2> {
 public:
  HWY_INLINE explicit CodeReader(const Codes<2>& codes) : words_(load_words<2>(codes.bytes, 0)) {}
  HWY_INLINE FloatVector vector(size_t i) const {
    return kCodes2.look_up(words_ >> shifts_from<2>(i * kFloatLanes));
  }

 private:
  WordVector words_;
};

template <>
class CodeReader<4> {
 public:
  HWY_INLINE explicit CodeReader(const Codes<4>& codes) : words_(load_words<4>(codes.bytes, 0)) {}
  HWY_INLINE FloatVector vector(size_t i) const {
    return kCodes4.look_up(words_ >> shifts_from<4>(i * kFloatLanes));
  }

 private:
  WordVector words_;
};

// How the lanes of 3-bit codes become indexes. Lane l of vector k has its low bits at bit 8k + 2g,
// g = l / 4, of the low plane's word and its high bit at bit 8k + l / 2 of the high plane's. Both
// are moved into the 4 bits from bit 8k + 4 * (g / 2) on, for all k at once.
struct NibbleShifts {
  constexpr NibbleShifts() {
    for (uint32_t lane = 0; lane < 16; ++lane) {
      const uint32_t nibble = 4 * (lane / 8);
      low_right[lane] = 2 * (lane / 4) - nibble;
      high_left[lane] = nibble + 3 - lane / 2;
      for (uint32_t k = 0; k < kGroupVectors; ++k) index_right[k][lane] = 8 * k + nibble;
    }
  }
  alignas(64) uint32_t low_right[16] = {};
  alignas(64) uint32_t high_left[16] = {};
  alignas(64) uint32_t index_right[kGroupVectors][16] = {};
};
inline constexpr NibbleShifts kNibbleShifts;

template <>
class CodeReader<3> {
 public:
  HWY_INLINE explicit CodeReader(const Codes<3>& codes) {
    const WordTag d;
    const WordVector low = load_words<2>(codes.bytes, 0) >> hn::Load(d, kNibbleShifts.low_right);
    const WordVector high = load_words<1>(codes.bytes + sizeof(Codes<2>), 0)
                            << hn::Load(d, kNibbleShifts.high_left);
    nibbles_ = hn::IfVecThenElse(hn::Set(d, 0x33333333u), low, high);
  }
  HWY_INLINE WordVector nibbles() const { return nibbles_; }
  HWY_INLINE FloatVector vector(size_t i) const {
    return kCodes3.look_up(nibbles_ >> hn::Load(WordTag(), kNibbleShifts.index_right[i]));
  }

 private:
  WordVector nibbles_;
};
#endif  // HWY_TARGET != HWY_AVX3

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_CODES_INL_H_
