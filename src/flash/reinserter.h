// Values that are used stay: before the oldest segment is overwritten, those of its values that
// were found often enough since they were written are read, verified and written again.
//
// Runs beside puts, a few MiB at a time, and gives up whenever something fails: a value that is not
// written again is lost with its segment, as all others are. What it may write is a share of what
// is put, so that write amplification stays bounded.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "flash/index.h"
#include "flash/pins.h"
#include "flash/segment_pool.h"
#include "flash/transfer_queue.h"

namespace hifc::flash {

class Reinserter {
 public:
  struct Options {
    uint32_t hits_min = 0;  // 0: nothing is ever written again
    double share = 0;
    uint64_t burst_bytes = 0;  // allowed at once
  };
  // One value, verified.
  struct Copy {
    Key key = {};
    Location from;
    PutValue value;
  };
  // Writes copies, which stay in memory until `done`. Some may have been replaced or removed by
  // now: those are left out.
  using Write = std::function<Result<void>(const BatchShape& shape, std::vector<Copy> copies,
                                           std::move_only_function<void()> done)>;

  Reinserter(Options options, SegmentPool& pool, TransferQueue& transfers, Pins& pins,
             const Index& index, Write write)
      : options_(options),
        pool_(pool),
        transfers_(transfers),
        pins_(pins),
        index_(index),
        write_(std::move(write)) {}

  // So much was put. Begins with the oldest segment when it is the next to go.
  void put(uint64_t bytes);

 private:
  struct Job;

  void begin(Segment& segment);
  void read(const std::shared_ptr<Job>& job, uint64_t bytes,
            std::function<void(std::span<const std::byte>)> next);
  void choose(const std::shared_ptr<Job>& job, std::span<const std::byte> checkpoint);
  void next_batch(const std::shared_ptr<Job>& job);
  void read_values(const std::shared_ptr<Job>& job, const std::shared_ptr<Batch>& batch,
                   std::vector<Location> locations);
  void read_lane(const std::shared_ptr<Job>& job, const std::shared_ptr<Batch>& batch, size_t item);
  void write_values(const std::shared_ptr<Job>& job, const std::shared_ptr<Batch>& batch);

  const Options options_;
  SegmentPool& pool_;
  TransferQueue& transfers_;
  Pins& pins_;
  const Index& index_;
  Write write_;
  uint64_t budget_bytes_ = 0;
  std::weak_ptr<Job> running_;
  uint32_t looked_at_ = 0;  // number of the last segment whose used values have been looked for
};

}  // namespace hifc::flash
