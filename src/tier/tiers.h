// The three tiers behind one interface: hot and warm frames in memory, groups of blocks on flash.
//
// A frame holds one block (kv/layout.h) of any length and is charged to the hot or to the warm
// tier; each has a hard byte budget. On a CPU the two are accounting classes of one memory region:
// promotion recharges a frame and copies nothing, and attention reads frames of both in place.
//
// Thread-compatible: one thread calls everything; transfers complete on that thread inside poll()
// and wait().
#pragma once

#include <algorithm>
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
#include "tier/free_ranges.h"

namespace hifc::tier {

enum class Tier : uint8_t { kHot, kWarm, kCold };
inline constexpr size_t kTierCount = 3;
std::string_view to_string(Tier tier);

enum class FrameId : uint32_t {};
inline constexpr FrameId kNoFrame{UINT32_MAX};

// The part of memory that a frame is taken from. Frames of unlike lengths and lives stay apart, so
// that what is freed fits what is asked for next.
enum class Part : uint8_t {
  kSealed,  // blocks as they are on flash
  kExact,   // blocks that take tokens before they are encoded; of one length
};

struct TierCounters {
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t peak_bytes = 0;
  uint64_t hits = 0;  // blocks that attention found here (cold: had to be read from here)
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

struct TiersOptions {
  size_t block_bytes = 0;         // of the longest kind of block; of budgets, multiples are used
  uint32_t blocks_per_group = 0;  // layers of the model
  uint64_t hot_bytes = 0;
  uint64_t warm_bytes = 0;
  uint64_t exact_bytes = 0;                  // of hot and warm together, kept for Part::kExact
  std::optional<flash::StoreOptions> flash;  // none: no cold tier
  io::RingOptions ring;
};

// Groups that one coalesced write should hold: at least 4 MiB, and neighbouring blocks of one layer
// at least 128 KiB, at most 16 MiB where a group is smaller than that.
uint32_t groups_per_write_min(uint64_t group_bytes, uint32_t blocks_per_group);
uint32_t groups_per_write_max(uint64_t group_bytes);

class Tiers {
 public:
  static Result<std::unique_ptr<Tiers>> create(const TiersOptions& options);
  // As create(), over a Ring of the caller's (fault injection); the ring must outlive the tiers.
  static Result<std::unique_ptr<Tiers>> create(const TiersOptions& options, io::Ring& ring);
  ~Tiers();

  // Takes physical memory for the first bytes of the region. May run on another thread.
  void populate(uint64_t bytes) const { memory_.populate(std::min(bytes, memory_bytes())); }

  uint32_t blocks_per_group() const { return options_.blocks_per_group; }
  uint64_t memory_bytes() const { return memory_.size_bytes(); }
  uint64_t memory_bytes(Part part) const {
    return part == Part::kSealed ? sealed_bytes_ : memory_bytes() - sealed_bytes_;
  }
  uint64_t free_bytes() const { return memory_bytes() - used_bytes_[0] - used_bytes_[1]; }
  // Not necessarily in one piece.
  uint64_t free_bytes(Part part) const {
    return memory_bytes(part) - used_bytes_[static_cast<size_t>(part)];
  }

  // A free frame of `bytes` (a multiple of io::kAlignment) charged to `preferred` where that has
  // room, else to the other memory tier; nothing when neither has, or no piece of that part is as
  // long. The frame's bytes are whatever was there before.
  std::optional<FrameId> acquire(Tier preferred, size_t bytes, Part part = Part::kSealed);
  // A frame that the device still writes to (its read was late) is condemned: it stays charged, and
  // is free only when the device has let go of it.
  void release(FrameId frame);
  uint32_t condemned_frames() const { return condemned_frames_; }
  // Recharges a warm frame to the hot tier if that has room.
  void promote(FrameId frame);

  std::byte* data(FrameId frame) const { return memory_.data() + at(frame).offset; }
  std::span<std::byte> span(FrameId frame) const { return {data(frame), at(frame).bytes}; }
  Tier tier_of(FrameId frame) const { return at(frame).tier; }

  bool has_cold() const { return store_ != nullptr; }
  flash::Store& store() { return *store_; }
  io::Ring* ring() { return ring_; }

  // Transfers; see flash/store.h. Blocks of a group are its lanes in layer order.
  Result<void> store_groups(std::vector<flash::PutValue> groups, flash::Store::PutDone done);
  // Reads one lane of each value, or a part as in flash::LaneRead, into its place in a frame that
  // is as long as the lane. Frames may be released at any time; see release().
  struct FrameRead {
    const flash::Handle* handle = nullptr;
    FrameId frame = kNoFrame;
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;  // 0: to the end
  };
  Result<void> load(uint32_t layer, std::span<const FrameRead> run, flash::Store::ReadDone done);
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
  struct Frame {
    uint64_t offset = 0;
    size_t bytes = 0;  // 0: the entry is unused
    Tier tier = Tier::kWarm;
    Part part = Part::kSealed;
    uint8_t reads = 0;  // whose memory the device may still write to
    bool condemned = false;
  };
  TierCounters& at(Tier tier) { return counters_[static_cast<size_t>(tier)]; }
  const Frame& at(FrameId frame) const { return frames_[static_cast<uint32_t>(frame)]; }
  Frame& at(FrameId frame) { return frames_[static_cast<uint32_t>(frame)]; }
  bool has_room(Tier tier, size_t bytes) const;
  void charge(Frame& frame, Tier tier);
  FrameId new_frame();
  void free(FrameId frame);
  void register_memory();
  void let_go(std::span<const FrameId> frames);

  uint64_t begin_of(Part part) const { return part == Part::kSealed ? 0 : sealed_bytes_; }

  TiersOptions options_;
  io::AlignedMemory memory_;
  uint64_t sealed_bytes_ = 0;         // Part::kSealed comes first
  std::array<FreeRanges, 2> ranges_;  // [part], by offset within it
  std::array<uint64_t, 2> used_bytes_ = {};
  bool registered_ = false;
  uint64_t loaded_bytes_ = 0;
  std::vector<Frame> frames_;
  std::vector<FrameId> unused_;  // entries of frames_
  uint32_t condemned_frames_ = 0;
  // False once this object is gone: a device may let go of frames later than that.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::array<TierCounters, kTierCount> counters_ = {};
  std::unique_ptr<io::Ring> own_ring_;
  io::Ring* ring_ = nullptr;
  std::unique_ptr<flash::Store> store_;
};

}  // namespace hifc::tier
