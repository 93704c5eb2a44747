// Brings batch headers into memory: what pinning a value needs. Batches that are there already, or
// were used lately, cost no read.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "flash/batch.h"
#include "flash/transfer_queue.h"
#include "io/memory.h"

namespace hifc::flash {

class Pins {
 public:
  // The batch; or kCorrupt when what is there is not its header, kIo, kTimeout.
  using Got = std::move_only_function<void(Result<std::shared_ptr<Batch>>)>;

  explicit Pins(TransferQueue& transfers) : transfers_(transfers) {}

  // The batch that begins at `location` in `segment`. `got` may run before this returns. kBusy as
  // TransferQueue::admit(); `got` then never runs.
  Result<void> get(Segment& segment, const Location& location, Got got);
  // A batch that was just written.
  void add(const std::shared_ptr<Batch>& batch);
  // Forgets what was used lately: only batches that others hold stay, and pin their segments.
  void drop_recent() { recent_.clear(), recent_bytes_ = 0; }

 private:
  using Place = uint64_t;  // segment number and page
  struct Fetch;

  static Place place_of(uint32_t segment, uint32_t page) { return uint64_t{segment} << 32 | page; }
  std::shared_ptr<Batch> in_memory(Place place);
  void read(const std::shared_ptr<Fetch>& fetch, uint64_t size_bytes);
  void arrived(const std::shared_ptr<Fetch>& fetch, Result<void> result);
  void finish(const std::shared_ptr<Fetch>& fetch, Result<std::shared_ptr<Batch>> outcome);
  void use(const std::shared_ptr<Batch>& batch);

  TransferQueue& transfers_;
  std::unordered_map<Place, std::weak_ptr<Batch>> batches_;
  std::unordered_map<Place, std::shared_ptr<Fetch>> fetches_;
  std::deque<std::shared_ptr<Batch>> recent_;  // the latest at the back
  uint64_t recent_bytes_ = 0;
  size_t sweep_at_ = 64;
};

}  // namespace hifc::flash
