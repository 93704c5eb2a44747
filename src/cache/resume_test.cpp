// Goal: a sequence that begins with stored KV computes the bits of one that computed everything,
// whatever is stored, missing, damaged or late; and nothing is applied by halves. Method: one
// session saves and ends, another one over the same directory begins with what it finds.
#include "cache/resume.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_fixture.h"
#include "testing/sim_clock.h"
#include "testing/sim_ring.h"

namespace hifc::cache {
namespace {

using io::Operation;
using testing::Fault;
using testing::SimClock;
using testing::SimRing;

constexpr uint32_t kBlock = 64;
constexpr uint32_t kLength = 400;

const kv::ModelShape kShape{
    .layers = 4, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = {0, 0, 100, 0}};

class Resume : public ::testing::Test {
 protected:
  CacheSetup streaming() const {
    CacheSetup setup = minimum(kShape, kBlock, kBlock);
    setup.directory = directory_.file("store");
    return setup;
  }
  CacheSetup roomy() const {
    CacheSetup setup = in_memory(kShape, kLength + kBlock, kBlock);
    setup.flash = true;
    setup.directory = directory_.file("store");
    return setup;
  }
  // Computes `count` tokens and saves them.
  void store(uint32_t count, uint32_t chunk = 64) {
    Session session(in_, streaming());
    const auto opened = session.open();
    ASSERT_TRUE(opened) << opened.error().message();
    ASSERT_TRUE(session.advance(count, chunk));
    const auto saved = session.cache->save();
    ASSERT_TRUE(saved) << saved.error().message();
  }
  // The rest computes the right bits.
  void expect_right_rest(Session& session, uint32_t until = kLength, uint32_t chunk = 64) {
    const uint32_t from = session.cache->length();
    const auto outcome = session.advance(until, chunk);
    ASSERT_TRUE(outcome) << outcome.error().message();
    for (uint32_t layer = 0; layer < kShape.layers; ++layer)
      std::copy_n(&expected_[in_.out_offset(layer, 0)], from * in_.q_row(),
                  &session.outputs[in_.out_offset(layer, 0)]);
    EXPECT_TRUE(same_bits(in_, expected_, session.outputs, until));
  }
  Patience patience(const Session& session) const {
    return {.clock = &session.clock(), .until_ns = session.clock().now_ns() + 1'000'000'000};
  }

  testing::TempDirectory directory_;
  const Inputs in_{kShape, kLength, 31};
  const Outputs expected_ = undamaged(in_);
};

TEST_F(Resume, SaveZeroOneTokenOneBlockAndOneMoreOrLessIsAnExactRoundTrip) {
  for (const uint32_t saved : {0u, 1u, 2u, 63u, 64u, 65u, 127u, 128u, 129u, 300u}) {
    SCOPED_TRACE(saved);
    const testing::TempDirectory directory;
    CacheSetup setup = saved % 2 == 0 ? streaming() : roomy();
    {
      setup.directory = directory.file("live");
      Session live(in_, setup);
      ASSERT_TRUE(live.open());
      ASSERT_TRUE(live.advance(saved, 64));
      ASSERT_TRUE(live.cache->save());
      // What a process that is killed now leaves.
      std::filesystem::copy(directory.file("live"), directory.file("store"));
      EXPECT_EQ(live.cache->length(), saved);
      expect_right_rest(live);  // saving did not touch it
    }
    setup.directory = directory.file("store");
    {
      Session longer(in_, setup);
      ASSERT_TRUE(longer.open());
      EXPECT_EQ(longer.resume(kLength), saved);
      expect_right_rest(longer);
    }
    // By now everything is stored.
    Session equal(in_, setup);
    ASSERT_TRUE(equal.open());
    const uint32_t reused = equal.resume(saved);
    EXPECT_LT(reused, std::max(saved, 1u));
    EXPECT_EQ(reused, saved < 2 ? 0 : saved - 1);
    expect_right_rest(equal, kLength, 1);
  }
}

TEST_F(Resume, RestoreFromAMissingOrEmptyStoreFindsNothing) {
  for (int i = 0; i < 2; ++i) {  // missing, then empty
    Session session(in_, roomy());
    ASSERT_TRUE(session.open());
    EXPECT_EQ(session.resume(kLength), 0u);
    if (i == 1) expect_right_rest(session);
  }
  CacheSetup no_flash = in_memory(kShape, kLength, kBlock);
  Session session(in_, no_flash);
  ASSERT_TRUE(session.open());
  EXPECT_EQ(session.resume(kLength), 0u);
  ASSERT_TRUE(session.advance(100, 64));
  EXPECT_TRUE(session.cache->save());
  expect_right_rest(session);
}

TEST_F(Resume, WhereEverythingIsStoredOneTokenIsLeftToCompute) {
  store(256);
  Session session(in_, streaming());
  ASSERT_TRUE(session.open());
  EXPECT_EQ(session.resume(256), 255u);
  expect_right_rest(session);
}

TEST_F(Resume, OnlyTheSharedPartOfTwoPromptsIsUsed) {
  store(300);
  Inputs other(kShape, kLength, 31);
  other.tokens[200] ^= 1;  // in the fourth group
  Session session(other, streaming());
  ASSERT_TRUE(session.open());
  EXPECT_EQ(session.resume(kLength), 192u);
  other.tokens[5] ^= 1;
  Session nothing(other, roomy());
  session.cache.reset(), session.tiers.reset();
  ASSERT_TRUE(nothing.open());
  EXPECT_EQ(nothing.resume(kLength), 0u);
}

TEST_F(Resume, AnotherModelOrBlockSizeIsAMiss) {
  store(300);
  CacheSetup other = streaming();
  other.fingerprint = std::byte{8};
  {
    Session session(in_, other);
    ASSERT_TRUE(session.open());
    EXPECT_EQ(session.resume(kLength), 0u);
  }
  CacheSetup blocks = minimum(kShape, 128, 64);
  blocks.directory = directory_.file("store");
  Session session(in_, blocks);
  ASSERT_TRUE(session.open());
  EXPECT_EQ(session.resume(kLength), 0u);
}

TEST_F(Resume, RestoreTheSamePrefixThreeTimesHitsThreeTimesAndWritesNothing) {
  store(300);
  for (int i = 0; i < 3; ++i) {
    Session session(in_, streaming());
    ASSERT_TRUE(session.open());
    EXPECT_EQ(session.resume(300), 299u);
    expect_right_rest(session, 300);
    ASSERT_TRUE(session.cache->save());
    EXPECT_EQ(session.tiers->store().statistics().payload_bytes_put, 0u);
  }
}

TEST_F(Resume, GroupsThatAreStoredAreNotWrittenAgain) {
  store(320);
  Session session(in_, streaming());
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(320, 64));  // without asking for what is stored
  ASSERT_TRUE(session.cache->save());
  EXPECT_EQ(session.tiers->store().statistics().payload_bytes_put, 0u);
  expect_right_rest(session);
  ASSERT_TRUE(session.cache->save());
  // One group more, and the tail.
  EXPECT_EQ(session.tiers->store().statistics().payload_bytes_put,
            2 * session.layout().exact_bytes());
}

TEST_F(Resume, AStoredGroupThatCannotBePinnedIsWritten) {
  store(320);
  bool failing = false;
  SimRing ring({.choose = [&](const io::Request& request) {
    return failing && request.operation == Operation::kRead ? Fault::kIoError : Fault::kNone;
  }});
  CacheSetup setup = roomy();
  setup.own_ring = &ring;
  Session session(in_, setup);
  ASSERT_TRUE(session.open());
  failing = true;
  ASSERT_TRUE(session.advance(320, 64));
  ASSERT_TRUE(session.cache->flush());
  failing = false;
  EXPECT_EQ(session.tiers->store().statistics().payload_bytes_put,
            5 * session.layout().exact_bytes());
  expect_right_rest(session);
}

TEST_F(Resume, GrownOneByOneTo8kTokensAndSavedEveryTokenIsWrittenAboutOnce) {
  const kv::ModelShape shape{
      .layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 64, .window = {0, 200}};
  const Inputs in(shape, 8192, 5);
  CacheSetup setup = in_memory(shape, in.length, 256);
  setup.flash = true;
  Session session(in, setup);
  ASSERT_TRUE(session.open());
  for (const uint32_t until : {3000u, 8192u}) {
    ASSERT_TRUE(session.advance(until, 1));
    ASSERT_TRUE(session.cache->save());
  }
  const auto written = static_cast<double>(session.tiers->store().statistics().written_bytes);
  const auto kv_bytes = static_cast<double>(session.cache->statistics().kv_bytes);
  // Header pages of blocks and batches, and one parked tail on top.
  EXPECT_GE(written / kv_bytes, 1.0);
  EXPECT_LE(written / kv_bytes, 1.15);
}

TEST_F(Resume, ATailThatFailsHalfWayLeavesNothingBehind) {
  store(100);
  for (const Fault fault : {Fault::kIoError, Fault::kShortRead, Fault::kBitFlip}) {
    for (const int failing : {0, 2, 3}) {
      SCOPED_TRACE(fmt::format("fault {} in read {}", static_cast<int>(fault), failing));
      const testing::TempDirectory copy;
      std::filesystem::copy(directory_.file("store"), copy.file("store"));
      int read = -1;
      SimRing ring({});
      CacheSetup setup = streaming();
      setup.directory = copy.file("store");
      setup.own_ring = &ring;
      Session session(in_, setup);
      ASSERT_TRUE(session.open());
      StoredPrefix prefix = session.cache->find_stored(in_.tokens, patience(session));
      ASSERT_EQ(prefix.tokens(kBlock), 100u);
      ring.set_plan({.choose = [&](const io::Request& request) {
        return request.operation == Operation::kRead && ++read == failing ? fault : Fault::kNone;
      }});
      EXPECT_FALSE(session.cache->load(prefix, 1, patience(session)));
      EXPECT_TRUE(session.idle());
      prefix = {};
      EXPECT_EQ(session.cache->length(), 0u);
      EXPECT_EQ(session.resume(kLength), 64u);  // the damaged tail is not found any more
      expect_right_rest(session);
    }
  }
}

TEST_F(Resume, AGroupThatFailsWhileItIsStreamedIsComputedInstead) {
  store(300);
  for (const Fault fault : {Fault::kIoError, Fault::kBitFlip}) {
    SCOPED_TRACE(static_cast<int>(fault));
    const testing::TempDirectory copy;
    std::filesystem::copy(directory_.file("store"), copy.file("store"));
    int read = 0;
    SimRing ring({});
    CacheSetup setup = streaming();
    setup.directory = copy.file("store");
    setup.own_ring = &ring;
    Session session(in_, setup);
    ASSERT_TRUE(session.open());
    ASSERT_EQ(session.resume(kLength), 300u);
    ring.set_plan({.choose = [&](const io::Request& request) {
      return request.operation == Operation::kRead && ++read % 7 == 3 && read < 30 ? fault
                                                                                   : Fault::kNone;
    }});
    expect_right_rest(session);
    EXPECT_GT(ring.injected(fault), 0u);
    EXPECT_GE(session.cache->statistics().lost_groups, 1u);
  }
}

TEST_F(Resume, FlippedBytesInTheStoreAreNeverUsed) {
  for (const uint32_t group : {0u, 2u, 4u}) {
    SCOPED_TRACE(group);
    const testing::TempDirectory directory;
    CacheSetup setup = streaming();
    setup.directory = directory.file("store");
    {
      Session session(in_, setup);
      ASSERT_TRUE(session.open());
      ASSERT_TRUE(session.advance(300, 64));
      ASSERT_TRUE(session.cache->save());
      session.cache.reset(), session.tiers.reset();
      ASSERT_TRUE(session.damage(group, 1, 9000));
    }
    Session session(in_, setup);
    ASSERT_TRUE(session.open());
    EXPECT_LE(session.resume(kLength), 300u);
    expect_right_rest(session);
  }
}

class LateDevice : public Resume {
 protected:
  CacheSetup late(CacheSetup setup) {
    setup.own_ring = &ring_;
    setup.clock = &clock_;
    return setup;
  }
  void hang_reads() {
    ring_.set_plan({.choose = [](const io::Request& request) {
      return request.operation == Operation::kRead ? Fault::kHang : Fault::kNone;
    }});
  }
  void work_again(Session& session) {
    ring_.set_plan({});
    ring_.release_hung();
    while (ring_.in_flight() > 0) session.tiers->wait_for(1'000'000);
  }

  SimClock clock_;
  SimRing ring_{{}, {.clock = &clock_}};
};

TEST_F(LateDevice, ThatHangsBecomesAMissAndItsFramesComeBackLater) {
  store(300);
  Session session(in_, late(roomy()));
  ASSERT_TRUE(session.open());
  StoredPrefix prefix = session.cache->find_stored(in_.tokens, patience(session));
  ASSERT_EQ(prefix.tokens(kBlock), 300u);
  hang_reads();
  const auto tail = session.cache->load(prefix, prefix.groups(), patience(session));
  ASSERT_FALSE(tail);
  EXPECT_EQ(tail.error().code, Code::kTimeout);
  EXPECT_EQ(session.tiers->condemned_frames(), kShape.layers);
  EXPECT_EQ(session.tiers->free_bytes(),
            session.tiers->memory_bytes() - session.layout().exact_bytes());
  prefix = {};
  work_again(session);
  EXPECT_EQ(session.tiers->condemned_frames(), 0u);
  EXPECT_TRUE(session.idle());
  EXPECT_EQ(session.resume(kLength), 300u);
  expect_right_rest(session);
}

TEST_F(LateDevice, ThatStallsAStepIsGivenUpAndTheRestIsComputed) {
  store(300);
  Session session(in_, late(roomy()));
  ASSERT_TRUE(session.open());
  ASSERT_EQ(session.resume(kLength), 300u);
  hang_reads();
  session.cache->limit_stall(5'000'000);
  const auto outcome = session.step(300, 20);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kTimeout);
  EXPECT_EQ(session.cache->length(), 300u);
  EXPECT_EQ(session.cache->keep_memory(), 0u);
  session.cache->limit_stall(UINT64_MAX);
  EXPECT_GT(session.tiers->condemned_frames(), 0u);
  work_again(session);
  EXPECT_TRUE(session.idle());
  expect_right_rest(session);
}

TEST_F(LateDevice, ThatHangsForGoodLosesGroupsThatAreThenComputed) {
  store(300);
  CacheSetup setup = late(roomy());
  setup.warm_frames *= 2;  // the frames that hang are missing
  Session session(in_, setup);
  ASSERT_TRUE(session.open());
  ASSERT_EQ(session.resume(kLength), 300u);
  hang_reads();
  expect_right_rest(session);
  EXPECT_GT(session.tiers->store().statistics().timeouts, 0u);
  session.cache.reset();
  work_again(session);
}

TEST_F(Resume, KeepsWhatIsWhollyInMemory) {
  store(300);
  Session session(in_, roomy());
  ASSERT_TRUE(session.open());
  StoredPrefix prefix = session.cache->find_stored(in_.tokens, patience(session));
  ASSERT_EQ(prefix.tokens(kBlock), 300u);
  KvCache::Loaded loaded;
  loaded.first.emplace(*session.cache->load(prefix, 0, patience(session)));
  loaded.tail.emplace(*session.cache->load(prefix, prefix.groups(), patience(session)));
  session.cache->adopt(in_.tokens, std::move(prefix), std::move(loaded));
  EXPECT_EQ(session.cache->length(), 300u);
  EXPECT_EQ(session.cache->keep_memory(), 64u);
  expect_right_rest(session);
}

TEST_F(Resume, CutsToAnyLengthAndGrowsAgain) {
  store(300);
  for (const bool small : {true, false}) {
    const testing::TempDirectory copy;
    std::filesystem::copy(directory_.file("store"), copy.file("store"));
    CacheSetup setup = small ? streaming() : roomy();
    setup.directory = copy.file("store");
    Session session(in_, setup);
    ASSERT_TRUE(session.open());
    ASSERT_EQ(session.resume(kLength), 300u);
    for (const uint32_t keep : {290u, 257u, 200u, 130u, 64u, 3u}) {
      SCOPED_TRACE(fmt::format("{} of {} bytes", keep, session.tiers->memory_bytes()));
      const uint32_t length = session.cache->truncate(keep);
      EXPECT_LE(length, keep);
      EXPECT_GE(length, keep / kBlock * kBlock);
      if (keep > 256) EXPECT_EQ(length, keep);  // in the open group
      EXPECT_EQ(session.cache->length(), length);
      expect_right_rest(session, keep + 30, 7);
    }
    expect_right_rest(session);
  }
}

}  // namespace
}  // namespace hifc::cache
