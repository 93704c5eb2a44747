// Which bytes of stored blocks are read together. Pure computation.
//
// Blocks of one layer lie side by side on flash. A read costs about the same however many bytes it
// brings, up to some tens of KiB (tier/device_profile.h), so what is wanted is read in as few reads
// as pay: bytes between two wanted parts that cost less than another read are read too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence.h"
#include "kv/layout.h"

namespace hifc::cache {

// Bytes [begin, end) of a block.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const Extent&) const = default;
};

// Where the K and V of some heads are in a block of `bytes` bytes, ascending, each rounded outwards
// to multiples of `chunk_bytes`, of which neighbours may share one. kAllHeads: the whole block.
std::vector<Extent> extents_of(HeadSet heads, const kv::BlockLayout& layout, uint64_t bytes,
                               uint64_t chunk_bytes);
// The heads whose K and V an extent holds; kAllHeads where it is the whole block.
HeadSet heads_within(const Extent& extent, const kv::BlockLayout& layout, uint64_t bytes);

struct WantedBlock {
  uint32_t group = 0;
  uint64_t bytes = 0;                // of the whole block
  std::vector<Extent> extents = {};  // ascending; none: only in the way
};

struct BlockPart {
  uint32_t group = 0;
  Extent extent;
  bool operator==(const BlockPart&) const = default;
};
using ReadRun =
    std::vector<BlockPart>;  // of one read: each begins on flash where the last one ends

struct ReadLimits {
  uint64_t gap_bytes_max = 0;  // between two wanted parts of one read
  uint64_t run_bytes_max = 0;  // of a read, unless one wanted part is longer
};

// `blocks`: each begins on flash where the one before ends.
std::vector<ReadRun> plan_reads(std::span<const WantedBlock> blocks, const ReadLimits& limits);

}  // namespace hifc::cache
