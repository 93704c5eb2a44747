#include "cache/read_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace hifc::cache {
namespace {

constexpr uint64_t kChunk = 4096;

kv::BlockLayout layout_of(uint32_t kv_heads, kv::LayerCodecs codecs = {}) {
  const kv::ModelShape shape{
      .layers = 1, .query_heads = kv_heads, .kv_heads = kv_heads, .head_dim = 64};
  return kv::BlockLayout::make(shape, 64, codecs).value();
}

// Heads of 16 KiB behind a header of 4.
TEST(ReadPlan, HeadsOfABlockAreExtentsOfIt) {
  const kv::BlockLayout layout = layout_of(4);
  const uint64_t bytes = layout.block_bytes();
  ASSERT_EQ(bytes, 68u << 10);
  const auto extents = [&](HeadSet heads) { return extents_of(heads, layout, bytes, kChunk); };
  EXPECT_EQ(extents(kAllHeads), (std::vector<Extent>{{0, bytes}}));
  EXPECT_EQ(extents(0), std::vector<Extent>{});
  EXPECT_EQ(extents(0b0001), (std::vector<Extent>{{4096, 20480}}));
  EXPECT_EQ(extents(0b0110), (std::vector<Extent>{{20480, 53248}}));
  EXPECT_EQ(extents(0b1001), (std::vector<Extent>{{4096, 20480}, {53248, 69632}}));
  // Of a set that lacks only what was read before, the rest.
  EXPECT_EQ(extents(kAllHeads & ~HeadSet{0b0111}), (std::vector<Extent>{{53248, 69632}}));

  EXPECT_EQ(heads_within({0, bytes}, layout, bytes), kAllHeads);
  EXPECT_EQ(heads_within({4096, bytes}, layout, bytes), 0b1111u);
  EXPECT_EQ(heads_within({4096, 20480}, layout, bytes), 0b0001u);
  EXPECT_EQ(heads_within({8192, 53248}, layout, bytes), 0b0110u);
  EXPECT_EQ(heads_within({0, 4096}, layout, bytes), 0u);
}

TEST(ReadPlan, ExtentsHoldTheirHeadsWhateverTheCodecs) {
  for (const uint32_t kv_heads : {1u, 3u, 8u, 63u, 64u, 65u, 96u})
    for (const kv::Codec codec : {kv::Codec::kF16, kv::Codec::kI8, kv::Codec::kI4, kv::Codec::kI2})
      for (const uint64_t chunk : {uint64_t{4096}, uint64_t{16384}}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " heads, " + std::string(to_string(codec)));
        const kv::BlockLayout layout = layout_of(kv_heads, {.k = codec, .v = codec});
        const uint64_t bytes = layout.block_bytes();
        for (uint32_t head = 0; head < std::min(kv_heads, kHeadsMax); ++head) {
          const auto extents = extents_of(head_bit(head), layout, bytes, chunk);
          ASSERT_EQ(extents.size(), 1u);
          EXPECT_EQ(extents.front().begin % chunk, 0u);
          EXPECT_TRUE(extents.front().end % chunk == 0 || extents.front().end == bytes);
          EXPECT_NE(heads_within(extents.front(), layout, bytes) & head_bit(head), 0u);
          EXPECT_LE(extents.front().size(), layout.head_bytes() + 2 * chunk);
        }
      }
}

TEST(ReadPlan, EveryHeadIsNotYetTheWholeBlock) {
  EXPECT_TRUE(is_every_head(0b111, 3));
  EXPECT_FALSE(is_every_head(0b110, 3));
  EXPECT_TRUE(is_every_head(kAllHeads, 3));
  EXPECT_TRUE(is_every_head(kAllHeads, 64));
  EXPECT_FALSE(is_every_head(kAllHeads >> 1, 64));
  EXPECT_FALSE(is_every_head(kAllHeads >> 1, 200));
  EXPECT_TRUE(is_every_head(kAllHeads, 200));
}

TEST(ReadPlan, WholeNeighboursAreOneReadUpToItsLimit) {
  const std::vector<WantedBlock> blocks = {{.group = 3, .bytes = 8192, .extents = {{0, 8192}}},
                                           {.group = 4, .bytes = 8192, .extents = {{0, 8192}}},
                                           {.group = 5, .bytes = 8192, .extents = {{0, 8192}}}};
  EXPECT_EQ(plan_reads(blocks, {.run_bytes_max = 1u << 20}),
            (std::vector<ReadRun>{{{3, {0, 8192}}, {4, {0, 8192}}, {5, {0, 8192}}}}));
  EXPECT_EQ(plan_reads(blocks, {.run_bytes_max = 16384}),
            (std::vector<ReadRun>{{{3, {0, 8192}}, {4, {0, 8192}}}, {{5, {0, 8192}}}}));
  // One that is longer than the limit is still read.
  EXPECT_EQ(plan_reads(blocks, {.run_bytes_max = 1}).size(), 3u);
}

TEST(ReadPlan, WhatCostsLessThanAReadIsReadThrough) {
  const std::vector<WantedBlock> blocks = {
      {.group = 0, .bytes = 20480, .extents = {{4096, 8192}, {16384, 20480}}},
      {.group = 1, .bytes = 20480},
      {.group = 2, .bytes = 20480, .extents = {{4096, 8192}}}};
  const auto plan = [&](uint64_t gap) {
    return plan_reads(blocks, {.gap_bytes_max = gap, .run_bytes_max = 1u << 20});
  };
  const std::vector<ReadRun> apart = {
      {{0, {4096, 8192}}}, {{0, {16384, 20480}}}, {{2, {4096, 8192}}}};
  EXPECT_EQ(plan(0), apart);
  EXPECT_EQ(plan(8191), apart);
  EXPECT_EQ(plan(8192), (std::vector<ReadRun>{{{0, {4096, 20480}}}, {{2, {4096, 8192}}}}));
  EXPECT_EQ(plan(24576),
            (std::vector<ReadRun>{{{0, {4096, 20480}}, {1, {0, 20480}}, {2, {0, 8192}}}}));
}

// Over random wishes: all of it is read, once, in the order of flash; parts of a read touch; and
// what a read brings besides is never more than a gap at a time, nor at an end.
TEST(ReadPlan, CoversWhatIsWantedAndLittleElse) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const kv::BlockLayout layout = layout_of(1 + random() % 40);
    std::vector<WantedBlock> blocks;
    std::vector<uint8_t> wanted;  // [chunk] of the blocks laid end to end
    for (uint32_t group = 0; group < 8; ++group) {
      HeadSet heads = random() & random();
      if (random() % 3 == 0) heads = random() % 2 == 0 ? 0 : kAllHeads;
      const uint64_t bytes = layout.block_bytes();
      blocks.push_back(
          {.group = group, .bytes = bytes, .extents = extents_of(heads, layout, bytes, kChunk)});
      const size_t origin = wanted.size();
      wanted.resize(origin + bytes / kChunk);
      for (const Extent& extent : blocks.back().extents)
        std::fill(wanted.begin() + static_cast<ptrdiff_t>(origin + extent.begin / kChunk),
                  wanted.begin() + static_cast<ptrdiff_t>(origin + extent.end / kChunk), 1);
    }
    const uint64_t gap_max = random() % 100000;
    std::vector<uint8_t> read(wanted.size());
    for (const ReadRun& run :
         plan_reads(blocks, {.gap_bytes_max = gap_max, .run_bytes_max = 1u << 20})) {
      uint64_t at = 0, gap = 0;
      for (const BlockPart& part : run) {
        const uint64_t begin = part.group * layout.block_bytes() + part.extent.begin;
        if (&part != &run.front()) EXPECT_EQ(begin, at);
        at = begin + part.extent.size();
        for (uint64_t chunk = begin / kChunk; chunk < at / kChunk; ++chunk) {
          EXPECT_EQ(read[chunk]++, 0);
          gap = wanted[chunk] != 0 ? 0 : gap + kChunk;
          EXPECT_LE(gap, gap_max);
        }
      }
      EXPECT_EQ(gap, 0u) << "nothing is read at an end that is not wanted";
    }
    for (size_t chunk = 0; chunk < wanted.size(); ++chunk)
      EXPECT_LE(wanted[chunk], read[chunk]) << chunk;
  }
}

}  // namespace
}  // namespace hifc::cache
