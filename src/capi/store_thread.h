// A thread of its own for one flash store and its ring: both are used by one thread only, and what
// waits for the device goes on, step by step, while no caller is there to drive it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "capi/countdown.h"
#include "capi/value_reader.h"
#include "flash/store.h"
#include "io/ring.h"

namespace hifc::capi {

// Thread-safe. What it is given runs on its thread.
class StoreThread {
 public:
  using Task = std::move_only_function<void(flash::Store&)>;
  // A put, a removal or a flush. They are started in the order in which they were given.
  struct Write {
    // kBusy: not started, to be called again later. Any other error goes to `refused`.
    std::move_only_function<Result<void>(flash::Store&)> start;
    std::move_only_function<void(const Error&)> refused;
  };

  // From now on the ring is used by this thread only.
  static Result<std::unique_ptr<StoreThread>> open(flash::StoreOptions options,
                                                   std::unique_ptr<io::Ring> ring);
  // Finishes everything, then closes the store.
  ~StoreThread();

  const std::string& ring_name() const { return ring_name_; }

  // Runs `task` and returns when it has run.
  void run(Task task);
  // Reads all of them, together, and returns when they are finished.
  void read(std::span<ReadRequest* const> requests);
  // Returns at once.
  void post(Write write);

 private:
  using Message = std::move_only_function<void()>;

  explicit StoreThread(std::unique_ptr<io::Ring> ring)
      : ring_(std::move(ring)), ring_name_(ring_->name()) {}
  Result<void> open_here(const flash::StoreOptions& options);
  void close_here();
  void send(Message message);
  void loop();
  std::optional<std::vector<Message>> receive();
  void start_writes();

  // Of the thread only.
  std::unique_ptr<io::Ring> ring_;
  std::unique_ptr<flash::Store> store_;
  std::optional<ValueReader> reader_;
  std::deque<Write> writes_;  // not started
  bool blocked_ = false;      // the first of them waits for room
  bool progress_ = false;     // something has completed in the last turn

  const std::string ring_name_;
  std::mutex mutex_;
  std::condition_variable sent_;
  std::vector<Message> messages_;  // guarded by mutex_
  bool closing_ = false;           // guarded by mutex_
  std::thread thread_;
};

}  // namespace hifc::capi
