#include "flash/segment_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace hifc::flash {
namespace {

// What stays free on the file system, so that the store is not what stops its neighbours.
constexpr uint64_t kFreeSpaceFloorBytes = 64u << 20;

bool retirable(const Segment& segment) {
  return !segment.free() && segment.batches_in_flight == 0 && !segment.pinned();
}

bool has_room(const Segment& segment, uint64_t size_bytes) {
  return segment.size_bytes - segment.tail_bytes >= size_bytes;
}

}  // namespace

Result<std::unique_ptr<SegmentPool>> SegmentPool::create(Options options, Directory& directory) {
  std::unique_ptr<SegmentPool> pool(new SegmentPool(options, directory));
  HIFC_TRY(pool->check_free_space(options.segment_bytes));
  return pool;
}

SegmentPool::~SegmentPool() {
  while (!segments_.empty()) remove(*segments_.back());
}

Result<void> SegmentPool::place(Batch& batch, Forget forget) {
  if (active_ == nullptr || !has_room(*active_, batch.size_bytes)) {
    HIFC_ASSIGN(Segment* const next, acquire(kSegmentHeaderBytes + batch.size_bytes, forget));
    next->generation = ++last_generation_;
    active_ = next;
  }
  batch.segment = active_;
  batch.offset_bytes = active_->tail_bytes;
  active_->tail_bytes += batch.size_bytes;
  active_->backed_bytes = std::max(active_->backed_bytes, active_->tail_bytes);
  ++active_->batches_in_flight;
  return {};
}

void SegmentPool::commit(std::shared_ptr<Batch> batch) {
  Segment& segment = *batch->segment;
  HIFC_CHECK(segment.batches_in_flight > 0);
  --segment.batches_in_flight;
  segment.batches.push_back(std::move(batch));
}

void SegmentPool::abandon(const Batch& batch) {
  Segment& segment = *batch.segment;
  HIFC_CHECK(segment.batches_in_flight > 0);
  --segment.batches_in_flight;
  if (batch.offset_bytes + batch.size_bytes == segment.tail_bytes)
    segment.tail_bytes = batch.offset_bytes;
  if (segment.batches_in_flight == 0 && segment.batches.empty())
    segment.tail_bytes = kSegmentHeaderBytes;
}

Result<Segment*> SegmentPool::acquire(uint64_t needed_bytes, Forget forget) {
  uint64_t kept_bytes = 0;
  for (const auto& segment : segments_)
    if (!segment->free() && !retirable(*segment)) kept_bytes += segment->size_bytes;
  if (kept_bytes + needed_bytes > options_.capacity_bytes)
    return std::unexpected(no_room(needed_bytes));

  while (true) {
    if (Segment* const segment = smallest_free(needed_bytes)) return segment;
    auto grown = grow(needed_bytes);
    if (grown) return grown;
    // Free segments that are too small make room for one that is not, then the oldest values do.
    if (Segment* const segment = smallest_free(0)) {
      remove(*segment);
    } else if (Segment* const oldest = oldest_retirable()) {
      retire(*oldest, forget);
    } else {
      return grown;
    }
  }
}

Result<Segment*> SegmentPool::grow(uint64_t needed_bytes) {
  const uint64_t room_bytes = options_.capacity_bytes - bytes_on_disk_;
  if (room_bytes < needed_bytes) return std::unexpected(no_room(needed_bytes));
  const uint64_t size_bytes = std::max(needed_bytes, std::min(options_.segment_bytes, room_bytes)) /
                              io::kAlignment * io::kAlignment;
  HIFC_TRY(check_free_space(size_bytes));
  while (directory_.occupied(next_id_)) ++next_id_;
  HIFC_ASSIGN(io::File file, directory_.create_segment(next_id_, size_bytes, options_.direct));
  segments_.push_back(std::make_unique<Segment>(next_id_++, std::move(file), size_bytes));
  bytes_on_disk_ += size_bytes;
  peak_bytes_on_disk_ = std::max(peak_bytes_on_disk_, bytes_on_disk_);
  return segments_.back().get();
}

// The files are sparse until they are written: what they have been promised is not free either.
Result<void> SegmentPool::check_free_space(uint64_t size_bytes) const {
  HIFC_ASSIGN(const uint64_t free_bytes, directory_.free_bytes());
  const uint64_t needed_bytes = size_bytes + unallocated_bytes() + kFreeSpaceFloorBytes;
  if (free_bytes >= needed_bytes) return {};
  return failure(Code::kFull,
                 fmt::format("the file system of {} has {} free, another segment of {} needs {}",
                             directory_.path(), format_size(free_bytes), format_size(size_bytes),
                             format_size(needed_bytes)));
}

uint64_t SegmentPool::unallocated_bytes() const {
  uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment->size_bytes - segment->backed_bytes;
  return bytes;
}

Segment* SegmentPool::smallest_free(uint64_t needed_bytes) const {
  Segment* best = nullptr;
  for (const auto& segment : segments_) {
    if (!segment->free() || segment->size_bytes < needed_bytes) continue;
    if (best == nullptr || segment->size_bytes < best->size_bytes) best = segment.get();
  }
  return best;
}

// A segment without findable values first: nothing is lost with it.
Segment* SegmentPool::oldest_retirable() const {
  const auto rank = [](const Segment& segment) {
    return std::pair(segment.findable_values > 0, segment.generation);
  };
  Segment* best = nullptr;
  for (const auto& segment : segments_) {
    if (!retirable(*segment)) continue;
    if (best == nullptr || rank(*segment) < rank(*best)) best = segment.get();
  }
  return best;
}

void SegmentPool::retire(Segment& segment, Forget forget) {
  for (const std::shared_ptr<Batch>& batch : segment.batches) forget(*batch);
  HIFC_CHECK(segment.findable_values == 0);
  segment.batches.clear();
  segment.generation = 0;
  segment.tail_bytes = kSegmentHeaderBytes;
  if (active_ == &segment) active_ = nullptr;
}

void SegmentPool::remove(Segment& segment) {
  bytes_on_disk_ -= segment.size_bytes;
  directory_.remove_segment(segment.id);
  std::erase_if(segments_, [&](const auto& owned) { return owned.get() == &segment; });
}

Error SegmentPool::no_room(uint64_t needed_bytes) const {
  size_t written = 0, pinned = 0;
  for (const auto& segment : segments_) {
    if (segment->batches_in_flight > 0)
      ++written;
    else if (segment->pinned())
      ++pinned;
  }
  return {.code = written > 0 ? Code::kBusy : Code::kFull,
          .system_errno = 0,
          .context = fmt::format("no room for {} in the flash capacity of {}: of {} segments {} "
                                 "are in use and {} are being written",
                                 format_size(needed_bytes), format_size(options_.capacity_bytes),
                                 segments_.size(), pinned, written)};
}

}  // namespace hifc::flash
