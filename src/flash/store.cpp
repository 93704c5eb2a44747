#include "flash/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "flash/directory.h"
#include "flash/format.h"
#include "flash/segment.h"
#include "flash/segment_pool.h"
#include "flash/transfer_queue.h"
#include "io/memory.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kCapacityBytesMin = 64u << 10;
constexpr uint64_t kSegmentBytesMin = 8u << 10;
constexpr uint32_t kLanesMax = 1u << 16;

// Keys are cryptographic hashes: any eight bytes of one are a good hash of it.
struct KeyHash {
  using is_transparent = void;
  size_t operator()(const Key& key) const noexcept {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
  size_t operator()(const StoredValue* value) const noexcept { return (*this)(value->key); }
};

struct KeyEqual {
  using is_transparent = void;
  static const Key& key(const Key& key) { return key; }
  static const Key& key(const StoredValue* value) { return value->key; }
  bool operator()(const auto& a, const auto& b) const { return key(a) == key(b); }
};

using Index = std::unordered_set<StoredValue*, KeyHash, KeyEqual>;

bool aligned(uint64_t bytes) {
  return bytes % io::kAlignment == 0;
}
bool aligned(const std::byte* memory) {
  return aligned(reinterpret_cast<uintptr_t>(memory));
}

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

Result<void> validate(const ValueShape& shape) {
  const auto good = [](uint64_t bytes) { return bytes > 0 && aligned(bytes); };
  if (shape.lanes > 0 && shape.lanes <= kLanesMax && good(shape.lane_bytes) &&
      good(shape.chunk_bytes))
    return {};
  return failure(
      Code::kInvalid,
      fmt::format("a value of {} lanes of {} bytes in chunks of {}: accepted are 1 to "
                  "{} lanes, and multiples of {} bytes",
                  shape.lanes, shape.lane_bytes, shape.chunk_bytes, kLanesMax, io::kAlignment));
}

Result<void> validate(const ValueShape& shape, const std::vector<PutValue>& values) {
  HIFC_TRY(validate(shape));
  if (values.empty()) return failure(Code::kInvalid, "a batch without values");
  for (const PutValue& value : values) {
    if (value.lanes.size() != shape.lanes)
      return failure(Code::kInvalid, fmt::format("a value with {} lanes in a batch of {}",
                                                 value.lanes.size(), shape.lanes));
    for (const std::byte* lane : value.lanes)
      if (lane == nullptr || !aligned(lane))
        return failure(Code::kInvalid, fmt::format("lane memory at {} is not aligned to {}",
                                                   static_cast<const void*>(lane), io::kAlignment));
  }
  return {};
}

// At least four segments, so that retiring one leaves most of the values.
uint64_t segment_bytes(const StoreOptions& options) {
  const uint64_t bytes = std::min(options.segment_bytes, options.capacity_bytes / 4);
  return std::max(kSegmentBytesMin, bytes / io::kAlignment * io::kAlignment);
}

std::span<const std::byte> chunk(std::span<const std::byte> lane, size_t index,
                                 uint32_t chunk_bytes) {
  const size_t begin = index * chunk_bytes;
  return lane.subspan(begin, std::min<size_t>(chunk_bytes, lane.size() - begin));
}

std::vector<uint64_t> checksums(const ValueShape& shape, const std::vector<PutValue>& values) {
  const uint64_t chunks = chunks_per_lane(shape);
  std::vector<uint64_t> sums;
  sums.reserve(values.size() * shape.lanes * chunks);
  for (const PutValue& value : values)
    for (const std::byte* lane : value.lanes)
      for (uint64_t i = 0; i < chunks; ++i)
        sums.push_back(checksum(chunk({lane, shape.lane_bytes}, i, shape.chunk_bytes)));
  return sums;
}

std::shared_ptr<Batch> make_batch(const ValueShape& shape, const std::vector<PutValue>& values,
                                  uint64_t payload_bytes) {
  auto batch = std::make_shared<Batch>();
  batch->shape = shape;
  batch->header_bytes = batch_header_bytes(shape, values.size());
  batch->size_bytes = batch->header_bytes + payload_bytes;
  batch->values.reserve(values.size());
  for (const PutValue& value : values) batch->values.push_back({value.key, batch.get()});
  return batch;
}

// A batch in the order of the file. Writing does not change the memory; iovec has no const.
std::vector<iovec> batch_vectors(std::span<std::byte> headers, const ValueShape& shape,
                                 const std::vector<PutValue>& values) {
  std::vector<iovec> vectors;
  vectors.reserve(1 + values.size() * shape.lanes);
  vectors.push_back({headers.data(), headers.size()});
  for (uint32_t lane = 0; lane < shape.lanes; ++lane)
    for (const PutValue& value : values)
      vectors.push_back({const_cast<std::byte*>(value.lanes[lane]), shape.lane_bytes});
  return vectors;
}

}  // namespace

class Store::Impl {
 public:
  Impl(const StoreOptions& options, io::Ring& ring, std::unique_ptr<Directory> directory,
       std::unique_ptr<SegmentPool> segments)
      : capacity_bytes_(options.capacity_bytes),
        directory_(std::move(directory)),
        segments_(std::move(segments)),
        transfers_(ring) {}
  ~Impl() { transfers_.drain(); }

  Result<void> put(const ValueShape& shape, const std::vector<PutValue>& values, PutDone done);
  Handle find(const Key& key) const;
  Result<void> read(uint32_t lane, std::span<const LaneRead> run, ReadDone done);
  bool verify(const Handle& handle, uint32_t lane, std::span<const std::byte> bytes) const;
  void quarantine(const Handle& handle);
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  const StoreStatistics& statistics() const;

 private:
  Result<uint64_t> payload_bytes(const ValueShape& shape, uint64_t values) const;
  Result<void> validate_run(uint32_t lane, std::span<const LaneRead> run) const;
  std::vector<Handle> commit(const std::shared_ptr<Batch>& batch);
  void insert(StoredValue& value);
  bool erase(const StoredValue& value);
  void forget(const Batch& batch);
  static Handle handle_of(StoredValue& value) {
    return Handle(std::shared_ptr<StoredValue>(value.batch->shared_from_this(), &value));
  }

  const uint64_t capacity_bytes_;
  std::unique_ptr<Directory> directory_;
  std::unique_ptr<SegmentPool> segments_;
  Index index_;
  mutable std::atomic<uint64_t> corrupt_chunks_ = 0;
  mutable StoreStatistics statistics_;  // parts of it are gathered when asked for
  TransferQueue transfers_;
};

// kFull where the batch can never fit; also keeps what follows from overflowing.
Result<uint64_t> Store::Impl::payload_bytes(const ValueShape& shape, uint64_t values) const {
  const uint64_t lanes_max = capacity_bytes_ / shape.lane_bytes;
  if (values <= lanes_max / shape.lanes) return values * shape.lanes * shape.lane_bytes;
  return failure(
      Code::kFull,
      fmt::format("a batch of {} values of {} is larger than the flash capacity of {}", values,
                  format_size(shape.lanes * shape.lane_bytes), format_size(capacity_bytes_)));
}

Result<void> Store::Impl::put(const ValueShape& shape, const std::vector<PutValue>& values,
                              PutDone done) {
  HIFC_CHECK(done != nullptr);
  HIFC_TRY(validate(shape, values));
  HIFC_ASSIGN(const uint64_t payload, payload_bytes(shape, values.size()));
  HIFC_TRY(transfers_.admit(io::Operation::kWrite));
  auto batch = make_batch(shape, values, payload);
  HIFC_ASSIGN(io::AlignedMemory memory,
              io::AlignedMemory::allocate(kSegmentHeaderBytes + batch->header_bytes));
  HIFC_TRY(segments_->place(*batch, [this](const Batch& retired) { forget(retired); }));

  batch->checksums = checksums(shape, values);
  Segment& segment = *batch->segment;
  encode_segment_header(segment.generation, segment.size_bytes,
                        memory.span().first(kSegmentHeaderBytes));
  encode_batch_header(
      {shape, segment.generation, batch->offset_bytes, batch->values, batch->checksums},
      memory.span().subspan(kSegmentHeaderBytes));
  // A segment's first batch brings the segment's header.
  const bool first = batch->offset_bytes == kSegmentHeaderBytes;
  const auto headers = first ? memory.span() : memory.span().subspan(kSegmentHeaderBytes);
  transfers_.start({.operation = io::Operation::kWrite,
                    .file = &segment.file,
                    .offset_bytes = first ? 0 : batch->offset_bytes,
                    .vectors = batch_vectors(headers, shape, values),
                    .done = [this, batch, payload, memory = std::move(memory),
                             done = std::move(done)](Result<void> written) mutable {
                      if (!written) {
                        segments_->abandon(*batch);
                        return done(std::unexpected(std::move(written).error()));
                      }
                      statistics_.payload_bytes_put += payload;
                      done(commit(batch));
                    }});
  return {};
}

std::vector<Handle> Store::Impl::commit(const std::shared_ptr<Batch>& batch) {
  segments_->commit(batch);
  std::vector<Handle> handles;
  handles.reserve(batch->values.size());
  for (StoredValue& value : batch->values) {
    insert(value);
    handles.push_back(handle_of(value));
  }
  return handles;
}

// The newest value under a key is the one that is found.
void Store::Impl::insert(StoredValue& value) {
  if (const auto found = index_.find(value.key); found != index_.end()) erase(**found);
  index_.insert(&value);
  ++value.batch->segment->findable_values;
}

// False when another value, or none, is found under this one's key.
bool Store::Impl::erase(const StoredValue& value) {
  const auto found = index_.find(value.key);
  if (found == index_.end() || *found != &value) return false;
  index_.erase(found);
  --value.batch->segment->findable_values;
  return true;
}

void Store::Impl::forget(const Batch& batch) {
  for (const StoredValue& value : batch.values)
    if (erase(value)) ++statistics_.retired_values;
}

Handle Store::Impl::find(const Key& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? Handle() : handle_of(**found);
}

Result<void> Store::Impl::validate_run(uint32_t lane, std::span<const LaneRead> run) const {
  if (run.empty()) return failure(Code::kInvalid, "a read of no values");
  for (size_t i = 0; i < run.size(); ++i) {
    const Handle* handle = run[i].handle;
    if (handle == nullptr || !*handle)
      return failure(Code::kInvalid, "a read of a value that is not stored");
    if (lane >= handle->value_->batch->shape.lanes)
      return failure(Code::kInvalid, fmt::format("lane {} of a value that has {}", lane,
                                                 handle->value_->batch->shape.lanes));
    if (run[i].memory == nullptr || !aligned(run[i].memory))
      return failure(Code::kInvalid,
                     fmt::format("memory at {} is not aligned to {}",
                                 static_cast<const void*>(run[i].memory), io::kAlignment));
    if (i > 0 && !handle->follows(*run[i - 1].handle))
      return failure(Code::kInvalid, "values of one read do not follow each other on flash");
  }
  return {};
}

Result<void> Store::Impl::read(uint32_t lane, std::span<const LaneRead> run, ReadDone done) {
  HIFC_CHECK(done != nullptr);
  HIFC_TRY(validate_run(lane, run));
  HIFC_TRY(transfers_.admit(io::Operation::kRead));
  StoredValue& first = *run.front().handle->value_;
  Batch& batch = *first.batch;
  std::vector<iovec> vectors;
  vectors.reserve(run.size());
  for (const LaneRead& read : run) vectors.push_back({read.memory, batch.shape.lane_bytes});
  transfers_.start({.operation = io::Operation::kRead,
                    .file = &batch.segment->file,
                    .offset_bytes = batch.lane_offset_bytes(lane, batch.index_of(first)),
                    .vectors = std::move(vectors),
                    // The handle pins the segment while the read runs.
                    .done = [pin = *run.front().handle, done = std::move(done)](
                                Result<void> result) mutable { done(std::move(result)); }});
  return {};
}

bool Store::Impl::verify(const Handle& handle, uint32_t lane,
                         std::span<const std::byte> bytes) const {
  if (!handle) return false;
  const Batch& batch = *handle.value_->batch;
  if (lane >= batch.shape.lanes || bytes.size() != batch.shape.lane_bytes) return false;
  const auto expected = batch.lane_checksums(lane, batch.index_of(*handle.value_));
  uint64_t corrupt = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    if (checksum(chunk(bytes, i, batch.shape.chunk_bytes)) != expected[i]) ++corrupt;
  if (corrupt > 0) corrupt_chunks_.fetch_add(corrupt, std::memory_order_relaxed);
  return corrupt == 0;
}

void Store::Impl::quarantine(const Handle& handle) {
  if (handle && erase(*handle.value_)) ++statistics_.quarantined_values;
}

const StoreStatistics& Store::Impl::statistics() const {
  statistics_.values = index_.size();
  statistics_.bytes_on_disk = segments_->bytes_on_disk();
  statistics_.peak_bytes_on_disk = segments_->peak_bytes_on_disk();
  statistics_.writes = transfers_.writes().requests;
  statistics_.written_bytes = transfers_.writes().bytes;
  statistics_.reads = transfers_.reads().requests;
  statistics_.read_bytes = transfers_.reads().bytes;
  statistics_.corrupt_chunks = corrupt_chunks_.load(std::memory_order_relaxed);
  return statistics_;
}

bool Handle::follows(const Handle& previous) const {
  return value_ != nullptr && previous.value_ != nullptr &&
         value_->batch == previous.value_->batch && value_.get() == previous.value_.get() + 1;
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(StoreOptions options, io::Ring& ring) {
  HIFC_TRY(validate(options));
  HIFC_ASSIGN(std::unique_ptr<Directory> directory, Directory::open(options.directory));
  HIFC_ASSIGN(std::unique_ptr<SegmentPool> segments,
              SegmentPool::create({.capacity_bytes = options.capacity_bytes,
                                   .segment_bytes = segment_bytes(options),
                                   .direct = options.direct},
                                  *directory));
  return std::unique_ptr<Store>(
      new Store(std::make_unique<Impl>(options, ring, std::move(directory), std::move(segments))));
}

Result<void> Store::put(const ValueShape& shape, std::vector<PutValue> values, PutDone done) {
  return impl_->put(shape, values, std::move(done));
}
Handle Store::find(const Key& key) const {
  return impl_->find(key);
}
Result<void> Store::read(uint32_t lane, std::span<const LaneRead> run, ReadDone done) {
  return impl_->read(lane, run, std::move(done));
}
bool Store::verify(const Handle& handle, uint32_t lane, std::span<const std::byte> bytes) const {
  return impl_->verify(handle, lane, bytes);
}
void Store::quarantine(const Handle& handle) {
  impl_->quarantine(handle);
}
uint64_t Store::capacity_bytes() const {
  return impl_->capacity_bytes();
}
const StoreStatistics& Store::statistics() const {
  return impl_->statistics();
}

}  // namespace hifc::flash
