#include "base/trace.h"

#include <gtest/gtest.h>

#include <vector>

namespace hifc {
namespace {

constexpr TraceKind kOuter{.track = "engine", .category = "c", .name = "outer"};
constexpr TraceKind kInner{
    .track = "engine", .category = "c", .name = "inner", .arguments = {"layer"}};
constexpr TraceKind kRead{.track = "reads", .category = "io", .name = "read"};

// Another nanosecond at every look.
class CountingClock final : public Clock {
 public:
  uint64_t now_ns() const override { return ++now_ns_; }

 private:
  mutable uint64_t now_ns_ = 0;
};

std::vector<Trace::Event> events_of(const Trace& trace) {
  std::vector<Trace::Event> events;
  trace.for_each([&](const Trace::Event& event) { events.push_back(event); });
  return events;
}

TEST(Trace, ScopesNestAndKeepTheirValues) {
  const CountingClock clock;
  Trace trace(clock);
  {
    const TraceScope outer(&trace, kOuter);
    const TraceScope inner(&trace, kInner, {7});
  }
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2u);
  const Trace::Event &inner = events[0], &outer = events[1];  // in the order of their ends
  EXPECT_EQ(inner.kind, &kInner);
  EXPECT_EQ(inner.values[0], 7u);
  EXPECT_EQ(outer.kind, &kOuter);
  EXPECT_GT(outer.start_ns, trace.start_ns());
  EXPECT_GT(inner.start_ns, outer.start_ns);
  EXPECT_LT(inner.start_ns + inner.duration_ns, outer.start_ns + outer.duration_ns);
  EXPECT_EQ(inner.async_id, 0u);
}

TEST(Trace, SpansGivenByTheirTimesAreKeptAsTheyAre) {
  const CountingClock clock;
  Trace trace(clock);
  trace.add(kInner, 100, 250, {3});
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].start_ns, 100u);
  EXPECT_EQ(events[0].duration_ns, 150u);
}

TEST(Trace, DropsTheOldestWhenItIsFullAndCountsThem) {
  const CountingClock clock;
  Trace trace(clock, 4);
  for (uint64_t i = 0; i < 10; ++i) trace.add(kInner, i, i + 1, {i});
  EXPECT_EQ(trace.size(), 4u);
  EXPECT_EQ(trace.dropped(), 6u);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(events[i].values[0], 6 + i);
}

TEST(Trace, AsynchronousSpansOverlapAndEndInAnyOrder) {
  const CountingClock clock;
  Trace trace(clock);
  const TraceAsync first(&trace, kRead, {1}), second(&trace, kRead, {2});
  second.end(TraceEnd::kFailed);
  first.end(TraceEnd::kDone);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].values[0], 2u);
  EXPECT_EQ(events[0].end, TraceEnd::kFailed);
  EXPECT_EQ(events[1].values[0], 1u);
  EXPECT_EQ(events[1].end, TraceEnd::kDone);
  EXPECT_LT(events[1].start_ns, events[0].start_ns);
  EXPECT_NE(events[0].async_id, events[1].async_id);
}

TEST(Trace, OpenSpansAreSeenAndCancelledOnesAreNot) {
  const CountingClock clock;
  Trace trace(clock);
  const TraceAsync open(&trace, kRead, {1}), cancelled(&trace, kRead, {2});
  cancelled.cancel();
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].values[0], 1u);
  EXPECT_EQ(events[0].end, TraceEnd::kOpen);
  open.end(TraceEnd::kDone);
  EXPECT_EQ(events_of(trace).size(), 1u);
}

TEST(Trace, AsynchronousSpansBeyondTheBoundAreDropped) {
  const CountingClock clock;
  Trace trace(clock);
  std::vector<TraceAsync> spans;
  for (uint32_t i = 0; i <= Trace::kOpenMost; ++i) spans.emplace_back(&trace, kRead, TraceValues{});
  EXPECT_EQ(trace.dropped(), 1u);
  for (const TraceAsync& span : spans) span.end(TraceEnd::kDone);
  EXPECT_EQ(trace.size(), Trace::kOpenMost);
  const TraceAsync again(&trace, kRead, {});
  again.end(TraceEnd::kDone);
  EXPECT_EQ(trace.size(), Trace::kOpenMost + 1);
  EXPECT_EQ(trace.dropped(), 1u);
}

TEST(Trace, WithoutATraceNothingHappens) {
  const TraceScope scope(nullptr, kOuter);
  TraceAsync(nullptr, kRead, {}).end(TraceEnd::kDone);
  TraceAsync(nullptr, kRead, {}).cancel();
}

}  // namespace
}  // namespace hifc
