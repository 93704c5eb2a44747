// A batch in memory: what its header on flash says, for as long as somebody has a Handle to one of
// its values or it was used lately. While it lives, its segment is pinned.
#pragma once

#include <cstdint>

#include "flash/format.h"
#include "flash/segment.h"

namespace hifc::flash {

struct Batch {
  Batch(BatchContents batch_contents, Segment& batch_segment, uint64_t offset)
      : contents(std::move(batch_contents)),
        segment(batch_segment),
        number(batch_segment.number),
        offset_bytes(offset) {
    ++segment.batches_in_memory;
  }
  ~Batch() { --segment.batches_in_memory; }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const BatchContents contents;
  Segment& segment;
  const uint32_t number;        // of the segment while it holds this batch
  const uint64_t offset_bytes;  // of the header in the segment file

  uint32_t page() const { return static_cast<uint32_t>(offset_bytes / kPageBytes); }
  Location location(size_t value) const {
    return {.segment = number,
            .batch_page = page(),
            .value = static_cast<uint16_t>(value),
            .header_pages =
                static_cast<uint8_t>(std::min<uint64_t>(255, contents.header_bytes / kPageBytes))};
  }
};

}  // namespace hifc::flash
