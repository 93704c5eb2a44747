#include "apps/head_reads.h"

#include <gtest/gtest.h>

#include <vector>

namespace hifc::apps {
namespace {

// A header of 4 KiB and heads of 16 KiB.
kv::BlockLayout layout_of(uint32_t kv_heads) {
  const kv::ModelShape shape{
      .layers = 1, .query_heads = kv_heads, .kv_heads = kv_heads, .head_dim = 64};
  return kv::BlockLayout::make(shape, 64).value();
}

constexpr uint64_t kKiB = 1024;

TEST(HeadReads, CountsWholeBlocksAndHeadsParts) {
  const HeadReads reads(layout_of(3), {});
  const HeadPages needed = {{2, 3}, {3}, {9}};
  const ReadSum whole = reads.whole(needed);
  EXPECT_EQ(whole.bytes, 3 * 52 * kKiB);
  EXPECT_EQ(whole.reads, 2u);
  const ReadSum parts = reads.by_head(needed, natural_order(3));
  EXPECT_EQ(parts.bytes, 4 * 16 * kKiB);
  EXPECT_EQ(parts.reads, 3u);
  EXPECT_EQ(reads.whole({{}, {}, {}}).reads, 0u);
}

TEST(HeadReads, AnOrderThatPutsTheSameNeedsTogetherReadsLessOften) {
  const tier::DeviceProfile device{.fixed_s = 1e-5, .s_per_byte = 1e-9};
  const HeadReads reads(layout_of(4), device);
  const std::vector<HeadPages> steps(3, HeadPages{{1, 5, 7}, {4}, {1, 5}, {4, 8}});
  const auto order = order_by_likeness(steps);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 2, 1, 3}));
  const ReadSum before = reads.by_head(steps.front(), natural_order(4));
  const ReadSum after = reads.by_head(steps.front(), order);
  EXPECT_LT(after.reads, before.reads);
  EXPECT_LT(after.seconds(device), before.seconds(device));
  EXPECT_TRUE(order_by_likeness({}).empty());
}

}  // namespace
}  // namespace hifc::apps
