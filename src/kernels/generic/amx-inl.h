// Attention on AMX tiles: products of BF16 numbers that add up in F32, as exact as the vector
// kernels'. An F16 number is the sum of two BF16 numbers, exactly, and an F32 number to 2^-17 of
// it: x = hi + lo. Of the four products of two such sums the smallest, lo * lo, is left out
// (2^-18).
//
//   A tile (queries, weights)   16 rows x 32 numbers of depth
//   B tile (K, V)               32 numbers of depth x 16 columns, as 16 rows of 16 pairs
//   C tile (scores, output)     16 rows x 16 columns of F32
//
// Depth is taken in blocks of 32, and pair i of a block is (i, i + 16): so both operands are packed
// without a permutation. An element's products are added block by block in the order hi * hi,
// lo * hi, hi * lo, whatever shares its tiles: its bits follow from positions alone.
//
// Inline assembly instead of intrinsics: GCC 12 drops the stores to a configuration before
// _tile_loadconfig.
//
// Included once per Highway target, hence the toggling guard; only AVX3 has content.
#if defined(HIFC_KERNELS_GENERIC_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_AMX_INL_H_
#undef HIFC_KERNELS_GENERIC_AMX_INL_H_
#else
#define HIFC_KERNELS_GENERIC_AMX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/generic/product-inl.h"

#if HIFC_AMX

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE::amx {

inline constexpr uint32_t kTileRows = 16;
inline constexpr size_t kTileColumns = 16;
inline constexpr size_t kTileDepth = 32;
inline constexpr size_t kTileBytes = 1024;
// In memory a packed number takes as much as a float: of each block of depth first all hi, then all
// lo. So do the two tiles of B.
inline constexpr size_t kBlockBytes = kTileDepth * sizeof(float);  // of one row of A
inline constexpr size_t kPackedTileBytes = 2 * kTileBytes;         // of B
inline constexpr size_t kPackedRowBytes = 64;                      // of a tile

struct TileConfiguration {
  uint8_t palette = 0;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

// The thread's tiles, which ggml uses too and configures once for all: as they were in the end.
class Tiles {
 public:
  // C and A have `rows` rows: 0 to 3 are C, 4 and 5 A, 6 and 7 B.
  explicit Tiles(uint32_t rows) {
    asm volatile("sttilecfg %0" : "=m"(before_)::"memory");
    TileConfiguration ours{.palette = 1};
    for (uint32_t tile = 0; tile < 8; ++tile) {
      ours.row_bytes[tile] = 64;
      ours.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
    }
    asm volatile("ldtilecfg %0" ::"m"(ours) : "memory");
  }
  ~Tiles() { asm volatile("ldtilecfg %0" ::"m"(before_) : "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileConfiguration before_;
};

template <int kTile>
HWY_INLINE void load_tile(const std::byte* from, size_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void store_tile(float* to, size_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kC, int kA, int kB>
HWY_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// One operand of a product over one or more blocks of depth.
struct PackedRows {  // A
  const std::byte* data = nullptr;
  size_t row_bytes = 0;
};
struct PackedTiles {  // B
  const std::byte* data = nullptr;
  size_t block_bytes = 0;  // from one block of depth to the next
};

// C of kRowTiles x kColumnTiles tiles, at most 4, is kept in tiles from zero() to store().
template <int kRowTiles, int kColumnTiles>
struct Accumulator {
  static_assert(kRowTiles <= 2 && kRowTiles * kColumnTiles <= 4);

  HWY_INLINE static void zero() {
    zero_tile<0>();
    if constexpr (kRowTiles * kColumnTiles > 1) zero_tile<1>();
    if constexpr (kRowTiles * kColumnTiles > 2) zero_tile<2>();
    if constexpr (kRowTiles * kColumnTiles > 3) zero_tile<3>();
  }

  // `second`: the second row tile.
  HWY_INLINE static void add(PackedRows first, PackedRows second, PackedTiles b, size_t blocks) {
    for (size_t block = 0; block < blocks; ++block) {
      if constexpr (kRowTiles == 1)
        add_row(first, b.data);
      else
        add_two_rows(first, second, b.data);
      first.data += kBlockBytes, second.data += kBlockBytes, b.data += b.block_bytes;
    }
  }

  // Row tiles begin at `first` and `second`, whose rows are `row_bytes` apart.
  HWY_INLINE static void store(float* first, float* second, size_t row_bytes) {
    store_tile<0>(first, row_bytes);
    if constexpr (kColumnTiles > 1) store_tile<1>(first + kTileColumns, row_bytes);
    if constexpr (kColumnTiles > 2) store_tile<2>(first + 2 * kTileColumns, row_bytes);
    if constexpr (kColumnTiles > 3) store_tile<3>(first + 3 * kTileColumns, row_bytes);
    if constexpr (kRowTiles == 2) {
      store_tile<kColumnTiles>(second, row_bytes);
      if constexpr (kColumnTiles > 1)
        store_tile<kColumnTiles + 1>(second + kTileColumns, row_bytes);
    }
  }

 private:
  template <int kColumn>
  HWY_INLINE static void add_column(const std::byte* b) {
    load_tile<6>(b + kColumn * kPackedTileBytes, kPackedRowBytes);
    load_tile<7>(b + kColumn * kPackedTileBytes + kTileBytes, kPackedRowBytes);
    multiply_tiles<kColumn, 4, 6>();
    multiply_tiles<kColumn, 5, 6>();
    multiply_tiles<kColumn, 4, 7>();
  }

  HWY_INLINE static void add_row(const PackedRows& a, const std::byte* b) {
    load_tile<4>(a.data, a.row_bytes);
    load_tile<5>(a.data + kPackedRowBytes, a.row_bytes);
    add_column<0>(b);
    if constexpr (kColumnTiles > 1) add_column<1>(b);
    if constexpr (kColumnTiles > 2) add_column<2>(b);
    if constexpr (kColumnTiles > 3) add_column<3>(b);
  }

  template <int kPart>
  HWY_INLINE static void load_rows(const PackedRows& first, const PackedRows& second) {
    load_tile<4>(first.data + kPart * kPackedRowBytes, first.row_bytes);
    load_tile<5>(second.data + kPart * kPackedRowBytes, second.row_bytes);
  }
  template <int kPart>
  HWY_INLINE static void load_columns(const std::byte* b) {
    load_tile<6>(b + kPart * kTileBytes, kPackedRowBytes);
    if constexpr (kColumnTiles > 1)
      load_tile<7>(b + kPackedTileBytes + kPart * kTileBytes, kPackedRowBytes);
  }
  HWY_INLINE static void multiply_all() {
    multiply_tiles<0, 4, 6>();
    if constexpr (kColumnTiles > 1) multiply_tiles<1, 4, 7>();
    multiply_tiles<kColumnTiles, 5, 6>();
    if constexpr (kColumnTiles > 1) multiply_tiles<kColumnTiles + 1, 5, 7>();
  }
  HWY_INLINE static void add_two_rows(const PackedRows& first, const PackedRows& second,
                                      const std::byte* b) {
    load_columns<0>(b);
    load_rows<0>(first, second);
    multiply_all();
    load_rows<1>(first, second);
    multiply_all();
    load_columns<1>(b);
    load_rows<0>(first, second);
    multiply_all();
  }
};

using Words = hn::Vec<hn::RebindToUnsigned<FloatTag>>;

HWY_INLINE Words bits_of(FloatVector x) {
  return hn::BitCast(hn::RebindToUnsigned<FloatTag>(), x);
}

// The nearest BF16 number, as a float.
HWY_INLINE FloatVector nearest_bf16(FloatVector x) {
  const hn::RebindToUnsigned<FloatTag> words;
  const Words rounded = hn::Add(bits_of(x), hn::Set(words, 0x8000u));
  return hn::BitCast(FloatTag(), hn::And(rounded, hn::Set(words, 0xffff0000u)));
}

// Two BF16 numbers in each word, the first one below; what does not fit is cut off.
HWY_INLINE Words pair_up(FloatVector first, FloatVector second) {
  const hn::RebindToUnsigned<FloatTag> words;
  const Words high = hn::And(bits_of(second), hn::Set(words, 0xffff0000u));
  return hn::Or(hn::ShiftRight<16>(bits_of(first)), high);
}

enum class From : uint8_t { kF16, kF32 };

// `lo` needs rounding only where it comes from F32.
template <From kFrom>
HWY_INLINE void pack_pair(FloatVector first, FloatVector second, uint32_t* hi, uint32_t* lo) {
  const hn::RebindToUnsigned<FloatTag> words;
  const FloatVector first_hi = nearest_bf16(first), second_hi = nearest_bf16(second);
  FloatVector first_lo = hn::Sub(first, first_hi), second_lo = hn::Sub(second, second_hi);
  if constexpr (kFrom == From::kF32)
    first_lo = nearest_bf16(first_lo), second_lo = nearest_bf16(second_lo);
  hn::StoreU(pair_up(first_hi, second_hi), words, hi);
  hn::StoreU(pair_up(first_lo, second_lo), words, lo);
}

// NaN of any payload becomes the one that rounding keeps.
HWY_INLINE FloatVector load_number(const float* from) {
  const hn::RebindToUnsigned<FloatTag> words;
  const FloatVector x = hn::LoadU(FloatTag(), from);
  const FloatVector nan = hn::BitCast(FloatTag(), hn::Set(words, 0x7fc00000u));
  return hn::IfThenElse(hn::IsNaN(x), nan, x);
}

// Rows of floats for A: [row][blocks of 32]; the last block may be half full.
inline void pack_a(const float* from, size_t depth, std::byte* to) {
  for (size_t at = 0; at < depth; at += kTileDepth, to += kBlockBytes) {
    const FloatVector first = load_number(from + at);
    const bool whole = at + kTileDepth <= depth;
    const FloatVector second =
        whole ? load_number(from + at + kTileDepth / 2) : hn::Zero(FloatTag());
    auto* words = reinterpret_cast<uint32_t*>(to);
    pack_pair<From::kF32>(first, second, words, words + kTileColumns);
  }
}

// A block of depth for B, of F16 or F32 numbers.
template <class T>
struct BlockSource {
  const T* rows = nullptr;
  size_t stride = 0;
  size_t depth = 0;    // rows, 32 or 16
  size_t columns = 0;  // a multiple of 16
  // What is prefetched meanwhile.
  const char* ahead = nullptr;
  size_t ahead_bytes = 0;
};

HWY_INLINE FloatVector load_number(const uint16_t* from) {
  return load_floats(from);  // `lo`, which is not rounded, keeps NaN of any payload
}

template <class T>
void pack_b(const BlockSource<T>& from, std::byte* to) {
  constexpr From kFrom = sizeof(T) == sizeof(uint16_t) ? From::kF16 : From::kF32;
  const bool whole = from.depth == kTileDepth;
  const size_t second_row = kTileDepth / 2 * from.stride;
  const size_t ahead_step = from.ahead_bytes / kTileRows;
  for (size_t pair = 0; pair < kTileRows; ++pair) {
    const T* row = from.rows + pair * from.stride;
    auto* words = reinterpret_cast<uint32_t*>(to + pair * kPackedRowBytes);
    prefetch(from.ahead + pair * ahead_step, ahead_step);
    for (size_t column = 0; column < from.columns; column += kTileColumns) {
      const FloatVector first = load_number(row + column);
      const FloatVector second =
          whole ? load_number(row + second_row + column) : hn::Zero(FloatTag());
      pack_pair<kFrom>(first, second, words, words + kTileBytes / sizeof(uint32_t));
      words += kPackedTileBytes / sizeof(uint32_t);
    }
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE::amx
HWY_AFTER_NAMESPACE();

#endif  // HIFC_AMX
#endif  // HIFC_KERNELS_GENERIC_AMX_INL_H_
