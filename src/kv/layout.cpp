#include "kv/layout.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/check.h"

static_assert(std::endian::native == std::endian::little, "blocks are stored little-endian");

namespace hifc::kv {
namespace {

constexpr size_t kPartAlignment = 4096;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<BlockLayout> BlockLayout::make(const ModelShape& shape, uint32_t block_tokens) {
  if (block_tokens % kPageTokens != 0 || block_tokens < kPageTokens || block_tokens > 4096)
    return failure(Code::kInvalid,
                   fmt::format("block_tokens {} is not a multiple of {} from {} to 4096",
                               block_tokens, kPageTokens, kPageTokens));
  HIFC_CHECK(shape.kv_heads > 0);
  HIFC_CHECK(shape.head_dim > 0);
  BlockLayout layout;
  layout.block_tokens_ = block_tokens;
  layout.kv_heads_ = shape.kv_heads;
  layout.head_dim_ = shape.head_dim;
  layout.part_bytes_ = size_t{block_tokens} * shape.kv_heads * shape.head_dim * sizeof(uint16_t);
  return layout;
}

size_t BlockLayout::v_offset() const {
  return k_offset() + round_up(part_bytes_, kPartAlignment);
}

size_t BlockLayout::block_bytes() const {
  return v_offset() + round_up(part_bytes_, kPartAlignment);
}

size_t BlockLayout::k_page_offset(uint32_t page, uint32_t kv_head) const {
  const size_t page_bytes = size_t{kPageTokens} * head_dim_ * sizeof(uint16_t);
  return k_offset() + (size_t{page} * kv_heads_ + kv_head) * page_bytes;
}

size_t BlockLayout::v_page_offset(uint32_t page, uint32_t kv_head) const {
  return k_page_offset(page, kv_head) - k_offset() + v_offset();
}

void write_header(const BlockHeader& header, std::span<std::byte> block) {
  HIFC_CHECK(block.size() >= kHeaderBytes);
  std::memcpy(block.data(), &header, sizeof header);
  std::memset(block.data() + sizeof header, 0, kHeaderBytes - sizeof header);
}

Result<void> check_header(const BlockHeader& expected, std::span<const std::byte> block) {
  HIFC_CHECK(block.size() >= kHeaderBytes);
  BlockHeader found;
  std::memcpy(&found, block.data(), sizeof found);
  const auto wrong = [](const char* field) {
    return failure(Code::kCorrupt, fmt::format("block header carries another {}", field));
  };
  if (found.magic != expected.magic) return wrong("magic");
  if (found.layout_version != expected.layout_version) return wrong("layout version");
  if (found.layer != expected.layer) return wrong("layer");
  if (found.tokens.first_position != expected.tokens.first_position) return wrong("position");
  if (found.tokens.token_count != expected.tokens.token_count) return wrong("token count");
  if (found.k_codec != expected.k_codec || found.v_codec != expected.v_codec) return wrong("codec");
  if (std::memcmp(&found, &expected, sizeof found) != 0) return wrong("model or shape");
  return {};
}

}  // namespace hifc::kv
