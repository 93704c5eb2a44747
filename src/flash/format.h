// What the store writes to flash: layout version 3 (docs/flash-format.md).
//
//   segment file   | segment header | batch | batch | ...          | unused | checkpoint |
//   batch          | batch header | lane 0 of every value | lane 1 of every value | ...
//   batch header   | BatchHeader | values | removals | lane lengths [value][lane] |
//                  | checksums [value][lane][chunk] |
//   checkpoint     | entries | zeros | CheckpointTrailer |          ends with the file
//
// Integers are little-endian. Headers, lanes and checkpoints begin at multiples of io::kAlignment
// and are zero-padded up to one. Checksums of batch headers and checkpoints are seeded with the
// nonce of their segment, which is drawn anew each time a segment is written from its beginning:
// what an earlier use of the file left behind is never taken for part of this one.
//
// Decoders take arbitrary bytes: what does not hold together is kCorrupt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "flash/index.h"
#include "flash/store.h"

namespace hifc::flash {

inline constexpr uint32_t kLayoutVersion = 3;
inline constexpr uint64_t kPageBytes = io::kAlignment;
inline constexpr uint64_t kSegmentHeaderBytes = kPageBytes;
inline constexpr uint32_t kLanesMax = 1u << 16;
inline constexpr uint32_t kSegmentNumberMax = UINT32_MAX / 2;  // leaves room to count on
inline constexpr uint32_t kValuesMax = (1u << 16) - 1;         // of one batch

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
  uint64_t number;         // logical: counts up, each number is used once
  uint64_t segment_bytes;  // size of the file
  uint64_t nonce;
  uint64_t overwrites;  // how often the file was written from its beginning before
  uint64_t checksum;    // of the header's kSegmentHeaderBytes, without this field
};
static_assert(sizeof(SegmentHeader) == 56);
static_assert(offsetof(SegmentHeader, number) == 16);
static_assert(offsetof(SegmentHeader, checksum) == 48);

struct BatchHeader {
  char magic[8];  // "HIFCBAT\n"
  uint32_t segment;
  uint32_t lanes;
  uint32_t chunk_bytes;
  uint32_t values;
  uint32_t removals;
  uint32_t reserved;
  uint64_t offset_bytes;   // of this header in the segment file: tells a misdirected write
  uint64_t header_bytes;   // with records, lengths, checksums and padding
  uint64_t payload_bytes;  // of all lanes
  uint64_t checksum;       // of the header's header_bytes, without this field
};
static_assert(sizeof(BatchHeader) == 64);
static_assert(offsetof(BatchHeader, offset_bytes) == 32);
static_assert(offsetof(BatchHeader, payload_bytes) == 48);
static_assert(offsetof(BatchHeader, checksum) == 56);

struct ValueRecord {
  Key key;
  uint64_t size_bytes;  // of the bytes of its lanes, so many count
};
static_assert(sizeof(ValueRecord) == 40);
static_assert(offsetof(ValueRecord, size_bytes) == 32);

// The value that was found at this location under this key has been removed.
struct RemovalRecord {
  Key key;
  uint32_t segment;
  uint32_t batch_page;
  uint32_t value;
  uint32_t reserved;
};
static_assert(sizeof(RemovalRecord) == 48);

// One record of a batch, as a checkpoint repeats it.
struct CheckpointEntry {
  Key key;
  uint32_t batch_page;  // of the batch that has the record
  uint16_t value;       // its index there
  uint8_t header_pages;
  uint8_t removal;           // 1: what follows is the location that a removal names
  uint32_t removed_segment;  // 0 for values, as the next
  uint32_t removed_place;    // batch_page of a removed value; its index is in `value`
};
static_assert(sizeof(CheckpointEntry) == 48);
static_assert(offsetof(CheckpointEntry, value) == 36);

struct CheckpointTrailer {
  char magic[8];  // "HIFCEND\n"
  uint64_t segment;
  uint64_t covered_bytes;  // the entries are all records of batches before this offset
  uint64_t begin_bytes;    // offset of the checkpoint in the file
  uint64_t entries;
  uint64_t sealed;  // 1: no batch follows
  uint64_t reserved;
  uint64_t checksum;  // from begin_bytes to the end of the file, without this field
};
static_assert(sizeof(CheckpointTrailer) == 64);
static_assert(offsetof(CheckpointTrailer, checksum) == 56);

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);  // XXH3, 64 bits

constexpr uint64_t pages_of(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}
constexpr uint64_t round_to_pages(uint64_t bytes) {
  return pages_of(bytes) * kPageBytes;
}
constexpr uint64_t chunks_of(uint64_t lane_bytes, uint32_t chunk_bytes) {
  return (lane_bytes + chunk_bytes - 1) / chunk_bytes;
}
// Chunk `index` of a lane.
std::span<const std::byte> chunk(std::span<const std::byte> lane, size_t index,
                                 uint32_t chunk_bytes);

// A structure as it stands at the beginning of `bytes`.
template <typename Record>
Record read_as(std::span<const std::byte> bytes) {
  HIFC_CHECK(bytes.size() >= sizeof(Record));
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

// ---- segment header ----

// `target` has kSegmentHeaderBytes zeros. Fills in the tag and the checksum.
void encode_segment_header(SegmentHeader header, std::span<std::byte> target);
// kUnsupported for an intact tag of a newer version, else kCorrupt.
Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes);
// Zeros: a file that was created, and nothing else.
bool is_unwritten(std::span<const std::byte> bytes);
// Whether these are the first bytes of a segment file, damaged or not: its magic, or zeros.
bool looks_like_segment(std::span<const std::byte> bytes);
// An intact tag of an older layout version.
bool is_older_layout(std::span<const std::byte> bytes);

// ---- batch ----

// Where and in which segment a batch or a checkpoint stands.
struct SegmentContext {
  uint32_t number = 0;
  uint64_t nonce = 0;
  uint64_t size_bytes = 0;
};

// Where a lane and its checksums begin: sums over what comes before them, so that finding a lane
// costs the same in a batch of any size.
struct LanePlace {
  uint64_t payload_page = 0;    // from the end of the batch header
  uint64_t first_checksum = 0;  // in BatchContents::checksums
};

// What a batch header says. Also how the store keeps a batch in memory (batch.h).
struct BatchContents {
  BatchShape shape;
  uint64_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  std::vector<ValueRecord> values;
  std::vector<RemovalRecord> removals;
  std::vector<uint32_t> lane_pages;  // [value][lane]
  std::vector<uint64_t> checksums;   // [value][lane][chunk]
  std::vector<LanePlace> places;     // [value][lane]

  uint64_t size_bytes() const { return header_bytes + payload_bytes; }
  size_t lane_index(uint32_t lane, size_t value) const { return value * shape.lanes + lane; }
  uint64_t lane_bytes(uint32_t lane, size_t value) const {
    return lane_pages[lane_index(lane, value)] * kPageBytes;
  }
  uint64_t value_bytes(size_t value) const;  // of all its lanes
  // Where a lane begins, from the beginning of the batch header.
  uint64_t lane_offset_bytes(uint32_t lane, size_t value) const {
    return header_bytes + places[lane_index(lane, value)].payload_page * kPageBytes;
  }
  std::span<const uint64_t> lane_checksums(uint32_t lane, size_t value) const {
    return std::span(checksums).subspan(places[lane_index(lane, value)].first_checksum,
                                        chunks_of(lane_bytes(lane, value), shape.chunk_bytes));
  }
  // How many there are, once the batch is laid out.
  uint64_t checksum_count() const;
  // Sets header_bytes, payload_bytes and places from shape, lengths and the numbers of records.
  void lay_out();
};

// `target` has header_bytes zeros.
void encode_batch_header(const BatchContents& contents, const SegmentContext& segment,
                         uint64_t offset_bytes, std::span<std::byte> target);
// The length of the batch header that begins with this page, if it looks like one.
std::optional<uint64_t> batch_header_bytes(std::span<const std::byte> page,
                                           const SegmentContext& segment, uint64_t offset_bytes);
// `bytes`: as many as batch_header_bytes() said.
Result<BatchContents> decode_batch_header(std::span<const std::byte> bytes,
                                          const SegmentContext& segment, uint64_t offset_bytes);

// ---- checkpoint ----

struct Checkpoint {
  uint64_t covered_bytes = 0;
  bool sealed = false;
  std::vector<CheckpointEntry> entries;  // in the order of the log
};

uint64_t checkpoint_bytes(uint64_t entries);  // multiple of kPageBytes
// `target` has checkpoint_bytes() zeros.
void encode_checkpoint(const Checkpoint& checkpoint, const SegmentContext& segment,
                       std::span<std::byte> target);
// The length of the checkpoint that ends with this page, the last of the segment file, if it looks
// like one.
std::optional<uint64_t> checkpoint_bytes(std::span<const std::byte> last_page,
                                         const SegmentContext& segment);
// Whether these are the first page of a batch, and the last one of a segment file, whichever.
bool looks_like_batch(std::span<const std::byte> page);
bool looks_like_checkpoint(std::span<const std::byte> last_page);
Result<Checkpoint> decode_checkpoint(std::span<const std::byte> bytes,
                                     const SegmentContext& segment);

// The entries that stand for the records of a batch at `batch_page`.
void append_entries(const BatchContents& batch, uint32_t batch_page,
                    std::vector<CheckpointEntry>& entries);
// The location that an entry of segment `number` stands for: of the value, or of the removed one.
Location location_of(const CheckpointEntry& entry, uint32_t number);

}  // namespace hifc::flash
