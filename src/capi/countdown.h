// Lets one thread sleep until others have finished a number of things.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace hifc::capi {

// Thread-safe. May be destroyed as soon as wait() has returned.
class Countdown {
 public:
  explicit Countdown(size_t count) : left_(count) {}

  void finish_one() {
    const std::lock_guard lock(mutex_);
    // Under the lock: afterwards the waiting thread may have destroyed this.
    if (--left_ == 0) finished_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable finished_;
  size_t left_;  // guarded by mutex_
};

}  // namespace hifc::capi
