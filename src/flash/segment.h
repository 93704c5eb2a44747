// A segment file and the logical segment it holds at present.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "flash/format.h"

namespace hifc::flash {

struct Segment {
  enum class State : uint8_t {
    kFree,     // holds nothing that counts
    kOpening,  // its header is being made durable; batches wait
    kFailed,   // its header could not be written: free once nothing of it is in flight
    kOpen,     // takes batches
    kClosing,  // full; its checkpoint is being written
    kClosed,   // full, with or without a checkpoint
  };

  Segment(uint32_t file_id, io::File segment_file, uint64_t file_bytes)
      : id(file_id), file(std::move(segment_file)), size_bytes(file_bytes) {}

  const uint32_t id;  // physical: of the file's name
  io::File file;
  const uint64_t size_bytes;

  State state = State::kFree;
  uint32_t number = 0;  // logical; 0: free
  // The logical segment that a restart would find in the file: another one than `number` until the
  // header that replaces it is durable. 0: none.
  uint32_t number_on_disk = 0;
  uint64_t nonce = 0;
  uint64_t overwrites = 0;                      // times the file was written from its beginning
  uint64_t tail_bytes = kSegmentHeaderBytes;    // the next batch goes here
  uint64_t backed_bytes = kSegmentHeaderBytes;  // up to here it has ever been written
  uint32_t writes_in_flight = 0;                // of batches, checkpoints and headers
  uint32_t batches_in_memory = 0;               // pinned by handles and reads
  uint64_t findable_values = 0;
  // Holds a removal, or a value that replaced an older one: while an older segment is on the disk,
  // retiring this one would bring the older value back after a restart.
  bool supersedes = false;
  // Found when opening, and surely without a batch: opened ahead of need.
  bool unused = false;

  // Until it is closed: what its checkpoint will say, of batches that are written, and how much of
  // it is known to be durable.
  std::vector<CheckpointEntry> entries;
  size_t reserved_entries = 0;  // of batches placed, written or not
  size_t durable_entries = 0;
  size_t checkpointed_entries = 0;
  bool sync_failed = false;  // what it covered may be lost though a later sync succeeds

  void clear_entries() {
    entries = {};
    durable_entries = 0;
  }
  bool free() const { return state == State::kFree; }
  bool pinned() const { return batches_in_memory > 0; }
  bool takes_batches() const { return state == State::kOpening || state == State::kOpen; }
  SegmentContext context() const {
    return {.number = number, .nonce = nonce, .size_bytes = size_bytes};
  }
};

inline SegmentHeader header_of(const Segment& segment) {
  return {.tag = {},
          .number = segment.number,
          .segment_bytes = segment.size_bytes,
          .nonce = segment.nonce,
          .overwrites = segment.overwrites,
          .checksum = 0};
}

}  // namespace hifc::flash
