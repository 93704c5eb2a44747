#include "kv/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace hifc::kv {
namespace {

BlockLayout layout_of(uint32_t kv_heads, uint32_t head_dim, uint32_t block_tokens) {
  const ModelShape shape{
      .layers = 1, .query_heads = kv_heads, .kv_heads = kv_heads, .head_dim = head_dim};
  return BlockLayout::make(shape, block_tokens).value();
}

TEST(BlockLayout, LlamaTwoGivesTwoMebibytesOfKAndOfV) {
  const BlockLayout layout = layout_of(32, 128, 256);
  EXPECT_EQ(layout.k_bytes(), 2u << 20);
  EXPECT_EQ(layout.v_bytes(), 2u << 20);
  EXPECT_EQ(layout.block_bytes(), 4096 + (4u << 20));
}

TEST(BlockLayout, PartsAreAlignedAndPagesCoverThemWithoutOverlap) {
  for (const uint32_t kv_heads : {1u, 2u, 3u, 8u})
    for (const uint32_t head_dim : {16u, 48u, 64u, 80u, 128u, 256u})
      for (const uint32_t block_tokens : {64u, 128u, 256u, 512u, 4096u}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " heads x " + std::to_string(head_dim) + ", " +
                     std::to_string(block_tokens) + " tokens");
        const BlockLayout layout = layout_of(kv_heads, head_dim, block_tokens);
        EXPECT_EQ(layout.head_offset(0), 4096u);
        EXPECT_EQ(layout.block_bytes() % 4096, 0u);
        EXPECT_EQ(layout.k_bytes(), size_t{2} * kv_heads * head_dim * block_tokens);
        EXPECT_EQ(layout.v_bytes(), layout.k_bytes());
        EXPECT_GE(layout.block_bytes(), layout.head_offset(kv_heads));
        EXPECT_LT(layout.block_bytes(), 3 * 4096 + layout.k_bytes() + layout.v_bytes());

        const size_t page_bytes = size_t{2} * 64 * head_dim;
        for (uint32_t head = 0; head < kv_heads; ++head) {
          EXPECT_EQ(layout.head_offset(head + 1), layout.head_offset(head) + layout.head_bytes());
          for (uint32_t page = 0; page < layout.pages(); ++page) {
            ASSERT_EQ(layout.k_page_offset(page, head),
                      layout.head_offset(head) + page * page_bytes);
            ASSERT_EQ(layout.v_page_offset(page, head) % 64, 0u);
            ASSERT_EQ(layout.v_page_offset(page, head),
                      layout.k_page_offset(page, head) + layout.pages() * page_bytes);
          }
          EXPECT_EQ(layout.v_page_offset(layout.pages() - 1, head) + page_bytes,
                    layout.head_offset(head + 1));
        }
      }
}

// 4.5 bits a value of K and 3.5 of V: 32 * 128 * 256 of each.
TEST(BlockLayout, CodecsShrinkTheParts) {
  const ModelShape shape{.layers = 1, .query_heads = 32, .kv_heads = 32, .head_dim = 128};
  const auto layout = BlockLayout::make(shape, 256, {.k = Codec::kI4, .v = Codec::kI3}).value();
  EXPECT_EQ(layout.k_bytes(), (1u << 20) * 9 / 16);
  EXPECT_EQ(layout.v_bytes(), (1u << 20) * 7 / 16);
  EXPECT_EQ(layout.block_bytes(), 4096 + (1u << 20));
  EXPECT_EQ(layout.first_block_bytes(), layout.block_bytes() + 2 * 32 * 4 * 128 * 2);
  EXPECT_EQ(layout.token_bytes(), 4096.0);
}

TEST(BlockLayout, PagesAndSinksOfAnyCodecsDoNotOverlap) {
  const std::vector<Codec> codecs = {Codec::kF16, Codec::kI8, Codec::kI4, Codec::kI3, Codec::kI2};
  for (const Codec k : codecs)
    for (const Codec v : codecs)
      for (const uint32_t head_dim : {16u, 64u, 80u, 96u, 256u}) {
        SCOPED_TRACE(std::string(to_string(k)) + " " + std::string(to_string(v)) + " " +
                     std::to_string(head_dim));
        const ModelShape shape{.layers = 1, .query_heads = 3, .kv_heads = 3, .head_dim = head_dim};
        const auto layout = BlockLayout::make(shape, 128, {.k = k, .v = v}).value();
        std::vector<std::pair<size_t, size_t>> parts;  // offset, length
        for (uint32_t head = 0; head < 3; ++head) {
          for (uint32_t page = 0; page < 2; ++page) {
            parts.emplace_back(layout.k_page_offset(page, head), page_bytes(layout.k_format()));
            parts.emplace_back(layout.v_page_offset(page, head), page_bytes(layout.v_format()));
          }
          if (!layout.lossy()) continue;
          parts.emplace_back(layout.k_sink_offset(head), kSinkTokens * head_dim * 2);
          parts.emplace_back(layout.v_sink_offset(head), kSinkTokens * head_dim * 2);
        }
        std::ranges::sort(parts);
        EXPECT_EQ(parts.front().first, kHeaderBytes);
        for (size_t i = 1; i < parts.size(); ++i)
          EXPECT_GE(parts[i].first, parts[i - 1].first + parts[i - 1].second);
        EXPECT_LE(parts.back().first + parts.back().second, layout.first_block_bytes());
        EXPECT_EQ(layout.first_block_bytes() % 4096, 0u);
        EXPECT_EQ(layout.block_bytes() % 4096, 0u);
      }
}

TEST(GroupLayout, CountsTheSinksOnce) {
  const ModelShape shape{.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
  const auto layout = GroupLayout::make(shape, 256, {{.k = Codec::kI4}, {}}).value();
  EXPECT_TRUE(layout.lossy());
  EXPECT_EQ(layout.sealed_bytes(0), 0u);
  EXPECT_EQ(layout.sealed_bytes(1),
            layout.sealed[0].first_block_bytes() + layout.exact.block_bytes());
  EXPECT_EQ(layout.sealed_bytes(5), 4 * layout.sealed_bytes() + layout.sealed_bytes(1));
  EXPECT_FALSE(GroupLayout::make(shape, 256).value().lossy());
}

TEST(BlockLayout, RefusesBlockTokensThatAreNoWholePages) {
  const ModelShape shape{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 64};
  for (const uint32_t block_tokens : {0u, 1u, 32u, 63u, 65u, 100u, 4095u, 4160u, 1u << 31}) {
    const auto layout = BlockLayout::make(shape, block_tokens);
    ASSERT_FALSE(layout) << block_tokens;
    EXPECT_EQ(layout.error().code, Code::kInvalid);
    EXPECT_NE(layout.error().message().find(std::to_string(block_tokens)), std::string::npos);
  }
}

BlockHeader example() {
  BlockHeader header;
  header.tokens = {.first_position = 0x01020304, .token_count = 256, .flags = 0};
  header.layer = 5;
  header.kv_heads = 8;
  header.head_dim = 128;
  header.block_tokens = 256;
  header.model_fingerprint.fill(std::byte{0xab});
  return header;
}

TEST(BlockHeader, BeginsWithTheTokenHeaderAndIsZeroPadded) {
  std::vector<std::byte> block(2 * kHeaderBytes, std::byte{0xff});
  write_header(example(), block);
  const std::array<uint8_t, 12> begin = {4, 3, 2, 1, 0, 1, 0, 0, 'H', 'K', 'V', 'B'};
  EXPECT_EQ(std::memcmp(block.data(), begin.data(), begin.size()), 0);
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  EXPECT_TRUE(std::ranges::all_of(
      std::span(block).subspan(sizeof(BlockHeader), kHeaderBytes - sizeof(BlockHeader)), is_zero));
  EXPECT_EQ(block[kHeaderBytes], std::byte{0xff});
}

TEST(BlockHeader, ChecksOutAsWritten) {
  std::vector<std::byte> block(kHeaderBytes);
  write_header(example(), block);
  EXPECT_TRUE(check_header(example(), block));
}

TEST(BlockHeader, NamesTheFieldThatDiffers) {
  struct Case {
    std::string name;
    std::function<void(BlockHeader&)> change;
  };
  const std::vector<Case> cases = {
      {"position", [](BlockHeader& h) { h.tokens.first_position += 256; }},
      {"token count", [](BlockHeader& h) { --h.tokens.token_count; }},
      {"magic", [](BlockHeader& h) { h.magic[3] = 'C'; }},
      {"layout version", [](BlockHeader& h) { ++h.layout_version; }},
      {"layer", [](BlockHeader& h) { ++h.layer; }},
      {"codec", [](BlockHeader& h) { ++h.k_codec; }},
      {"codec", [](BlockHeader& h) { ++h.v_codec; }},
      {"model or shape", [](BlockHeader& h) { h.tokens.flags = 1; }},
      {"model or shape", [](BlockHeader& h) { ++h.kv_heads; }},
      {"model or shape", [](BlockHeader& h) { ++h.head_dim; }},
      {"model or shape", [](BlockHeader& h) { h.block_tokens = 128; }},
      {"model or shape", [](BlockHeader& h) { h.model_fingerprint[31] = std::byte{0}; }},
  };
  for (const auto& [name, change] : cases) {
    BlockHeader found = example();
    change(found);
    std::vector<std::byte> block(kHeaderBytes);
    write_header(found, block);
    const auto outcome = check_header(example(), block);
    ASSERT_FALSE(outcome) << name;
    EXPECT_EQ(outcome.error().code, Code::kCorrupt);
    EXPECT_TRUE(outcome.error().message().ends_with("another " + name))
        << outcome.error().message();
  }
}

}  // namespace
}  // namespace hifc::kv
