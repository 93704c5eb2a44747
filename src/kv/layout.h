// Byte layout of a block: one layer of a token span, in memory and on flash alike.
//
//   +-------------------+ 0
//   | header page       |  4 KiB; begins with the 8-byte token header
//   +-------------------+ 4096
//   | KV head 0         |  K part: [page]: [head_dim][64 tokens], channels are rows, so that one
//   |                   |  vector holds one channel of consecutive tokens
//   |                   |  V part: [page]: [64 tokens][head_dim]
//   | KV head 1 ...     |
//   +-------------------+ every part is rounded up to 64 bytes
//   | sinks             |  K, then V: [kv_head][4 tokens][head_dim] F16; only in a sequence's first
//   |                   |  block, and only where K or V is not F16
//   +-------------------+ rounded up to 4 KiB
//
// A head's K and V lie together so that one read brings what one head needs.
//
// Pages are F16 or encoded (kernels/codec.h), K and V each in the layer's own way. The exact block,
// F16 throughout, is what tokens are written to before they are sealed, and what a parked tail is
// on flash.
//
// Llama 2 7B (32 KV heads x 128) with 256 tokens in F16: exactly 2 MiB of K and 2 MiB of V.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/codec.h"
#include "kv/shape.h"

namespace hifc::kv {

inline constexpr uint32_t kPageTokens = 64;
inline constexpr uint32_t kSinkTokens = 4;  // of a sequence, always exact
inline constexpr uint32_t kHeaderBytes = 4096;
inline constexpr uint32_t kLayoutVersion = 3;

// F4's header: the first 8 bytes of every block.
struct TokenHeader {
  uint32_t first_position = 0;
  uint16_t token_count = 0;
  uint16_t flags = 0;
};
static_assert(sizeof(TokenHeader) == 8);

// The header page, little-endian, zero-padded to kHeaderBytes.
struct BlockHeader {
  TokenHeader tokens;
  std::array<char, 4> magic = {'H', 'K', 'V', 'B'};
  uint32_t layout_version = kLayoutVersion;
  uint32_t layer = 0;
  uint8_t k_codec = static_cast<uint8_t>(Codec::kF16);  // of all the block's pages
  uint8_t v_codec = static_cast<uint8_t>(Codec::kF16);
  uint16_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_tokens = 0;
  std::array<std::byte, 32> model_fingerprint = {};
};
static_assert(sizeof(BlockHeader) == 64);

class BlockLayout {
 public:
  // `block_tokens`: a multiple of kPageTokens from 64 to 4096.
  static Result<BlockLayout> make(const ModelShape& shape, uint32_t block_tokens,
                                  LayerCodecs codecs = {});
  BlockLayout() = default;

  LayerCodecs codecs() const { return codecs_; }
  bool lossy() const { return codecs_.lossy(); }
  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t pages() const { return block_tokens_ / kPageTokens; }
  uint32_t kv_heads() const { return kv_heads_; }
  uint32_t head_dim() const { return head_dim_; }

  PageFormat k_format() const { return {codecs_.k, head_dim_, kPageTokens}; }
  PageFormat v_format() const { return {codecs_.v, kPageTokens, head_dim_}; }
  // Of all heads.
  size_t k_bytes() const { return size_t{pages()} * kv_heads_ * k_page_bytes_; }
  size_t v_bytes() const { return size_t{pages()} * kv_heads_ * v_page_bytes_; }
  // Where a head's K and V are, one after the other; heads follow each other.
  size_t head_offset(uint32_t kv_head) const { return kHeaderBytes + kv_head * head_bytes(); }
  size_t head_bytes() const;
  // Multiples of 4 KiB: of a block, and of the one that begins a sequence.
  size_t block_bytes() const;
  size_t first_block_bytes() const;
  size_t bytes_of(uint32_t group) const { return group == 0 ? first_block_bytes() : block_bytes(); }

  // Start of one page of one head within a block.
  size_t k_page_offset(uint32_t page, uint32_t kv_head) const;
  size_t v_page_offset(uint32_t page, uint32_t kv_head) const;
  // Of a lossy layout: start of one head's sinks within a sequence's first block.
  size_t k_sink_offset(uint32_t kv_head) const;
  size_t v_sink_offset(uint32_t kv_head) const;

  // K and V of a token in all heads, scales and mins included.
  double token_bytes() const;

 private:
  size_t sink_bytes() const { return size_t{kSinkTokens} * head_dim_ * sizeof(uint16_t); }
  size_t k_part_bytes() const;  // of one head
  size_t sinks_offset() const { return head_offset(kv_heads_); }

  uint32_t block_tokens_ = 0, kv_heads_ = 0, head_dim_ = 0;
  LayerCodecs codecs_;
  size_t k_page_bytes_ = 0, v_page_bytes_ = 0;
};

// The blocks of a group.
struct GroupLayout {
  // `codecs`: one of each layer, or none where all are F16.
  static Result<GroupLayout> make(const ModelShape& shape, uint32_t block_tokens,
                                  const CodecPolicy& codecs = {});

  BlockLayout exact;                // of every layer, before it is sealed
  std::vector<BlockLayout> sealed;  // [layer]

  uint32_t layers() const { return static_cast<uint32_t>(sealed.size()); }
  uint32_t block_tokens() const { return exact.block_tokens(); }
  bool lossy() const;
  uint32_t groups_of(uint32_t tokens) const {
    return (tokens + block_tokens() - 1) / block_tokens();
  }
  size_t block_bytes_max() const;         // of any block
  size_t sealed_block_bytes_max() const;  // of sealed ones but the first group's
  uint64_t exact_bytes() const { return uint64_t{layers()} * exact.block_bytes(); }
  uint64_t sealed_bytes() const;                 // of a group but the first
  uint64_t sealed_bytes(uint32_t groups) const;  // of a sequence's first so many
  // K and V of a token in all layers once it is sealed, scales and mins included.
  double token_bytes() const;
};

void write_header(const BlockHeader& header, std::span<std::byte> block);
// Fails with kCorrupt and the field's name unless `block` carries exactly `expected`.
Result<void> check_header(const BlockHeader& expected, std::span<const std::byte> block);

}  // namespace hifc::kv
