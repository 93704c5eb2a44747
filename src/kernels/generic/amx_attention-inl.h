// Attention over one split on AMX tiles (amx-inl.h).
//
// K and V are packed once for all rows; then row tiles go over them in pairs.
//
// Included once per Highway target, hence the toggling guard; only AVX3 has content.
#if defined(HIFC_KERNELS_GENERIC_AMX_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_AMX_ATTENTION_INL_H_
#undef HIFC_KERNELS_GENERIC_AMX_ATTENTION_INL_H_
#else
#define HIFC_KERNELS_GENERIC_AMX_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/amx-inl.h"
#include "kernels/generic/blocks-inl.h"
#include "kernels/generic/rows-inl.h"
#include "kernels/generic/softmax-inl.h"

#if HIFC_AMX

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE::amx {

inline constexpr size_t kTokenTiles = kv::kPageTokens / kTileColumns;
inline constexpr size_t kTokenBlocks = kv::kPageTokens / kTileDepth;  // of depth, in a page of V
inline constexpr size_t kScoresBytes = kSplitTokens * sizeof(float);  // of a row

inline float max_of(const float* scores, Range range) {
  const FloatTag d;
  FloatVector max = hn::Set(d, kMinusInfinity);
  const auto lanes = static_cast<uint32_t>(hn::Lanes(d));
  for (uint32_t t = range.begin / lanes * lanes; t < range.end; t += lanes)
    max = hn::Max(max, mask_outside(hn::LoadU(d, scores + t), t, range, kMinusInfinity));
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

struct Weights {
  float max = kMinusInfinity, sum = 0;
};

// Turns a row's dot products into weights, packed for A in place, over `pages` (others it does not
// see).
HWY_INLINE Weights weigh_row(float* scores, Range range, const HeadParameters& head,
                             std::span<const uint32_t> pages) {
  float scale = head.scale, max = kMinusInfinity;
  if (range.empty()) {
    range = {};
  } else if (head.softcap != 0.0f || scale <= 0.0f) {
    max = score_row(scores, range, head);
    scale = 1.0f;
  } else {
    max = max_of(scores, range) * scale;
  }
  const FloatTag d;
  const FloatVector scales = hn::Set(d, scale), maxima = hn::Set(d, max);
  FloatVector sum = hn::Zero(d), sum2 = hn::Zero(d);
  const auto weigh = [&](uint32_t token) HWY_ATTR {
    const FloatVector x = hn::MulSub(hn::LoadU(d, scores + token), scales, maxima);
    return mask_outside(exp_of_nonpositive(x), token, range, 0.0f);
  };
  for (const uint32_t page : pages)
    for (uint32_t t = page * kv::kPageTokens; t < (page + 1) * kv::kPageTokens; t += kTileDepth) {
      FloatVector first = hn::Zero(d), second = hn::Zero(d);
      if (t < range.end && t + kTileDepth > range.begin) {
        first = weigh(t), second = weigh(t + kTileColumns);
        sum = hn::Add(sum, first), sum2 = hn::Add(sum2, second);
      }
      auto* words = reinterpret_cast<uint32_t*>(scores + t);
      pack_pair<From::kF32>(first, second, words, words + kTileColumns);
    }
  return {.max = max, .sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum, sum2)))};
}

class SplitAttention {
 public:
  SplitAttention(const HeadParameters& head, const SplitPages& pages, const QueryRows& rows,
                 std::byte* scratch, const Partials& out)
      : head_(head),
        pages_(pages),
        rows_(rows),
        out_(out),
        seen_(rows),
        queries_(scratch),
        scores_(reinterpret_cast<float*>(queries_ + rows.count * query_bytes(head))),
        decoded_(scores_ + 2 * kTileRows * kSplitTokens),
        packed_(reinterpret_cast<std::byte*>(decoded_ + kTileDepth * kBlockColumns)) {}

  static size_t scratch_bytes(const HeadParameters& head, uint32_t rows) {
    const size_t blocks = kSplitPages * (k_page_bytes(head) + v_page_bytes(head));
    return rows * query_bytes(head) + 2 * kTileRows * kScoresBytes +
           kTileDepth * kBlockColumns * sizeof(float) + blocks;
  }

  void run() {
    for (uint32_t row = 0; row < rows_.count; ++row)
      pack_a(rows_.q + size_t{row} * head_.head_dim, head_.head_dim,
             queries_ + row * query_bytes(head_));
    const Tiles tiles(std::min(rows_.count, kTileRows));
    pack_all();
    if (rows_.count <= kTileRows) return attend_rows<1>(0, 0, rows_.count);
    // The last tiles overlap where rows are no multiple of 16: they compute the same twice.
    const uint32_t count = (rows_.count + kTileRows - 1) / kTileRows;
    const auto first_row = [&](uint32_t tile) {
      return std::min(tile * kTileRows, rows_.count - kTileRows);
    };
    uint32_t tile = 0;
    for (; tile + 1 < count; tile += 2)
      attend_rows<2>(first_row(tile), first_row(tile + 1), kTileRows);
    if (tile < count) attend_rows<1>(first_row(tile), 0, kTileRows);
  }

 private:
  static size_t depth_blocks(const HeadParameters& head) {
    return (head.head_dim + kTileDepth - 1) / kTileDepth;
  }
  static size_t query_bytes(const HeadParameters& head) { return depth_blocks(head) * kBlockBytes; }
  static size_t k_page_bytes(const HeadParameters& head) {
    return depth_blocks(head) * kTokenTiles * kPackedTileBytes;
  }
  static size_t v_page_bytes(const HeadParameters& head) {
    return kTokenBlocks * head.head_dim / kTileColumns * kPackedTileBytes;
  }

  // ---- packing ----

  // One block of depth of a page, or as many of its columns as there are decoded at a time.
  template <Side kSide>
  void pack_block(uint32_t index, const Block& block, const NextPage& next, std::byte* to) const {
    const Page& page = page_of<kSide>(pages_, seen_.index[index]);
    const bool k = kSide == Side::kK;
    const size_t depth = k ? block.channels : block.tokens;
    const size_t columns = k ? block.tokens : block.channels;
    const char* ahead = reinterpret_cast<const char*>(next.data);
    if (page.codec == kv::Codec::kF16) {
      const size_t stride = k ? kv::kPageTokens : head_.head_dim;
      const size_t first =
          k ? block.first_channel * stride : block.first_token * stride + block.first_channel;
      pack_b<uint16_t>({reinterpret_cast<const uint16_t*>(page.data) + first, stride, depth,
                        columns, ahead, next.bytes},
                       to);
    } else {
      decode_block<kSide>(pages_, seen_.index[index], head_, block, decoded_);
      pack_b<float>({decoded_, kBlockColumns, depth, columns, ahead, next.bytes}, to);
    }
  }

  // Channels [block * 32, + 32) of a K page.
  void pack_k(uint32_t index, uint32_t block, std::byte* to) const {
    const uint32_t first = block * kTileDepth;
    const uint32_t channels = std::min<uint32_t>(kTileDepth, head_.head_dim - first);
    const NextPage next = after<Side::kK>(pages_, head_, seen_, index);
    pack_block<Side::kK>(index, {.first_channel = first, .channels = channels},
                         next.part(first, channels, head_.head_dim), to);
  }

  // Tokens [block * 32, + 32) of a V page.
  void pack_v(uint32_t index, uint32_t block, std::byte* to) const {
    const uint32_t first = block * kTileDepth;
    const NextPage next =
        after<Side::kV>(pages_, head_, seen_, index).part(first, kTileDepth, kv::kPageTokens);
    // F16 needs no room to be decoded: all of its channels at once.
    const bool halves = pages_.v[seen_.index[index]].codec == kv::Codec::kF16;
    const uint32_t step = halves ? head_.head_dim : kBlockColumns;
    for (uint32_t channel = 0; channel < head_.head_dim; channel += step) {
      const uint32_t channels = std::min(step, head_.head_dim - channel);
      pack_block<Side::kV>(index,
                           {.first_channel = channel,
                            .channels = channels,
                            .first_token = first,
                            .tokens = kTileDepth},
                           next.part(channel, channels, head_.head_dim),
                           to + channel / kTileColumns * kPackedTileBytes);
    }
  }

  void pack_all() {
    for (uint32_t index = 0; index < seen_.count; ++index) {
      for (uint32_t block = 0; block < depth_blocks(head_); ++block)
        pack_k(index, block, packed_k(index, block));
      for (uint32_t block = 0; block < kTokenBlocks; ++block)
        pack_v(index, block, packed_v(index, block));
    }
  }
  std::byte* packed_k(uint32_t index, size_t block) const {
    return packed_ + index * k_page_bytes(head_) + block * kTokenTiles * kPackedTileBytes;
  }
  std::byte* packed_v(uint32_t index, size_t block) const {
    return packed_ + seen_.count * k_page_bytes(head_) + index * v_page_bytes(head_) +
           block * v_page_bytes(head_) / kTokenBlocks;
  }

  // ---- one or two row tiles ----

  template <int kRowTiles>
  void attend_rows(uint32_t first, uint32_t second, uint32_t count) {
    const uint32_t tile_rows[] = {first, second};
    uint32_t visible[kSplitPages], visible_count = 0;  // indexes into seen_
    for (uint32_t index = 0; index < seen_.count; ++index) {
      bool sees = false;
      for (int i = 0; i < kRowTiles; ++i)
        sees = sees || !page_range(rows_, tile_rows[i], count, seen_.index[index]).empty();
      if (sees) visible[visible_count++] = index;
    }
    const std::span indexes(visible, visible_count);
    for (const uint32_t index : indexes) score_page<kRowTiles>(first, second, index);
    for (int i = 0; i < kRowTiles; ++i)
      for (uint32_t row = 0; row < count; ++row)
        weigh(tile_rows[i] + row, scores_ + (i * kTileRows + row) * kSplitTokens, indexes);
    // As many columns at a time as there are tiles.
    constexpr size_t kColumns = kRowTiles == 1 ? 4 : 2;
    const size_t tiles = head_.head_dim / kTileColumns;
    size_t tile = 0;
    for (; tile + kColumns <= tiles; tile += kColumns)
      sum_columns<kRowTiles, kColumns>(first, second, indexes, tile);
    for (; tile < tiles; ++tile) sum_columns<kRowTiles, 1>(first, second, indexes, tile);
  }

  PackedRows query_rows(uint32_t row) const {
    return {queries_ + row * query_bytes(head_), query_bytes(head_)};
  }
  PackedRows weight_rows(int tile) const {
    return {reinterpret_cast<const std::byte*>(scores_) + tile * kTileRows * kScoresBytes,
            kScoresBytes};
  }

  template <int kRowTiles>
  void score_page(uint32_t first, uint32_t second, uint32_t index) {
    constexpr int kColumns = kRowTiles == 1 ? 4 : 2;
    using Scores = Accumulator<kRowTiles, kColumns>;
    const size_t blocks = depth_blocks(head_);
    float* out = scores_ + size_t{seen_.index[index]} * kv::kPageTokens;
    float* out_second = out + kTileRows * kSplitTokens;
    for (size_t tile = 0; tile < kTokenTiles; tile += kColumns) {
      Scores::zero();
      Scores::add(query_rows(first), query_rows(second),
                  {packed_k(index, 0) + tile * kPackedTileBytes, kTokenTiles * kPackedTileBytes},
                  blocks);
      Scores::store(out + tile * kTileColumns, out_second + tile * kTileColumns, kScoresBytes);
    }
  }

  template <int kRowTiles, int kColumns>
  void sum_columns(uint32_t first, uint32_t second, std::span<const uint32_t> indexes,
                   size_t tile) {
    using Sums = Accumulator<kRowTiles, kColumns>;
    Sums::zero();
    for (const uint32_t index : indexes) {
      PackedRows weights[] = {weight_rows(0), weight_rows(1)};
      for (PackedRows& rows : weights) rows.data += seen_.index[index] * kTokenBlocks * kBlockBytes;
      Sums::add(weights[0], weights[1],
                {packed_v(index, 0) + tile * kPackedTileBytes, v_page_bytes(head_) / kTokenBlocks},
                kTokenBlocks);
    }
    Sums::store(out_.o + size_t{first} * head_.head_dim + tile * kTileColumns,
                out_.o + size_t{second} * head_.head_dim + tile * kTileColumns,
                head_.head_dim * sizeof(float));
  }

  void weigh(uint32_t row, float* scores, std::span<const uint32_t> indexes) {
    std::array<uint32_t, kSplitPages> pages;
    for (size_t i = 0; i < indexes.size(); ++i) pages[i] = seen_.index[indexes[i]];
    const Weights weights =
        weigh_row(scores, row_range(rows_, row), head_, std::span(pages).first(indexes.size()));
    out_.max[row] = weights.max, out_.sum[row] = weights.sum;
  }

  const HeadParameters& head_;
  const SplitPages& pages_;
  const QueryRows& rows_;
  const Partials& out_;
  const SeenPages seen_;
  std::byte* queries_;  // [row][block of 32 channels]
  float* scores_;       // [2 tiles][16][kSplitTokens]; weights take the place of scores
  float* decoded_;      // of an encoded page: [32][kBlockColumns]
  std::byte* packed_;   // all of K, then all of V
};

inline void attend_split(const HeadParameters& head, const SplitPages& pages, const QueryRows& rows,
                         std::byte* scratch, const Partials& out) {
  HIFC_DCHECK(head.head_dim % 16 == 0 && head.head_dim <= kv::kHeadDimMax);
  if (rows.count == 0) return;
  SplitAttention(head, pages, rows, scratch, out).run();
}

}  // namespace hifc::kernels::HWY_NAMESPACE::amx
HWY_AFTER_NAMESPACE();

#endif  // HIFC_AMX
#endif  // HIFC_KERNELS_GENERIC_AMX_ATTENTION_INL_H_
