// A clock that moves only when a test or a SimRing moves it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace hifc::testing {

class SimClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_.load(std::memory_order_relaxed); }
  void advance_ns(uint64_t ns) { now_ns_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> now_ns_ = 0;
};

}  // namespace hifc::testing
