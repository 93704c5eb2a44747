#include "tier/tiers.h"

#include <algorithm>
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
  const uint64_t frames =
      options.hot_bytes / options.block_bytes + options.warm_bytes / options.block_bytes;
  at(Tier::kHot).capacity_bytes = options.hot_bytes;
  at(Tier::kWarm).capacity_bytes = options.warm_bytes;
  HIFC_ASSIGN(memory_, io::AlignedMemory::allocate(frames * options.block_bytes));
  owner_.assign(frames, Tier::kWarm);
  in_device_.resize(frames);
  for (uint64_t frame = frames; frame-- > 0;)
    free_.push_back(FrameId{static_cast<uint32_t>(frame)});
  if (!options.flash) return {};
  HIFC_ASSIGN(store_, flash::Store::open(*options.flash, *ring_));
  at(Tier::kCold).capacity_bytes = store_->capacity_bytes();
  return {};
}

bool Tiers::has_room(Tier tier) const {
  const TierCounters& counters = counters_[static_cast<size_t>(tier)];
  return counters.used_bytes + options_.block_bytes <= counters.capacity_bytes;
}

void Tiers::charge(FrameId frame, Tier tier) {
  owner_[static_cast<uint32_t>(frame)] = tier;
  TierCounters& counters = at(tier);
  counters.used_bytes += options_.block_bytes;
  counters.peak_bytes = std::max(counters.peak_bytes, counters.used_bytes);
  HIFC_CHECK(counters.used_bytes <= counters.capacity_bytes);
}

std::optional<FrameId> Tiers::acquire(Tier preferred) {
  HIFC_CHECK(preferred != Tier::kCold);
  if (free_.empty()) return std::nullopt;
  const Tier other = preferred == Tier::kHot ? Tier::kWarm : Tier::kHot;
  const FrameId frame = free_.back();
  free_.pop_back();
  charge(frame, has_room(preferred) ? preferred : other);
  return frame;
}

void Tiers::release(FrameId frame) {
  HIFC_CHECK(static_cast<uint32_t>(frame) < owner_.size());
  InDevice& use = in_device_[static_cast<uint32_t>(frame)];
  HIFC_CHECK(!use.condemned);
  if (use.reads == 0) return free(frame);
  use.condemned = true;
  ++condemned_frames_;
}

void Tiers::free(FrameId frame) {
  at(tier_of(frame)).used_bytes -= options_.block_bytes;
  free_.push_back(frame);
}

FrameId Tiers::frame_at(const std::byte* memory) const {
  const auto offset = static_cast<size_t>(memory - memory_.data());
  HIFC_CHECK(offset % options_.block_bytes == 0);
  return FrameId{static_cast<uint32_t>(offset / options_.block_bytes)};
}

void Tiers::let_go(std::span<const FrameId> frames) {
  for (const FrameId frame : frames) {
    InDevice& use = in_device_[static_cast<uint32_t>(frame)];
    HIFC_CHECK(use.reads > 0);
    if (--use.reads > 0 || !std::exchange(use.condemned, false)) continue;
    --condemned_frames_;
    free(frame);
  }
}

void Tiers::promote(FrameId frame) {
  if (tier_of(frame) == Tier::kHot || !has_room(Tier::kHot)) return;
  at(Tier::kWarm).used_bytes -= options_.block_bytes;
  charge(frame, Tier::kHot);
}

std::byte* Tiers::data(FrameId frame) const {
  return memory_.data() + size_t{static_cast<uint32_t>(frame)} * options_.block_bytes;
}

uint32_t Tiers::groups_per_write_min(uint64_t block_bytes, uint32_t blocks_per_group) {
  const uint64_t wanted = std::max(divide_up(kCoalescedWriteBytes, block_bytes * blocks_per_group),
                                   divide_up(kNeighbourReadBytes, block_bytes));
  return static_cast<uint32_t>(
      std::min<uint64_t>(wanted, groups_per_write_max(block_bytes, blocks_per_group)));
}

uint32_t Tiers::groups_per_write_max(uint64_t block_bytes, uint32_t blocks_per_group) {
  return static_cast<uint32_t>(
      std::max<uint64_t>(1, kFlushBufferBytes / (block_bytes * blocks_per_group)));
}

bool Tiers::fits(const flash::Handle& handle) const {
  if (!handle || handle.lanes() != options_.blocks_per_group) return false;
  for (uint32_t lane = 0; lane < handle.lanes(); ++lane)
    if (handle.lane_bytes(lane) != options_.block_bytes) return false;
  return true;
}

Result<void> Tiers::store_groups(std::vector<flash::PutValue> groups, flash::Store::PutDone done) {
  // 64 chunks a block bound the checksums' memory; 4 KiB keeps single pages verifiable.
  const uint64_t chunk = divide_up(options_.block_bytes / 64, io::kAlignment) * io::kAlignment;
  const flash::BatchShape shape{.lanes = options_.blocks_per_group,
                                .chunk_bytes = static_cast<uint32_t>(chunk)};
  return store_->put(shape, std::move(groups), std::move(done));
}

// Registering takes physical memory for all frames, at once: it is for what is read over and over.
void Tiers::register_memory() {
  if (loaded_bytes_ < memory_.size_bytes() || std::exchange(registered_, true)) return;
  ring_->register_memory(memory_.span());
}

Result<void> Tiers::load(uint32_t layer, std::span<const flash::LaneRead> run,
                         flash::Store::ReadDone done) {
  loaded_bytes_ += run.size() * options_.block_bytes;
  register_memory();
  std::vector<FrameId> frames;
  for (const flash::LaneRead& read : run) {
    frames.push_back(frame_at(read.memory));
    ++in_device_[static_cast<uint32_t>(frames.back())].reads;
  }
  auto accepted = store_->read(layer, run, std::move(done), [this, alive = alive_, frames] {
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
