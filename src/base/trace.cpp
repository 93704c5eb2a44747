#include "base/trace.h"

#include "base/check.h"

namespace hifc {

Trace::Trace(const Clock& clock, size_t capacity)
    : clock_(clock), start_ns_(clock.now_ns()), capacity_(capacity), open_(kOpenMost) {
  HIFC_CHECK(capacity > 0);
  events_.reserve(capacity);
  unused_.reserve(kOpenMost);
  for (uint32_t slot = kOpenMost; slot-- > 0;) unused_.push_back(slot);
}

void Trace::push(const Event& event) {
  if (events_.size() < capacity_) return events_.push_back(event);
  events_[oldest_] = event;
  oldest_ = (oldest_ + 1) % capacity_;
  ++dropped_;
}

void Trace::add(const TraceKind& kind, uint64_t start_ns, uint64_t end_ns, TraceValues values) {
  HIFC_DCHECK(start_ns <= end_ns);
  push({.kind = &kind, .start_ns = start_ns, .duration_ns = end_ns - start_ns, .values = values});
}

uint32_t Trace::begin_async(const TraceKind& kind, TraceValues values) {
  if (unused_.empty()) {
    ++dropped_;
    return kNoSlot;
  }
  const uint32_t slot = unused_.back();
  unused_.pop_back();
  open_[slot] = {.kind = &kind,
                 .start_ns = now_ns(),
                 .async_id = ++last_id_,
                 .end = TraceEnd::kOpen,
                 .values = values};
  return slot;
}

void Trace::end_async(uint32_t slot, TraceEnd end) {
  if (slot == kNoSlot) return;
  Event event = open_[slot];
  HIFC_CHECK(event.kind != nullptr);
  event.duration_ns = now_ns() - event.start_ns;
  event.end = end;
  cancel_async(slot);
  push(event);
}

void Trace::cancel_async(uint32_t slot) {
  if (slot == kNoSlot) return;
  HIFC_CHECK(open_[slot].kind != nullptr);
  open_[slot] = {};
  unused_.push_back(slot);
}

void Trace::for_each(FunctionRef<void(const Event&)> visit) const {
  for (size_t i = 0; i < events_.size(); ++i) visit(events_[(oldest_ + i) % events_.size()]);
  for (const Event& event : open_)
    if (event.kind != nullptr) visit(event);
}

}  // namespace hifc
