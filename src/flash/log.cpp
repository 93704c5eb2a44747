#include "flash/log.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "io/memory.h"

namespace hifc::flash {
namespace {

std::vector<iovec> vector_of(std::span<std::byte> memory) {
  return {{memory.data(), memory.size()}};
}

}  // namespace

struct Log::Append {
  uint64_t sequence = 0;
  std::shared_ptr<Batch> batch;
  std::vector<iovec> vectors;  // header and payload, in the order of the file
  io::AlignedMemory header;
  Appended done;
  uint64_t records = 0;
  std::optional<Result<void>> written;  // once the device has answered
  bool completed = false;
  bool done_with = false;  // the device uses neither memory nor file any more

  Segment& segment() const { return batch->segment; }
};

void Log::resume() {
  pool_.release_unused();
  uint32_t newest = 0;
  for (const auto& segment : pool_.segments()) newest = std::max(newest, segment->number);
  for (const auto& segment : pool_.segments()) {
    if (segment->state != Segment::State::kOpen) continue;
    // What is put next comes after everything that is there.
    if (segment->number == newest)
      pool_.activate(*segment);
    else
      close_segment(*segment);
  }
}

// ---- batches ----

Result<std::shared_ptr<const Batch>> Log::append(BatchContents contents, std::vector<iovec> payload,
                                                 Appended done) {
  // Before anything is placed: nothing has to be undone then.
  HIFC_ASSIGN(io::AlignedMemory header, io::AlignedMemory::allocate(contents.header_bytes));
  const uint64_t records = contents.values.size() + contents.removals.size();
  io::AlignedMemory opening;
  if (pool_.needs_segment(contents.size_bytes(), records)) {
    HIFC_ASSIGN(opening, io::AlignedMemory::allocate(kSegmentHeaderBytes));
  }
  HIFC_ASSIGN(const SegmentPool::Place place, pool_.place(contents.size_bytes(), records));
  Segment& segment = *place.segment;
  if (place.filled != nullptr) close_segment(*place.filled);
  encode_batch_header(contents, segment.context(), place.offset_bytes,
                      header.span().first(contents.header_bytes));

  auto append = std::make_shared<Append>();
  append->sequence = ++last_append_;
  append->vectors = vector_of(header.span().first(contents.header_bytes));
  append->vectors.insert(append->vectors.end(), payload.begin(), payload.end());
  append->header = std::move(header);
  append->batch = std::make_shared<Batch>(std::move(contents), segment, place.offset_bytes);
  append->done = std::move(done);
  append->records = records;
  appends_.push_back(append);
  if (place.opened) open_segment(segment, std::move(opening));
  const std::shared_ptr<const Batch> batch = append->batch;
  if (segment.state == Segment::State::kOpening)
    waiting_[&segment].push_back(append);
  else
    start(append);
  return batch;
}

// Where that fails, a batch that finds no room says why.
void Log::open_ahead(const BatchContents& like) {
  if (!pool_.wants_next()) return;
  auto memory = io::AlignedMemory::allocate(kSegmentHeaderBytes);
  if (!memory) return;
  const auto next = pool_.choose_next(like.size_bytes(), like.values.size() + like.removals.size());
  if (next) open_segment(**next, std::move(*memory));
}

void Log::each_pending(FunctionRef<void(const BatchContents&)> visit) const {
  for (const std::shared_ptr<Append>& append : appends_) visit(append->batch->contents);
}

size_t Log::waiting() const {
  size_t count = 0;
  for (const auto& [segment, appends] : waiting_) count += appends.size();
  return count;
}

void Log::start(const std::shared_ptr<Append>& append) {
  transfers_.start({.operation = io::Operation::kWrite,
                    .file = &append->segment().file,
                    .offset_bytes = append->batch->offset_bytes,
                    .vectors = std::move(append->vectors),
                    .done = [this, append](Result<void> written) { finish(append, written); },
                    .released = [this, append] { released(append); }});
}

void Log::finish(const std::shared_ptr<Append>& append, Result<void> written) {
  append->written = std::move(written);
  // In the order of the log, so that memory and a restart agree on which value is the newest.
  while (!appends_.empty() && appends_.front()->written) {
    const std::shared_ptr<Append> next = std::move(appends_.front());
    appends_.pop_front();
    complete(*next);
  }
  start_flushes();
}

void Log::complete(Append& append) {
  if (*append.written) {
    const Batch& batch = *append.batch;
    append_entries(batch.contents, batch.page(), batch.segment.entries);
    append.done(append.batch);
  } else {
    append.done(std::unexpected(append.written->error()));
  }
  append.completed = true;
  if (append.done_with) release(append);
}

void Log::released(const std::shared_ptr<Append>& append) {
  append->done_with = true;
  if (append->completed) release(*append);
}

void Log::release(Append& append) {
  Segment& segment = append.segment();
  const uint64_t offset = append.batch->offset_bytes;
  const uint64_t size = append.batch->contents.size_bytes();
  append.batch.reset();
  append.header = {};
  append.done = {};
  if (!*append.written) pool_.give_back(segment, offset, size, append.records);
  release_write(segment);
}

void Log::release_write(Segment& segment) {
  HIFC_CHECK(segment.writes_in_flight > 0);
  --segment.writes_in_flight;
  if (segment.writes_in_flight > 0) return;
  if (segment.state == Segment::State::kClosing) checkpoint(segment);
  if (segment.state == Segment::State::kFailed) pool_.release(segment);
}

// ---- headers ----

void Log::open_segment(Segment& segment, io::AlignedMemory memory) {
  ++segment.writes_in_flight;
  const auto header = memory.span().first(kSegmentHeaderBytes);
  encode_segment_header(header_of(segment), header);
  opening_step(segment, {.operation = io::Operation::kWrite, .vectors = vector_of(header)},
               std::move(memory), &Log::sync_header);
}

// What the file held before must not be overwritten while its old header could still be found.
void Log::sync_header(Segment& segment) {
  opening_step(segment, {.operation = io::Operation::kSync}, {}, &Log::opened);
}

void Log::opening_step(Segment& segment, TransferQueue::Transfer transfer, io::AlignedMemory memory,
                       void (Log::*next)(Segment&)) {
  const auto failed = std::make_shared<bool>(false);
  transfer.file = &segment.file;
  transfer.done = [this, &segment, failed, memory = std::move(memory)](const Result<void>& result) {
    *failed = !result;
    if (!result) opening_failed(segment, result.error());
  };
  transfer.released = [this, &segment, failed, next] {
    *failed ? released_opening(segment) : (this->*next)(segment);
  };
  transfers_.start(std::move(transfer));
}

void Log::opened(Segment& segment) {
  // Filled while its header was on its way: then it is closed as soon as its batches are written.
  segment.number_on_disk = segment.number;
  const bool filled = pool_.active() != &segment && pool_.next() != &segment;
  segment.state = filled ? Segment::State::kClosing : Segment::State::kOpen;
  if (auto node = waiting_.extract(&segment))
    for (const std::shared_ptr<Append>& append : node.mapped()) start(append);
  release_write(segment);
}

void Log::opening_failed(Segment& segment, const Error& error) {
  pool_.deactivate(segment);
  if (auto node = waiting_.extract(&segment))
    for (const std::shared_ptr<Append>& append : node.mapped()) {
      finish(append, std::unexpected(error));
      released(append);
    }
}

void Log::released_opening(Segment& segment) {
  segment.state = Segment::State::kFailed;
  release_write(segment);
}

// ---- closing ----

void Log::close_segment(Segment& segment) {
  if (segment.state == Segment::State::kOpening) return;  // opened() goes on
  HIFC_CHECK(segment.state == Segment::State::kOpen);
  segment.state = Segment::State::kClosing;
  if (segment.writes_in_flight == 0) checkpoint(segment);
}

void Log::checkpoint(Segment& segment) {
  sync(segment, [this, &segment](const Result<void>& synced) {
    if (synced && !segment.sync_failed) return write_checkpoint(segment);
    // It must not name what may not be there: the next opening looks for itself.
    if (segment.state == Segment::State::kClosing) closed(segment);
  });
}

void Log::closed(Segment& segment) {
  segment.state = Segment::State::kClosed;
  segment.clear_entries();
}

void Log::write_checkpoint(Segment& segment) {
  const bool sealed = segment.state == Segment::State::kClosing;
  const uint64_t size = checkpoint_bytes(segment.entries.size());
  auto memory = io::AlignedMemory::allocate(size);
  if (!memory) {
    if (sealed) closed(segment);
    return;
  }
  // Batches are written in any order; of one batch, removals come first.
  std::ranges::sort(segment.entries, {}, [](const CheckpointEntry& entry) {
    return std::tuple(entry.batch_page, 1 - entry.removal, entry.value);
  });
  encode_checkpoint(
      {.covered_bytes = segment.tail_bytes, .sealed = sealed, .entries = segment.entries},
      segment.context(), memory->span().first(size));
  const auto vectors = vector_of(memory->span().first(size));
  ++segment.writes_in_flight;
  transfers_.start(
      {.operation = io::Operation::kWrite,
       .file = &segment.file,
       .offset_bytes = segment.size_bytes - size,
       .vectors = vectors,
       .done =
           [this, &segment, sealed, memory = std::move(*memory)](const Result<void>& result) {
             if (!result)
               log_warn(
                   "a checkpoint of {} could not be written, so opening it will take longer: "
                   "{}",
                   segment.file.path(), result.error().message());
             if (sealed) closed(segment);
           },
       .released = [this, &segment] { release_write(segment); }});
}

// ---- durability ----

void Log::sync(Segment& segment, Flushed done) {
  const size_t end = segment.entries.size();
  ++segment.writes_in_flight;
  transfers_.start({.operation = io::Operation::kSync,
                    .file = &segment.file,
                    .offset_bytes = 0,
                    .vectors = {},
                    .done =
                        [this, &segment, end, done = std::move(done)](Result<void> result) mutable {
                          if (!result) forget_entries(segment, end, result.error());
                          segment.durable_entries = std::max(segment.durable_entries,
                                                             std::min(end, segment.entries.size()));
                          done(std::move(result));
                        },
                    .released = [this, &segment] { release_write(segment); }});
}

// After a failed sync nobody knows what the device has, and a later sync that succeeds says nothing
// about it.
void Log::forget_entries(Segment& segment, size_t end, const Error& error) {
  segment.sync_failed = true;
  lost_ = error;
  for (size_t i = segment.durable_entries; i < std::min(end, segment.entries.size()); ++i) {
    CheckpointEntry& entry = segment.entries[i];
    if (entry.removal == 0) forget_(entry.key, location_of(entry, segment.number));
    entry.removal = 1;
    entry.removed_segment = 0;  // which never exists
  }
}

void Log::flush(Flushed done) {
  flushes_.push_back({.last_append = last_append_, .done = std::move(done)});
  start_flushes();
}

void Log::start_flushes() {
  for (Flush& flush : flushes_) {
    if (flush.started) continue;
    if (!appends_.empty() && appends_.front()->sequence <= flush.last_append) break;
    flush.started = true;
    if (lost_) flush.outcome = std::unexpected(*std::exchange(lost_, std::nullopt));
    flush.syncs_left = 1;
    for (const auto& segment : pool_.segments()) {
      if (segment->entries.size() <= segment->durable_entries) continue;
      ++flush.syncs_left;
      sync(*segment, [this, &flush](Result<void> result) {
        if (!result && flush.outcome) flush.outcome = std::move(result);
        --flush.syncs_left;
        finish_flushes();
      });
    }
    --flush.syncs_left;
  }
  finish_flushes();
}

void Log::finish_flushes() {
  while (!flushes_.empty() && flushes_.front().started && flushes_.front().syncs_left == 0) {
    Flush flush = std::move(flushes_.front());
    flushes_.pop_front();
    if (lost_) flush.outcome = std::unexpected(*std::exchange(lost_, std::nullopt));
    flush.done(std::move(flush.outcome));
  }
}

void Log::close() {
  bool flushed = false;
  flush([&](const Result<void>& result) {
    flushed = true;
    if (!result) log_warn("not all of the flash cache is durable: {}", result.error().message());
  });
  while (!flushed && transfers_.wait() > 0) continue;
  HIFC_CHECK(flushed);
  while (!transfers_.idle() && transfers_.wait() > 0) continue;
  // With a checkpoint, opening need not look for batches in it.
  if (Segment* const next = pool_.next(); next != nullptr && next->state == Segment::State::kOpen)
    close_segment(*next);
  Segment* const active = pool_.active();
  if (active != nullptr && active->state == Segment::State::kOpen &&
      active->writes_in_flight == 0 && active->entries.size() > active->checkpointed_entries)
    checkpoint(*active);
  while (!transfers_.idle() && transfers_.wait() > 0) continue;
}

}  // namespace hifc::flash
