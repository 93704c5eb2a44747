#include "tier/tiers.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace hifc::tier {
namespace {

constexpr uint64_t kCoalescedWriteBytes = 4u << 20;
constexpr uint64_t kFlushBufferBytes = 16u << 20;
constexpr uint64_t kNeighbourReadBytes = 128u << 10;

// Memory and rings that a device which does not answer may still use, for the rest of the process.
struct Abandoned {
  io::AlignedMemory memory;
  std::unique_ptr<io::Ring> ring;
};
std::vector<Abandoned>& abandoned() {
  static auto* const all = new std::vector<Abandoned>();
  return *all;
}

// Nobody who waits for a device looks up less often than this: users interrupt.
constexpr uint64_t kWaitSliceNs = 100'000'000;

constexpr uint64_t divide_up(uint64_t value, uint64_t by) {
  return (value + by - 1) / by;
}

}  // namespace

std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::kHot: return "hot";
    case Tier::kWarm: return "warm";
    case Tier::kCold: return "cold";
  }
  return "unknown";
}

Result<std::unique_ptr<Tiers>> Tiers::create(const TiersOptions& options) {
  std::unique_ptr<Tiers> tiers(new Tiers());
  if (options.flash) {
    HIFC_ASSIGN(tiers->own_ring_, io::Ring::create(options.ring));
    tiers->ring_ = tiers->own_ring_.get();
  }
  HIFC_TRY(tiers->initialise(options));
  return tiers;
}

Result<std::unique_ptr<Tiers>> Tiers::create(const TiersOptions& options, io::Ring& ring) {
  std::unique_ptr<Tiers> tiers(new Tiers());
  tiers->ring_ = &ring;
  HIFC_TRY(tiers->initialise(options));
  return tiers;
}

Tiers::~Tiers() {
  store_.reset();  // runs completions
  *alive_ = false;
  if (ring_ != nullptr && ring_->in_flight() > 0)
    abandoned().push_back({.memory = std::move(memory_), .ring = std::move(own_ring_)});
}

Result<void> Tiers::initialise(const TiersOptions& options) {
  HIFC_CHECK(options.block_bytes > 0);
  HIFC_CHECK(options.block_bytes % io::kAlignment == 0);
  options_ = options;
  at(Tier::kHot).capacity_bytes = options.hot_bytes;
  at(Tier::kWarm).capacity_bytes = options.warm_bytes;
  const uint64_t blocks =
      options.hot_bytes / options.block_bytes + options.warm_bytes / options.block_bytes;
  const uint64_t bytes = blocks * options.block_bytes;
  HIFC_ASSIGN(memory_, io::AlignedMemory::allocate(bytes));
  const uint64_t exact_bytes =
      std::min(bytes, options.exact_bytes / options.block_bytes * options.block_bytes);
  sealed_bytes_ = bytes - exact_bytes;
  ranges_ = {FreeRanges(sealed_bytes_), FreeRanges(exact_bytes)};
  if (!options.flash) return {};
  HIFC_ASSIGN(store_, flash::Store::open(*options.flash, *ring_));
  at(Tier::kCold).capacity_bytes = store_->capacity_bytes();
  return {};
}

bool Tiers::has_room(Tier tier, size_t bytes) const {
  const TierCounters& counters = counters_[static_cast<size_t>(tier)];
  return counters.used_bytes + bytes <= counters.capacity_bytes;
}

void Tiers::charge(Frame& frame, Tier tier) {
  frame.tier = tier;
  TierCounters& counters = at(tier);
  counters.used_bytes += frame.bytes;
  counters.peak_bytes = std::max(counters.peak_bytes, counters.used_bytes);
  HIFC_CHECK(counters.used_bytes <= counters.capacity_bytes);
}

FrameId Tiers::new_frame() {
  if (unused_.empty()) {
    frames_.emplace_back();
    return FrameId{static_cast<uint32_t>(frames_.size() - 1)};
  }
  const FrameId frame = unused_.back();
  unused_.pop_back();
  return frame;
}

std::optional<FrameId> Tiers::acquire(Tier preferred, size_t bytes, Part part) {
  HIFC_CHECK(preferred != Tier::kCold);
  HIFC_CHECK(bytes > 0 && bytes % io::kAlignment == 0);
  const Tier other = preferred == Tier::kHot ? Tier::kWarm : Tier::kHot;
  if (!has_room(preferred, bytes) && !has_room(other, bytes)) return std::nullopt;
  const auto index = static_cast<size_t>(part);
  const auto offset = ranges_[index].take(bytes);
  if (!offset) return std::nullopt;
  const FrameId id = new_frame();
  at(id) = {.offset = begin_of(part) + *offset, .bytes = bytes, .part = part};
  used_bytes_[index] += bytes;
  charge(at(id), has_room(preferred, bytes) ? preferred : other);
  return id;
}

void Tiers::release(FrameId id) {
  HIFC_CHECK(static_cast<uint32_t>(id) < frames_.size());
  Frame& frame = at(id);
  HIFC_CHECK(frame.bytes > 0 && !frame.condemned);
  if (frame.reads == 0) return free(id);
  frame.condemned = true;
  ++condemned_frames_;
}

void Tiers::free(FrameId id) {
  Frame& frame = at(id);
  at(frame.tier).used_bytes -= frame.bytes;
  const auto index = static_cast<size_t>(frame.part);
  used_bytes_[index] -= frame.bytes;
  ranges_[index].give_back(frame.offset - begin_of(frame.part), frame.bytes);
  frame = {};
  unused_.push_back(id);
}

void Tiers::let_go(std::span<const FrameId> frames) {
  for (const FrameId id : frames) {
    Frame& frame = at(id);
    HIFC_CHECK(frame.reads > 0);
    if (--frame.reads > 0 || !std::exchange(frame.condemned, false)) continue;
    --condemned_frames_;
    free(id);
  }
}

void Tiers::promote(FrameId id) {
  Frame& frame = at(id);
  if (frame.tier == Tier::kHot || !has_room(Tier::kHot, frame.bytes)) return;
  at(Tier::kWarm).used_bytes -= frame.bytes;
  charge(frame, Tier::kHot);
}

uint32_t groups_per_write_min(uint64_t group_bytes, uint32_t blocks_per_group) {
  const uint64_t wanted = std::max(divide_up(kCoalescedWriteBytes, group_bytes),
                                   divide_up(kNeighbourReadBytes * blocks_per_group, group_bytes));
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, groups_per_write_max(group_bytes)));
}

uint32_t groups_per_write_max(uint64_t group_bytes) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, kFlushBufferBytes / group_bytes));
}

Result<void> Tiers::store_groups(std::vector<flash::PutValue> groups, flash::Store::PutDone done) {
  // 512 chunks a block bound the checksums' memory; 4 KiB keeps single pages verifiable.
  const uint64_t chunk =
      std::max<uint64_t>(io::kAlignment, std::bit_floor(options_.block_bytes) / 256);
  const flash::BatchShape shape{.lanes = options_.blocks_per_group,
                                .chunk_bytes = static_cast<uint32_t>(chunk)};
  return store_->put(shape, std::move(groups), std::move(done));
}

// Registering takes physical memory for all frames, at once: it is for what is read over and over.
void Tiers::register_memory() {
  if (loaded_bytes_ < memory_.size_bytes() || std::exchange(registered_, true)) return;
  ring_->register_memory(memory_.span());
}

Result<void> Tiers::load(uint32_t layer, std::span<const FrameRead> run,
                         flash::Store::ReadDone done) {
  std::vector<FrameId> frames;
  std::vector<flash::LaneRead> lanes;
  for (const FrameRead& read : run) {
    Frame& frame = at(read.frame);
    HIFC_CHECK(frame.bytes == read.handle->lane_bytes(layer));
    loaded_bytes_ += read.size_bytes == 0 ? frame.bytes - read.offset_bytes : read.size_bytes;
    ++frame.reads;
    frames.push_back(read.frame);
    lanes.push_back({.handle = read.handle,
                     .memory = data(read.frame) + read.offset_bytes,
                     .offset_bytes = read.offset_bytes,
                     .size_bytes = read.size_bytes});
  }
  register_memory();
  auto accepted = store_->read(layer, lanes, std::move(done), [this, alive = alive_, frames] {
    if (*alive) let_go(frames);
  });
  if (!accepted) let_go(frames);
  return accepted;
}

uint32_t Tiers::wait_for(uint64_t timeout_ns) {
  return store_ ? store_->wait_for(std::min(timeout_ns, kWaitSliceNs)) : 0;
}

Result<void> Tiers::sync() {
  if (!store_) return {};
  const auto outcome = std::make_shared<std::optional<Result<void>>>();
  const auto flush = [&] {
    return store_->flush([outcome](Result<void> result) { *outcome = std::move(result); });
  };
  auto accepted = flush();
  while (!accepted && accepted.error().code == Code::kBusy && wait() > 0) accepted = flush();
  HIFC_TRY(accepted);
  while (!*outcome && wait() > 0) continue;
  return outcome->value_or(failure(Code::kTimeout, "the flash device does not answer"));
}

void Tiers::count_hit(Tier tier, uint64_t bytes) {
  at(tier).hits += 1;
  at(tier).bytes_read += bytes;
}

TierCounters Tiers::counters(Tier tier) const {
  TierCounters counters = counters_[static_cast<size_t>(tier)];
  if (tier != Tier::kCold || !store_) return counters;
  const flash::StoreStatistics& statistics = store_->statistics();
  counters.used_bytes = statistics.bytes_on_disk;
  counters.peak_bytes = statistics.peak_bytes_on_disk;
  counters.bytes_read = statistics.read_bytes;
  counters.bytes_written = statistics.written_bytes;
  return counters;
}

}  // namespace hifc::tier
