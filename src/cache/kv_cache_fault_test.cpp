// Damaged blocks, failing devices and interruptions in the middle of a step. The right behaviour is
// always the same: the step fails, what was lost is computed again, and the repeated step gives the
// bits of a run in which nothing happened.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_fixture.h"
#include "testing/sim_ring.h"

namespace hifc::cache {
namespace {

using io::Operation;
using testing::Fault;
using testing::SimRing;

constexpr uint32_t kStored = 640;  // ten groups of 64 tokens, then a few that stay open
constexpr uint32_t kLength = 660;

kv::ModelShape shape_with(uint32_t last_window) {
  return {.layers = 4,
          .query_heads = 2,
          .kv_heads = 1,
          .head_dim = 64,
          .window = {0, 0, 0, last_window}};
}

class KvCacheFault : public ::testing::Test {
 protected:
  // Everything but what the minimum of memory holds is on flash; nothing is read ahead, so that the
  // next step reads all of it.
  void start(Session& session) {
    const auto opened = session.open();
    ASSERT_TRUE(opened) << opened.error().message();
    ASSERT_TRUE(session.advance(kStored, 64));
    ASSERT_TRUE(session.cache->flush());
    ASSERT_TRUE(session.advance(kStored + 5, 1));
  }
  CacheSetup streaming() const {
    CacheSetup setup = minimum(in_.shape, 64, 64);
    setup.prefetch.window_layers = 0;
    return setup;
  }
  void expect_corrupt(Session& session) {
    const uint32_t length = session.cache->length();
    const auto outcome = session.step(length, 1);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kCorrupt);
    EXPECT_EQ(session.cache->length(), length);
  }
  void expect_good(Session& session, uint32_t until = kLength) {
    const auto outcome = session.advance(until, 1);
    ASSERT_TRUE(outcome) << outcome.error().message();
    EXPECT_TRUE(same_bits(in_, expected_, session.outputs, until));
  }

  const Inputs in_{shape_with(0), kLength, 21};
  const Outputs expected_ = undamaged(in_);
};

TEST_F(KvCacheFault, AFlippedByteIsFoundAndItsGroupComputedAgain) {
  const kv::BlockLayout layout = kv::BlockLayout::make(in_.shape, 64).value();
  Session session(in_, streaming());
  start(session);
  uint64_t damaged = 0;
  for (const uint32_t layer : {0u, 2u, 3u})
    for (const size_t offset :
         {size_t{5}, size_t{4000}, layout.k_page_offset(0, 0) + 100,
          layout.v_page_offset(0, in_.shape.kv_heads - 1) + 7, layout.block_bytes() - 1}) {
      SCOPED_TRACE(fmt::format("layer {}, byte {}", layer, offset));
      const uint32_t group = 4 + damaged++ % 5;
      ASSERT_TRUE(session.damage(group, layer, offset));
      expect_corrupt(session);
      ASSERT_EQ(session.cache->first_lost_group(), group);
      ASSERT_TRUE(session.recompute(group, 64));
      EXPECT_EQ(session.cache->first_lost_group(), std::nullopt);
      ASSERT_TRUE(session.cache->flush());
      ASSERT_TRUE(session.step(session.cache->length(), 1));
      EXPECT_EQ(session.cache->statistics().lost_groups, damaged);
      EXPECT_EQ(session.tiers->store().statistics().corrupt_chunks, damaged);
      EXPECT_EQ(session.tiers->store().statistics().quarantined_values, damaged);
    }
  EXPECT_EQ(session.cache->length(), kLength);
  expect_good(session);
}

TEST_F(KvCacheFault, TheLostGroupIsWrittenAgainAndReadFromThere) {
  Session session(in_, streaming());
  start(session);
  ASSERT_TRUE(session.damage(4, 1, 9000));
  expect_corrupt(session);
  ASSERT_TRUE(session.recompute(4, 16));
  ASSERT_TRUE(session.cache->flush());
  ASSERT_TRUE(session.advance(kStored + 8, 1));
  ASSERT_TRUE(session.damage(4, 2, 9000));  // every copy: the new one too
  expect_corrupt(session);
  EXPECT_EQ(session.cache->first_lost_group(), 4u);
  expect_good(session);
}

TEST_F(KvCacheFault, TwoDamagedGroupsAreComputedAgainOneAfterTheOther) {
  Session session(in_, streaming());
  start(session);
  ASSERT_TRUE(session.damage(3, 1, 9000));
  ASSERT_TRUE(session.damage(7, 2, 9000));
  expect_corrupt(session);
  ASSERT_EQ(session.cache->first_lost_group(), 3u);
  ASSERT_TRUE(session.recompute(3, 64));
  expect_corrupt(session);
  ASSERT_EQ(session.cache->first_lost_group(), 7u);
  ASSERT_TRUE(session.recompute(7, 64));
  expect_good(session);
  EXPECT_EQ(session.cache->statistics().lost_groups, 2u);
}

TEST_F(KvCacheFault, DamageBeforeTheGroupBeingComputedAgainIsFoundToo) {
  Session session(in_, streaming());
  start(session);
  ASSERT_TRUE(session.damage(7, 0, 9000));
  expect_corrupt(session);
  ASSERT_TRUE(session.damage(3, 2, 9000));
  const auto outcome = session.recompute(7, 64);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCorrupt);
  EXPECT_EQ(session.cache->first_lost_group(), 3u);
  expect_good(session);
}

TEST_F(KvCacheFault, DamageIsFoundWhereBlocksAreReadAhead) {
  for (const uint32_t layer : {0u, 1u, 3u}) {
    SCOPED_TRACE(layer);
    CacheSetup setup = streaming();
    setup.prefetch.window_layers = 3;
    Session session(in_, setup);
    start(session);
    ASSERT_TRUE(session.damage(8, layer, 9000));
    expect_good(session);
    EXPECT_EQ(session.cache->statistics().lost_groups, 1u);
  }
}

TEST_F(KvCacheFault, ATruncatedSegmentIsComputedAgain) {
  Session session(in_, streaming());
  start(session);
  ASSERT_TRUE(session.cut_off(5, 2));
  expect_corrupt(session);
  expect_good(session);
  EXPECT_GE(session.cache->statistics().prefetch.read_errors, 1u);
}

TEST_F(KvCacheFault, AReadErrorInAnyReadOfAStepIsRecoveredFrom) {
  SimRing ring({});
  CacheSetup setup = streaming();
  setup.own_ring = &ring;
  Session session(in_, setup);
  start(session);
  for (const Fault fault : {Fault::kIoError, Fault::kShortRead, Fault::kBitFlip})
    for (int failing = 0; failing < 12; failing += 3) {
      SCOPED_TRACE(fmt::format("fault {} in read {}", static_cast<int>(fault), failing));
      int read = 0;
      std::optional<uint64_t> bad;  // where that read began: it stays unreadable
      ring.set_plan({.choose = [&](const io::Request& request) {
        if (request.operation != Operation::kRead) return Fault::kNone;
        if (read++ == failing) bad = request.offset_bytes;
        return bad == request.offset_bytes ? fault : Fault::kNone;
      }});
      expect_corrupt(session);
      ring.set_plan({});
      if (HasFailure()) return;
      ASSERT_TRUE(session.advance(session.cache->length() + 1, 1));
      ASSERT_TRUE(session.cache->flush());
    }
  expect_good(session);
}

// A read of several neighbouring blocks that fails is tried again block by block: one bad block
// does not cost its neighbours, and a passing error costs nothing.
TEST_F(KvCacheFault, ARunThatFailsOnceIsReadBlockByBlock) {
  SimRing ring({});
  CacheSetup setup = streaming();
  setup.warm_frames += 16;
  setup.own_ring = &ring;
  Session session(in_, setup);
  start(session);
  bool failed = false;
  ring.set_plan({.choose = [&](const io::Request& request) {
    size_t bytes = 0;
    for (const iovec& vector : request.vectors) bytes += vector.iov_len;
    const bool run =
        request.operation == Operation::kRead && bytes > session.layout().exact.block_bytes();
    return run && !std::exchange(failed, true) ? Fault::kIoError : Fault::kNone;
  }});
  expect_good(session);
  EXPECT_TRUE(failed);
  EXPECT_EQ(session.cache->statistics().prefetch.read_errors, 1u);
  EXPECT_EQ(session.cache->statistics().lost_groups, 0u);
}

// A read of layer 0 for the next step fails while the last layer is computed. Where the last layer
// has a window it does not need the lost group: its step succeeds, and the loss shows after it.
TEST_F(KvCacheFault, DamageFoundOnlyByReadingAheadIsReported) {
  for (const uint32_t window : {0u, 64u}) {
    SCOPED_TRACE(window);
    const Inputs in(shape_with(window), kLength, 22);
    const Outputs expected = undamaged(in);
    bool armed = false;
    SimRing ring({});
    CacheSetup setup = minimum(in.shape, 64, 64);
    setup.warm_frames += 8;
    setup.prefetch.window_layers = 3;
    setup.prefetch.run_bytes_max = 1;  // what fails is not read again block by block
    setup.own_ring = &ring;
    Session session(in, setup);
    start(session);
    ring.set_plan({.choose = [&](const io::Request& request) {
      const bool fails = armed && request.operation == Operation::kRead;
      armed = armed && !fails;
      return fails ? Fault::kIoError : Fault::kNone;
    }});
    const uint32_t position = session.cache->length();
    Outputs out(in.q_row());
    session.cache->begin_step(position, std::span(in.tokens).subspan(position, 1),
                              StepKind::kGeneration);
    for (uint32_t layer = 0; layer < 3; ++layer)
      ASSERT_TRUE(session.cache->attend(in.at(layer, position, out.data())));
    armed = true;
    const auto outcome = session.cache->attend(in.at(3, position, out.data()));
    if (outcome)
      session.cache->end_step();
    else
      session.cache->abort_step();
    ASSERT_TRUE(session.advance(kLength, 1));
    EXPECT_EQ(ring.injected(Fault::kIoError), 1u);
    EXPECT_GE(session.cache->statistics().lost_groups, 1u);
    for (uint32_t layer = 0; layer < 4; ++layer)  // computed by hand above
      std::copy_n(&expected[in.out_offset(layer, position)], in.q_row(),
                  &session.outputs[in.out_offset(layer, position)]);
    EXPECT_TRUE(same_bits(in, expected, session.outputs, kLength));
  }
}

TEST_F(KvCacheFault, AFailedWriteIsTriedAgain) {
  for (const Fault fault : {Fault::kNoSpace, Fault::kIoError}) {
    SCOPED_TRACE(static_cast<int>(fault));
    int write = 0;
    SimRing ring({});
    CacheSetup setup = streaming();
    setup.own_ring = &ring;
    Session session(in_, setup);
    ring.set_plan({.choose = [&](const io::Request& request) {
      // Batches; a segment's header is one page.
      const bool batch = request.operation == Operation::kWrite && request.offset_bytes > 0;
      return batch && write++ % 3 != 2 ? fault : Fault::kNone;
    }});
    ASSERT_TRUE(session.open());
    const auto outcome = session.advance(kLength, 64);
    ASSERT_TRUE(outcome) << outcome.error().message();
    EXPECT_GT(ring.injected(fault), 0u);
    EXPECT_TRUE(same_bits(in_, expected_, session.outputs, kLength));
  }
}

TEST_F(KvCacheFault, ATornWriteIsFoundWhenItIsRead) {
  int write = 0;
  SimRing ring({});
  CacheSetup setup = streaming();
  setup.own_ring = &ring;
  Session session(in_, setup);
  ring.set_plan({.choose = [&](const io::Request& request) {
    return request.operation == Operation::kWrite && write++ == 1 ? Fault::kTornWrite
                                                                  : Fault::kNone;
  }});
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(kLength, 64));
  EXPECT_EQ(ring.injected(Fault::kTornWrite), 1u);
  EXPECT_GE(session.cache->statistics().lost_groups, 1u);
  EXPECT_TRUE(same_bits(in_, expected_, session.outputs, kLength));
}

// KV stays in memory and right as long as that lasts; then the error names the cause.
void expect_memory_then_error(const Inputs& in, const Outputs& expected, Session& session,
                              Code code, const std::string& cause) {
  const auto held = session.advance(384, 64);
  ASSERT_TRUE(held) << held.error().message();
  EXPECT_TRUE(same_bits(in, expected, session.outputs, 384));
  const auto outcome = session.advance(kLength, 64);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, code);
  EXPECT_NE(outcome.error().message().find(cause), std::string::npos) << outcome.error().message();
  EXPECT_TRUE(same_bits(in, expected, session.outputs, session.cache->length()));
  // Asking again fails again, and making room makes it work.
  EXPECT_FALSE(session.advance(kLength, 64));
  session.cache->truncate(128);
  ASSERT_TRUE(session.advance(384, 64));
  EXPECT_TRUE(same_bits(in, expected, session.outputs, 384));
}

TEST_F(KvCacheFault, ADeviceThatTakesNoWritesLeavesKvInMemory) {
  SimRing ring({.no_space = 1});
  CacheSetup setup = in_memory(in_.shape, 6 * 64 + 64, 64);
  setup.flash = true;
  setup.own_ring = &ring;
  Session session(in_, setup);
  ASSERT_TRUE(session.open());
  expect_memory_then_error(in_, expected_, session, Code::kIo, "No space left");
}

TEST_F(KvCacheFault, AFlashCapacityTooSmallForTheSequenceIsAnError) {
  CacheSetup setup = in_memory(in_.shape, 6 * 64 + 64, 64);
  setup.flash = true;
  setup.flash_bytes = 128u << 10;
  Session session(in_, setup);
  ASSERT_TRUE(session.open());
  expect_memory_then_error(in_, expected_, session, Code::kFull, "capacity");
}

TEST_F(KvCacheFault, FlushSaysWhyKvIsNotOnFlash) {
  SimRing ring({.no_space = 1});
  CacheSetup setup = in_memory(in_.shape, kLength, 64);
  setup.flash = true;
  setup.own_ring = &ring;
  Session session(in_, setup);
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(kLength, 64));
  for (int i = 0; i < 2; ++i) {
    const auto outcome = session.cache->flush();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().system_errno, ENOSPC);
  }
  EXPECT_TRUE(same_bits(in_, expected_, session.outputs, kLength));
}

TEST_F(KvCacheFault, ACancelledStepCanBeRepeated) {
  std::atomic<bool> cancelled = false;
  for (const uint32_t chunk : {1u, 64u}) {
    CacheSetup setup = streaming();
    setup.prefetch.window_layers = 2;
    setup.cancelled = &cancelled;
    Session session(in_, setup);
    ASSERT_TRUE(session.open());
    ASSERT_TRUE(session.advance(448, 64));
    for (uint32_t stop = 0; stop < 4; ++stop) {
      SCOPED_TRACE(fmt::format("chunks of {}, before layer {}", chunk, stop));
      const uint32_t position = session.cache->length();
      Outputs out(chunk * in_.q_row());
      session.cache->begin_step(position, std::span(in_.tokens).subspan(position, chunk),
                                StepKind::kGeneration);
      for (uint32_t layer = 0; layer < stop; ++layer)
        ASSERT_TRUE(session.cache->attend(in_.at(layer, position, out.data())));
      cancelled = true;
      const auto outcome = session.cache->attend(in_.at(stop, position, out.data()));
      cancelled = false;
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().code, Code::kCancelled);
      session.cache->abort_step();
      EXPECT_EQ(session.cache->first_lost_group(), std::nullopt);
      ASSERT_EQ(session.cache->length(), position);
      if (chunk == 1 || stop == 3) ASSERT_TRUE(session.step(position, std::min(chunk, 64u)));
    }
    expect_good(session);
  }
}

TEST_F(KvCacheFault, ACancelledRecomputationLeavesTheGroupLost) {
  std::atomic<bool> cancelled = false;
  CacheSetup setup = streaming();
  setup.cancelled = &cancelled;
  Session session(in_, setup);
  start(session);
  ASSERT_TRUE(session.damage(4, 1, 9000));
  expect_corrupt(session);
  // Half of the group is there again when the user interrupts.
  ASSERT_TRUE(session.step(4 * 64, 32));
  cancelled = true;
  const auto outcome = session.step(4 * 64 + 32, 32);
  cancelled = false;
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCancelled);
  EXPECT_EQ(session.cache->first_lost_group(), 4u);
  expect_good(session);
}

TEST_F(KvCacheFault, TruncatingForgetsLostGroups) {
  Session session(in_, streaming());
  start(session);
  ASSERT_TRUE(session.damage(6, 1, 9000));
  expect_corrupt(session);
  session.cache->truncate(6 * 64);
  EXPECT_EQ(session.cache->first_lost_group(), std::nullopt);
  expect_good(session);
}

}  // namespace
}  // namespace hifc::cache
