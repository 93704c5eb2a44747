// Who holds which frame: takes frames for blocks being filled and for blocks being read, and gives
// them back by the placement's rule. All changes of a block's state pass through here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "cache/placement.h"
#include "cache/sequence.h"
#include "kv/layout.h"
#include "tier/tiers.h"

namespace hifc::cache {

class Residency {
 public:
  Residency(tier::Tiers& tiers, const kv::GroupLayout& layout, Sequence& sequence,
            Placement& placement)
      : tiers_(tiers), layout_(layout), sequence_(sequence), placement_(placement) {}

  // What the running step will still take for blocks it fills or seals; reading ahead leaves it.
  void expect_open(uint64_t bytes) { expected_open_ = bytes; }

  // The layer that attention is at, or kNoLayer: its blocks stay where they are until used().
  static constexpr uint32_t kNoLayer = UINT32_MAX;
  void set_running(uint32_t layer) { running_ = layer; }

  // A zeroed frame for tokens of a block about to be filled. Drops what the placement wants least
  // when nothing is free; nothing when every frame is being filled, written or read right now.
  bool open(uint32_t group, uint32_t layer);
  // The same for a block's sealed pages, or, in open_exact(), for those no longer sealed.
  bool open_sealed(uint32_t group, uint32_t layer);
  bool open_exact(Block& block);
  // The block is sealed throughout.
  void close_exact(Block& block);

  // A frame for a block to be read: only what is free, less what the step still has to fill.
  bool stage(uint32_t group, uint32_t layer);

  // After the block was used: stays if the placement wants it, else its frame is freed.
  void used(uint32_t group, uint32_t layer);
  // After the block's group was stored: as used(), but attention may be about to use it.
  void stored(uint32_t group, uint32_t layer);

  void drop(Block& block);
  void drop_group(Group& group);

  // Frees every stored block that the placement no longer wants.
  void trim();
  // Makes room for the absent blocks of some groups (ascending) of one layer, at the cost of any
  // other stored block; nothing may be in flight.
  void make_room(uint32_t layer, std::span<const uint32_t> groups);
  // Frees blocks that were read ahead; none may be in flight.
  void drop_staged();

 private:
  struct Kept {  // blocks not to evict
    uint32_t layer = 0;
    std::span<const uint32_t> groups = {};
  };
  bool evict_one(Kept kept);
  std::optional<tier::FrameId> take(size_t bytes, tier::Part part);
  void release(tier::FrameId& frame);

  tier::Tiers& tiers_;
  const kv::GroupLayout& layout_;
  Sequence& sequence_;
  Placement& placement_;
  uint64_t expected_open_ = 0;
  uint64_t staged_bytes_ = 0;  // of blocks being read, or read and not yet used
  uint32_t running_ = kNoLayer;
};

}  // namespace hifc::cache
