#include "apps/swap_workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace hifc::apps {
namespace {

TEST(SwapWorkload, SequencesCoverAllGroupsOnceAndVaryAroundTheMean) {
  const SwapWorkload workload({.sequences = 24, .groups = 8});
  uint32_t next = 0;
  std::set<uint32_t> lengths;
  for (const auto& sequence : workload.sequences()) {
    EXPECT_EQ(sequence.first_group, next);
    next += sequence.groups;
    lengths.insert(sequence.groups);
  }
  EXPECT_EQ(next, workload.groups());
  EXPECT_EQ(workload.bytes(), uint64_t{next} * 30 * (192u << 10));
  EXPECT_NEAR(next, 24 * 8, 24);
  EXPECT_EQ(*lengths.begin(), 4u);
  EXPECT_EQ(*lengths.rbegin(), 12u);
  EXPECT_EQ(workload.sequence_bytes_max(), 12 * workload.group_bytes());
}

TEST(SwapWorkload, TheSmallestHasOneGroupAndOneAccess) {
  const SwapWorkload workload(
      {.sequences = 1, .groups = 1, .layers = 1, .accesses = 0, .passes = 1});
  EXPECT_EQ(workload.groups(), 1u);
  ASSERT_EQ(workload.trace().size(), 1u);
  EXPECT_EQ(workload.trace()[0].sequence, 0u);
}

TEST(SwapWorkload, FirstByPopularityThenInTurn) {
  const SwapWorkload workload({.sequences = 10, .accesses = 1000, .passes = 2});
  const auto trace = workload.trace();
  ASSERT_EQ(trace.size(), 1020u);
  std::vector<uint32_t> counts(10);
  for (const auto& access : trace.first(1000)) {
    EXPECT_EQ(access.phase, SwapPhase::kPopular);
    ++counts[access.sequence];
  }
  for (uint32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(trace[1000 + i].phase, SwapPhase::kCyclic);
    EXPECT_EQ(trace[1000 + i].sequence, i % 10);
  }
  // 1 + 1/2 + ... + 1/10 is 2.93.
  std::ranges::sort(counts, std::greater<>());
  EXPECT_NEAR(counts[0], 1000 / 2.93, 60);
  EXPECT_NEAR(counts[1], 500 / 2.93, 60);
  EXPECT_GT(counts[9], 0u);
}

TEST(SwapWorkload, TheSeedDecidesTheTraceAndTheContents) {
  const auto trace_of = [](uint64_t seed) {
    const SwapWorkload workload({.seed = seed});
    std::vector<uint32_t> sequences;
    for (const auto& access : workload.trace()) sequences.push_back(access.sequence);
    return sequences;
  };
  EXPECT_EQ(trace_of(1), trace_of(1));
  EXPECT_NE(trace_of(1), trace_of(2));
}

TEST(SwapWorkload, NoTwoBlocksAreAlike) {
  const SwapWorkload workload({.sequences = 2, .groups = 2, .layers = 3, .block_bytes = 64});
  std::set<std::vector<std::byte>> blocks;
  for (uint32_t group = 0; group < workload.groups(); ++group)
    for (uint32_t layer = 0; layer < 3; ++layer) {
      std::vector<std::byte> block(64), again(64);
      workload.fill_block(group, layer, block);
      workload.fill_block(group, layer, again);
      EXPECT_EQ(block, again);
      blocks.insert(block);
    }
  EXPECT_EQ(blocks.size(), workload.groups() * 3);
}

}  // namespace
}  // namespace hifc::apps
