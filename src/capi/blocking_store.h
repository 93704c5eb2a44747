// A flash store for callers with threads of their own: every call blocks until it is done, and
// small values are gathered in memory and written together.
//
// Values below kAloneBytes wait in a batch, are found and read there, and are written when the
// batch is full or on flush() and close(). Larger ones are written at once. What cannot be written
// later than its put() is reported by the next flush() or close(), and counted.
//
// Thread-safe, but for close() and the destructor, which nothing else may overlap.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "capi/store_thread.h"
#include "capi/value_reader.h"
#include "capi/write_batch.h"
#include "flash/store.h"
#include "io/ring.h"

namespace hifc::capi {

struct BlockingStoreStatistics {
  flash::StoreStatistics flash;
  uint64_t capacity_bytes = 0;
  uint64_t buffered_values = 0, buffered_bytes = 0;  // not yet on flash
  uint64_t lost_values = 0;                          // put, but could not be written
  uint64_t hits = 0, misses = 0;
};

class BlockingStore {
 public:
  using Key = flash::Key;

  // From this size on a value is a batch of its own: flash writes at full speed from here on.
  static constexpr uint64_t kAloneBytes = 4u << 20;
  // Smaller where segments are: a batch fits into one.
  static constexpr uint64_t kBatchBytesMax = 16u << 20;

  static Result<std::unique_ptr<BlockingStore>> open(const flash::StoreOptions& options,
                                                     std::unique_ptr<io::Ring> ring);
  // As close(), but nobody hears of errors.
  ~BlockingStore();

  // Copies the value, 1 byte or more. kFull where it can never fit.
  Result<void> put(const Key& key, std::span<const std::byte> value);
  // All of them are in flight together. Sets their results.
  void read(std::span<ReadRequest> requests);
  bool contains(const Key& key);
  // False if there was none.
  bool remove(const Key& key);
  // What was put and removed before survives a power failure.
  Result<void> flush();
  BlockingStoreStatistics statistics();
  // "io_uring" or "threads".
  const std::string& ring_name() const { return thread_->ring_name(); }
  // Flushes, unless the store is temporary, and closes. To be called at most once.
  Result<void> close();

 private:
  struct Writing {
    std::shared_ptr<WriteBatch> batch;
    bool finished = false;
  };
  using Finished = std::move_only_function<void(Result<void>)>;
  struct Buffered {
    std::shared_ptr<WriteBatch> batch;  // keeps the bytes
    std::span<const std::byte> bytes;
  };

  BlockingStore(const flash::StoreOptions& options, std::unique_ptr<StoreThread> thread);

  bool gathers(uint64_t value_bytes) const;
  Result<void> put_gathered(const Key& key, std::span<const std::byte> value);
  Result<void> put_alone(const Key& key, std::span<const std::byte> value);
  // The next three with mutex_ held.
  void seal();
  void write(std::shared_ptr<WriteBatch> batch, Finished finished);
  std::optional<Buffered> find_buffered(const Key& key) const;
  bool is_being_written(const Key& key) const;
  void written(Writing* writing, const Result<void>& result, Finished& finished);
  bool read_buffered(ReadRequest& request);

  const uint64_t capacity_bytes_;
  const uint64_t batch_bytes_;
  const bool temporary_;
  std::atomic<uint64_t> hits_ = 0, misses_ = 0;

  std::mutex mutex_;
  std::condition_variable written_;
  // The rest is guarded by mutex_.
  std::shared_ptr<WriteBatch> open_;  // being filled; may be nullptr
  // Sealed, in the order of the log, which is that in which they replace each other's values: one
  // that is finished stays until those before it are.
  std::deque<std::unique_ptr<Writing>> writing_;
  std::optional<Error> write_error_;  // of values whose put() has returned
  uint64_t lost_values_ = 0;

  std::unique_ptr<StoreThread> thread_;  // last: what it still runs uses the above
};

}  // namespace hifc::capi
