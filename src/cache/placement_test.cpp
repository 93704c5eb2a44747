#include "cache/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace hifc::cache {
namespace {

kv::ModelShape shape_of(std::vector<uint32_t> window) {
  return {.layers = static_cast<uint32_t>(window.size()),
          .query_heads = 1,
          .kv_heads = 1,
          .head_dim = 16,
          .window = std::move(window)};
}

kv::GroupLayout layout_of(const kv::ModelShape& shape, uint32_t block_tokens) {
  return kv::GroupLayout::make(shape, block_tokens).value();
}

// Memory in blocks of one length.
struct Blocks {
  uint64_t memory = 0, open = 0, staging_min = 0;
  uint32_t prefetch_layers = 1;
  uint32_t length = 0;
};

PlacementInput bytes_of(const Blocks& blocks, const kv::GroupLayout& layout) {
  const uint64_t block = layout.exact.block_bytes();
  const uint32_t groups = (blocks.length + layout.block_tokens() - 1) / layout.block_tokens();
  return {.memory_bytes = blocks.memory * block,
          .open_bytes = blocks.open * block,
          .staging_min_bytes = blocks.staging_min * block,
          .all_bytes = layout.sealed_bytes(groups),
          .prefetch_layers = blocks.prefetch_layers,
          .length = blocks.length};
}

std::vector<uint32_t> wanted_groups(const Placement& placement, uint32_t layer, uint32_t groups) {
  std::vector<uint32_t> wanted;
  for (uint32_t g = 0; g < groups; ++g)
    if (placement.wanted(g, layer)) wanted.push_back(g);
  return wanted;
}

TEST(Placement, PinsTheSameShareOfEveryLayer) {
  constexpr uint32_t kLayers = 30, kGroups = 32;
  const kv::ModelShape shape = shape_of(std::vector<uint32_t>(kLayers));
  const kv::GroupLayout layout = layout_of(shape, 256);
  Placement placement(shape, layout);
  // Memory: 60 % of all blocks stay, and what streaming takes comes on top.
  const uint32_t cold = kLayers * kGroups * 4 / 10;
  const uint32_t staging = (cold + kLayers - 1) / kLayers * 3;
  placement.plan(bytes_of({.memory = kLayers * kGroups * 6 / 10 + 2 * kLayers + staging,
                           .open = 2 * kLayers,
                           .staging_min = 2,
                           .prefetch_layers = 2,
                           .length = kGroups * 256},
                          layout));
  EXPECT_GE(placement.staging_bytes(), 2 * layout.exact.block_bytes());
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    EXPECT_NEAR(static_cast<double>(wanted_groups(placement, layer, kGroups).size()), 0.6 * kGroups,
                1.0)
        << "layer " << layer;
}

TEST(Placement, WantsEverythingAndStagesNothingWhereEverythingFits) {
  const kv::ModelShape shape = shape_of({0, 0, 0});
  const kv::GroupLayout layout = layout_of(shape, 64);
  Placement placement(shape, layout);
  placement.plan(bytes_of({.memory = 30, .open = 6, .staging_min = 8, .length = 8 * 64}, layout));
  EXPECT_EQ(placement.staging_bytes(), 0u);
  for (uint32_t layer = 0; layer < 3; ++layer)
    EXPECT_EQ(wanted_groups(placement, layer, 8).size(), 8u);
}

TEST(Placement, TheHottestTakeTheRoomOfTheEarliest) {
  const kv::ModelShape shape = shape_of({0, 300, 0});
  const kv::GroupLayout layout = layout_of(shape, 64);
  Placement placement(shape, layout);
  placement.plan(bytes_of({.memory = 38, .open = 4, .staging_min = 8, .length = 20 * 64}, layout));
  const size_t earliest =
      wanted_groups(placement, 0, 20).size() + wanted_groups(placement, 2, 20).size();
  ASSERT_GT(earliest, 10u);
  // Layer 2 is worth little but for one group.
  placement.pin_hottest(20, [](uint32_t group, uint32_t layer) {
    return layer == 0 ? 1.0 + group : group == 7 ? 9.5 : 0.5;
  });
  const auto first = wanted_groups(placement, 0, 20), last = wanted_groups(placement, 2, 20);
  EXPECT_EQ(first.size() + last.size(), earliest);
  EXPECT_EQ(last, (std::vector<uint32_t>{0, 7, 18, 19}));
  EXPECT_EQ(first.front(), 0u);
  EXPECT_EQ(first[1], 20 - first.size() + 1) << "the rest are the latest";
  placement.pin_earliest();
  EXPECT_EQ(wanted_groups(placement, 0, 20).size() + wanted_groups(placement, 2, 20).size(),
            earliest);
}

TEST(Placement, WindowLayersKeepExactlyTheBlocksInTheWindow) {
  const std::vector<uint32_t> window = {100, 0, 64, 300, 1000, 1, 0};
  const kv::ModelShape shape = shape_of(window);
  const kv::GroupLayout layout = layout_of(shape, 64);
  Placement placement(shape, layout);
  for (const uint32_t length : {1u, 63u, 64u, 65u, 640u, 700u, 1000u, 1063u, 1064u, 1065u}) {
    SCOPED_TRACE("length " + std::to_string(length));
    const uint32_t groups = (length + 63) / 64;
    placement.plan(bytes_of(
        {.memory = 2 * groups + 45, .open = 14, .staging_min = 8, .length = length}, layout));
    for (uint32_t layer = 0; layer < window.size(); ++layer) {
      if (window[layer] == 0) continue;
      // The last query sees positions [length - window, length).
      std::vector<uint32_t> visible;
      for (uint32_t g = 0; g < groups; ++g)
        if ((g + 1) * 64 + window[layer] > length) visible.push_back(g);
      EXPECT_EQ(wanted_groups(placement, layer, groups), visible) << "layer " << layer;
    }
  }
}

TEST(Placement, FirstVisibleGroupHoldsTheOldestTokenInTheWindow) {
  const kv::ModelShape shape = shape_of({0, 100, 64});
  const Placement placement(shape, layout_of(shape, 64));
  for (uint32_t position = 0; position < 1000; ++position) {
    EXPECT_EQ(placement.first_visible_group(0, position), 0u);
    EXPECT_EQ(placement.first_visible_group(1, position),
              (position < 100 ? 0 : position - 99) / 64);
    EXPECT_EQ(placement.first_visible_group(2, position), (position < 64 ? 0 : position - 63) / 64);
  }
}

// Properties over random shapes and codecs: what is wanted, the open groups and the staging fit in
// the memory together; layers differ by one block at most; what is wanted is a prefix of the
// groups.
TEST(Placement, NeverWantsMoreThanTheMemoryHolds) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
    std::vector<uint32_t> window(1 + below(12));
    for (uint32_t& tokens : window) tokens = below(2) == 0 ? 0 : 1 + below(2000);
    const uint32_t block_tokens = 64u << below(4);
    const auto layers = static_cast<uint32_t>(window.size());
    kv::CodecPolicy codecs;
    while (seed % 2 == 0 && codecs.size() < layers)
      codecs.push_back(
          {static_cast<kv::Codec>(1 + below(5)), static_cast<kv::Codec>(1 + below(5))});
    const kv::ModelShape shape = shape_of(window);
    const auto layout = kv::GroupLayout::make(shape, block_tokens, codecs).value();
    const PlacementInput input = bytes_of({.memory = 2 * layers + 8 + below(60 * layers),
                                           .open = (1 + below(2)) * layers,
                                           .staging_min = 2 + 2 * below(4),
                                           .prefetch_layers = below(9),
                                           .length = below(20000)},
                                          layout);
    Placement placement(shape, layout);
    placement.plan(input);
    const uint32_t groups = (input.length + block_tokens - 1) / block_tokens;
    uint32_t least = UINT32_MAX, most = 0;
    uint64_t wanted = 0;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto list = wanted_groups(placement, layer, groups);
      const auto count = static_cast<uint32_t>(list.size());
      wanted += count * layout.sealed[layer].block_bytes();
      if (window[layer] != 0) continue;
      least = std::min(least, count);
      most = std::max(most, count);
      EXPECT_TRUE(list.empty() || list.back() == count - 1);
    }
    EXPECT_LE(wanted, input.memory_bytes);
    if (least != UINT32_MAX) EXPECT_LE(most - least, 1u);
    if (placement.staging_bytes() == 0) continue;
    EXPECT_GE(placement.staging_bytes(), input.staging_min_bytes);
    const uint64_t reserved = input.open_bytes + placement.staging_bytes();
    EXPECT_LE(wanted, input.memory_bytes - std::min(input.memory_bytes, reserved));
  }
}

}  // namespace
}  // namespace hifc::cache
