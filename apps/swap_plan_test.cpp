#include "apps/swap_plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace hifc::apps {
namespace {

using cache::ReplacementPolicy;

constexpr tier::DeviceProfile kDevice = {.fixed_s = 1e-5, .s_per_byte = 1e-9, .depth = 16};
constexpr auto kAll = {ReplacementPolicy::kLru, ReplacementPolicy::kFifo, ReplacementPolicy::kScan,
                       ReplacementPolicy::kCost};

// Goal: whoever executes a plan needs no more memory than was planned for, and has each group in
// memory when it is wanted, or reads it.
void check(const SwapWorkload& workload, const SwapPlan& plan, uint64_t groups_max) {
  ASSERT_EQ(plan.steps.size(), workload.trace().size());
  std::set<uint32_t> held;
  uint64_t hits = 0, uses = 0, read = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const SwapStep& step = plan.steps[i];
    const auto& sequence = workload.sequences()[workload.trace()[i].sequence];
    const std::set<uint32_t> missing(step.read.begin(), step.read.end());
    for (uint32_t at = 0; at < sequence.groups; ++at) {
      const uint32_t group = sequence.first_group + at;
      EXPECT_TRUE(held.contains(group) || missing.contains(group));
      hits += missing.contains(group) ? 0 : 1;
    }
    for (const uint32_t group : step.evicted) EXPECT_EQ(held.erase(group), 1u);
    for (const uint32_t group : step.read) EXPECT_FALSE(held.contains(group));
    for (size_t at = 0; at < step.read.size(); ++at)
      if (step.kept[at]) held.insert(step.read[at]);
    EXPECT_LE(held.size(), groups_max);
    uses += sequence.groups;
    read += step.read.size();
  }
  EXPECT_EQ(plan.hits[0] + plan.hits[1], hits);
  EXPECT_EQ(plan.uses[0] + plan.uses[1], uses);
  EXPECT_EQ(plan.groups_read, read);
  EXPECT_EQ(read + hits, uses);
}

TEST(SwapPlan, HoldsForEveryPolicyAndMemory) {
  const SwapWorkload workload({.sequences = 12, .groups = 6, .layers = 2, .block_bytes = 64});
  for (const auto policy : kAll)
    // Less than the longest conversation, too.
    for (const uint64_t groups : {0u, 1u, 4u, 20u, 50u, 200u}) {
      SCOPED_TRACE(std::string(to_string(policy)) + " " + std::to_string(groups));
      check(workload, make_plan(workload, policy, groups * workload.group_bytes(), kDevice),
            groups);
    }
}

TEST(SwapPlan, InTurnOnlyPoliciesThatKnowScansHit) {
  const SwapWorkload workload({.sequences = 10, .groups = 4, .accesses = 0, .passes = 4});
  const uint64_t memory = workload.groups() / 2 * workload.group_bytes();
  EXPECT_EQ(make_plan(workload, ReplacementPolicy::kLru, memory, kDevice).hit_rate(), 0);
  EXPECT_EQ(make_plan(workload, ReplacementPolicy::kFifo, memory, kDevice).hit_rate(), 0);
  // Half of it in three passes of four.
  for (const auto policy : {ReplacementPolicy::kScan, ReplacementPolicy::kCost})
    EXPECT_NEAR(make_plan(workload, policy, memory, kDevice).hit_rate(), 0.375, 1e-9);
}

TEST(SwapPlan, HitRatesOfPhasesAreApart) {
  SwapPlan plan;
  EXPECT_EQ(plan.hit_rate(), 0);
  plan.hits = {3, 1}, plan.uses = {4, 4};
  EXPECT_EQ(plan.hit_rate(SwapPhase::kPopular), 0.75);
  EXPECT_EQ(plan.hit_rate(SwapPhase::kCyclic), 0.25);
  EXPECT_EQ(plan.hit_rate(), 0.5);
}

}  // namespace
}  // namespace hifc::apps
