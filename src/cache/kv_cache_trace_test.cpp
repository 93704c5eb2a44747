// What the cache records in a trace: every stall and transfer, with how it ended.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cache/cache_fixture.h"
#include "cache/trace_kinds.h"
#include "testing/sim_ring.h"

namespace hifc::cache {
namespace {

using io::Operation;
using testing::Fault;
using testing::SimClock;
using testing::SimRing;

constexpr uint32_t kLength = 660;  // ten groups of 64 tokens, then a few that stay open

class KvCacheTrace : public ::testing::Test {
 protected:
  KvCacheTrace() {
    setup_.own_ring = &ring_;
    setup_.clock = &clock_;
    setup_.trace = &trace_;
  }

  void read_all(Session& session) {
    ASSERT_TRUE(session.open());
    ASSERT_TRUE(session.advance(640, 64));
    ASSERT_TRUE(session.cache->flush());
    ASSERT_TRUE(session.advance(645, 1));
  }
  uint64_t count(std::string_view name, TraceEnd end = TraceEnd::kDone) const {
    uint64_t count = 0;
    trace_.for_each([&](const Trace::Event& event) {
      count += event.kind->name == name && event.end == end ? 1 : 0;
    });
    return count;
  }
  void fail_next_read(Fault fault) {
    ring_.set_plan({.choose = [fault, done = false](const io::Request& request) mutable {
      if (request.operation != Operation::kRead) return Fault::kNone;
      return std::exchange(done, true) ? Fault::kNone : fault;
    }});
  }

  const kv::ModelShape shape_{
      .layers = 4, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = {0, 0, 0, 0}};
  const Inputs in_{shape_, kLength, 21};
  SimClock clock_;
  Trace trace_{clock_};
  SimRing ring_{{}, {.clock = &clock_}};
  CacheSetup setup_ = minimum(shape_, 64, 64);
};

TEST_F(KvCacheTrace, StallsAndTransfersAreThoseOfTheStatistics) {
  Session session(in_, setup_);
  ASSERT_NO_FATAL_FAILURE(read_all(session));
  uint64_t stall_ns = 0, blocks = 0, written = 0;
  std::map<uint64_t, uint64_t> layers;
  trace_.for_each([&](const Trace::Event& event) {
    if (event.kind->category == std::string_view("stall")) stall_ns += event.duration_ns;
    if (event.kind->category == std::string_view("layer")) ++layers[event.values[0]];
    if (event.kind == &kTraceRead && event.end == TraceEnd::kDone) blocks += event.values[2];
    if (event.kind == &kTraceWrite) written += event.values[2];
  });
  const CacheStatistics statistics = session.cache->statistics();
  EXPECT_GT(stall_ns, 0u);
  EXPECT_EQ(stall_ns, statistics.stall_ns);
  EXPECT_GT(blocks, 0u);
  EXPECT_EQ(blocks, statistics.prefetch.blocks_fetched);
  EXPECT_EQ(written, 10 * session.layout().sealed_bytes());
  for (uint64_t layer = 0; layer < 4; ++layer) EXPECT_EQ(layers[layer], 10u + 5u);
}

TEST_F(KvCacheTrace, AReadThatFailsIsMarked) {
  Session session(in_, setup_);
  ASSERT_NO_FATAL_FAILURE(read_all(session));
  EXPECT_EQ(count("read", TraceEnd::kFailed), 0u);
  fail_next_read(Fault::kIoError);
  ASSERT_TRUE(session.advance(650, 1));
  EXPECT_EQ(count("read", TraceEnd::kFailed), session.cache->statistics().prefetch.read_errors);
  EXPECT_GE(count("read", TraceEnd::kFailed), 1u);
}

// Its span stays open while the device holds it, and ends when nobody waits for it any more.
TEST_F(KvCacheTrace, AReadThatWasGivenUpEndsWhenTheDeviceLetsGoOfIt) {
  setup_.prefetch.window_layers = 0;
  Session session(in_, setup_);
  ASSERT_NO_FATAL_FAILURE(read_all(session));
  fail_next_read(Fault::kHang);
  session.cache->limit_stall(5'000'000);
  const auto outcome = session.step(session.cache->length(), 1);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kTimeout);
  EXPECT_EQ(count("read", TraceEnd::kOpen), 1u);
  const uint64_t ended = count("read");
  session.cache.reset();
  ring_.set_plan({});
  ring_.release_hung();
  while (session.tiers->condemned_frames() > 0) session.tiers->wait();
  EXPECT_EQ(count("read", TraceEnd::kOpen), 0u);
  EXPECT_EQ(count("read"), ended + 1);
}

}  // namespace
}  // namespace hifc::cache
