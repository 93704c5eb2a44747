// What happened when: a bounded record of spans of time, for a timeline of a run.
//
//   TraceScope scope(trace, kVerify, {layer, blocks});          until the end of the block
//   const TraceAsync read(trace, kRead, {layer, group, ...});   until read.end(...), in any order
//
// A null Trace* is tracing switched off: each of these then costs one branch. Memory is taken when
// the Trace is made and never after that. When it is full the oldest spans are dropped and counted.
//
// Spans of one track that are not asynchronous have to nest, as scopes do.
//
// Thread-compatible: one thread records everything, the one that drives the engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"

namespace hifc {

inline constexpr size_t kTraceArguments = 4;
using TraceValues = std::array<uint64_t, kTraceArguments>;

// What spans of one sort are called. These objects and their texts outlive the Trace.
struct TraceKind {
  const char* track = nullptr;  // the line of the timeline that they are drawn on
  const char* category = nullptr;
  const char* name = nullptr;
  std::array<const char*, kTraceArguments> arguments = {};  // names of the values; null: no more
  bool numbered = false;                                    // the first value is part of the name
};

enum class TraceEnd : uint8_t { kDone, kFailed, kOpen };

class Trace {
 public:
  // Some hundred spans for each token: enough for a few hundred tokens, in 16 MiB.
  static constexpr size_t kCapacity = size_t{1} << 18;
  // Asynchronous spans that may be open at a time.
  static constexpr uint32_t kOpenMost = 1024;

  struct Event {
    const TraceKind* kind = nullptr;
    uint64_t start_ns = 0;
    uint64_t duration_ns = 0;  // 0 while it is open
    uint32_t async_id = 0;     // from 1; 0: not asynchronous
    TraceEnd end = TraceEnd::kDone;
    TraceValues values = {};
  };
  static_assert(sizeof(Event) == 64);

  // `clock` outlives the trace, and is the one that all times given to it come from.
  explicit Trace(const Clock& clock, size_t capacity = kCapacity);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  uint64_t now_ns() const { return clock_.now_ns(); }
  uint64_t start_ns() const { return start_ns_; }  // when it was made

  void add(const TraceKind& kind, uint64_t start_ns, uint64_t end_ns, TraceValues values);

  // Use TraceAsync. The number stands for the span until it is ended or cancelled.
  static constexpr uint32_t kNoSlot = UINT32_MAX;
  uint32_t begin_async(const TraceKind& kind, TraceValues values);
  void end_async(uint32_t slot, TraceEnd end);
  void cancel_async(uint32_t slot);

  // Spans in the order in which they ended, then those that are still open.
  void for_each(FunctionRef<void(const Event&)> visit) const;
  size_t size() const { return events_.size(); }  // of those that ended
  uint64_t dropped() const { return dropped_; }

 private:
  void push(const Event& event);

  const Clock& clock_;
  uint64_t start_ns_;
  size_t capacity_;
  std::vector<Event> events_;     // a ring once it is full
  size_t oldest_ = 0;             // of events_
  std::vector<Event> open_;       // [slot]
  std::vector<uint32_t> unused_;  // slots
  uint32_t last_id_ = 0;
  uint64_t dropped_ = 0;
};

// A span from here to the end of the scope.
class TraceScope {
 public:
  TraceScope(Trace* trace, const TraceKind& kind, TraceValues values = {})
      : trace_(trace), kind_(kind), values_(values) {
    if (trace_ != nullptr) start_ns_ = trace_->now_ns();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  ~TraceScope() {
    if (trace_ != nullptr) trace_->add(kind_, start_ns_, trace_->now_ns(), values_);
  }

 private:
  Trace* trace_;
  const TraceKind& kind_;
  TraceValues values_;
  uint64_t start_ns_ = 0;
};

// A span from here until one of its copies is ended or cancelled, just once. Such spans may
// overlap.
class TraceAsync {
 public:
  TraceAsync(Trace* trace, const TraceKind& kind, TraceValues values) : trace_(trace) {
    if (trace_ != nullptr) slot_ = trace_->begin_async(kind, values);
  }
  void end(TraceEnd end) const {
    if (trace_ != nullptr) trace_->end_async(slot_, end);
  }
  // It did not happen after all.
  void cancel() const {
    if (trace_ != nullptr) trace_->cancel_async(slot_);
  }

 private:
  Trace* trace_;
  uint32_t slot_ = Trace::kNoSlot;
};

}  // namespace hifc
