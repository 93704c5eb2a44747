// The backend for systems without io_uring: worker threads that block in preadv and pwritev.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "io/backends.h"
#include "io/transfer.h"

namespace hifc::io {
namespace {

constexpr uint64_t kLongestSleepNs = uint64_t{1} << 60;  // 36 years

class ThreadsRing final : public Ring {
 public:
  explicit ThreadsRing(const RingOptions& options) : depth_(options.depth) {}

  ~ThreadsRing() override {
    while (in_flight_ > 0) wait();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_arrived_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Result<void> start_workers(uint32_t count) {
    try {
      for (uint32_t i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      return failure(Code::kIo, fmt::format("cannot start {} worker threads", count),
                     error.code().value());
    }
    return {};
  }

  std::string_view name() const override { return "threads"; }
  bool register_memory(std::span<std::byte>) override { return true; }  // nothing to gain here

  Result<void> submit(Request request) override {
    HIFC_TRY(validate(request));
    if (in_flight_ == depth_)
      return failure(Code::kBusy, fmt::format("{} requests are in flight already", depth_));
    auto transfer = std::make_unique<Transfer>(std::move(request));
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(transfer));
    }
    ++in_flight_;
    work_arrived_.notify_one();
    return {};
  }

  uint32_t in_flight() const override { return in_flight_; }
  uint32_t depth() const override { return depth_; }

  uint32_t poll() override {
    uint32_t completed = 0;
    while (std::unique_ptr<Transfer> transfer = take_finished()) {
      --in_flight_;
      ++completed;
      transfer->complete(statistics_);
    }
    return completed;
  }

  uint32_t wait_for(uint64_t timeout_ns) override {
    if (in_flight_ == 0) return 0;
    {
      std::unique_lock lock(mutex_);
      const auto arrived = [this] { return !finished_.empty(); };
      // A deadline further away than the clock reaches would overflow it.
      if (timeout_ns > kLongestSleepNs)
        transfer_finished_.wait(lock, arrived);
      else
        transfer_finished_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), arrived);
    }
    return poll();
  }

  const RingStatistics& statistics() const override { return statistics_; }

 private:
  std::unique_ptr<Transfer> take_finished() {
    const std::lock_guard lock(mutex_);
    if (finished_.empty()) return nullptr;
    std::unique_ptr<Transfer> transfer = std::move(finished_.front());
    finished_.pop_front();
    return transfer;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_arrived_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      std::unique_ptr<Transfer> transfer = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      run(*transfer);
      lock.lock();
      finished_.push_back(std::move(transfer));
      transfer_finished_.notify_one();
    }
  }

  // A worker must outlive whatever goes wrong with one request.
  static void run(Transfer& transfer) noexcept {
    try {
      while (!transfer.advance(transfer_blocking(transfer))) continue;
    } catch (const std::exception& exception) {
      transfer.fail({.code = Code::kInternal, .system_errno = 0, .context = exception.what()});
    }
  }

  const uint32_t depth_;
  uint32_t in_flight_ = 0;  // the owner's thread only, as statistics_
  RingStatistics statistics_;

  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable transfer_finished_;
  std::deque<std::unique_ptr<Transfer>> waiting_;   // guarded by mutex_
  std::deque<std::unique_ptr<Transfer>> finished_;  // guarded by mutex_
  bool stopping_ = false;                           // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace

Result<std::unique_ptr<Ring>> create_threads(const RingOptions& options) {
  auto ring = std::make_unique<ThreadsRing>(options);
  HIFC_TRY(ring->start_workers(options.workers));
  return ring;
}

}  // namespace hifc::io
