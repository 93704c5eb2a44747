// Attention over one split on vectors, and where there are tiles, with encoded pages on these.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_SPLIT_INL_H_
#undef HIFC_KERNELS_GENERIC_SPLIT_INL_H_
#else
#define HIFC_KERNELS_GENERIC_SPLIT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/amx_codes-inl.h"
#include "kernels/generic/blocks-inl.h"
#include "kernels/generic/operands-inl.h"
#include "kernels/generic/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// From this many rows on, decoding a page once is cheaper than converting it in each row tile
// (measured: 24 rows are 8 % slower when decoded, 48 are 5 % faster; AVX2 breaks even at 48).
inline constexpr uint32_t kDecodeOnceRows = kVectorRegisters == 32 ? 32 : 48;

// What encoded pages are multiplied on.
enum class Units : uint8_t { kVectors, kTiles };

// Whether a page goes to tiles. Codes of 8 bits become BF16 numbers too slowly: with up to 4 rows
// vectors are 1.2 to 1.6 times as fast, with 8 rows 0.9 times.
template <Units kUnits>
bool suits_tiles(kv::Codec codec) {
  return kUnits == Units::kTiles && codec != kv::Codec::kF16 && codec != kv::Codec::kI8;
}

// Rows times some channels of a page of numbers.
template <Side kSide, class T>
void multiply_numbers(const Split& split, uint32_t page, const Block& block, const T* numbers,
                      size_t stride, const NextPage& next) {
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    const Operand operand = operand_of<kSide>(split, tile, page, block);
    Product<T> product = product_of(operand, numbers, stride);
    share_out(next, tile, operand.width, product);
    multiply(product, tile.count, operand.width);
  });
}

// The same with the codes of an encoded page. Which way they are converted does not show: a code is
// the same float both ways.
template <Units kUnits, Side kSide>
void multiply_codes(const Split& split, uint32_t page, const Block& block, const NextPage& next) {
  const EncodedRows rows =
      encoded_rows<kSide>(page_of<kSide>(split.pages, page), split.head, block);
#if HIFC_AMX
  if constexpr (kUnits == Units::kTiles)
    if (suits_tiles<kUnits>(rows.codec) && rows.width == kBlockColumns)
      return amx::multiply_codes<kSide>(split, page, block, next);
#endif
  const BlockParameters parameters(rows);
  const bool in_registers = split.rows.count <= kRowsInRegisters && rows.width == kBlockColumns;
  if (!in_registers) decode_codes(rows, split.decoded, kBlockColumns);
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    Operand operand = operand_of<kSide>(split, tile, page, block);
    const ScaledRows scaled(operand.a, operand.a_stride, tile.count, rows.count, parameters);
    operand.a = scaled.a;
    operand.a_stride = kBlockRows;
    const auto multiply_with = [&](const auto* codes, size_t stride) HWY_ATTR {
      auto product = product_of(operand, codes, stride);
      product.base = scaled.base;
      share_out(next, tile, operand.width, product);
      multiply(product, tile.count, operand.width);
    };
    if (!in_registers) return multiply_with(split.decoded, kBlockColumns);
    if constexpr (kRowsInRegisters > 0)
      with_bits(rows.codec, [&](auto bits) HWY_ATTR {
        multiply_with(reinterpret_cast<const Codes<bits>*>(rows.codes), 1);
      });
  });
}

// Rows times a whole page, K or V.
template <Units kUnits, Side kSide>
void multiply_page(const Split& split, uint32_t index, const NextPage& next) {
  const uint32_t head_dim = split.head.head_dim;
  const Page& page = page_of<kSide>(split.pages, index);
  const bool halves = page.codec == kv::Codec::kF16;
  if (halves && split.rows.count < kDecodeOnceRows)
    return multiply_numbers<kSide>(split, index, {.channels = head_dim},
                                   reinterpret_cast<const uint16_t*>(page.data),
                                   page_format<kSide>(page, split.head).columns, next);
  const bool codes = !halves && sinks_of<kSide>(split.pages, index) == nullptr;
  // The sums of all channels stay in tiles.
  const bool k_on_tiles = codes && kSide == Side::kK && suits_tiles<kUnits>(page.codec);
  const uint32_t step = k_on_tiles ? head_dim : kBlockRows;
  for (uint32_t first = 0; first < head_dim; first += step) {
    const uint32_t channels = std::min(step, head_dim - first);
    const Block block{.first_channel = first, .channels = channels};
    const NextPage part = next.part(first, channels, head_dim);
    if (codes) {
      multiply_codes<kUnits, kSide>(split, index, block, part);
      continue;
    }
    decode_block<kSide>(split.pages, index, split.head, block, split.decoded);
    multiply_numbers<kSide>(split, index, block, static_cast<const float*>(split.decoded),
                            kBlockColumns, part);
  }
}

// Two loops, so that the latency of one row's maximum is hidden behind other rows.
inline void softmax_rows(const Split& split) {
  const QueryRows& rows = split.rows;
  for (uint32_t row = 0; row < rows.count; ++row)
    split.out.max[row] =
        score_row(split.scores + row * kSplitTokens, row_range(rows, row), split.head);
  for (uint32_t row = 0; row < rows.count; ++row)
    split.out.sum[row] =
        weigh_row(split.scores + row * kSplitTokens, row_range(rows, row), split.out.max[row]);
  if (split.out.page_sum == nullptr) return;
  for (uint32_t row = 0; row < rows.count; ++row)
    sum_pages(split.scores + row * kSplitTokens, split.out.page_sum + row * kSplitPages);
}

// Nobody has prefetched the split's first page. One of F16 is large enough for the processor to
// find out by itself what is read next; an encoded one is not (6 to 10 % of a split with 4 rows,
// unless memory is in huge pages).
inline void prefetch_first(const SplitPages& pages, const HeadParameters& head,
                           const SeenPages& seen) {
  if (seen.count == 0 || pages.k[seen.index[0]].codec == kv::Codec::kF16) return;
  const NextPage first = next_page<Side::kK>(pages, head, seen.index[0]);
  prefetch(reinterpret_cast<const char*>(first.data), first.bytes);
}

inline size_t scratch_bytes(const HeadParameters&, uint32_t rows) {
  return (size_t{rows} * kSplitTokens + kBlockRows * kBlockColumns) * sizeof(float);
}

template <Units kUnits>
void attend_split(const HeadParameters& head, const SplitPages& pages, const QueryRows& rows,
                  std::byte* scratch, const Partials& out) {
  HIFC_DCHECK(head.head_dim % 16 == 0 && head.head_dim <= kv::kHeadDimMax);
  float* decoded = reinterpret_cast<float*>(scratch);
  const Split split{.head = head,
                    .pages = pages,
                    .rows = rows,
                    .scores = decoded + kBlockRows * kBlockColumns,
                    .decoded = decoded,
                    .packed = scratch + scratch_bytes(head, rows.count),
                    .out = out};
  const SeenPages seen(rows);
  const bool weights_only = out.o == nullptr;
  prefetch_first(pages, head, seen);
  for (uint32_t i = 0; i < seen.count; ++i) {
    const bool last = weights_only && i + 1 == seen.count;
    multiply_page<kUnits, Side::kK>(split, seen.index[i],
                                    last ? NextPage{} : after<Side::kK>(pages, head, seen, i));
  }
  softmax_rows(split);
  if (weights_only) return;
  std::fill_n(out.o, size_t{rows.count} * head.head_dim, 0.0f);
  for (uint32_t i = 0; i < seen.count; ++i)
    multiply_page<kUnits, Side::kV>(split, seen.index[i], after<Side::kV>(pages, head, seen, i));
}

#if HIFC_AMX
namespace amx {

inline size_t codes_scratch_bytes(const HeadParameters& head, uint32_t rows) {
  const size_t depth = std::max(head.head_dim, kv::kPageTokens);
  return HWY_NAMESPACE::scratch_bytes(head, rows) +
         CodeScratch::bytes((depth + kTileDepth - 1) / kTileDepth);
}

// From this many query heads on, tiles are faster than vectors over encoded pages (measured: with 4
// rows 0.9 to 1.05 times as fast, with 8 rows 1.4 to 1.6).
inline constexpr uint32_t kTileGroup = 5;

inline void attend_split_with_codes(const HeadParameters& head, const SplitPages& pages,
                                    const QueryRows& rows, std::byte* scratch,
                                    const Partials& out) {
  const auto on_tiles = [](const Page& page) { return suits_tiles<Units::kTiles>(page.codec); };
  const bool none =
      std::ranges::none_of(pages.k, on_tiles) && std::ranges::none_of(pages.v, on_tiles);
  if (none || head.group_size < kTileGroup)
    return HWY_NAMESPACE::attend_split<Units::kVectors>(head, pages, rows, scratch, out);
  const Tiles tiles(2 * tile_rows_of(rows.count));
  HWY_NAMESPACE::attend_split<Units::kTiles>(head, pages, rows, scratch, out);
}

}  // namespace amx
#endif

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_SPLIT_INL_H_
