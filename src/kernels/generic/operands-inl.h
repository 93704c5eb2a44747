// What rows and pages of a split are multiplied with, and in which tiles.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_OPERANDS_INL_H_
#undef HIFC_KERNELS_GENERIC_OPERANDS_INL_H_
#else
#define HIFC_KERNELS_GENERIC_OPERANDS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/blocks-inl.h"
#include "kernels/generic/product-inl.h"
#include "kernels/generic/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

struct Split {
  const HeadParameters& head;
  const SplitPages& pages;
  const QueryRows& rows;
  float* scores;      // [rows][kSplitTokens]
  float* decoded;     // a block: [kBlockRows][kBlockColumns]
  std::byte* packed;  // for codes on tiles, where there are any
  const Partials& out;
};

struct RowTile {
  uint32_t index = 0, tiles = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  Range range;  // tokens of the page, from its first one on, that any of the rows sees, rounded
                // outward to kDepthStep
};

// Calls visit(tile) for every tile of rows that sees tokens of `page`. Tiles are of even size: 8
// rows of at most 6 in a tile make 4 + 4, not 6 + 2.
template <uint32_t kMaxRows = kMaxTileRows, class Visit>
HWY_INLINE void for_tiles(const QueryRows& rows, uint32_t page, const Visit& visit) {
  const uint32_t tiles = (rows.count + kMaxRows - 1) / kMaxRows;
  for (uint32_t i = 0; i < tiles; ++i) {
    RowTile tile;
    tile.index = i;
    tile.tiles = tiles;
    tile.first = rows.count * i / tiles;
    tile.count = rows.count * (i + 1) / tiles - tile.first;
    tile.range = page_range(rows, tile.first, tile.count, page);
    if (!tile.range.empty()) visit(tile);
  }
}

// Each row tile prefetches its share of the page that is needed next while it computes, so that
// memory is busy all the time.
template <class T>
void share_out(const NextPage& next, const RowTile& tile, size_t width, Product<T>& product) {
  const size_t tile_columns = width * tile.tiles;
  product.ahead_bytes = (next.bytes + tile_columns - 1) / tile_columns;
  product.ahead =
      reinterpret_cast<const char*>(next.data) + product.ahead_bytes * width * tile.index;
}

// What a row tile multiplies with some channels of a page, and where the sums go.
struct Operand {
  const float* a = nullptr;
  size_t a_stride = 0;
  Range depth;
  float* out = nullptr;
  size_t out_stride = 0;
  size_t width = 0;
  Start start = Start::kFromZero;
};

template <Side kSide>
Operand operand_of(const Split& split, const RowTile& tile, uint32_t page, const Block& block) {
  const size_t head_dim = split.head.head_dim;
  float* scores = split.scores + tile.first * kSplitTokens + page * kv::kPageTokens;
  if constexpr (kSide == Side::kK)
    return {.a = split.rows.q + tile.first * head_dim + block.first_channel,
            .a_stride = head_dim,
            .depth = {0, block.channels},
            .out = scores,
            .out_stride = kSplitTokens,
            .width = kv::kPageTokens,
            .start = block.first_channel == 0 ? Start::kFromZero : Start::kFromOut};
  return {.a = scores,
          .a_stride = kSplitTokens,
          .depth = tile.range,
          .out = split.out.o + tile.first * head_dim + block.first_channel,
          .out_stride = head_dim,
          .width = block.channels,
          .start = Start::kFromOut};
}

template <class T>
Product<T> product_of(const Operand& operand, const T* b, size_t b_stride) {
  return {.a = operand.a + operand.depth.begin,
          .a_stride = operand.a_stride,
          .b = b + operand.depth.begin * b_stride,
          .b_stride = b_stride,
          .depth = operand.depth.end - operand.depth.begin,
          .out = operand.out,
          .out_stride = operand.out_stride,
          .start = operand.start};
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_OPERANDS_INL_H_
