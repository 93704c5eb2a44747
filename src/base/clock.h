// Time as a dependency, so that simulations can replace it.
#pragma once

#include <chrono>
#include <cstdint>

namespace hifc {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back. Callable from any thread.
  virtual uint64_t now_ns() const = 0;
};

class SystemClock final : public Clock {
 public:
  uint64_t now_ns() const override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
  }
};

inline double milliseconds(uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

}  // namespace hifc
