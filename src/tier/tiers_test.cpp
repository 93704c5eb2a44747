#include "tier/tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "testing/sim_clock.h"
#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::tier {
namespace {

constexpr size_t kBlock = 8192;

std::unique_ptr<Tiers> make(uint64_t hot_bytes, uint64_t warm_bytes) {
  return Tiers::create({.block_bytes = kBlock,
                        .blocks_per_group = 2,
                        .hot_bytes = hot_bytes,
                        .warm_bytes = warm_bytes})
      .value();
}

uint64_t used(const Tiers& tiers, Tier tier) {
  return tiers.counters(tier).used_bytes;
}

TEST(Tiers, HoldAsManyFramesAsEachBudgetHasRoomFor) {
  // A budget that is no multiple of a block does not lend its rest to the other tier.
  const auto tiers = make(2 * kBlock + kBlock - 1, 3 * kBlock + kBlock - 1);
  EXPECT_EQ(tiers->memory_bytes(), 5 * kBlock);
  std::vector<FrameId> frames;
  while (const auto frame = tiers->acquire(Tier::kHot, kBlock)) frames.push_back(*frame);
  EXPECT_EQ(frames.size(), 5u);
  EXPECT_EQ(used(*tiers, Tier::kHot), 2 * kBlock);
  EXPECT_EQ(used(*tiers, Tier::kWarm), 3 * kBlock);
}

TEST(Tiers, AcquirePrefersTheAskedTierElseTheOther) {
  const auto tiers = make(1 * kBlock, 2 * kBlock);
  EXPECT_EQ(tiers->tier_of(tiers->acquire(Tier::kWarm, kBlock).value()), Tier::kWarm);
  EXPECT_EQ(tiers->tier_of(tiers->acquire(Tier::kHot, kBlock).value()), Tier::kHot);
  const FrameId other = tiers->acquire(Tier::kHot, kBlock).value();
  EXPECT_EQ(tiers->tier_of(other), Tier::kWarm);
  EXPECT_FALSE(tiers->acquire(Tier::kHot, kBlock));
  tiers->release(other);
  EXPECT_EQ(tiers->tier_of(tiers->acquire(Tier::kWarm, kBlock).value()), Tier::kWarm);
}

// Long and short sequences take turns, every second one goes: what is free lies scattered, and one
// sequence may still have all of it.
TEST(Tiers, InterleavedSequencesOfWhichEverySecondIsFreed) {
  const auto tiers = make(100 * kBlock, 100 * kBlock);
  std::vector<std::vector<FrameId>> sequences(20);
  for (size_t taken = 0; tiers->free_bytes() > 0; ++taken) {
    const size_t index = taken % sequences.size();
    const size_t length = index % 3 == 0 ? 3 : 1;
    for (size_t i = 0; i < length && tiers->free_bytes() > 0; ++i)
      sequences[index].push_back(
          tiers->acquire(i % 2 == 0 ? Tier::kHot : Tier::kWarm, kBlock).value());
  }
  size_t freed = 0;
  for (size_t index = 0; index < sequences.size(); index += 2) {
    for (const FrameId frame : sequences[index]) tiers->release(frame);
    freed += sequences[index].size();
  }
  EXPECT_EQ(tiers->free_bytes(), freed * kBlock);
  std::set<uint32_t> promoted;
  while (const auto frame = tiers->acquire(Tier::kWarm, kBlock)) {
    tiers->promote(*frame);
    promoted.insert(static_cast<uint32_t>(*frame));
  }
  EXPECT_EQ(promoted.size(), freed);
  EXPECT_EQ(used(*tiers, Tier::kHot) + used(*tiers, Tier::kWarm), 200 * kBlock);
}

TEST(Tiers, PromoteRechargesOnlyWhereHotHasRoom) {
  const auto tiers = make(1 * kBlock, 2 * kBlock);
  const FrameId a = tiers->acquire(Tier::kWarm, kBlock).value(),
                b = tiers->acquire(Tier::kWarm, kBlock).value();
  std::fill_n(tiers->data(a), kBlock, std::byte{1});
  tiers->promote(a);
  tiers->promote(a);
  tiers->promote(b);
  EXPECT_EQ(tiers->tier_of(a), Tier::kHot);
  EXPECT_EQ(tiers->tier_of(b), Tier::kWarm);
  EXPECT_EQ(used(*tiers, Tier::kHot), kBlock);
  EXPECT_EQ(used(*tiers, Tier::kWarm), kBlock);
  EXPECT_EQ(tiers->data(a)[kBlock - 1], std::byte{1});
}

TEST(Tiers, FramesAreDistinctAlignedMemory) {
  const auto tiers = make(3 * kBlock, 3 * kBlock);
  std::set<std::byte*> places;
  while (const auto frame = tiers->acquire(Tier::kWarm, kBlock)) {
    places.insert(tiers->data(*frame));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tiers->data(*frame)) % io::kAlignment, 0u);
    EXPECT_EQ(tiers->span(*frame).size(), kBlock);
  }
  ASSERT_EQ(places.size(), 6u);
  for (auto at = places.begin(); std::next(at) != places.end(); ++at)
    EXPECT_GE(*std::next(at) - *at, static_cast<ptrdiff_t>(kBlock));
}

// Goal: budgets hold and the counters tell the truth after every call of any sequence of calls.
TEST(Tiers, RandomSequencesStayWithinBudgetsAndCountPeaks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const uint64_t hot = random() % 6, warm = random() % 12 + (hot == 0 ? 1 : 0);
    const auto tiers = make(hot * kBlock + random() % kBlock, warm * kBlock + random() % kBlock);
    std::vector<FrameId> held;
    std::array<uint64_t, 2> peak = {};
    for (int call = 0; call < 500; ++call) {
      const uint64_t choice = random() % 5;
      if (choice < 2) {
        const Tier asked = random() % 2 != 0 ? Tier::kHot : Tier::kWarm;
        const bool room =
            tiers->counters(asked).used_bytes + kBlock <= tiers->counters(asked).capacity_bytes;
        const auto frame = tiers->acquire(asked, kBlock);
        ASSERT_EQ(frame.has_value(), held.size() < hot + warm);
        if (frame) held.push_back(*frame);
        if (frame) ASSERT_EQ(tiers->tier_of(*frame) == asked, room);
      } else if (choice < 4 && !held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        tiers->release(held.back());
        held.pop_back();
      } else if (!held.empty()) {
        tiers->promote(held[random() % held.size()]);
      }
      for (const Tier tier : {Tier::kHot, Tier::kWarm}) {
        const auto owned = std::ranges::count_if(
            held, [&](FrameId frame) { return tiers->tier_of(frame) == tier; });
        const TierCounters counters = tiers->counters(tier);
        uint64_t& highest = peak[static_cast<size_t>(tier)];
        highest = std::max(highest, counters.used_bytes);
        ASSERT_EQ(counters.used_bytes, static_cast<uint64_t>(owned) * kBlock);
        ASSERT_EQ(counters.peak_bytes, highest);
        ASSERT_LE(counters.used_bytes, counters.capacity_bytes);
      }
      ASSERT_EQ(tiers->free_bytes(), tiers->memory_bytes() - held.size() * kBlock);
    }
  }
}

// Frames of a few lengths in both parts, as sealed and exact blocks are: none overlap, and once
// all are back each part is in one piece.
TEST(Tiers, FramesOfUnlikeLengthsNeverOverlap) {
  constexpr size_t kLengths[] = {4096, 12288, 20480, 65536};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto tiers = Tiers::create({.block_bytes = 65536,
                                      .blocks_per_group = 2,
                                      .hot_bytes = 3 * 65536,
                                      .warm_bytes = 5 * 65536,
                                      .exact_bytes = 3 * 65536})
                           .value();
    std::vector<FrameId> held;
    for (int call = 0; call < 400; ++call) {
      if (random() % 5 < 3) {
        const size_t bytes = kLengths[random() % 4];
        const uint64_t free = tiers->free_bytes();
        const auto frame = tiers->acquire(random() % 2 == 0 ? Tier::kHot : Tier::kWarm, bytes,
                                          random() % 2 == 0 ? Part::kSealed : Part::kExact);
        if (!frame) continue;
        EXPECT_EQ(tiers->span(*frame).size(), bytes);
        EXPECT_EQ(tiers->free_bytes(), free - bytes);
        held.push_back(*frame);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        tiers->release(held.back());
        held.pop_back();
      }
      std::vector<std::span<std::byte>> spans;
      for (const FrameId frame : held) spans.push_back(tiers->span(frame));
      std::ranges::sort(spans, {}, [](const auto& span) { return span.data(); });
      for (size_t i = 1; i < spans.size(); ++i)
        ASSERT_GE(spans[i].data(), spans[i - 1].data() + spans[i - 1].size());
    }
    for (const FrameId frame : held) tiers->release(frame);
    EXPECT_EQ(tiers->free_bytes(), tiers->memory_bytes());
    EXPECT_TRUE(tiers->acquire(Tier::kWarm, 5 * 65536));
    EXPECT_TRUE(tiers->acquire(Tier::kHot, 3 * 65536, Part::kExact));
  }
}

TEST(Tiers, CountHitsAndWritesWhereTheyHappen) {
  const auto tiers = make(kBlock, kBlock);
  tiers->count_hit(Tier::kHot, 100);
  tiers->count_hit(Tier::kHot, 100);
  tiers->count_hit(Tier::kCold, 7);
  tiers->count_write(Tier::kWarm, 30);
  EXPECT_EQ(tiers->counters(Tier::kHot).hits, 2u);
  EXPECT_EQ(tiers->counters(Tier::kHot).bytes_read, 200u);
  EXPECT_EQ(tiers->counters(Tier::kWarm).bytes_written, 30u);
  EXPECT_EQ(tiers->counters(Tier::kWarm).hits, 0u);
  EXPECT_EQ(tiers->counters(Tier::kCold).hits, 1u);
  EXPECT_FALSE(tiers->has_cold());
}

TEST(Tiers, GroupsPerWriteMakeFourMebibytesAndNeighboursOf128Kibibytes) {
  for (const uint64_t block_kib : {12u, 36u, 64u, 68u, 132u, 260u, 1028u, 4100u})
    for (const uint32_t layers : {1u, 3u, 6u, 24u, 32u, 80u}) {
      SCOPED_TRACE(std::to_string(block_kib) + " KiB x " + std::to_string(layers));
      const uint64_t block = block_kib << 10;
      const uint64_t group = block * layers;
      const uint64_t least = groups_per_write_min(group, layers);
      const uint64_t most = groups_per_write_max(group);
      EXPECT_GE(least, 1u);
      EXPECT_LE(least, most);
      EXPECT_TRUE(most * group <= (16u << 20) || most == 1);
      EXPECT_GT((most + 1) * group, 16u << 20);
      // Where 16 MiB allow it, both wishes are met, and with no more groups than that takes.
      EXPECT_TRUE(least * group >= (4u << 20) || least == most);
      EXPECT_TRUE(least * block >= (128u << 10) || least == most);
      if (least > 1)
        EXPECT_TRUE((least - 1) * group < (4u << 20) || (least - 1) * block < (128u << 10));
    }
}

// A device that hangs: the frames of its late reads are neither reused nor freed before it has let
// go of them, wherever their owner has got to by then.
class CondemnedFrames : public ::testing::Test {
 protected:
  static constexpr uint64_t kDeadlineNs = 1'000'000;

  void SetUp() override {
    tiers_ = Tiers::create({.block_bytes = kBlock,
                            .blocks_per_group = 2,
                            .hot_bytes = 0,
                            .warm_bytes = 4 * kBlock,
                            .flash = flash::StoreOptions{.directory = directory_.file("store"),
                                                         .capacity_bytes = 1u << 20,
                                                         .deadline_ns = kDeadlineNs,
                                                         .clock = &clock_}},
                           ring_)
                 .value();
    frames_ = {tiers_->acquire(Tier::kWarm, kBlock).value(),
               tiers_->acquire(Tier::kWarm, kBlock).value()};
    flash::PutValue value{.key = {std::byte{1}}, .lanes = {}};
    for (const FrameId frame : frames_) value.lanes.push_back(tiers_->span(frame));
    ASSERT_TRUE(tiers_->store_groups({value}, [&](Result<std::vector<flash::Handle>> outcome) {
      ASSERT_TRUE(outcome);
      handle_ = outcome->front();
    }));
    while (!handle_) ASSERT_GT(tiers_->wait(), 0u);
    ASSERT_TRUE(tiers_->sync());
  }
  void hang() {
    ring_.set_plan({.choose = [](const io::Request&) { return testing::Fault::kHang; }});
  }
  void read_late(FrameId frame) {
    std::optional<Result<void>> outcome;
    const Tiers::FrameRead read{.handle = &handle_, .frame = frame};
    ASSERT_TRUE(tiers_->load(0, {&read, 1}, [&](Result<void> result) { outcome = result; }));
    while (!outcome) tiers_->wait_for(kDeadlineNs);
    ASSERT_FALSE(*outcome);
    EXPECT_EQ(outcome->error().code, Code::kTimeout);
  }

  testing::TempDirectory directory_;
  testing::SimClock clock_;
  testing::SimRing ring_{{}, {.clock = &clock_}};
  std::unique_ptr<Tiers> tiers_;
  std::vector<FrameId> frames_;
  flash::Handle handle_;
};

TEST_F(CondemnedFrames, StayChargedUntilTheDeviceLetsGo) {
  hang();
  read_late(frames_[0]);
  const std::byte* const place = tiers_->data(frames_[0]);
  tiers_->release(frames_[0]);
  tiers_->release(frames_[1]);
  EXPECT_EQ(tiers_->condemned_frames(), 1u);
  EXPECT_EQ(tiers_->free_bytes(), 3 * kBlock);
  EXPECT_EQ(tiers_->counters(Tier::kWarm).used_bytes, kBlock);
  while (const auto frame = tiers_->acquire(Tier::kWarm, kBlock))
    EXPECT_NE(tiers_->data(*frame), place);
  ring_.set_plan({});
  ring_.release_hung();
  while (tiers_->poll() > 0) continue;
  EXPECT_EQ(tiers_->condemned_frames(), 0u);
  EXPECT_EQ(tiers_->free_bytes(), 1 * kBlock);
  EXPECT_EQ(tiers_->data(tiers_->acquire(Tier::kWarm, kBlock).value()), place);
  handle_ = {};
}

TEST_F(CondemnedFrames, AFrameThatIsKeptThroughALateReadIsFreedAsUsual) {
  hang();
  read_late(frames_[0]);
  ring_.set_plan({});
  ring_.release_hung();
  while (tiers_->poll() > 0) continue;
  EXPECT_EQ(tiers_->condemned_frames(), 0u);
  EXPECT_EQ(tiers_->free_bytes(), 2 * kBlock);
  tiers_->release(frames_[0]);
  EXPECT_EQ(tiers_->free_bytes(), 3 * kBlock);
  handle_ = {};
}

TEST_F(CondemnedFrames, AFailedReadCondemnsNothing) {
  ring_.set_plan({.read_error = 1});
  std::optional<Result<void>> outcome;
  const Tiers::FrameRead read{.handle = &handle_, .frame = frames_[0]};
  ASSERT_TRUE(tiers_->load(1, {&read, 1}, [&](Result<void> result) {
    outcome = result;
    tiers_->release(frames_[0]);
  }));
  while (!outcome) ASSERT_GT(tiers_->wait(), 0u);
  EXPECT_FALSE(*outcome);
  EXPECT_EQ(tiers_->condemned_frames(), 0u);
  EXPECT_EQ(tiers_->free_bytes(), 3 * kBlock);
  handle_ = {};
}

}  // namespace
}  // namespace hifc::tier
