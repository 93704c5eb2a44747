#include "flash/segment_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace hifc::flash {
namespace {

// This part of a segment is left when the next one is chosen: writing it takes longer than what is
// in flight and the header's sync behind it.
constexpr uint64_t kOpenedAhead = 4;

bool idle(const Segment& segment) {
  const bool settled =
      segment.state == Segment::State::kOpen || segment.state == Segment::State::kClosed;
  return settled && segment.writes_in_flight == 0 && !segment.pinned();
}

uint64_t segment_bytes_for(uint64_t size_bytes, uint64_t records) {
  return kSegmentHeaderBytes + size_bytes + checkpoint_bytes(records);
}

bool has_room(const Segment* segment, uint64_t size_bytes, uint64_t records) {
  if (segment == nullptr || !segment->takes_batches()) return false;
  const uint64_t checkpoint = checkpoint_bytes(segment->reserved_entries + records);
  return segment->tail_bytes + size_bytes + checkpoint <= segment->size_bytes;
}

}  // namespace

SegmentPool::SegmentPool(Options options, Directory& directory)
    : options_(options),
      directory_(directory),
      random_(options.seed != 0 ? options.seed : std::random_device()()) {}

void SegmentPool::adopt(Found found) {
  HIFC_CHECK(segments_.empty());
  segments_ = std::move(found.segments);
  bytes_on_disk_ = untouchable_bytes_ = found.untouchable_bytes;
  for (const auto& segment : segments_) {
    bytes_on_disk_ += segment->size_bytes;
    last_number_ = std::max(last_number_, segment->number);
    if (!segment->free()) map_[segment->number] = segment.get();
  }
  // Surely above what was lost: no number is used twice.
  if (found.numbers_lost) last_number_ += 1u << 16;
}

Result<SegmentPool::Removed> SegmentPool::fit() {
  Removed removed;
  while (bytes_on_disk_ > options_.capacity_bytes) {
    Segment* victim = best_free(0);
    if (victim == nullptr) victim = oldest_retirable();
    if (victim == nullptr)
      return failure(Code::kFull, fmt::format("{} holds {}, more than flash_cache_size {}",
                                              directory_.path(), format_size(bytes_on_disk_),
                                              format_size(options_.capacity_bytes)));
    if (!victim->free()) retire(*victim);
    ++removed.segments;
    removed.size_bytes += victim->size_bytes;
    HIFC_TRY(remove(*victim));
  }
  peak_bytes_on_disk_ = bytes_on_disk_;
  return removed;
}

Result<void> SegmentPool::check_usable() const {
  return segments_.empty() ? check_free_space(options_.segment_bytes) : Result<void>();
}

Segment* SegmentPool::find(uint32_t number) const {
  const auto found = map_.find(number);
  return found == map_.end() ? nullptr : found->second;
}

bool SegmentPool::needs_segment(uint64_t size_bytes, uint64_t records) const {
  return !has_room(active_, size_bytes, records) && !has_room(next_, size_bytes, records);
}

Result<void> SegmentPool::check_room(uint64_t size_bytes, uint64_t records) const {
  if (!needs_segment(size_bytes, records)) return {};
  return check_capacity(segment_bytes_for(size_bytes, records));
}

Result<void> SegmentPool::check_capacity(uint64_t needed_bytes) const {
  const uint64_t bytes = unretirable_bytes() + untouchable_bytes_ + needed_bytes;
  if (bytes <= options_.capacity_bytes) return {};
  return std::unexpected(no_room(needed_bytes));
}

Result<SegmentPool::Place> SegmentPool::place(uint64_t size_bytes, uint64_t records) {
  HIFC_TRY(check_room(size_bytes, records));
  Place place;
  if (needs_segment(size_bytes, records)) {
    drop_next();
    HIFC_ASSIGN(next_, acquire(segment_bytes_for(size_bytes, records)));
    begin(*next_);
    place.opened = true;
  }
  if (!has_room(active_, size_bytes, records))
    place.filled = std::exchange(active_, std::exchange(next_, nullptr));
  Segment& segment = *active_;
  place.segment = &segment;
  place.offset_bytes = segment.tail_bytes;
  segment.tail_bytes += size_bytes;
  segment.backed_bytes = std::max(segment.backed_bytes, segment.tail_bytes);
  segment.reserved_entries += records;
  ++segment.writes_in_flight;
  return place;
}

bool SegmentPool::wants_next() const {
  if (active_ == nullptr || next_ != nullptr) return false;
  const uint64_t end_bytes =
      active_->size_bytes -
      std::min(active_->size_bytes, checkpoint_bytes(active_->reserved_entries));
  return active_->tail_bytes + options_.segment_bytes / kOpenedAhead > end_bytes;
}

Result<Segment*> SegmentPool::choose_next(uint64_t size_bytes, uint64_t records) {
  HIFC_CHECK(next_ == nullptr && active_ != nullptr && !idle(*active_));
  const uint64_t needed = segment_bytes_for(size_bytes, records);
  // Nothing is retired in vain, nor for another batch as large as a rare one.
  if (needed > options_.segment_bytes) return std::unexpected(no_room(needed));
  HIFC_TRY(check_capacity(needed));
  HIFC_ASSIGN(next_, acquire(needed));
  begin(*next_);
  return next_;
}

// Numbers are in the order of the log: another segment that comes first now would have a newer one.
void SegmentPool::drop_next() {
  Segment* const unused = std::exchange(next_, nullptr);
  if (unused != nullptr && idle(*unused)) retire(*unused);
}

void SegmentPool::begin(Segment& segment) {
  HIFC_CHECK(segment.free());
  segment.state = Segment::State::kOpening;
  segment.number = ++last_number_;
  segment.nonce = random_();
  segment.tail_bytes = kSegmentHeaderBytes;
  map_[segment.number] = &segment;
}

void SegmentPool::give_back(Segment& segment, uint64_t offset_bytes, uint64_t size_bytes,
                            uint64_t records) {
  if (offset_bytes + size_bytes != segment.tail_bytes) return;
  segment.tail_bytes = offset_bytes;
  segment.reserved_entries -= records;
}

void SegmentPool::deactivate(Segment& segment) {
  if (active_ == &segment) active_ = nullptr;
  if (next_ == &segment) next_ = nullptr;
}

void SegmentPool::release(Segment& segment) {
  HIFC_CHECK(segment.writes_in_flight == 0);
  deactivate(segment);
  map_.erase(segment.number);
  retired_values_ += segment.findable_values;
  segment.state = Segment::State::kFree;
  segment.number = 0;
  ++segment.overwrites;
  segment.tail_bytes = kSegmentHeaderBytes;
  segment.findable_values = 0;
  segment.supersedes = segment.sync_failed = segment.unused = false;
  segment.clear_entries();
  segment.reserved_entries = segment.checkpointed_entries = 0;
}

void SegmentPool::retire(Segment& segment) {
  HIFC_CHECK(idle(segment));
  release(segment);
}

void SegmentPool::release_unused() {
  HIFC_CHECK(active_ == nullptr);
  const std::vector<Segment*> live = by_number();
  for (Segment* const segment : std::views::reverse(live)) {
    if (!segment->unused) return;
    release(*segment);
  }
}

Result<Segment*> SegmentPool::acquire(uint64_t needed_bytes) {
  HIFC_CHECK(next_ == nullptr);
  while (true) {
    if (Segment* const segment = best_free(needed_bytes)) return segment;
    auto grown = grow(needed_bytes);
    if (grown) return grown;
    // Free files that are too small make room for one that is not, then the oldest values do.
    if (Segment* const segment = best_free(0)) {
      HIFC_TRY(remove(*segment));
    } else if (Segment* const oldest = oldest_retirable()) {
      retire(*oldest);
    } else {
      return grown;
    }
  }
}

Result<Segment*> SegmentPool::grow(uint64_t needed_bytes) {
  const uint64_t room_bytes =
      options_.capacity_bytes - std::min(options_.capacity_bytes, bytes_on_disk_);
  if (room_bytes < needed_bytes) return std::unexpected(no_room(needed_bytes));
  const uint64_t size_bytes = std::max(needed_bytes, std::min(options_.segment_bytes, room_bytes)) /
                              kPageBytes * kPageBytes;
  HIFC_TRY(check_free_space(size_bytes));
  HIFC_ASSIGN(NewFile made, create_file(size_bytes));
  segments_.push_back(std::make_unique<Segment>(made.id, std::move(made.file), size_bytes));
  bytes_on_disk_ += size_bytes;
  peak_bytes_on_disk_ = std::max(peak_bytes_on_disk_, bytes_on_disk_);
  return segments_.back().get();
}

// The lowest number that is free; names that somebody else has taken are skipped.
Result<SegmentPool::NewFile> SegmentPool::create_file(uint64_t size_bytes) {
  for (uint32_t id = 0; id <= Directory::kSegmentIdMax; ++id) {
    if (std::ranges::any_of(segments_, [&](const auto& segment) { return segment->id == id; }))
      continue;
    auto file = directory_.create_segment(id, size_bytes, options_.direct);
    if (file) return NewFile{id, std::move(*file)};
    if (file.error().system_errno != EEXIST) return std::unexpected(std::move(file).error());
  }
  return failure(Code::kFull, "there are no names left for segment files");
}

// The files are sparse until they are written: what they have been promised is not free either.
Result<void> SegmentPool::check_free_space(uint64_t size_bytes) const {
  HIFC_ASSIGN(const uint64_t free_bytes, directory_.free_bytes());
  const uint64_t needed_bytes = size_bytes + unallocated_bytes() + options_.free_space_floor_bytes;
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

Segment* SegmentPool::best_free(uint64_t needed_bytes) const {
  const auto rank = [](const Segment& segment) {
    return std::tuple(segment.overwrites, segment.size_bytes, segment.id);
  };
  Segment* best = nullptr;
  for (const auto& segment : segments_) {
    if (!segment->free() || segment->writes_in_flight > 0 || segment->pinned()) continue;
    // A file that was cut off may have any size: it only goes.
    const bool usable = segment->size_bytes % kPageBytes == 0;
    if (segment->size_bytes < needed_bytes || (needed_bytes > 0 && !usable)) continue;
    // Made for one large batch: as a segment of small ones it would retire too much at once.
    const uint64_t large_bytes = 2 * std::max(needed_bytes, options_.segment_bytes);
    if (needed_bytes > 0 && segment->size_bytes >= large_bytes) continue;
    if (best == nullptr || rank(*segment) < rank(*best)) best = segment.get();
  }
  return best;
}

std::vector<Segment*> SegmentPool::by_number() const {
  std::vector<Segment*> live;
  for (const auto& segment : segments_)
    if (!segment->free()) live.push_back(segment.get());
  std::ranges::sort(live, {}, &Segment::number);
  return live;
}

bool SegmentPool::may_retire(const Segment& segment) const {
  if (!idle(segment)) return false;
  return !segment.supersedes || std::ranges::none_of(segments_, [&](const auto& other) {
    return other->number_on_disk != 0 && other->number_on_disk < segment.number;
  });
}

// A segment without findable values first: nothing is lost with it.
Segment* SegmentPool::oldest_retirable() const {
  Segment* best = nullptr;
  for (Segment* const segment : by_number()) {
    if (!may_retire(*segment)) continue;
    if (segment->findable_values == 0) return segment;
    if (best == nullptr) best = segment;
  }
  return best;
}

Segment* SegmentPool::next_to_retire() const {
  const bool room = best_free(options_.segment_bytes) != nullptr ||
                    bytes_on_disk_ + options_.segment_bytes <= options_.capacity_bytes;
  if (room) return nullptr;
  // Whether it is pinned now says nothing about then.
  Segment* oldest = nullptr;
  for (const auto& segment : segments_) {
    if (segment->state != Segment::State::kClosed || segment->writes_in_flight > 0) continue;
    if (oldest == nullptr || segment->number < oldest->number) oldest = segment.get();
  }
  return oldest;
}

uint64_t SegmentPool::unretirable_bytes() const {
  uint64_t bytes = 0;
  uint32_t oldest_kept = UINT32_MAX;
  for (const auto& segment : segments_) {
    const bool replaced =
        segment->state == Segment::State::kOpening && segment->number_on_disk != 0;
    if (replaced) oldest_kept = std::min(oldest_kept, segment->number_on_disk);
    if (segment->free() && (segment->writes_in_flight > 0 || segment->pinned()))
      bytes += segment->size_bytes;
  }
  for (const Segment* const segment : by_number()) {
    if (idle(*segment) && !(segment->supersedes && oldest_kept < segment->number)) continue;
    bytes += segment->size_bytes;
    oldest_kept = std::min(oldest_kept, segment->number);
  }
  return bytes;
}

Result<void> SegmentPool::remove(Segment& segment) {
  HIFC_CHECK(segment.free());
  HIFC_TRY(directory_.remove_segment(segment.id));
  bytes_on_disk_ -= segment.size_bytes;
  std::erase_if(segments_, [&](const auto& owned) { return owned.get() == &segment; });
  // Else a power failure would bring back values that newer ones have replaced.
  return directory_.sync();
}

void SegmentPool::remove_all() {
  active_ = next_ = nullptr;
  for (const auto& segment : segments_) (void)directory_.remove_segment(segment->id);
  segments_.clear();
  map_.clear();
}

Error SegmentPool::no_room(uint64_t needed_bytes) const {
  size_t written = 0, pinned = 0;
  for (const auto& segment : segments_) {
    if (segment->writes_in_flight > 0)
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
