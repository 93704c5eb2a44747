// The three tiers behind one interface: hot and warm frames in memory, groups of blocks on flash.
//
// A frame holds one block (kv/layout.h) and is charged to the hot or to the warm tier; each has a
// hard byte budget. On a CPU the two are accounting classes of one memory region: promotion
// recharges a frame and copies nothing, and attention reads frames of both in place.
//
// Thread-compatible: one thread calls everything; transfers complete on that thread inside poll()
// and wait().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "flash/store.h"
#include "io/memory.h"
#include "io/ring.h"

namespace hifc::tier {

enum class Tier : uint8_t { kHot, kWarm, kCold };
inline constexpr size_t kTierCount = 3;
std::string_view to_string(Tier tier);

enum class FrameId : uint32_t {};
inline constexpr FrameId kNoFrame{UINT32_MAX};

struct TierCounters {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t hits = 0;  // blocks that attention found here (cold: had to be read from here)
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

struct TiersOptions {
  size_t block_bytes = 0;
  uint32_t blocks_per_group = 0;  // layers of the model
  uint64_t hot_bytes = 0;
  uint64_t warm_bytes = 0;
  std::optional<flash::StoreOptions> flash;  // none: no cold tier
  io::RingOptions ring;
};

class Tiers {
 public:
  static Result<std::unique_ptr<Tiers>> create(const TiersOptions& options);
  // As create(), over a Ring of the caller's (fault injection); the ring must outlive the tiers.
  static Result<std::unique_ptr<Tiers>> create(const TiersOptions& options, io::Ring& ring);
  ~Tiers();

  // Takes physical memory for the `frames` that are used first. May run on another thread.
  void populate(uint64_t frames) const { memory_.populate(frames * options_.block_bytes); }

  size_t block_bytes() const { return options_.block_bytes; }
  uint32_t blocks_per_group() const { return options_.blocks_per_group; }
  uint32_t frames() const { return static_cast<uint32_t>(owner_.size()); }
  uint32_t free_frames() const { return static_cast<uint32_t>(free_.size()); }

  // A free frame charged to `preferred` where that has room, else to the other memory tier; nothing
  // when both are full. The frame's bytes are whatever was there before.
  std::optional<FrameId> acquire(Tier preferred);
  // A frame that the device still writes to (its read was late) is condemned: it stays charged, and
  // is free only when the device has let go of it.
  void release(FrameId frame);
  uint32_t condemned_frames() const { return condemned_frames_; }
  // Recharges a warm frame to the hot tier if that has room.
  void promote(FrameId frame);

  std::byte* data(FrameId frame) const;
  std::span<std::byte> span(FrameId frame) const { return {data(frame), options_.block_bytes}; }
  Tier tier_of(FrameId frame) const { return owner_[static_cast<uint32_t>(frame)]; }

  bool has_cold() const { return store_ != nullptr; }
  flash::Store& store() { return *store_; }
  io::Ring* ring() { return ring_; }

  // Groups that one coalesced write should hold: at least 4 MiB, and neighbouring blocks of one
  // layer at least 128 KiB, at most 16 MiB where a group is smaller than that.
  uint32_t groups_per_write_min() const {
    return groups_per_write_min(options_.block_bytes, options_.blocks_per_group);
  }
  uint32_t groups_per_write_max() const {
    return groups_per_write_max(options_.block_bytes, options_.blocks_per_group);
  }
  static uint32_t groups_per_write_min(uint64_t block_bytes, uint32_t blocks_per_group);
  static uint32_t groups_per_write_max(uint64_t block_bytes, uint32_t blocks_per_group);

  // Whether a stored value has the lanes of a group: one for each layer, each as long as a block.
  bool fits(const flash::Handle& handle) const;

  // Transfers; see flash/store.h. Blocks of a group are its lanes in layer order.
  Result<void> store_groups(std::vector<flash::PutValue> groups, flash::Store::PutDone done);
  // Reads into frames. They may be released at any time; see release().
  Result<void> load(uint32_t layer, std::span<const flash::LaneRead> run,
                    flash::Store::ReadDone done);
  uint32_t poll() { return store_ ? store_->poll() : 0; }
  uint32_t wait() { return store_ ? store_->wait() : 0; }
  // As wait(), but returns 0 once the time has passed.
  uint32_t wait_for(uint64_t timeout_ns);
  // Everything stored survives a power failure, or the reason why not.
  Result<void> sync();

  void count_hit(Tier tier, uint64_t bytes);
  void count_write(Tier tier, uint64_t bytes) { at(tier).bytes_written += bytes; }
  TierCounters counters(Tier tier) const;

 private:
  Tiers() = default;
  Result<void> initialise(const TiersOptions& options);
  TierCounters& at(Tier tier) { return counters_[static_cast<size_t>(tier)]; }
  bool has_room(Tier tier) const;
  void charge(FrameId frame, Tier tier);
  void free(FrameId frame);
  void register_memory();
  FrameId frame_at(const std::byte* memory) const;
  void let_go(std::span<const FrameId> frames);

  TiersOptions options_;
  io::AlignedMemory memory_;
  bool registered_ = false;
  uint64_t loaded_bytes_ = 0;
  struct InDevice {
    uint8_t reads = 0;  // whose memory the device may still write to
    bool condemned = false;
  };
  std::vector<Tier> owner_;          // [frame]
  std::vector<InDevice> in_device_;  // [frame]
  uint32_t condemned_frames_ = 0;
  // False once this object is gone: a device may let go of frames later than that.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<FrameId> free_;  // a stack: the frames used last are reused first
  std::array<TierCounters, kTierCount> counters_ = {};
  std::unique_ptr<io::Ring> own_ring_;
  io::Ring* ring_ = nullptr;
  std::unique_ptr<flash::Store> store_;
};

}  // namespace hifc::tier
