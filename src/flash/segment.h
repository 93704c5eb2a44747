// The store's state in memory: segments hold batches, batches hold values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "flash/format.h"
#include "flash/store.h"

namespace hifc::flash {

struct Batch;

// The index points to these, and a Handle shares its Batch. In memory a value takes 40 bytes here,
// 40 in the index and 8 per chunk for the checksums, as long as it is stored: recovery will read
// checksums back from the batch header, so that only values with a Handle need theirs.
struct StoredValue {
  Key key = {};
  Batch* batch = nullptr;
};

struct Segment {
  Segment(uint32_t number, io::File segment_file, uint64_t file_bytes)
      : id(number), file(std::move(segment_file)), size_bytes(file_bytes) {}

  const uint32_t id;
  io::File file;
  const uint64_t size_bytes;
  uint64_t generation = 0;                      // of the present use; 0: free
  uint64_t tail_bytes = kSegmentHeaderBytes;    // the next batch goes here
  uint64_t backed_bytes = kSegmentHeaderBytes;  // up to here it has ever been written
  uint32_t batches_in_flight = 0;
  uint64_t findable_values = 0;
  std::vector<std::shared_ptr<Batch>> batches;  // that are completely written

  bool free() const { return generation == 0; }
  // A Handle or a running read shares one of its batches.
  bool pinned() const {
    for (const std::shared_ptr<Batch>& batch : batches)
      if (batch.use_count() > 1) return true;
    return false;
  }
};

// The values of one put(). A Handle shares the whole batch, so that pinning costs one counter and
// no entry per value.
struct Batch : std::enable_shared_from_this<Batch> {
  ValueShape shape;
  Segment* segment = nullptr;
  uint64_t offset_bytes = 0;  // of its header in the segment file
  uint64_t header_bytes = 0;
  uint64_t size_bytes = 0;  // header and payload
  std::vector<StoredValue> values;
  std::vector<uint64_t> checksums;  // [values][lanes][chunks of a lane]

  size_t index_of(const StoredValue& value) const {
    return static_cast<size_t>(&value - values.data());
  }
  uint64_t lane_offset_bytes(uint32_t lane, size_t value) const {
    return offset_bytes + header_bytes + (lane * values.size() + value) * shape.lane_bytes;
  }
  std::span<const uint64_t> lane_checksums(uint32_t lane, size_t value) const {
    const uint64_t chunks = chunks_per_lane(shape);
    return std::span(checksums).subspan((value * shape.lanes + lane) * chunks, chunks);
  }
};

}  // namespace hifc::flash
