// The decision between loading and computing; no model needed.
#include "engine/resume.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cache/cache_fixture.h"
#include "testing/sim_clock.h"
#include "testing/sim_ring.h"

namespace hifc::engine {
namespace {

TEST(ResumeCost, WhatIsNotKnownSpeaksForLoading) {
  EXPECT_TRUE(worth_loading(1, 1u << 30, {}));
  EXPECT_TRUE(worth_loading(1, 1u << 30, {.compute = 100}));
  EXPECT_TRUE(worth_loading(1, 1u << 30, {.read = 1}));
}

TEST(ResumeCost, TheFasterOfReadingAndComputingWins) {
  const Speeds speeds{.compute = 1000, .read = 2e9};
  EXPECT_TRUE(worth_loading(1000, 1'999'000'000, speeds));  // a second against a little less
  EXPECT_FALSE(worth_loading(1000, 2'001'000'000, speeds));
  EXPECT_FALSE(worth_loading(3, 20'000'000, speeds));  // 10 ms for 3 ms of computing
}

TEST(ResumeCost, WaitingMayCostWhatComputingWould) {
  EXPECT_EQ(patience_ns(2000, {.compute = 1000}), 2'000'000'000u);
  EXPECT_GT(patience_ns(1, {.compute = 1e6}), 1'000'000u);  // one slow read is no reason
  EXPECT_GE(patience_ns(100, {}), 1'000'000'000u);
  EXPECT_GT(patience_ns(100'000, {}), patience_ns(10'000, {}));
  EXPECT_LE(patience_ns(UINT32_MAX, {.compute = 1e-300}), uint64_t{1} << 60);
}

TEST(ResumeCost, SpeedsComeBackAndOtherBytesAreNone) {
  auto record = encode_speed(812.5);
  EXPECT_EQ(decode_speed(record), 812.5);
  EXPECT_EQ(decode_speed(std::span(record).first(100)), 0);
  EXPECT_EQ(decode_speed(std::vector<std::byte>(kRecordBytes)), 0);
  for (const double none : {0.0, -3.0, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(decode_speed(encode_speed(none)), 0);
  record[8] ^= std::byte{2};  // version
  EXPECT_EQ(decode_speed(record), 0);
}

TEST(ResumeCost, OnlyAnotherSpeedIsRecorded) {
  EXPECT_TRUE(worth_recording(0, 100));
  EXPECT_FALSE(worth_recording(100, 120));
  EXPECT_FALSE(worth_recording(100, 80));
  EXPECT_TRUE(worth_recording(100, 151));
  EXPECT_TRUE(worth_recording(100, 66));
  EXPECT_FALSE(worth_recording(100, 0));
}

TEST(ResumeCost, EachModelAndThreadCountHasItsRecord) {
  const kv::Fingerprint one = {std::byte{1}}, two = {std::byte{2}};
  EXPECT_NE(speed_key(one, 1), speed_key(one, 2));
  EXPECT_NE(speed_key(one, 1), speed_key(two, 1));
  EXPECT_EQ(speed_key(one, 1), speed_key(one, 1));
}

// A device of any speed, on a clock that only it moves.
class ResumeDecisions : public ::testing::Test {
 protected:
  static constexpr uint32_t kTokens = 300;  // of 400: four groups of 64, and a tail of 44

  void SetUp() override {
    setup_ = cache::in_memory(kShape, 500, 64);
    setup_.flash = true;
    setup_.directory = directory_.file("store");
    {
      cache::Session session(in_, setup_);
      ASSERT_TRUE(session.open());
      ASSERT_TRUE(session.advance(kTokens, 64));
      ASSERT_TRUE(session.cache->save());
    }
    setup_.own_ring = &ring_;
    setup_.clock = &clock_;
    session_ = std::make_unique<cache::Session>(in_, setup_);
    ASSERT_TRUE(session_->open());
  }
  ResumeReport decide(double compute_speed) {
    reads_before_ = session_->tiers->store().statistics().reads;
    return resume(*session_->cache, in_.tokens, clock_, {.compute_speed = compute_speed});
  }
  uint64_t reads() const { return session_->tiers->store().statistics().reads - reads_before_; }

  const kv::ModelShape kShape{
      .layers = 4, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = {0, 0, 0, 0}};
  const cache::Inputs in_{kShape, 400, 9};
  testing::TempDirectory directory_;
  testing::SimClock clock_;
  testing::SimRing ring_{{}, {.clock = &clock_}};
  cache::CacheSetup setup_;
  std::unique_ptr<cache::Session> session_;
  uint64_t reads_before_ = 0;
};

TEST_F(ResumeDecisions, AFastDriveIsUsed) {
  for (const double compute_speed : {0.0, 1000.0}) {
    const ResumeReport report = decide(compute_speed);
    EXPECT_EQ(report.decision, ResumeDecision::kLoaded);
    EXPECT_EQ(report.stored_tokens, kTokens);
    EXPECT_EQ(report.reused_tokens, kTokens);
    EXPECT_EQ(session_->cache->length(), kTokens);
    EXPECT_GT(report.load_ns, 0u);
    session_->cache->truncate(0);
  }
}

TEST_F(ResumeDecisions, NothingIsReadThatNoDriveCouldReadFastEnough) {
  const ResumeReport report = decide(1e12);
  EXPECT_EQ(report.decision, ResumeDecision::kComputed);
  EXPECT_EQ(report.stored_tokens, kTokens);
  EXPECT_EQ(report.reused_tokens, 0u);
  EXPECT_LE(reads(), 5u);  // metadata
  EXPECT_TRUE(session_->idle());
}

TEST_F(ResumeDecisions, OfASlowDriveOnlyWhatWasReadToMeasureItIsUsed) {
  ring_.set_plan({.delay_polls_max = 5000});  // milliseconds
  const ResumeReport report = decide(kTokens / 200e-6);
  EXPECT_EQ(report.decision, ResumeDecision::kComputed);
  EXPECT_EQ(report.reused_tokens, 64u);
  EXPECT_EQ(session_->cache->length(), 64u);
  EXPECT_EQ(session_->tiers->free_bytes(),
            session_->tiers->memory_bytes() - session_->layout().exact_bytes());
  ring_.set_plan({});
  ASSERT_TRUE(session_->advance(400, 64));
}

TEST_F(ResumeDecisions, ADriveThatDoesNotAnswerIsNotWaitedForLongerThanComputingTakes) {
  // What opening and pinning need works.
  const ResumeReport found = decide(0);
  ASSERT_EQ(found.reused_tokens, kTokens);
  session_->cache->truncate(0);
  ring_.set_plan({.hang = 1});
  const uint64_t start_ns = clock_.now_ns();
  const ResumeReport report = decide(1000);
  EXPECT_EQ(report.decision, ResumeDecision::kTooSlow);
  EXPECT_EQ(report.reused_tokens, 0u);
  EXPECT_EQ(session_->cache->length(), 0u);
  EXPECT_LE(clock_.now_ns() - start_ns, 1'000'000'000u);
  ring_.set_plan({});
  ring_.release_hung();
  while (ring_.in_flight() > 0) session_->tiers->poll();
  ASSERT_TRUE(session_->advance(400, 64));
}

}  // namespace
}  // namespace hifc::engine
