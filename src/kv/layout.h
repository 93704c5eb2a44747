// Byte layout of a block: one layer of a token span, in memory and on flash alike.
//
//   +-------------------+ 0
//   | header page       |  4 KiB; begins with the 8-byte token header
//   +-------------------+ 4096
//   | K part            |  [page][kv_head][head_dim][64 tokens]  F16: channels are rows, so that
//   one |                   |  vector holds one channel of consecutive tokens
//   +-------------------+ 4096 + k_bytes (rounded up to 4 KiB)
//   | V part            |  [page][kv_head][64 tokens][head_dim]  F16
//   +-------------------+ block_bytes
//
// Llama 2 7B (32 KV heads x 128) with 256 tokens: K and V parts of exactly 2 MiB each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "kv/shape.h"

namespace hifc::kv {

inline constexpr uint32_t kPageTokens = 64;
inline constexpr uint32_t kSinkTokens = 4;  // of a sequence, always exact
inline constexpr uint32_t kHeaderBytes = 4096;
inline constexpr uint32_t kLayoutVersion = 1;

// F4's header: the first 8 bytes of every block.
struct TokenHeader {
  uint32_t first_position = 0;
  uint16_t token_count = 0;
  uint16_t flags = 0;
};
static_assert(sizeof(TokenHeader) == 8);

// kI8..kI2: the low-bit codecs of kernels/codec.h.
enum class Codec : uint8_t { kF16 = 1, kI8 = 2, kI4 = 3, kI3 = 4, kI2 = 5 };

// The header page, little-endian, zero-padded to kHeaderBytes.
struct BlockHeader {
  TokenHeader tokens;
  std::array<char, 4> magic = {'H', 'K', 'V', 'B'};
  uint32_t layout_version = kLayoutVersion;
  uint32_t layer = 0;
  uint8_t k_codec = static_cast<uint8_t>(Codec::kF16);
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
  static Result<BlockLayout> make(const ModelShape& shape, uint32_t block_tokens);
  BlockLayout() = default;

  uint32_t block_tokens() const { return block_tokens_; }
  uint32_t pages() const { return block_tokens_ / kPageTokens; }
  uint32_t kv_heads() const { return kv_heads_; }
  uint32_t head_dim() const { return head_dim_; }

  size_t k_bytes() const { return part_bytes_; }
  size_t v_bytes() const { return part_bytes_; }
  size_t k_offset() const { return kHeaderBytes; }
  size_t v_offset() const;
  size_t block_bytes() const;  // a multiple of 4 KiB

  // Start of one page of one head within a block: [head_dim][64] for K, [64][head_dim] for V.
  size_t k_page_offset(uint32_t page, uint32_t kv_head) const;
  size_t v_page_offset(uint32_t page, uint32_t kv_head) const;

 private:
  uint32_t block_tokens_ = 0, kv_heads_ = 0, head_dim_ = 0;
  size_t part_bytes_ = 0;
};

void write_header(const BlockHeader& header, std::span<std::byte> block);
// Fails with kCorrupt and the field's name unless `block` carries exactly `expected`.
Result<void> check_header(const BlockHeader& expected, std::span<const std::byte> block);

}  // namespace hifc::kv
