// One conversation's KV: groups of blocks and where each block is.
#pragma once

#include <cstdint>
#include <vector>

#include "flash/store.h"
#include "tier/tiers.h"

namespace hifc::cache {

// Some KV heads of a block: bit h is head h. kAllHeads is the whole block, with what belongs to no
// head; of models with more than kHeadsMax KV heads there is nothing less.
using HeadSet = uint64_t;
inline constexpr uint32_t kHeadsMax = 64;
inline constexpr HeadSet kAllHeads = ~HeadSet{0};
constexpr HeadSet head_bit(uint32_t kv_head) {
  return kv_head < kHeadsMax ? HeadSet{1} << kv_head : 0;
}
// Whether `heads` are all that a model with `kv_heads` has.
constexpr bool is_every_head(HeadSet heads, uint32_t kv_heads) {
  if (kv_heads >= kHeadsMax) return heads == kAllHeads;
  const HeadSet every = head_bit(kv_heads) - 1;
  return (heads & every) == every;
}

// One layer of one group.
struct Block {
  enum class State : uint8_t {
    kAbsent,    // in no frame: on flash, or not yet computed
    kLoading,   // reads into `frame` are in flight
    kStaged,    // read, not yet used
    kResident,  // in `frame`, whole, good to use
  };
  State state = State::kAbsent;
  tier::FrameId frame = tier::kNoFrame;  // as it is on flash
  HeadSet heads = 0;                     // what of it has been read, until it is resident
  uint8_t reads = 0;                     // in flight
  // In a lossy layer, before it is sealed: all pages in F16. The first `sealed_pages` of them are
  // in `frame` too and used from there.
  tier::FrameId exact = tier::kNoFrame;
  uint32_t sealed_pages = 0;
  bool verified = false;  // since it was read

  bool is_exact(uint32_t page) const { return exact != tier::kNoFrame && page >= sealed_pages; }
  // Where new tokens go.
  tier::FrameId open_frame() const { return exact != tier::kNoFrame ? exact : frame; }
};

// One token span x all layers: the unit of key, commit and eviction from flash.
struct Group {
  enum class Stage : uint8_t {
    kOpen,     // has room for tokens; only in memory
    kFull,     // complete, waits to be written; only in memory
    kWriting,  // a write from its frames is in flight
    kStored,   // on flash; frames may be dropped
    kLost,     // its bytes on flash are damaged or unreadable: to be computed again
  };
  Stage stage = Stage::kOpen;
  std::vector<Block> blocks;  // [layer]
  flash::Key key = {};        // set when full
  flash::Handle handle;       // set when stored
};

struct Sequence {
  std::vector<int32_t> tokens;  // tokens whose KV is complete in every layer
  std::vector<Group> groups;

  uint32_t length() const { return static_cast<uint32_t>(tokens.size()); }
};

}  // namespace hifc::cache
