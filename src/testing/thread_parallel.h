// A Parallel over real threads, for tests: results must not depend on how many there are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace hifc::testing {

class ThreadParallel final : public Parallel {
 public:
  explicit ThreadParallel(uint32_t threads) {
    for (uint32_t thread = 1; thread < threads; ++thread)
      workers_.emplace_back([this, thread] { serve(thread); });
  }
  ~ThreadParallel() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }
  ThreadParallel(const ThreadParallel&) = delete;
  ThreadParallel& operator=(const ThreadParallel&) = delete;

  uint32_t threads() const override { return static_cast<uint32_t>(workers_.size()) + 1; }

  void run(uint32_t count, FunctionRef<void(uint32_t, uint32_t)> task) override {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      count_ = count;
      next_ = 0;
      busy_ = static_cast<uint32_t>(workers_.size());
      ++generation_;
    }
    changed_.notify_all();
    work(task, 0);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  using Task = FunctionRef<void(uint32_t, uint32_t)>;

  void work(const Task& task, uint32_t thread) {
    for (uint32_t index = next_++; index < count_; index = next_++) task(index, thread);
  }

  void serve(uint32_t thread) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      const Task* task = task_;
      lock.unlock();
      work(*task, thread);
      lock.lock();
      if (--busy_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const Task* task_ = nullptr;
  std::atomic<uint32_t> next_ = 0;
  uint32_t count_ = 0, busy_ = 0;
  uint64_t generation_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace hifc::testing
