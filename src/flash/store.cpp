#include "flash/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "flash/batch.h"
#include "flash/directory.h"
#include "flash/format.h"
#include "flash/log.h"
#include "flash/pins.h"
#include "flash/put_request.h"
#include "flash/recovery.h"
#include "flash/reinserter.h"
#include "flash/segment_pool.h"
#include "flash/transfer_queue.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kCapacityBytesMin = 64u << 10;
constexpr uint64_t kSegmentBytesMin = 16u << 10;

// A key that was quarantined this often is not indexed again: either its bytes come out different
// each time they are computed, or the device damages them wherever they are.
constexpr uint8_t kQuarantinesMax = 3;
constexpr size_t kQuarantinedKeysMax = 4096;

// Batches that may wait for the header of a new segment.
constexpr size_t kWaitingMax = 128;

// Removals wait for the next batch to carry them. One that finds too many waiting, since the device
// takes none, is good for this process only, and makes the next flush fail.
constexpr size_t kRemovalsPerBatchMax = 4096;
constexpr size_t kRemovalsMax = 1u << 20;

Result<void> validate(const StoreOptions& options) {
  if (options.capacity_bytes < kCapacityBytesMin)
    return failure(Code::kInvalid, fmt::format("a flash capacity of {} is below the minimum of {}",
                                               format_size(options.capacity_bytes),
                                               format_size(kCapacityBytesMin)));
  if (options.segment_bytes < kSegmentBytesMin)
    return failure(Code::kInvalid,
                   fmt::format("flash segments of {} are below the minimum of {}",
                               format_size(options.segment_bytes), format_size(kSegmentBytesMin)));
  return {};
}

SegmentPool::Options pool_options(const StoreOptions& options) {
  return {.capacity_bytes = options.capacity_bytes,
          .segment_bytes = segment_bytes(options),
          .free_space_floor_bytes = options.free_space_floor_bytes,
          .seed = options.seed,
          .direct = options.direct};
}

const Clock& clock_of(const StoreOptions& options) {
  static const SystemClock system;
  return options.clock != nullptr ? *options.clock : system;
}

Range range_of(uint32_t lane, const LaneRead& read) {
  const uint64_t rest = read.handle->lane_bytes(lane) - read.offset_bytes;
  return {.lane = lane,
          .offset_bytes = read.offset_bytes,
          .size_bytes = read.size_bytes == 0 ? rest : read.size_bytes};
}

std::unexpected<Error> misaligned(const std::byte* memory) {
  return failure(Code::kInvalid, fmt::format("memory at {} is not aligned to {}",
                                             static_cast<const void*>(memory), io::kAlignment));
}

RemovalRecord removal_of(const Key& key, const Location& location) {
  return {.key = key,
          .segment = location.segment,
          .batch_page = location.batch_page,
          .value = location.value,
          .reserved = 0};
}

}  // namespace

// At least four segments, so that retiring one leaves most of the values.
uint64_t segment_bytes(const StoreOptions& options) {
  const uint64_t bytes = std::min(options.segment_bytes, options.capacity_bytes / 4);
  return std::max(kSegmentBytesMin, bytes / kPageBytes * kPageBytes);
}

class Store::Impl {
 public:
  Impl(const StoreOptions& options, io::Ring& ring, std::unique_ptr<Directory> directory)
      : options_(options),
        directory_(std::move(directory)),
        pool_(pool_options(options), *directory_),
        transfers_(ring, clock_of(options), options.deadline_ns),
        pins_(transfers_),
        log_(pool_, transfers_,
             [this](const Key& key, const Location& location) { forget(key, location); }),
        index_([this](uint32_t segment) { return pool_.find(segment) != nullptr; }, options.seed),
        reinserter_({.hits_min = options.reinsert_hits,
                     .share = options.reinsert_share,
                     .burst_bytes = segment_bytes(options) / 4},
                    pool_, transfers_, pins_, index_,
                    [this](const BatchShape& shape, std::vector<Reinserter::Copy> copies,
                           std::move_only_function<void()> done) {
                      return write_again(shape, std::move(copies), std::move(done));
                    }) {}

  Result<void> recover(io::Ring& ring);
  void close();
  bool idle() const { return transfers_.idle(); }
  Result<void> put(const BatchShape& shape, std::vector<PutValue> values, PutDone done);
  bool contains(const Key& key) const { return index_.find(key).has_value(); }
  Result<void> pin(const Key& key, PinDone done);
  Result<void> read(uint32_t lane, std::span<const LaneRead> run, ReadDone done, Released released);
  Result<void> read(const Handle& handle, const Range& range, std::byte* memory, ReadDone done,
                    Released released);
  bool verify(const Handle& handle, const Range& range, std::span<const std::byte> bytes) const;
  void quarantine(const Handle& handle);
  bool remove(const Key& key);
  Result<void> flush(FlushDone done);
  uint32_t poll() { return transfers_.poll(); }
  uint32_t wait() { return transfers_.wait(); }
  uint32_t wait_for(uint64_t timeout_ns) { return transfers_.wait_for(timeout_ns); }
  uint64_t capacity_bytes() const { return options_.capacity_bytes; }
  const StoreStatistics& statistics() const;

 private:
  void report(const Recovery& recovery);
  void index_segment(Segment& segment);
  Result<void> append(const BatchShape& shape, const std::vector<PutValue>& values, PutDone done);
  Result<void> check_room(const BatchContents& contents);
  Result<void> write_again(const BatchShape& shape, std::vector<Reinserter::Copy> copies,
                           std::move_only_function<void()> done);
  void commit_copies(const Batch& batch);
  std::vector<Handle> commit(const std::shared_ptr<Batch>& batch);
  void record_removal(const Key& key, const Location& location);
  void insert(const Key& key, const Location& location);
  bool forget(const Key& key, const Location& location);
  bool given_up(const Key& key) const;
  void got_batch(const Key& key, const Location& location, Result<std::shared_ptr<Batch>> batch,
                 PinDone& done);
  Result<void> validate_run(uint32_t lane, std::span<const LaneRead> run) const;
  void start_read(const Handle& handle, uint64_t offset_bytes, std::vector<iovec> vectors,
                  ReadDone done, Released released);

  const StoreOptions options_;
  std::unique_ptr<Directory> directory_;
  SegmentPool pool_;
  TransferQueue transfers_;
  Pins pins_;
  Log log_;
  Index index_;
  Reinserter reinserter_;
  // Keys that are being written again, and where; removed ones are marked by an empty place.
  std::unordered_map<Key, std::optional<Location>, KeyHash> copies_;
  std::vector<RemovalRecord> removals_;  // not yet on flash
  uint64_t removal_failures_ = 0;        // batches with removals that were not written
  bool removal_lost_ = false;
  std::unordered_map<Key, uint8_t, KeyHash> quarantines_;
  mutable std::atomic<uint64_t> corrupt_chunks_ = 0;
  mutable StoreStatistics statistics_;  // parts of it are gathered when asked for
};

// ---- opening and closing ----

Result<void> Store::Impl::recover(io::Ring& ring) {
  HIFC_ASSIGN(Recovery recovery,
              flash::recover(*directory_, ring,
                             {.direct = options_.direct, .deadline_ns = options_.deadline_ns}));
  report(recovery);
  statistics_.corrupt_headers = recovery.damaged_headers;
  pool_.adopt({.segments = std::move(recovery.segments),
               .untouchable_bytes = recovery.untouchable_bytes,
               .numbers_lost = recovery.damaged_headers > 0 || !recovery.unreadable.empty()});
  const std::vector<Segment*> live = pool_.by_number();
  for (Segment* const segment : live) index_segment(*segment);
  for (const Segment* const segment : live)
    statistics_.recovered_values += segment->findable_values;
  HIFC_ASSIGN(const SegmentPool::Removed removed, pool_.fit());
  if (removed.segments > 0)
    log_warn("removed {} ({}) of {} to fit flash_cache_size {}",
             plural(removed.segments, "segment"), format_size(removed.size_bytes),
             directory_->path(), format_size(options_.capacity_bytes));
  HIFC_TRY(pool_.check_usable());
  log_.resume();
  return {};
}

void Store::Impl::report(const Recovery& recovery) {
  if (!recovery.foreign.empty())
    log_warn("{} holds {} not HiFC's, such as {}; left alone", directory_->path(),
             plural(recovery.foreign.size(), "file"), recovery.foreign.front());
  if (!recovery.unreadable.empty())
    log_warn("{} of the flash cache cannot be read, such as {}",
             plural(recovery.unreadable.size(), "file"), recovery.unreadable.front());
  if (recovery.damaged_headers > 0)
    log_warn("{}: {} with a damaged header; what was in there is lost", directory_->path(),
             plural(recovery.damaged_headers, "segment file"));
  if (recovery.damaged_values > 0)
    log_warn("{}: dropped {} not completely written before a crash", directory_->path(),
             plural(recovery.damaged_values, "value"));
  if (recovery.outdated > 0)
    log_warn("{}: dropped {} of an older HiFC", directory_->path(),
             plural(recovery.outdated, "segment"));
}

void Store::Impl::index_segment(Segment& segment) {
  for (const CheckpointEntry& entry : segment.entries) {
    if (entry.removal == 0) {
      insert(entry.key, location_of(entry, segment.number));
    } else {
      segment.supersedes = true;
      // An older value too: the one that was removed may be gone or damaged.
      const Location removed = location_of(entry, segment.number);
      const auto present = index_.find(entry.key);
      if (present && !newer(*present, removed)) forget(entry.key, *present);
    }
  }
  if (segment.state == Segment::State::kClosed) segment.clear_entries();
}

void Store::Impl::close() {
  if (!options_.temporary) {
    (void)flush([](const Result<void>&) {});
    log_.close();
  }
  while (!transfers_.idle() && transfers_.wait() > 0) continue;
  pins_.drop_recent();
  if (!transfers_.idle())
    log_error("the flash device of {} does not answer; the store stays locked", directory_->path());
  else if (options_.temporary)
    pool_.remove_all();
}

// ---- putting ----

Result<void> Store::Impl::put(const BatchShape& shape, std::vector<PutValue> values, PutDone done) {
  HIFC_CHECK(done != nullptr);
  HIFC_TRY(validate(shape, values, options_.capacity_bytes));
  HIFC_TRY(transfers_.admit(io::Operation::kWrite));
  if (log_.waiting() >= kWaitingMax)
    return failure(Code::kBusy, fmt::format("{} batches wait for the flash device", kWaitingMax));
  return append(shape, values, std::move(done));
}

// What has been removed since the last batch rides along.
Result<void> Store::Impl::append(const BatchShape& shape, const std::vector<PutValue>& values,
                                 PutDone done) {
  BatchContents contents = batch_contents(shape, values);
  const size_t carried = std::min(removals_.size(), kRemovalsPerBatchMax);
  std::vector<RemovalRecord> removals(removals_.begin(),
                                      removals_.begin() + static_cast<ptrdiff_t>(carried));
  contents.removals = removals;
  contents.lay_out();
  // Before the checksums: it may be tried again and again.
  HIFC_TRY(check_room(contents));
  add_checksums(contents, values);
  const uint64_t payload_bytes = contents.payload_bytes;
  auto appended =
      log_.append(std::move(contents), payload_vectors(shape, values),
                  [this, payload_bytes, removals = std::move(removals),
                   done = std::move(done)](Result<std::shared_ptr<Batch>> batch) mutable {
                    if (!batch) {
                      ++statistics_.failed_puts;
                      if (!removals.empty()) ++removal_failures_;
                      removals_.insert(removals_.begin(), removals.begin(), removals.end());
                      return done(std::unexpected(std::move(batch).error()));
                    }
                    statistics_.payload_bytes_put += payload_bytes;
                    reinserter_.put(payload_bytes);
                    done(commit(*batch));
                  });
  HIFC_TRY(appended);
  log_.open_ahead((*appended)->contents);
  removals_.erase(removals_.begin(), removals_.begin() + static_cast<ptrdiff_t>(carried));
  return {};
}

// What was only used lately does not keep a segment.
Result<void> Store::Impl::check_room(const BatchContents& contents) {
  const uint64_t records = contents.values.size() + contents.removals.size();
  if (!pool_.needs_segment(contents.size_bytes(), records)) return {};
  pins_.drop_recent();
  return pool_.check_room(contents.size_bytes(), records);
}

std::vector<Handle> Store::Impl::commit(const std::shared_ptr<Batch>& batch) {
  if (!batch->contents.removals.empty()) batch->segment.supersedes = true;
  pins_.add(batch);
  std::vector<Handle> handles;
  handles.reserve(batch->contents.values.size());
  for (uint32_t i = 0; i < batch->contents.values.size(); ++i) {
    const Key& key = batch->contents.values[i].key;
    if (!given_up(key)) insert(key, batch->location(i));
    handles.push_back(Handle(batch, i));
  }
  return handles;
}

// Called in the order of the log.
void Store::Impl::insert(const Key& key, const Location& location) {
  Segment* const segment = pool_.find(location.segment);
  HIFC_CHECK(segment != nullptr);
  if (const auto replaced = index_.insert(key, location)) {
    Segment* const older = pool_.find(replaced->segment);
    --older->findable_values;
    segment->supersedes = segment->supersedes || older != segment;
  }
  ++segment->findable_values;
}

// False when the value is not findable at this location.
bool Store::Impl::forget(const Key& key, const Location& location) {
  if (!index_.erase(key, location)) return false;
  --pool_.find(location.segment)->findable_values;
  return true;
}

// ---- writing again ----

Result<void> Store::Impl::write_again(const BatchShape& shape, std::vector<Reinserter::Copy> copies,
                                      std::move_only_function<void()> done) {
  HIFC_TRY(transfers_.admit(io::Operation::kWrite));
  // A value that is being put under the same key is newer, but would stand before the copy.
  std::unordered_set<Key, KeyHash> pending;
  log_.each_pending([&](const BatchContents& contents) {
    for (const ValueRecord& value : contents.values) pending.insert(value.key);
  });
  std::vector<PutValue> values;
  for (Reinserter::Copy& copy : copies)
    if (!pending.contains(copy.key) && index_.find(copy.key) == copy.from)
      values.push_back(std::move(copy.value));
  if (values.empty()) {
    done();
    return {};
  }
  BatchContents contents = batch_contents(shape, values);
  contents.lay_out();
  // It takes what room there is: nothing goes for the sake of a copy.
  if (pool_.needs_segment(contents.size_bytes(), values.size()))
    return failure(Code::kFull, "the open segments have no room for copies");
  add_checksums(contents, values);
  auto appended = log_.append(
      std::move(contents), payload_vectors(shape, values),
      [this, done = std::move(done)](const Result<std::shared_ptr<Batch>>& batch) mutable {
        if (batch) commit_copies(**batch);
        copies_.clear();
        done();
      });
  HIFC_TRY(appended);
  for (uint32_t i = 0; i < values.size(); ++i) copies_[values[i].key] = (*appended)->location(i);
  return {};
}

void Store::Impl::commit_copies(const Batch& batch) {
  statistics_.reinserted_bytes += batch.contents.payload_bytes;
  for (uint32_t i = 0; i < batch.contents.values.size(); ++i) {
    const Key& key = batch.contents.values[i].key;
    if (!copies_[key]) continue;
    // The same bytes as before: nothing older comes back with the older copy.
    if (const auto replaced = index_.insert(key, batch.location(i)))
      --pool_.find(replaced->segment)->findable_values;
    ++batch.segment.findable_values;
    ++statistics_.reinserted_values;
  }
}

bool Store::Impl::given_up(const Key& key) const {
  const auto found = quarantines_.find(key);
  return found != quarantines_.end() && found->second >= kQuarantinesMax;
}

bool Store::Impl::remove(const Key& key) {
  const auto location = index_.find(key);
  if (!location) return false;
  forget(key, *location);
  ++statistics_.removed_values;
  record_removal(key, *location);
  if (const auto copy = copies_.find(key); copy != copies_.end() && copy->second) {
    record_removal(key, *copy->second);
    copy->second.reset();
  }
  if (removals_.size() >= kRemovalsPerBatchMax) (void)flush([](const Result<void>&) {});
  return true;
}

void Store::Impl::record_removal(const Key& key, const Location& location) {
  if (removals_.size() < kRemovalsMax)
    removals_.push_back(removal_of(key, location));
  else
    removal_lost_ = true;
}

Result<void> Store::Impl::flush(FlushDone done) {
  HIFC_CHECK(done != nullptr);
  HIFC_TRY(transfers_.admit(io::Operation::kSync));
  while (!removals_.empty())
    HIFC_TRY(append({.lanes = 1, .chunk_bytes = kPageBytes}, {}, [](const auto&) {}));
  const uint64_t failures = removal_failures_ - (std::exchange(removal_lost_, false) ? 1 : 0);
  log_.flush([this, failures, done = std::move(done)](Result<void> result) mutable {
    // The batch that carried removals has failed, and they wait for another one.
    if (result && removal_failures_ != failures)
      result = failure(Code::kIo, "removals could not be written");
    done(std::move(result));
  });
  return {};
}

// ---- reading ----

Result<void> Store::Impl::pin(const Key& key, PinDone done) {
  HIFC_CHECK(done != nullptr);
  const auto location = index_.hit(key);
  if (!location) {
    ++statistics_.misses;
    done({});
    return {};
  }
  return pins_.get(*pool_.find(location->segment), *location,
                   [this, key, location = *location,
                    done = std::move(done)](Result<std::shared_ptr<Batch>> batch) mutable {
                     got_batch(key, location, std::move(batch), done);
                   });
}

void Store::Impl::got_batch(const Key& key, const Location& location,
                            Result<std::shared_ptr<Batch>> batch, PinDone& done) {
  const bool right = batch && location.value < (*batch)->contents.values.size() &&
                     (*batch)->contents.values[location.value].key == key;
  if (right) {
    ++statistics_.hits;
    return done(Handle(std::move(*batch), location.value));
  }
  ++statistics_.misses;
  if (!batch && batch.error().code == Code::kCorrupt) {
    ++statistics_.corrupt_headers;
    if (forget(key, location)) ++statistics_.quarantined_values;
  }
  done({});
}

Result<void> Store::Impl::validate_run(uint32_t lane, std::span<const LaneRead> run) const {
  if (run.empty()) return failure(Code::kInvalid, "a read of no values");
  for (size_t i = 0; i < run.size(); ++i) {
    const Handle* handle = run[i].handle;
    if (handle == nullptr || !*handle)
      return failure(Code::kInvalid, "a read of a value that is not stored");
    if (lane >= handle->lanes())
      return failure(Code::kInvalid,
                     fmt::format("lane {} of a value that has {}", lane, handle->lanes()));
    const Range range = range_of(lane, run[i]);
    HIFC_TRY(validate(range, *handle));
    if (run[i].memory == nullptr || !io::is_aligned(run[i].memory))
      return misaligned(run[i].memory);
    const bool from_begin = range.offset_bytes == 0;
    const bool to_end = range.offset_bytes + range.size_bytes == handle->lane_bytes(lane);
    if ((i > 0 && (!from_begin || !handle->follows(*run[i - 1].handle))) ||
        (i + 1 < run.size() && !to_end))
      return failure(Code::kInvalid, "parts of one read do not follow each other on flash");
  }
  return {};
}

Result<void> Store::Impl::read(uint32_t lane, std::span<const LaneRead> run, ReadDone done,
                               Released released) {
  HIFC_CHECK(done != nullptr);
  HIFC_TRY(validate_run(lane, run));
  HIFC_TRY(transfers_.admit(io::Operation::kRead));
  const Handle& first = *run.front().handle;
  std::vector<iovec> vectors;
  vectors.reserve(run.size());
  for (const LaneRead& read : run)
    vectors.push_back({read.memory, range_of(lane, read).size_bytes});
  start_read(
      first,
      first.batch_->contents.lane_offset_bytes(lane, first.value_) + run.front().offset_bytes,
      std::move(vectors), std::move(done), std::move(released));
  return {};
}

Result<void> Store::Impl::read(const Handle& handle, const Range& range, std::byte* memory,
                               ReadDone done, Released released) {
  HIFC_CHECK(done != nullptr);
  if (!handle) return failure(Code::kInvalid, "a read of a value that is not stored");
  HIFC_TRY(validate(range, handle));
  if (memory == nullptr || !io::is_aligned(memory)) return misaligned(memory);
  HIFC_TRY(transfers_.admit(io::Operation::kRead));
  const uint64_t lane = handle.batch_->contents.lane_offset_bytes(range.lane, handle.value_);
  start_read(handle, lane + range.offset_bytes, {{memory, range.size_bytes}}, std::move(done),
             std::move(released));
  return {};
}

// `offset_bytes` from the beginning of the handle's batch.
void Store::Impl::start_read(const Handle& handle, uint64_t offset_bytes,
                             std::vector<iovec> vectors, ReadDone done, Released released) {
  const Batch& batch = *handle.batch_;
  transfers_.start({.operation = io::Operation::kRead,
                    .file = &batch.segment.file,
                    .offset_bytes = batch.offset_bytes + offset_bytes,
                    .vectors = std::move(vectors),
                    .done = std::move(done),
                    // The handle pins the segment while the read runs.
                    .released = [pin = handle, released = std::move(released)]() mutable {
                      if (released) released();
                    }});
}

bool Store::Impl::verify(const Handle& handle, const Range& range,
                         std::span<const std::byte> bytes) const {
  if (!handle || !validate(range, handle) || bytes.size() != range.size_bytes) return false;
  const uint32_t chunk_bytes = handle.chunk_bytes();
  const auto expected =
      handle.batch_->contents.lane_checksums(range.lane, handle.value_)
          .subspan(range.offset_bytes / chunk_bytes, chunks_of(range.size_bytes, chunk_bytes));
  uint64_t corrupt = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    if (checksum(chunk(bytes, i, chunk_bytes)) != expected[i]) ++corrupt;
  if (corrupt > 0) corrupt_chunks_.fetch_add(corrupt, std::memory_order_relaxed);
  return corrupt == 0;
}

void Store::Impl::quarantine(const Handle& handle) {
  if (!handle) return;
  const Key& key = handle.batch_->contents.values[handle.value_].key;
  if (!forget(key, handle.batch_->location(handle.value_))) return;
  ++statistics_.quarantined_values;
  if (quarantines_.size() >= kQuarantinedKeysMax) quarantines_.clear();
  uint8_t& count = quarantines_[key];
  if (count < kQuarantinesMax) ++count;
}

const StoreStatistics& Store::Impl::statistics() const {
  StoreStatistics& now = statistics_;
  now.values = 0;
  now.segments = pool_.segments().size();
  now.overwrites_min = now.overwrites_max = 0;
  bool first = true;
  for (const auto& segment : pool_.segments()) {
    now.values += segment->findable_values;
    now.overwrites_min =
        first ? segment->overwrites : std::min(now.overwrites_min, segment->overwrites);
    now.overwrites_max = std::max(now.overwrites_max, segment->overwrites);
    first = false;
  }
  now.bytes_on_disk = pool_.bytes_on_disk();
  now.peak_bytes_on_disk = pool_.peak_bytes_on_disk();
  now.retired_values = pool_.retired_values();
  now.index_bytes = index_.memory_bytes();
  now.writes = transfers_.writes().requests;
  now.written_bytes = transfers_.writes().bytes;
  now.reads = transfers_.reads().requests;
  now.read_bytes = transfers_.reads().bytes;
  now.syncs = transfers_.syncs();
  now.timeouts = transfers_.timeouts();
  now.corrupt_chunks = corrupt_chunks_.load(std::memory_order_relaxed);
  return now;
}

// ---- the public face ----

uint32_t Handle::lanes() const {
  return batch_->contents.shape.lanes;
}
uint64_t Handle::lane_bytes(uint32_t lane) const {
  HIFC_CHECK(lane < lanes());
  return batch_->contents.lane_bytes(lane, value_);
}
uint64_t Handle::bytes() const {
  return batch_->contents.value_bytes(value_);
}
uint32_t Handle::chunk_bytes() const {
  return batch_->contents.shape.chunk_bytes;
}
uint64_t Handle::size_bytes() const {
  return batch_->contents.values[value_].size_bytes;
}
bool Handle::follows(const Handle& previous) const {
  return batch_ != nullptr && batch_ == previous.batch_ && value_ == previous.value_ + 1;
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() {
  impl_->close();
  // The device may still write where it was told to: neither memory nor lock may be given up.
  if (!impl_->idle()) (void)impl_.release();
}

Result<std::unique_ptr<Store>> Store::open(StoreOptions options, io::Ring& ring) {
  HIFC_TRY(validate(options));
  io::FileSystem& files =
      options.file_system != nullptr ? *options.file_system : io::system_files();
  HIFC_ASSIGN(std::unique_ptr<Directory> directory,
              Directory::open(options.directory, files, Directory::Missing::kCreate));
  auto impl = std::make_unique<Impl>(options, ring, std::move(directory));
  HIFC_TRY(impl->recover(ring));
  log_debug("{} holds {} values", options.directory, impl->statistics().values);
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Result<void> Store::put(const BatchShape& shape, std::vector<PutValue> values, PutDone done) {
  return impl_->put(shape, std::move(values), std::move(done));
}
bool Store::contains(const Key& key) const {
  return impl_->contains(key);
}
Result<void> Store::pin(const Key& key, PinDone done) {
  return impl_->pin(key, std::move(done));
}
Result<void> Store::read(uint32_t lane, std::span<const LaneRead> run, ReadDone done,
                         Released released) {
  return impl_->read(lane, run, std::move(done), std::move(released));
}
Result<void> Store::read(const Handle& handle, const Range& range, std::byte* memory, ReadDone done,
                         Released released) {
  return impl_->read(handle, range, memory, std::move(done), std::move(released));
}
bool Store::verify(const Handle& handle, uint32_t lane, std::span<const std::byte> bytes) const {
  return impl_->verify(handle, {.lane = lane, .offset_bytes = 0, .size_bytes = bytes.size()},
                       bytes) &&
         bytes.size() == handle.lane_bytes(lane);
}
bool Store::verify(const Handle& handle, const Range& range,
                   std::span<const std::byte> bytes) const {
  return impl_->verify(handle, range, bytes);
}
void Store::quarantine(const Handle& handle) {
  impl_->quarantine(handle);
}
bool Store::remove(const Key& key) {
  return impl_->remove(key);
}
Result<void> Store::flush(FlushDone done) {
  return impl_->flush(std::move(done));
}
uint32_t Store::poll() {
  return impl_->poll();
}
uint32_t Store::wait() {
  return impl_->wait();
}
uint32_t Store::wait_for(uint64_t timeout_ns) {
  return impl_->wait_for(timeout_ns);
}
uint64_t Store::capacity_bytes() const {
  return impl_->capacity_bytes();
}
const StoreStatistics& Store::statistics() const {
  return impl_->statistics();
}

}  // namespace hifc::flash
