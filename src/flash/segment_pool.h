// The store's segments: room for batches within the byte limit, and retirement to make it.
//
// Batches fill the active segment one after the other. When it is full, the next one is, in this
// order: a free segment, a new file, or the oldest segment that nobody pins, whose values are
// forgotten; its file is overwritten in place, which flash and file system do faster than writing
// into new blocks. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"
#include "flash/directory.h"
#include "flash/segment.h"

namespace hifc::flash {

class SegmentPool {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    uint64_t segment_bytes = 0;
    bool direct = true;
  };
  using Forget = FunctionRef<void(const Batch&)>;

  // The directory must outlive the pool. kFull when the file system has no room for one segment.
  static Result<std::unique_ptr<SegmentPool>> create(Options options, Directory& directory);
  ~SegmentPool();  // removes the segment files

  // Gives the batch its segment and offset there, and counts it as in flight; `forget` is called
  // for each batch that has to go. kFull or kBusy as Store::put(); nothing is forgotten then.
  Result<void> place(Batch& batch, Forget forget);
  // The batch is written: its segment keeps it.
  void commit(std::shared_ptr<Batch> batch);
  // The batch could not be written: its space is free again, at once if it is the segment's last.
  void abandon(const Batch& batch);

  uint64_t bytes_on_disk() const { return bytes_on_disk_; }
  uint64_t peak_bytes_on_disk() const { return peak_bytes_on_disk_; }

 private:
  SegmentPool(Options options, Directory& directory) : options_(options), directory_(directory) {}

  Result<Segment*> acquire(uint64_t needed_bytes, Forget forget);
  Result<Segment*> grow(uint64_t needed_bytes);
  Result<void> check_free_space(uint64_t size_bytes) const;
  Segment* smallest_free(uint64_t needed_bytes) const;
  Segment* oldest_retirable() const;
  void retire(Segment& segment, Forget forget);
  void remove(Segment& segment);
  uint64_t unallocated_bytes() const;
  Error no_room(uint64_t needed_bytes) const;

  const Options options_;
  Directory& directory_;
  std::vector<std::unique_ptr<Segment>> segments_;
  Segment* active_ = nullptr;
  uint32_t next_id_ = 0;
  uint64_t last_generation_ = 0;
  uint64_t bytes_on_disk_ = 0;
  uint64_t peak_bytes_on_disk_ = 0;
};

}  // namespace hifc::flash
