#include "flash/format.h"

#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the same functions, by the processor's widest vectors
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace hifc::flash {
namespace {

static_assert(std::endian::native == std::endian::little, "the layout is little-endian");

constexpr char kSegmentMagic[8] = {'H', 'I', 'F', 'C', 'S', 'E', 'G', '\n'};
constexpr char kBatchMagic[8] = {'H', 'I', 'F', 'C', 'B', 'A', 'T', '\n'};
constexpr char kCheckpointMagic[8] = {'H', 'I', 'F', 'C', 'E', 'N', 'D', '\n'};

std::unexpected<Error> corrupt(std::string_view what) {
  return failure(Code::kCorrupt, std::string(what));
}

template <size_t n>
bool has_magic(const char (&field)[n], const char (&magic)[n]) {
  return std::memcmp(field, magic, n) == 0;
}

uint32_t tag_checksum(const LayoutTag& tag) {
  const auto bytes = std::as_bytes(std::span(&tag, 1)).first(offsetof(LayoutTag, checksum));
  return static_cast<uint32_t>(checksum(bytes));
}

// The checksum of what stands before and after the eight bytes at `field`, which are its own place.
uint64_t checksum_around(std::span<const std::byte> bytes, size_t field, uint64_t seed) {
  return checksum(bytes.subspan(field + sizeof(uint64_t)), checksum(bytes.first(field), seed));
}

void seal(std::span<std::byte> target, size_t field, uint64_t seed) {
  const uint64_t sum = checksum_around(target, field, seed);
  std::memcpy(target.data() + field, &sum, sizeof sum);
}

bool sealed_right(std::span<const std::byte> bytes, size_t field, uint64_t seed) {
  return checksum_around(bytes, field, seed) == read_as<uint64_t>(bytes.subspan(field));
}

template <typename T>
std::byte* put(std::byte* position, const std::vector<T>& items) {
  if (!items.empty()) std::memcpy(position, items.data(), items.size() * sizeof(T));
  return position + items.size() * sizeof(T);
}

template <typename T>
std::vector<T> take(std::span<const std::byte>& bytes, uint64_t count) {
  std::vector<T> items(count);
  if (count > 0) std::memcpy(items.data(), bytes.data(), count * sizeof(T));
  bytes = bytes.subspan(count * sizeof(T));
  return items;
}

// Of a batch header, without its checksums.
uint64_t records_bytes(uint64_t values, uint64_t removals, uint64_t lanes) {
  return sizeof(BatchHeader) + values * sizeof(ValueRecord) + removals * sizeof(RemovalRecord) +
         values * lanes * sizeof(uint32_t);
}

// The bounds under which no sum or product below can overflow, nor a count ask for much memory.
bool plausible(const BatchHeader& header, const SegmentContext& segment, uint64_t offset_bytes) {
  const uint64_t room = segment.size_bytes - std::min(segment.size_bytes, offset_bytes);
  return has_magic(header.magic, kBatchMagic) && header.segment == segment.number &&
         header.offset_bytes == offset_bytes && header.lanes > 0 && header.lanes <= kLanesMax &&
         header.chunk_bytes > 0 && header.chunk_bytes % kPageBytes == 0 &&
         header.values <= kValuesMax && header.removals <= kValuesMax &&
         header.header_bytes % kPageBytes == 0 && header.header_bytes <= room &&
         header.header_bytes >= records_bytes(header.values, header.removals, header.lanes) &&
         header.payload_bytes % kPageBytes == 0 &&
         header.payload_bytes <= room - header.header_bytes;
}

// No lane is empty, all of them fill the payload, and every value's size fits its lanes. A value
// has at most kLanesMax lanes, each shorter than 2^44 bytes: their sum does not overflow.
Result<void> check_values(const BatchContents& contents) {
  uint64_t bytes_left = contents.payload_bytes;
  for (size_t value = 0; value < contents.values.size(); ++value) {
    for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane)
      if (contents.lane_bytes(lane, value) == 0) return corrupt("a lane of a batch is empty");
    const uint64_t bytes = contents.value_bytes(value);
    if (bytes > bytes_left) return corrupt("the lanes of a batch are longer than it");
    bytes_left -= bytes;
    if (contents.values[value].size_bytes > bytes)
      return corrupt("a value of a batch is larger than its lanes");
  }
  if (bytes_left > 0) return corrupt("the lanes of a batch do not fill it");
  for (const RemovalRecord& removal : contents.removals)
    if (removal.value > kValuesMax) return corrupt("a removal of a batch names no value");
  return {};
}

}  // namespace

size_t KeyHash::operator()(const Key& key) const noexcept {
  return checksum(key);
}

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::span<const std::byte> chunk(std::span<const std::byte> lane, size_t index,
                                 uint32_t chunk_bytes) {
  const size_t begin = index * chunk_bytes;
  return lane.subspan(begin, std::min<size_t>(chunk_bytes, lane.size() - begin));
}

// ---- segment header ----

void encode_segment_header(SegmentHeader header, std::span<std::byte> target) {
  HIFC_CHECK(target.size() == kSegmentHeaderBytes);
  std::memcpy(header.tag.magic, kSegmentMagic, sizeof kSegmentMagic);
  header.tag.version = kLayoutVersion;
  header.tag.checksum = tag_checksum(header.tag);
  header.checksum = 0;
  std::memcpy(target.data(), &header, sizeof header);
  seal(target, offsetof(SegmentHeader, checksum), 0);
}

Result<SegmentHeader> decode_segment_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(LayoutTag)) return corrupt("the file is shorter than a header");
  const auto tag = read_as<LayoutTag>(bytes);
  if (!has_magic(tag.magic, kSegmentMagic) || tag.checksum != tag_checksum(tag))
    return corrupt("the layout tag is damaged");
  if (tag.version > kLayoutVersion)
    return failure(Code::kUnsupported, "layout version " + std::to_string(tag.version) +
                                           ", this one knows up to " +
                                           std::to_string(kLayoutVersion));
  if (tag.version < kLayoutVersion) return corrupt("the layout version is an older one");
  if (bytes.size() < kSegmentHeaderBytes) return corrupt("the file is shorter than a header");
  const auto header = read_as<SegmentHeader>(bytes);
  if (!sealed_right(bytes.first(kSegmentHeaderBytes), offsetof(SegmentHeader, checksum), 0))
    return corrupt("the header is damaged");
  if (header.number == 0 || header.number > kSegmentNumberMax ||
      header.segment_bytes % kPageBytes != 0 || header.segment_bytes < 2 * kPageBytes)
    return corrupt("the header makes no sense");
  return header;
}

bool is_older_layout(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(LayoutTag)) return false;
  const auto tag = read_as<LayoutTag>(bytes);
  return has_magic(tag.magic, kSegmentMagic) && tag.checksum == tag_checksum(tag) &&
         tag.version < kLayoutVersion;
}

bool is_unwritten(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

bool looks_like_segment(std::span<const std::byte> bytes) {
  return is_unwritten(bytes) ||
         (bytes.size() >= sizeof kSegmentMagic &&
          std::memcmp(bytes.data(), kSegmentMagic, sizeof kSegmentMagic) == 0);
}

// ---- batch ----

uint64_t BatchContents::value_bytes(size_t value) const {
  uint64_t bytes = 0;
  for (uint32_t lane = 0; lane < shape.lanes; ++lane) bytes += lane_bytes(lane, value);
  return bytes;
}

uint64_t BatchContents::checksum_count() const {
  if (places.empty()) return 0;
  const uint64_t last_bytes = lane_pages.back() * kPageBytes;
  return places.back().first_checksum + chunks_of(last_bytes, shape.chunk_bytes);
}

void BatchContents::lay_out() {
  HIFC_CHECK(lane_pages.size() == values.size() * shape.lanes);
  places.resize(lane_pages.size());
  uint64_t sums = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    places[i].first_checksum = sums;
    sums += chunks_of(lane_pages[i] * kPageBytes, shape.chunk_bytes);
  }
  uint64_t page = 0;
  for (uint32_t lane = 0; lane < shape.lanes; ++lane)
    for (size_t value = 0; value < values.size(); ++value) {
      const size_t i = lane_index(lane, value);
      places[i].payload_page = page;
      page += lane_pages[i];
    }
  payload_bytes = page * kPageBytes;
  header_bytes = round_to_pages(records_bytes(values.size(), removals.size(), shape.lanes) +
                                sums * sizeof(uint64_t));
}

void encode_batch_header(const BatchContents& contents, const SegmentContext& segment,
                         uint64_t offset_bytes, std::span<std::byte> target) {
  HIFC_CHECK(target.size() == contents.header_bytes);
  HIFC_CHECK(contents.checksums.size() == contents.checksum_count());
  BatchHeader header = {};
  std::memcpy(header.magic, kBatchMagic, sizeof kBatchMagic);
  header.segment = segment.number;
  header.lanes = contents.shape.lanes;
  header.chunk_bytes = contents.shape.chunk_bytes;
  header.values = static_cast<uint32_t>(contents.values.size());
  header.removals = static_cast<uint32_t>(contents.removals.size());
  header.offset_bytes = offset_bytes;
  header.header_bytes = contents.header_bytes;
  header.payload_bytes = contents.payload_bytes;
  std::memcpy(target.data(), &header, sizeof header);
  std::byte* position = put(target.data() + sizeof header, contents.values);
  position = put(position, contents.removals);
  position = put(position, contents.lane_pages);
  position = put(position, contents.checksums);
  HIFC_CHECK(position <= target.data() + target.size());
  seal(target, offsetof(BatchHeader, checksum), segment.nonce);
}

std::optional<uint64_t> batch_header_bytes(std::span<const std::byte> page,
                                           const SegmentContext& segment, uint64_t offset_bytes) {
  if (page.size() < sizeof(BatchHeader)) return std::nullopt;
  const auto header = read_as<BatchHeader>(page);
  if (!plausible(header, segment, offset_bytes)) return std::nullopt;
  return header.header_bytes;
}

Result<BatchContents> decode_batch_header(std::span<const std::byte> bytes,
                                          const SegmentContext& segment, uint64_t offset_bytes) {
  const auto header_bytes = batch_header_bytes(bytes, segment, offset_bytes);
  if (!header_bytes || *header_bytes != bytes.size()) return corrupt("this is no batch header");
  if (!sealed_right(bytes, offsetof(BatchHeader, checksum), segment.nonce))
    return corrupt("the batch header is damaged");
  const auto header = read_as<BatchHeader>(bytes);
  BatchContents contents;
  contents.shape = {.lanes = header.lanes, .chunk_bytes = header.chunk_bytes};
  auto rest = bytes.subspan(sizeof header);
  contents.values = take<ValueRecord>(rest, header.values);
  contents.removals = take<RemovalRecord>(rest, header.removals);
  contents.lane_pages = take<uint32_t>(rest, uint64_t{header.values} * header.lanes);
  contents.payload_bytes = header.payload_bytes;
  HIFC_TRY(check_values(contents));
  contents.lay_out();
  if (contents.header_bytes != header.header_bytes)
    return corrupt("the batch header does not have the length of its records");
  contents.checksums = take<uint64_t>(rest, contents.checksum_count());
  return contents;
}

// ---- checkpoint ----

uint64_t checkpoint_bytes(uint64_t entries) {
  return round_to_pages(entries * sizeof(CheckpointEntry) + sizeof(CheckpointTrailer));
}

void encode_checkpoint(const Checkpoint& checkpoint, const SegmentContext& segment,
                       std::span<std::byte> target) {
  HIFC_CHECK(target.size() == checkpoint_bytes(checkpoint.entries.size()));
  HIFC_CHECK(target.size() <= segment.size_bytes);
  put(target.data(), checkpoint.entries);
  CheckpointTrailer trailer = {};
  std::memcpy(trailer.magic, kCheckpointMagic, sizeof kCheckpointMagic);
  trailer.segment = segment.number;
  trailer.covered_bytes = checkpoint.covered_bytes;
  trailer.begin_bytes = segment.size_bytes - target.size();
  trailer.entries = checkpoint.entries.size();
  trailer.sealed = checkpoint.sealed ? 1 : 0;
  const size_t at = target.size() - sizeof trailer;
  std::memcpy(target.data() + at, &trailer, sizeof trailer);
  seal(target, at + offsetof(CheckpointTrailer, checksum), segment.nonce);
}

std::optional<uint64_t> checkpoint_bytes(std::span<const std::byte> last_page,
                                         const SegmentContext& segment) {
  if (last_page.size() < sizeof(CheckpointTrailer)) return std::nullopt;
  const auto trailer = read_as<CheckpointTrailer>(last_page.last(sizeof(CheckpointTrailer)));
  if (!has_magic(trailer.magic, kCheckpointMagic) || trailer.segment != segment.number)
    return std::nullopt;
  if (trailer.begin_bytes < kSegmentHeaderBytes || trailer.begin_bytes >= segment.size_bytes)
    return std::nullopt;
  const uint64_t bytes = segment.size_bytes - trailer.begin_bytes;
  if (trailer.entries > bytes / sizeof(CheckpointEntry)) return std::nullopt;
  if (bytes != checkpoint_bytes(trailer.entries)) return std::nullopt;
  return bytes;
}

bool looks_like_batch(std::span<const std::byte> page) {
  return page.size() >= sizeof(BatchHeader) &&
         has_magic(read_as<BatchHeader>(page).magic, kBatchMagic);
}

bool looks_like_checkpoint(std::span<const std::byte> last_page) {
  if (last_page.size() < sizeof(CheckpointTrailer)) return false;
  const auto trailer = read_as<CheckpointTrailer>(last_page.last(sizeof(CheckpointTrailer)));
  return has_magic(trailer.magic, kCheckpointMagic);
}

Result<Checkpoint> decode_checkpoint(std::span<const std::byte> bytes,
                                     const SegmentContext& segment) {
  const auto length = checkpoint_bytes(bytes, segment);
  if (!length || *length != bytes.size()) return corrupt("this is no checkpoint");
  const size_t at = bytes.size() - sizeof(CheckpointTrailer);
  if (!sealed_right(bytes, at + offsetof(CheckpointTrailer, checksum), segment.nonce))
    return corrupt("the checkpoint is damaged");
  const auto trailer = read_as<CheckpointTrailer>(bytes.subspan(at));
  if (trailer.covered_bytes < kSegmentHeaderBytes || trailer.covered_bytes % kPageBytes != 0 ||
      trailer.covered_bytes > trailer.begin_bytes)
    return corrupt("the checkpoint covers what it cannot");
  Checkpoint checkpoint{.covered_bytes = trailer.covered_bytes, .sealed = trailer.sealed == 1};
  checkpoint.entries = take<CheckpointEntry>(bytes, trailer.entries);
  for (const CheckpointEntry& entry : checkpoint.entries)
    if (entry.removal > 1 || (entry.removal == 0 && entry.header_pages == 0) ||
        entry.batch_page * kPageBytes >= trailer.covered_bytes)
      return corrupt("an entry of the checkpoint makes no sense");
  return checkpoint;
}

void append_entries(const BatchContents& batch, uint32_t batch_page,
                    std::vector<CheckpointEntry>& entries) {
  // Removals first: what a batch puts is newer than what it removes.
  for (const RemovalRecord& removal : batch.removals)
    entries.push_back({.key = removal.key,
                       .batch_page = batch_page,
                       .value = static_cast<uint16_t>(removal.value),
                       .header_pages = 0,
                       .removal = 1,
                       .removed_segment = removal.segment,
                       .removed_place = removal.batch_page});
  const auto header_pages =
      static_cast<uint8_t>(std::min<uint64_t>(255, batch.header_bytes / kPageBytes));
  for (size_t i = 0; i < batch.values.size(); ++i)
    entries.push_back({.key = batch.values[i].key,
                       .batch_page = batch_page,
                       .value = static_cast<uint16_t>(i),
                       .header_pages = header_pages,
                       .removal = 0,
                       .removed_segment = 0,
                       .removed_place = 0});
}

Location location_of(const CheckpointEntry& entry, uint32_t number) {
  const bool removal = entry.removal != 0;
  return {.segment = removal ? entry.removed_segment : number,
          .batch_page = removal ? entry.removed_place : entry.batch_page,
          .value = entry.value,
          .header_pages = entry.header_pages};
}

}  // namespace hifc::flash
