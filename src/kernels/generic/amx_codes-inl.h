// Rows times encoded pages on AMX tiles (amx-inl.h), for few rows. (For many, the tiles of prompts
// are faster: amx_attention-inl.h.)
//
// Codes less half their range, which makes the numbers to be multiplied smaller, are BF16 numbers:
// only the other operand is the sum of two, hi + lo. The hi parts of up to 8 rows and their lo
// parts are the 16 rows of one tile A, so that one multiplication of tiles does for both.
//
//   A tile   [hi of rows, lo of rows][16 pairs of depth]
//   B tile   [16 pairs of depth][16 columns]
//
// As with vectors (blocks-inl.h), scales go to the rows and mins to the sums; and a row's bits do
// not depend on its company.
//
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_AMX_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_AMX_CODES_INL_H_
#undef HIFC_KERNELS_GENERIC_AMX_CODES_INL_H_
#else
#define HIFC_KERNELS_GENERIC_AMX_CODES_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/amx-inl.h"
#include "kernels/generic/blocks-inl.h"
#include "kernels/generic/codes-inl.h"
#include "kernels/generic/operands-inl.h"

#if HIFC_AMX

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE::amx {

inline constexpr uint32_t kCodeRows = 8;  // of a row tile
inline constexpr size_t kCodeTiles = kGroupColumns / kTileColumns;
inline constexpr size_t kCodeBlockBytes = kCodeTiles * kTileBytes;  // of B, for a block of depth

// What is taken from codes of kBits.
template <size_t kBits>
inline constexpr float kCodeCenter = 1 << (kBits - 1);

// BF16 numbers by the lowest 5 bits of an index, of which some may be those of the next code.
struct Bf16Table {
  constexpr explicit Bf16Table(const float (&floats)[16], float center) {
    for (size_t i = 0; i < 32; ++i)
      bits[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(floats[i % 16] - center) >> 16);
  }
  // Of two indexes in each word.
  HWY_INLINE WordVector look_up(WordVector indexes) const {
    return WordVector{_mm512_permutexvar_epi16(indexes.raw, _mm512_load_si512(bits))};
  }
  alignas(64) uint16_t bits[32] = {};
};
template <size_t kBits>
inline constexpr auto kBf16Codes =
    Bf16Table(kBits == 2 ? kCodes2.floats : kCodes4.floats, kCodeCenter<kBits>);
template <>
inline constexpr auto kBf16Codes<3> = Bf16Table(kCodes3.floats, kCodeCenter<3>);

// Two rows of codes as words of pairs: the lower and the upper halves of both rows' words.
struct Halves {
  HWY_INLINE Halves(WordVector first, WordVector second) {
    const WordVector low_half = hn::Set(WordTag(), 0xffffu);
    lower = hn::IfVecThenElse(low_half, first, hn::ShiftLeft<16>(second));
    upper = hn::IfVecThenElse(low_half, hn::ShiftRight<16>(first), second);
  }
  WordVector lower, upper;
};

// Gives the pairs of two rows of codes, less kCodeCenter, as BF16 numbers, 16 columns at a time.
template <size_t kBits>
class PairReader {
 public:
  HWY_INLINE PairReader(const Codes<kBits>& first, const Codes<kBits>& second)
      : halves_(load_words<kBits>(first.bytes, 0), load_words<kBits>(second.bytes, 0)) {}
  HWY_INLINE WordVector vector(size_t i) const {
    const WordVector words = i < 2 ? halves_.lower : halves_.upper;
    return kBf16Codes<kBits>.look_up(words >> shifts_from<kBits>(i % 2 * kFloatLanes));
  }

 private:
  Halves halves_;
};

template <>
class PairReader<3> {
 public:
  HWY_INLINE PairReader(const Codes<3>& first, const Codes<3>& second)
      : halves_(CodeReader<3>(first).nibbles(), CodeReader<3>(second).nibbles()) {}
  HWY_INLINE WordVector vector(size_t i) const {
    const WordVector words = i < 2 ? halves_.lower : halves_.upper;
    return kBf16Codes<3>.look_up(words >> hn::Load(WordTag(), kNibbleShifts.index_right[i % 2]));
  }

 private:
  Halves halves_;
};

// Calls run(Constant<bits of a code>()) for a codec that suits tiles.
template <class Run>
HWY_INLINE void with_tile_bits(kv::Codec codec, const Run& run) {
  switch (codec) {
    case kv::Codec::kI4: return run(Constant<4>());
    case kv::Codec::kI3: return run(Constant<3>());
    case kv::Codec::kI2: return run(Constant<2>());
    default: check_failed("the codec suits tiles", __FILE__, __LINE__);
  }
}

inline float center_of(kv::Codec codec) {
  return static_cast<float>(1u << (code_bits(codec) - 1));
}

// Scales of rows of codes, and what the rows' mins are after kCodeCenter has been taken from codes.
struct CenteredParameters {
  explicit CenteredParameters(const EncodedRows& rows, float center) {
    const FloatTag d;
    decode_row(reinterpret_cast<const uint16_t*>(rows.scales), rows.count, scale);
    decode_row(reinterpret_cast<const uint16_t*>(rows.mins), rows.count, min);
    for (size_t i = 0; i < rows.count; i += kFloatLanes)
      hn::Store(hn::MulAdd(hn::Load(d, scale + i), hn::Set(d, center), hn::Load(d, min + i)), d,
                min + i);
  }
  alignas(64) float scale[kv::kHeadDimMax];
  alignas(64) float min[kv::kHeadDimMax];
};

// Packs a row for A, scaled, and returns its product with the mins. hi and lo: 16 words of each
// block of depth, kTileBytes apart.
inline float pack_scaled_row(const float* from, size_t depth, const CenteredParameters& parameters,
                             uint32_t* hi, uint32_t* lo) {
  const FloatTag d;
  FloatVector sum = hn::Zero(d);
  const auto scaled = [&](size_t i) HWY_ATTR {
    if (i >= depth) return hn::Zero(d);
    const FloatVector x = hn::LoadU(d, from + i);
    sum = hn::MulAdd(x, hn::Load(d, parameters.min + i), sum);
    return hn::Mul(x, hn::Load(d, parameters.scale + i));
  };
  for (size_t at = 0; at < depth; at += kTileDepth) {
    const FloatVector first = scaled(at), second = scaled(at + kTileRows);
    pack_pair<From::kF32>(first, second, hi, lo);
    hi += kTileBytes / sizeof(uint32_t), lo += kTileBytes / sizeof(uint32_t);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The product of a tile A and the 4 tiles of a packed block, added to tiles 0 to 3.
struct BlockProduct {
  HWY_INLINE void begin() const {
    if (a != nullptr) load_tile<4>(a, kPackedRowBytes);
  }
  template <int kColumn>
  HWY_INLINE void add_column() const {
    if (a == nullptr) return;
    load_tile<6 + kColumn % 2>(b + kColumn * kTileBytes, kPackedRowBytes);
    multiply_tiles<kColumn, 4, 6 + kColumn % 2>();
  }
  void add_all() const {
    begin();
    add_column<0>(), add_column<1>(), add_column<2>(), add_column<3>();
  }
  const std::byte* a = nullptr;  // null: there is none
  const std::byte* b = nullptr;
};

inline void zero_sums() {
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
}
inline void store_sums(float* c) {
  constexpr size_t kRowBytes = kGroupColumns * sizeof(float);
  store_tile<0>(c, kRowBytes), store_tile<1>(c + kTileColumns, kRowBytes);
  store_tile<2>(c + 2 * kTileColumns, kRowBytes), store_tile<3>(c + 3 * kTileColumns, kRowBytes);
}

// Packs 4 pairs of rows of codes for B.
template <size_t kBits>
HWY_INLINE void pack_pairs(const Codes<kBits>* first, const Codes<kBits>* second, std::byte* to) {
  auto* words = reinterpret_cast<uint32_t*>(to);
  HIFC_UNROLL
  for (size_t pair = 0; pair < kTileRows / kCodeTiles; ++pair, words += kTileColumns) {
    const PairReader<kBits> reader(first[pair], second[pair]);
    HIFC_UNROLL
    for (size_t i = 0; i < kCodeTiles; ++i)
      hn::Store(reader.vector(i), WordTag(), words + i * kTileBytes / sizeof(uint32_t));
  }
}

// Packs a block of depth while the one before is multiplied: tiles and vectors work side by side.
template <size_t kBits>
HWY_INLINE void pack_code_block(const Codes<kBits>* first, const Codes<kBits>* second,
                                const BlockProduct& before, std::byte* to) {
  constexpr size_t kPairs = kTileRows / kCodeTiles, kBytes = kPairs * kPackedRowBytes;
  before.begin();
  pack_pairs(first, second, to);
  before.add_column<0>();
  pack_pairs(first + kPairs, second + kPairs, to + kBytes);
  before.add_column<1>();
  pack_pairs(first + 2 * kPairs, second + 2 * kPairs, to + 2 * kBytes);
  before.add_column<2>();
  pack_pairs(first + 3 * kPairs, second + 3 * kPairs, to + 3 * kBytes);
  before.add_column<3>();
}

// Packs rows of codes for B, [block of depth][column tile], and leaves their product with `a` in
// the tiles. Where the last block has but one half, its second one is the first one again, for
// which A has zeros.
template <size_t kBits>
HWY_NOINLINE void multiply_while_packing(const EncodedRows& rows, const NextPage& next,
                                         const std::byte* a, std::byte* to) {
  const auto* codes = reinterpret_cast<const Codes<kBits>*>(rows.codes);
  zero_sums();
  BlockProduct before;
  for (size_t row = 0; row < rows.count; row += kTileDepth) {
    const NextPage part = next.part(row, std::min(kTileDepth, rows.count - row), rows.count);
    prefetch(reinterpret_cast<const char*>(part.data), part.bytes);
    const bool whole = row + kTileRows < rows.count;
    pack_code_block(codes + row, codes + (whole ? row + kTileRows : row), before, to);
    before = {.a = a, .b = to};
    a += kTileBytes, to += kCodeBlockBytes;
  }
  before.add_all();
}

// The same with blocks that are packed already.
inline void multiply_packed(const std::byte* a, const std::byte* b, size_t blocks) {
  zero_sums();
  for (size_t block = 0; block < blocks; ++block)
    BlockProduct{a + block * kTileBytes, b + block * kCodeBlockBytes}.add_all();
}

// Room for what is packed of one page.
struct CodeScratch {
  CodeScratch(std::byte* scratch, size_t blocks)
      : c(reinterpret_cast<float*>(scratch)),
        a(scratch + kCodeBlockBytes),
        b(a + blocks * kTileBytes) {}
  static size_t bytes(size_t blocks) {
    return kCodeBlockBytes + blocks * (kTileBytes + kCodeBlockBytes);
  }
  float* c;      // [16 rows][64 columns]
  std::byte* a;  // [block of depth]
  std::byte* b;  // [block of depth][column tile]
};

// Adds up a row's base, its hi part and its lo part.
inline void add_parts(float base, const float* hi, const float* lo, Start start, float* out) {
  const FloatTag d;
  for (size_t i = 0; i < kGroupColumns; i += kFloatLanes) {
    FloatVector sum = hn::Set(d, base);
    if (start == Start::kFromOut) sum = hn::Add(sum, hn::LoadU(d, out + i));
    const FloatVector parts = hn::Add(hn::Load(d, hi + i), hn::Load(d, lo + i));
    hn::StoreU(hn::Add(sum, parts), d, out + i);
  }
}

// What a row tile adds to the sums of tiles.
using Bases = std::array<float, kCodeRows>;

// Packs a row tile. The lo parts follow `half` rows after the hi parts.
inline Bases pack_rows(const Operand& operand, uint32_t rows, uint32_t half, size_t depth,
                       const CenteredParameters& parameters, std::byte* a) {
  Bases bases;
  auto* words = reinterpret_cast<uint32_t*>(a);
  for (uint32_t row = 0; row < rows; ++row)
    bases[row] = pack_scaled_row(operand.a + row * operand.a_stride, depth, parameters,
                                 words + row * kTileColumns, words + (half + row) * kTileColumns);
  return bases;
}

// The largest row tile.
inline uint32_t tile_rows_of(uint32_t rows) {
  const uint32_t tiles = (rows + kCodeRows - 1) / kCodeRows;
  return tiles == 0 ? 1 : (rows + tiles - 1) / tiles;
}

// Rows times all channels and tokens of K, or 64 channels of V, with Tiles(2 * tile_rows_of(rows)).
template <Side kSide>
void multiply_codes(const Split& split, uint32_t index, const Block& block, const NextPage& next) {
  const EncodedRows rows =
      encoded_rows<kSide>(page_of<kSide>(split.pages, index), split.head, block);
  const size_t blocks = (rows.count + kTileDepth - 1) / kTileDepth;
  const CodeScratch scratch(split.packed, blocks);
  const CenteredParameters parameters(rows, center_of(rows.codec));
  const uint32_t half = tile_rows_of(split.rows.count);
  bool packed = false;
  for_tiles<kCodeRows>(split.rows, index, [&](const RowTile& tile) HWY_ATTR {
    const Operand operand = operand_of<kSide>(split, tile, index, block);
    const Bases bases = pack_rows(operand, tile.count, half, rows.count, parameters, scratch.a);
    if (packed)
      multiply_packed(scratch.a, scratch.b, blocks);
    else
      with_tile_bits(rows.codec, [&](auto bits) HWY_ATTR {
        multiply_while_packing<bits>(rows, next, scratch.a, scratch.b);
      });
    packed = true;
    store_sums(scratch.c);
    for (uint32_t row = 0; row < tile.count; ++row)
      add_parts(bases[row], scratch.c + row * kGroupColumns,
                scratch.c + (half + row) * kGroupColumns, operand.start,
                operand.out + row * operand.out_stride);
  });
}

}  // namespace hifc::kernels::HWY_NAMESPACE::amx
HWY_AFTER_NAMESPACE();

#endif  // HIFC_AMX
#endif  // HIFC_KERNELS_GENERIC_AMX_CODES_INL_H_
