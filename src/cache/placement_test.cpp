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

std::vector<uint32_t> wanted_groups(const Placement& placement, uint32_t layer, uint32_t groups) {
  std::vector<uint32_t> wanted;
  for (uint32_t g = 0; g < groups; ++g)
    if (placement.wanted(g, layer)) wanted.push_back(g);
  return wanted;
}

TEST(Placement, PinsTheSameShareOfEveryLayer) {
  constexpr uint32_t kLayers = 30, kGroups = 32;
  Placement placement(shape_of(std::vector<uint32_t>(kLayers)), 256);
  // Memory: 60 % of all blocks stay, and what streaming takes comes on top.
  const uint32_t cold = kLayers * kGroups * 4 / 10;
  const uint32_t staging = (cold + kLayers - 1) / kLayers * 3;
  placement.plan({.frames = kLayers * kGroups * 6 / 10 + 2 * kLayers + staging,
                  .open_frames = 2 * kLayers,
                  .staging_min = 2,
                  .prefetch_layers = 2,
                  .length = kGroups * 256});
  EXPECT_GE(placement.staging_frames(), 2u);
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    EXPECT_NEAR(static_cast<double>(wanted_groups(placement, layer, kGroups).size()), 0.6 * kGroups,
                1.0)
        << "layer " << layer;
}

TEST(Placement, WantsEverythingAndStagesNothingWhereEverythingFits) {
  Placement placement(shape_of({0, 0, 0}), 64);
  placement.plan({.frames = 30, .open_frames = 6, .staging_min = 8, .length = 8 * 64});
  EXPECT_EQ(placement.staging_frames(), 0u);
  for (uint32_t layer = 0; layer < 3; ++layer)
    EXPECT_EQ(wanted_groups(placement, layer, 8).size(), 8u);
}

TEST(Placement, WindowLayersKeepExactlyTheBlocksInTheWindow) {
  const std::vector<uint32_t> window = {100, 0, 64, 300, 1000, 1, 0};
  Placement placement(shape_of(window), 64);
  for (const uint32_t length : {1u, 63u, 64u, 65u, 640u, 700u, 1000u, 1063u, 1064u, 1065u}) {
    SCOPED_TRACE("length " + std::to_string(length));
    const uint32_t groups = (length + 63) / 64;
    placement.plan(
        {.frames = 2 * groups + 45, .open_frames = 14, .staging_min = 8, .length = length});
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
  const Placement placement(shape_of({0, 100, 64}), 64);
  for (uint32_t position = 0; position < 1000; ++position) {
    EXPECT_EQ(placement.first_visible_group(0, position), 0u);
    EXPECT_EQ(placement.first_visible_group(1, position),
              (position < 100 ? 0 : position - 99) / 64);
    EXPECT_EQ(placement.first_visible_group(2, position), (position < 64 ? 0 : position - 63) / 64);
  }
}

// Properties over random shapes: what is wanted, the open groups and the staging frames fit in the
// memory together; layers differ by one block at most; what is wanted is a prefix of the groups.
TEST(Placement, NeverWantsMoreThanTheMemoryHolds) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
    std::vector<uint32_t> window(1 + below(12));
    for (uint32_t& tokens : window) tokens = below(2) == 0 ? 0 : 1 + below(2000);
    const uint32_t block_tokens = 64u << below(4);
    const auto layers = static_cast<uint32_t>(window.size());
    const PlacementInput input{.frames = 2 * layers + 8 + below(60 * layers),
                               .open_frames = (1 + below(2)) * layers,
                               .staging_min = 2 + 2 * below(4),
                               .prefetch_layers = below(9),
                               .length = below(20000)};
    Placement placement(shape_of(window), block_tokens);
    placement.plan(input);
    const uint32_t groups = (input.length + block_tokens - 1) / block_tokens;
    uint32_t wanted = 0, least = UINT32_MAX, most = 0;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto list = wanted_groups(placement, layer, groups);
      const auto count = static_cast<uint32_t>(list.size());
      wanted += count;
      if (window[layer] != 0) continue;
      least = std::min(least, count);
      most = std::max(most, count);
      EXPECT_TRUE(list.empty() || list.back() == count - 1);
    }
    EXPECT_LE(wanted, input.frames);
    if (least != UINT32_MAX) EXPECT_LE(most - least, 1u);
    if (placement.staging_frames() == 0) continue;
    EXPECT_GE(placement.staging_frames(), input.staging_min);
    const uint32_t reserved = input.open_frames + placement.staging_frames();
    EXPECT_LE(wanted, input.frames - std::min(input.frames, reserved));
  }
}

}  // namespace
}  // namespace hifc::cache
