// The write side of the store: batches into segments, their headers and checkpoints, and what is
// durable.
//
//   a segment's life   header written and synced -> batches -> sync -> checkpoint -> retired
//
// A segment's header is durable before any batch overwrites what was there before, and its batches
// are before the checkpoint names them: so whatever a power failure leaves, a checkpoint tells the
// truth, and batches without one are verified when the store opens.
//
// Not thread-safe; completions run inside the transfer queue's poll() and wait().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "flash/batch.h"
#include "flash/segment_pool.h"
#include "flash/transfer_queue.h"
#include "io/memory.h"

namespace hifc::flash {

class Log {
 public:
  using Appended = std::move_only_function<void(Result<std::shared_ptr<Batch>>)>;
  using Flushed = std::move_only_function<void(Result<void>)>;
  // The value at this place could not be made durable.
  using Forget = std::function<void(const Key&, const Location&)>;

  Log(SegmentPool& pool, TransferQueue& transfers, Forget forget)
      : pool_(pool), transfers_(transfers), forget_(std::move(forget)) {}

  // Continues with the segments that the pool has adopted: the newest open one is filled on, others
  // get their checkpoint.
  void resume();

  // Writes a batch: `contents` laid out and with checksums, `payload` its lanes in file order; its
  // place is known at once. kBusy and kFull as Store::put(); `done` then never runs.
  Result<std::shared_ptr<const Batch>> append(BatchContents contents, std::vector<iovec> payload,
                                              Appended done);
  // When the active segment is nearly full: chooses the next one, retiring the oldest for it where
  // necessary, so that its header is durable before a batch like this one, just appended, needs it.
  void open_ahead(const BatchContents& like);
  // The batches that are not completed yet, in the order of the log.
  void each_pending(FunctionRef<void(const BatchContents&)> visit) const;

  // Batches that wait for the header of their segment.
  size_t waiting() const;

  // Everything appended before this call is durable when `done` runs, or has been forgotten.
  void flush(Flushed done);
  // Flushes and leaves a checkpoint in the active segment, as far as the device answers.
  void close();

 private:
  struct Flush {
    uint64_t last_append = 0;
    uint32_t syncs_left = 0;
    bool started = false;
    Result<void> outcome;
    Flushed done;
  };
  struct Append;

  void open_segment(Segment& segment, io::AlignedMemory memory);
  void sync_header(Segment& segment);
  void opening_step(Segment& segment, TransferQueue::Transfer transfer, io::AlignedMemory memory,
                    void (Log::*next)(Segment&));
  void opened(Segment& segment);
  void opening_failed(Segment& segment, const Error& error);
  void released_opening(Segment& segment);

  void start(const std::shared_ptr<Append>& append);
  void finish(const std::shared_ptr<Append>& append, Result<void> written);
  void complete(Append& append);
  void released(const std::shared_ptr<Append>& append);
  void release(Append& append);
  void release_write(Segment& segment);

  void close_segment(Segment& segment);
  void checkpoint(Segment& segment);
  void closed(Segment& segment);
  void write_checkpoint(Segment& segment);
  void sync(Segment& segment, Flushed done);
  void forget_entries(Segment& segment, size_t end, const Error& error);

  void start_flushes();
  void finish_flushes();

  SegmentPool& pool_;
  TransferQueue& transfers_;
  Forget forget_;
  std::unordered_map<Segment*, std::vector<std::shared_ptr<Append>>> waiting_;  // for the header
  std::deque<std::shared_ptr<Append>> appends_;  // not completed, in the order of the log
  uint64_t last_append_ = 0;
  std::list<Flush> flushes_;   // in order
  std::optional<Error> lost_;  // why values were forgotten that no flush has reported yet
};

}  // namespace hifc::flash
