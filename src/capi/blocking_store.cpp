#include "capi/blocking_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/units.h"

namespace hifc::capi {
namespace {

// Small for ranges at any offset; large for values so long that their checksums count.
constexpr uint32_t kGatheredChunkBytes = 4u << 10;
constexpr uint32_t kAloneChunkBytes = 64u << 10;

// One batch is written while the next one fills; a third lets them differ in speed.
constexpr size_t kWritingMax = 2;
// Of callers that wait anyway: enough to keep the device busy.
constexpr size_t kWritingAloneMax = 4;

// As many whole batches as fit fill a segment.
uint64_t batch_bytes(const flash::StoreOptions& options) {
  const uint64_t segment = std::min(options.segment_bytes, options.capacity_bytes / 4);
  const uint64_t batches = std::max<uint64_t>(
      1, (segment + BlockingStore::kBatchBytesMax - 1) / BlockingStore::kBatchBytesMax);
  const uint64_t bytes = segment / batches;
  return bytes - std::min(bytes, WriteBatch::fixed_cost_bytes());
}

void copy(std::span<const std::byte> bytes, ReadRequest& request) {
  request.result = ReadResult{.found = true, .value_bytes = bytes.size()};
  const uint64_t size_bytes = request.bytes_to_read(bytes.size()).value_or(0);
  const uint64_t begin = request.extent == ReadRequest::Extent::kRange ? request.offset_bytes : 0;
  if (size_bytes > 0) std::memcpy(request.target.data(), bytes.data() + begin, size_bytes);
}

}  // namespace

Result<std::unique_ptr<BlockingStore>> BlockingStore::open(const flash::StoreOptions& options,
                                                           std::unique_ptr<io::Ring> ring) {
  HIFC_ASSIGN(std::unique_ptr<StoreThread> thread, StoreThread::open(options, std::move(ring)));
  return std::unique_ptr<BlockingStore>(new BlockingStore(options, std::move(thread)));
}

BlockingStore::BlockingStore(const flash::StoreOptions& options,
                             std::unique_ptr<StoreThread> thread)
    : capacity_bytes_(options.capacity_bytes),
      batch_bytes_(batch_bytes(options)),
      temporary_(options.temporary),
      thread_(std::move(thread)) {}

BlockingStore::~BlockingStore() {
  if (thread_ != nullptr) (void)close();
}

// ---- putting ----

Result<void> BlockingStore::put(const Key& key, std::span<const std::byte> value) {
  if (value.empty()) return failure(Code::kInvalid, "a value has at least one byte");
  return gathers(value.size()) ? put_gathered(key, value) : put_alone(key, value);
}

bool BlockingStore::gathers(uint64_t value_bytes) const {
  return value_bytes < kAloneBytes && WriteBatch::cost_bytes(value_bytes) <= batch_bytes_;
}

Result<void> BlockingStore::put_gathered(const Key& key, std::span<const std::byte> value) {
  std::unique_lock lock(mutex_);
  while (open_ != nullptr && !open_->fits(value.size())) {
    // Memory is bounded: the device sets the pace.
    if (writing_.size() >= kWritingMax)
      written_.wait(lock);
    else
      seal();
  }
  if (open_ == nullptr) {
    HIFC_ASSIGN(open_, WriteBatch::create(batch_bytes_, kGatheredChunkBytes));
  }
  open_->add(key, value);
  return {};
}

Result<void> BlockingStore::put_alone(const Key& key, std::span<const std::byte> value) {
  if (value.size() > capacity_bytes_)
    return failure(Code::kFull,
                   fmt::format("a value of {} is larger than the capacity of {}",
                               format_size(value.size()), format_size(capacity_bytes_)));
  HIFC_ASSIGN(const std::shared_ptr<WriteBatch> batch,
              WriteBatch::create(WriteBatch::cost_bytes(value.size()), kAloneChunkBytes));
  batch->add(key, value);
  Countdown countdown(1);
  Result<void> outcome;
  {
    std::unique_lock lock(mutex_);
    written_.wait(lock, [this] { return writing_.size() < kWritingAloneMax; });
    if (open_ != nullptr) open_->forget(key);
    write(batch, [&](Result<void> result) {
      outcome = std::move(result);
      countdown.finish_one();
    });
  }
  countdown.wait();
  return outcome;
}

void BlockingStore::seal() {
  if (open_ == nullptr) return;
  const std::shared_ptr<WriteBatch> batch = std::exchange(open_, nullptr);
  const uint64_t values = batch->count();
  if (values == 0) return;
  write(batch, [this, values](const Result<void>& result) {
    if (result) return;
    const std::lock_guard lock(mutex_);
    lost_values_ += values;
    if (!write_error_) write_error_ = result.error();
  });
}

void BlockingStore::write(std::shared_ptr<WriteBatch> batch, Finished finished) {
  batch->seal();
  writing_.push_back(std::make_unique<Writing>(Writing{.batch = batch}));
  Writing* const writing = writing_.back().get();
  const auto shared = std::make_shared<Finished>(std::move(finished));
  thread_->post(
      {.start =
           [this, batch, writing, shared](flash::Store& store) {
             // Holding the batch keeps its memory as long as the device may read it, which after
             // a timeout is longer than until this runs.
             return store.put(
                 batch->shape(), batch->values(),
                 [this, batch, writing, shared](const Result<std::vector<flash::Handle>>& put) {
                   const auto result =
                       put ? Result<void>() : Result<void>(std::unexpected(put.error()));
                   written(writing, result, *shared);
                 });
           },
       .refused = [this, writing, shared](
                      const Error& error) { written(writing, std::unexpected(error), *shared); }});
}

// On the store's thread.
void BlockingStore::written(Writing* writing, const Result<void>& result, Finished& finished) {
  {
    const std::lock_guard lock(mutex_);
    writing->finished = true;
    if (!result) std::erase_if(writing_, [&](const auto& one) { return one.get() == writing; });
    while (!writing_.empty() && writing_.front()->finished) writing_.pop_front();
    written_.notify_all();
  }
  finished(result);
}

// ---- reading ----

// The newest first.
std::optional<BlockingStore::Buffered> BlockingStore::find_buffered(const Key& key) const {
  if (open_ != nullptr)
    if (const auto bytes = open_->find(key)) return Buffered{open_, *bytes};
  for (auto writing = writing_.rbegin(); writing != writing_.rend(); ++writing)
    if (const auto bytes = (*writing)->batch->find(key)) return Buffered{(*writing)->batch, *bytes};
  return std::nullopt;
}

bool BlockingStore::read_buffered(ReadRequest& request) {
  std::optional<Buffered> buffered;
  {
    const std::lock_guard lock(mutex_);
    buffered = find_buffered(request.key);
  }
  if (buffered) copy(buffered->bytes, request);
  return buffered.has_value();
}

void BlockingStore::read(std::span<ReadRequest> requests) {
  std::vector<ReadRequest*> on_flash;
  for (ReadRequest& request : requests)
    if (!read_buffered(request)) on_flash.push_back(&request);
  thread_->read(on_flash);
  for (const ReadRequest& request : requests)
    if (request.result) ++(request.result->found ? hits_ : misses_);
}

bool BlockingStore::contains(const Key& key) {
  {
    const std::lock_guard lock(mutex_);
    if (find_buffered(key)) return true;
  }
  bool found = false;
  thread_->run([&](const flash::Store& store) { found = store.contains(key); });
  return found;
}

// ---- the rest ----

bool BlockingStore::is_being_written(const Key& key) const {
  return std::ranges::any_of(
      writing_, [&](const auto& writing) { return writing->batch->find(key).has_value(); });
}

bool BlockingStore::remove(const Key& key) {
  Countdown countdown(1);
  bool found = false;
  {
    std::unique_lock lock(mutex_);
    // The store can only remove what it has.
    written_.wait(lock, [&] { return !is_being_written(key); });
    if (open_ != nullptr) found = open_->forget(key);
    thread_->post({.start = [&](flash::Store& store) -> Result<void> {
                     found = store.remove(key) || found;
                     countdown.finish_one();
                     return {};
                   },
                   .refused = [](const Error&) {}});
  }
  countdown.wait();
  return found;
}

Result<void> BlockingStore::flush() {
  Countdown countdown(1);
  Result<void> outcome;
  const auto finish = [&](Result<void> result) {
    outcome = std::move(result);
    countdown.finish_one();
  };
  {
    const std::lock_guard lock(mutex_);
    seal();
    thread_->post({.start = [&](flash::Store& store) { return store.flush(finish); },
                   .refused = [&](const Error& error) { finish(std::unexpected(error)); }});
  }
  countdown.wait();
  const std::lock_guard lock(mutex_);
  if (auto error = std::exchange(write_error_, std::nullopt)) return std::unexpected(*error);
  return outcome;
}

BlockingStoreStatistics BlockingStore::statistics() {
  BlockingStoreStatistics now;
  thread_->run([&](const flash::Store& store) { now.flash = store.statistics(); });
  now.capacity_bytes = capacity_bytes_;
  now.hits = hits_;
  now.misses = misses_;
  const std::lock_guard lock(mutex_);
  const auto add = [&](const WriteBatch& batch) {
    now.buffered_values += batch.count();
    now.buffered_bytes += batch.value_bytes();
  };
  if (open_ != nullptr) add(*open_);
  for (const auto& writing : writing_) add(*writing->batch);
  now.lost_values = lost_values_;
  return now;
}

Result<void> BlockingStore::close() {
  Result<void> flushed;
  if (!temporary_) flushed = flush();
  thread_.reset();
  return flushed;
}

}  // namespace hifc::capi
