#include "flash/format.h"

#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same functions, by the processor's widest vectors
#endif

#include <bit>
#include <cstring>

#include "base/check.h"
#include "flash/segment.h"

namespace hifc::flash {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

constexpr char kSegmentMagic[8] = {'H', 'I', 'F', 'C', 'S', 'E', 'G', '\n'};
constexpr char kBatchMagic[8] = {'H', 'I', 'F', 'C', 'B', 'A', 'T', '\n'};

uint32_t tag_checksum(const LayoutTag& tag) {
  const auto bytes = std::as_bytes(std::span(&tag, 1)).first(offsetof(LayoutTag, checksum));
  return static_cast<uint32_t>(checksum(bytes));
}

// Puts the header at the front of `target` and then, in it, the checksum over all of `target`.
template <typename Header>
void seal(Header header, std::span<std::byte> target) {
  header.checksum = 0;
  std::memcpy(target.data(), &header, sizeof(header));
  header.checksum = checksum(target);
  std::memcpy(target.data(), &header, sizeof(header));
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t chunks_per_lane(const ValueShape& shape) {
  return (shape.lane_bytes + shape.chunk_bytes - 1) / shape.chunk_bytes;
}

uint64_t batch_header_bytes(const ValueShape& shape, uint64_t values) {
  const uint64_t checksums_bytes = shape.lanes * chunks_per_lane(shape) * sizeof(uint64_t);
  const uint64_t bytes = sizeof(BatchHeader) + values * (sizeof(Key) + checksums_bytes);
  return (bytes + io::kAlignment - 1) / io::kAlignment * io::kAlignment;
}

void encode_segment_header(uint64_t generation, uint64_t segment_bytes,
                           std::span<std::byte> target) {
  HIFC_CHECK(target.size() == kSegmentHeaderBytes);
  SegmentHeader header = {};
  std::memcpy(header.tag.magic, kSegmentMagic, sizeof(kSegmentMagic));
  header.tag.version = kLayoutVersion;
  header.tag.checksum = tag_checksum(header.tag);
  header.generation = generation;
  header.segment_bytes = segment_bytes;
  seal(header, target);
}

void encode_batch_header(const BatchDescription& batch, std::span<std::byte> target) {
  HIFC_CHECK(target.size() == batch_header_bytes(batch.shape, batch.values.size()));
  std::byte* position = target.data() + sizeof(BatchHeader);
  for (const StoredValue& value : batch.values) {
    std::memcpy(position, value.key.data(), sizeof(Key));
    position += sizeof(Key);
  }
  std::memcpy(position, batch.checksums.data(), batch.checksums.size_bytes());

  BatchHeader header = {};
  std::memcpy(header.magic, kBatchMagic, sizeof(kBatchMagic));
  header.lanes = batch.shape.lanes;
  header.chunk_bytes = batch.shape.chunk_bytes;
  header.lane_bytes = batch.shape.lane_bytes;
  header.values = batch.values.size();
  header.generation = batch.generation;
  header.offset_bytes = batch.offset_bytes;
  header.header_bytes = target.size();
  seal(header, target);
}

std::optional<uint32_t> newer_version(std::span<const std::byte> bytes) {
  LayoutTag tag = {};
  if (bytes.size() < sizeof(tag)) return std::nullopt;
  std::memcpy(&tag, bytes.data(), sizeof(tag));
  if (std::memcmp(tag.magic, kSegmentMagic, sizeof(kSegmentMagic)) != 0) return std::nullopt;
  if (tag.checksum != tag_checksum(tag) || tag.version <= kLayoutVersion) return std::nullopt;
  return tag.version;
}

}  // namespace hifc::flash
