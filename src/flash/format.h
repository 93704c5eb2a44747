// What the store writes to flash: layout version 1.
//
//   segment file   | segment header | batch | batch | ...            | unused |
//   batch          | batch header   | lane 0 of every value | lane 1 of every value | ...
//   batch header   | BatchHeader | keys [values] | checksums [values][lanes][chunks of a lane] |
//
// Integers are little-endian. Headers and lanes begin at multiples of io::kAlignment; headers are
// zero-padded up to one. The last batches of a segment may be left from its former use: they carry
// an older generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "flash/store.h"

namespace hifc::flash {

inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr uint64_t kSegmentHeaderBytes = io::kAlignment;

// The first bytes of a segment file, the same in every layout version, so that an older HiFC can
// tell a newer segment from a damaged one.
struct LayoutTag {
  char magic[8];      // "HIFCSEG\n"
  uint32_t version;   // layout version of the rest of the file
  uint32_t checksum;  // low half of the checksum of the 12 bytes before it
};
static_assert(sizeof(LayoutTag) == 16);
static_assert(offsetof(LayoutTag, version) == 8);
static_assert(offsetof(LayoutTag, checksum) == 12);

struct SegmentHeader {
  LayoutTag tag;
  uint64_t generation;     // counts up each time a segment file is written from its beginning
  uint64_t segment_bytes;  // size of the file
  uint64_t checksum;       // of the header's kSegmentHeaderBytes, with this field zero
};
static_assert(sizeof(SegmentHeader) == 40);
static_assert(offsetof(SegmentHeader, generation) == 16);
static_assert(offsetof(SegmentHeader, checksum) == 32);

struct BatchHeader {
  char magic[8];  // "HIFCBAT\n"
  uint32_t lanes;
  uint32_t chunk_bytes;
  uint64_t lane_bytes;
  uint64_t values;
  uint64_t generation;    // the segment's
  uint64_t offset_bytes;  // of this header in the segment file: tells a misdirected write
  uint64_t header_bytes;  // with keys, checksums and padding
  uint64_t checksum;      // of the header's header_bytes, with this field zero
};
static_assert(sizeof(BatchHeader) == 64);
static_assert(offsetof(BatchHeader, lane_bytes) == 16);
static_assert(offsetof(BatchHeader, checksum) == 56);

uint64_t checksum(std::span<const std::byte> bytes);  // XXH3, 64 bits

uint64_t chunks_per_lane(const ValueShape& shape);

// The bytes of a batch header for this many values, rounded up to io::kAlignment.
uint64_t batch_header_bytes(const ValueShape& shape, uint64_t values);

// `target` has kSegmentHeaderBytes zeros.
void encode_segment_header(uint64_t generation, uint64_t segment_bytes,
                           std::span<std::byte> target);

struct BatchDescription {
  const ValueShape& shape;
  uint64_t generation;
  uint64_t offset_bytes;
  std::span<const StoredValue> values;
  std::span<const uint64_t> checksums;  // [values][lanes][chunks of a lane]
};
// `target` has batch_header_bytes() zeros.
void encode_batch_header(const BatchDescription& batch, std::span<std::byte> target);

// The layout version of a segment file that begins with `bytes`, if it is an intact newer one.
std::optional<uint32_t> newer_version(std::span<const std::byte> bytes);

}  // namespace hifc::flash
