#include "kv/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

static_assert(std::endian::native == std::endian::little, "blocks are stored little-endian");

namespace hifc::kv {
namespace {

constexpr size_t kBlockAlignment = 4096;
constexpr size_t kPartAlignment = 64;

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<BlockLayout> BlockLayout::make(const ModelShape& shape, uint32_t block_tokens,
                                      LayerCodecs codecs) {
  if (block_tokens % kPageTokens != 0 || block_tokens < kPageTokens || block_tokens > 4096)
    return failure(Code::kInvalid,
                   fmt::format("block_tokens {} is not a multiple of {} from {} to 4096",
                               block_tokens, kPageTokens, kPageTokens));
  HIFC_CHECK(shape.kv_heads > 0);
  HIFC_CHECK(shape.head_dim > 0);
  HIFC_CHECK(shape.head_dim <= kHeadDimMax);
  BlockLayout layout;
  layout.block_tokens_ = block_tokens;
  layout.kv_heads_ = shape.kv_heads;
  layout.head_dim_ = shape.head_dim;
  layout.codecs_ = codecs;
  layout.k_page_bytes_ = page_bytes(layout.k_format());
  layout.v_page_bytes_ = page_bytes(layout.v_format());
  return layout;
}

size_t BlockLayout::k_part_bytes() const {
  return round_up(pages() * k_page_bytes_, kPartAlignment);
}

size_t BlockLayout::head_bytes() const {
  return k_part_bytes() + round_up(pages() * v_page_bytes_, kPartAlignment);
}

size_t BlockLayout::block_bytes() const {
  return round_up(sinks_offset(), kBlockAlignment);
}

size_t BlockLayout::first_block_bytes() const {
  return lossy() ? round_up(v_sink_offset(kv_heads_), kBlockAlignment) : block_bytes();
}

size_t BlockLayout::k_page_offset(uint32_t page, uint32_t kv_head) const {
  return head_offset(kv_head) + page * k_page_bytes_;
}

size_t BlockLayout::v_page_offset(uint32_t page, uint32_t kv_head) const {
  return head_offset(kv_head) + k_part_bytes() + page * v_page_bytes_;
}

size_t BlockLayout::k_sink_offset(uint32_t kv_head) const {
  HIFC_DCHECK(lossy());
  return sinks_offset() + kv_head * sink_bytes();
}

size_t BlockLayout::v_sink_offset(uint32_t kv_head) const {
  return k_sink_offset(kv_heads_ + kv_head);
}

double BlockLayout::token_bytes() const {
  return static_cast<double>(kv_heads_ * (k_page_bytes_ + v_page_bytes_)) / kPageTokens;
}

Result<GroupLayout> GroupLayout::make(const ModelShape& shape, uint32_t block_tokens,
                                      const CodecPolicy& codecs) {
  GroupLayout layout;
  HIFC_ASSIGN(layout.exact, BlockLayout::make(shape, block_tokens));
  if (codecs.empty()) layout.sealed.assign(shape.layers, layout.exact);
  for (const LayerCodecs& each : codecs) {
    HIFC_ASSIGN(const BlockLayout sealed, BlockLayout::make(shape, block_tokens, each));
    layout.sealed.push_back(sealed);
  }
  HIFC_CHECK(layout.sealed.size() == shape.layers);
  return layout;
}

bool GroupLayout::lossy() const {
  return std::ranges::any_of(sealed, &BlockLayout::lossy);
}

size_t GroupLayout::block_bytes_max() const {
  size_t most = exact.block_bytes();
  for (const BlockLayout& layout : sealed) most = std::max(most, layout.first_block_bytes());
  return most;
}

size_t GroupLayout::sealed_block_bytes_max() const {
  size_t most = 0;
  for (const BlockLayout& layout : sealed) most = std::max(most, layout.block_bytes());
  return most;
}

uint64_t GroupLayout::sealed_bytes() const {
  uint64_t bytes = 0;
  for (const BlockLayout& layout : sealed) bytes += layout.block_bytes();
  return bytes;
}

uint64_t GroupLayout::sealed_bytes(uint32_t groups) const {
  uint64_t sinks = 0;
  for (const BlockLayout& layout : sealed)
    sinks += layout.first_block_bytes() - layout.block_bytes();
  return groups * sealed_bytes() + (groups > 0 ? sinks : 0);
}

double GroupLayout::token_bytes() const {
  double bytes = 0;
  for (const BlockLayout& layout : sealed) bytes += layout.token_bytes();
  return bytes;
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
