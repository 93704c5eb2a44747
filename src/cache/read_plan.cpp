#include "cache/read_plan.h"

#include <algorithm>

namespace hifc::cache {

std::vector<Extent> extents_of(HeadSet heads, const kv::BlockLayout& layout, uint64_t bytes,
                               uint64_t chunk_bytes) {
  if (heads == kAllHeads) return {{.begin = 0, .end = bytes}};
  std::vector<Extent> extents;
  for (uint32_t head = 0; head < layout.kv_heads(); ++head) {
    if ((heads & head_bit(head)) == 0) continue;
    const uint64_t begin = layout.head_offset(head) / chunk_bytes * chunk_bytes;
    const uint64_t end = layout.head_offset(head + 1) + chunk_bytes - 1;
    const Extent extent{.begin = begin, .end = std::min(bytes, end / chunk_bytes * chunk_bytes)};
    if (!extents.empty() && extent.begin <= extents.back().end)
      extents.back().end = extent.end;
    else
      extents.push_back(extent);
  }
  return extents;
}

HeadSet heads_within(const Extent& extent, const kv::BlockLayout& layout, uint64_t bytes) {
  if (extent.begin == 0 && extent.end == bytes) return kAllHeads;
  HeadSet heads = 0;
  for (uint32_t head = 0; head < std::min(layout.kv_heads(), kHeadsMax); ++head)
    if (extent.begin <= layout.head_offset(head) && layout.head_offset(head + 1) <= extent.end)
      heads |= head_bit(head);
  return heads;
}

std::vector<ReadRun> plan_reads(std::span<const WantedBlock> blocks, const ReadLimits& limits) {
  // As extents of the blocks laid end to end.
  std::vector<Extent> reads;
  uint64_t origin = 0;
  for (const WantedBlock& block : blocks) {
    for (const Extent& wanted : block.extents) {
      const Extent at{.begin = origin + wanted.begin, .end = origin + wanted.end};
      const bool joins = !reads.empty() && at.begin - reads.back().end <= limits.gap_bytes_max &&
                         at.end - reads.back().begin <= limits.run_bytes_max;
      if (joins)
        reads.back().end = at.end;
      else
        reads.push_back(at);
    }
    origin += block.bytes;
  }
  std::vector<ReadRun> runs;
  for (const Extent& read : reads) {
    ReadRun& run = runs.emplace_back();
    origin = 0;
    for (const WantedBlock& block : blocks) {
      const uint64_t begin = std::max(read.begin, origin);
      const uint64_t end = std::min(read.end, origin + block.bytes);
      if (begin < end)
        run.push_back(
            {.group = block.group, .extent = {.begin = begin - origin, .end = end - origin}});
      origin += block.bytes;
    }
  }
  return runs;
}

}  // namespace hifc::cache
