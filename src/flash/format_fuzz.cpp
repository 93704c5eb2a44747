// Feeds the decoders of the layout what no store would write.
//
// Strategy: an input is arbitrary bytes, or a structure as the store encodes it with some of its
// bytes replaced; then, half the time, its checksums are made right, without which hardly any input
// would get past them. All decoders see the result, since on a damaged disk anything can be
// anywhere.
//
// Invariants:
// - decoders neither fail a check of ours nor take more memory than a small multiple of the input;
// - what decodes encodes to the same bytes again, but for those that are reserved;
// - every offset and every length that follows from it lies inside the segment.
//
// With HIFC_FUZZ_CANARY one check of a decoder is missing, on purpose: a fuzzer that does not find
// that finds nothing.
#include <fuzzer/FuzzedDataProvider.h>
#include <sanitizer/allocator_interface.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "flash/format.h"

namespace hifc::flash {
namespace {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

constexpr uint64_t kNonce = 0x1234567890;
constexpr uint32_t kNumber = 7;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "invariant broken: %s\n", what);
  std::abort();
}

// ---- memory ----

uint64_t allocated_bytes = 0;

void count_allocation(const volatile void*, size_t bytes) {
  allocated_bytes += bytes;
}

// What `decode` gives, which must not have cost much more memory than its input.
template <typename Decode>
auto thriftily(View bytes, Decode decode) {
  const uint64_t before = allocated_bytes;
  auto result = decode();
  expect(allocated_bytes - before <= 4 * bytes.size() + 4096, "memory follows from the input");
  return result;
}

// ---- checksums ----

template <typename T>
T read_as(View bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <typename T>
void write_as(std::span<std::byte> bytes, const T& value) {
  std::memcpy(bytes.data(), &value, sizeof value);
}

void seal(std::span<std::byte> bytes, size_t field, uint64_t nonce) {
  const View view = bytes;
  const uint64_t sum =
      checksum(view.subspan(field + sizeof(uint64_t)), checksum(view.first(field), nonce));
  write_as(bytes.subspan(field), sum);
}

void seal_segment_header(std::span<std::byte> bytes) {
  auto tag = read_as<LayoutTag>(bytes);
  tag.checksum = static_cast<uint32_t>(
      checksum(std::as_bytes(std::span(&tag, 1)).first(offsetof(LayoutTag, checksum))));
  write_as(bytes, tag);
  seal(bytes, offsetof(SegmentHeader, checksum), 0);
}

size_t trailer_offset(View bytes) {
  return bytes.size() - sizeof(CheckpointTrailer);
}

enum class Structure : uint8_t { kSegmentHeader, kBatchHeader, kCheckpoint };

// As many of the bytes as the structure says it has.
void seal(std::span<std::byte> bytes, Structure structure) {
  switch (structure) {
    case Structure::kSegmentHeader: return seal_segment_header(bytes.first(kSegmentHeaderBytes));
    case Structure::kBatchHeader: {
      const uint64_t said = read_as<BatchHeader>(bytes).header_bytes;
      const uint64_t length = said < sizeof(BatchHeader) ? bytes.size() : said;
      return seal(bytes.first(std::min<uint64_t>(length, bytes.size())),
                  offsetof(BatchHeader, checksum), kNonce);
    }
    case Structure::kCheckpoint:
      return seal(bytes, trailer_offset(bytes) + offsetof(CheckpointTrailer, checksum), kNonce);
  }
}

// ---- inputs ----

struct Input {
  Structure structure = {};
  SegmentContext segment;
  uint64_t offset_bytes = 0;  // of a batch header
  Bytes bytes;                // whole pages, at least one
};

Bytes segment_header(FuzzedDataProvider& data) {
  Bytes bytes(kSegmentHeaderBytes);
  encode_segment_header({.number = data.ConsumeIntegral<uint8_t>(),
                         .segment_bytes = data.ConsumeIntegral<uint8_t>() * kPageBytes,
                         .nonce = kNonce,
                         .overwrites = data.ConsumeIntegral<uint8_t>(),
                         .checksum = 0},
                        bytes);
  return bytes;
}

BatchContents batch(FuzzedDataProvider& data) {
  BatchContents contents;
  contents.shape = {.lanes = data.ConsumeIntegralInRange<uint32_t>(1, 4),
                    .chunk_bytes = data.ConsumeIntegralInRange<uint32_t>(1, 4) * 4096};
  contents.values.resize(data.ConsumeIntegralInRange<size_t>(0, 5));
  for (ValueRecord& value : contents.values) value.size_bytes = kPageBytes;
  contents.lane_pages.resize(contents.values.size() * contents.shape.lanes);
  for (uint32_t& pages : contents.lane_pages) pages = data.ConsumeIntegralInRange<uint32_t>(1, 3);
  contents.removals.resize(data.ConsumeIntegralInRange<size_t>(0, 3));
  contents.lay_out();
  contents.checksums.resize(contents.checksum_count());
  return contents;
}

Bytes batch_header(FuzzedDataProvider& data, const Input& input) {
  const BatchContents contents = batch(data);
  Bytes bytes(contents.header_bytes);
  encode_batch_header(contents, input.segment, input.offset_bytes, bytes);
  bytes.resize(bytes.size() + kPageBytes);  // where an edited length may lead
  return bytes;
}

Bytes checkpoint(FuzzedDataProvider& data, const Input& input) {
  Checkpoint checkpoint{.covered_bytes = 2 * kPageBytes, .sealed = data.ConsumeBool()};
  append_entries(batch(data), 1, checkpoint.entries);
  Bytes bytes(checkpoint_bytes(checkpoint.entries.size()));
  encode_checkpoint(checkpoint, input.segment, bytes);
  return bytes;
}

Bytes encoded(FuzzedDataProvider& data, const Input& input) {
  switch (input.structure) {
    case Structure::kSegmentHeader: return segment_header(data);
    case Structure::kBatchHeader: return batch_header(data, input);
    case Structure::kCheckpoint: return checkpoint(data, input);
  }
  return {};
}

// Where the structure's fields are, so that few edits are wasted on padding.
size_t fields_begin(const Input& input) {
  return input.structure == Structure::kCheckpoint ? trailer_offset(input.bytes) : 0;
}

void edit(FuzzedDataProvider& data, Input& input) {
  for (size_t left = data.ConsumeIntegralInRange<size_t>(0, 6); left > 0; --left) {
    const size_t begin = data.ConsumeBool() ? fields_begin(input) : 0;
    const size_t room = input.bytes.size() - begin;
    const size_t at =
        begin + data.ConsumeIntegralInRange<size_t>(0, std::min<size_t>(room, 512) - 1);
    const auto bytes = data.ConsumeBytes<std::byte>(data.ConsumeIntegralInRange<size_t>(1, 8));
    std::ranges::copy(View(bytes).first(std::min(bytes.size(), input.bytes.size() - at)),
                      input.bytes.begin() + at);
  }
}

// Zero-padded to whole pages where the structure does not have its fields.
Bytes arbitrary(FuzzedDataProvider& data, Structure structure) {
  const Bytes drawn = data.ConsumeRemainingBytes<std::byte>();
  Bytes bytes(std::max<uint64_t>(kPageBytes, round_to_pages(drawn.size())));
  const size_t begin = structure == Structure::kCheckpoint ? bytes.size() - drawn.size() : 0;
  std::ranges::copy(drawn, bytes.begin() + begin);
  return bytes;
}

Input input_from(FuzzedDataProvider& data) {
  Input input;
  input.structure = data.PickValueInArray(
      {Structure::kSegmentHeader, Structure::kBatchHeader, Structure::kCheckpoint});
  // Sizes of segments from the smallest to what no file has.
  const uint64_t pages = uint64_t{1} << data.ConsumeIntegralInRange<uint32_t>(1, 51);
  input.segment = {.number = kNumber, .nonce = kNonce, .size_bytes = pages * kPageBytes};
  input.offset_bytes = data.ConsumeIntegralInRange<uint64_t>(0, pages) * kPageBytes;
  const bool right = data.ConsumeBool();
  if (data.ConsumeBool()) {
    // Often too small for the batch.
    input.segment.size_bytes = data.ConsumeIntegralInRange<uint64_t>(4, 36) * kPageBytes;
    input.offset_bytes = 2 * kPageBytes;
    input.bytes = encoded(data, input);
    edit(data, input);
  } else {
    input.bytes = arbitrary(data, input.structure);
  }
  if (right) seal(input.bytes, input.structure);
  return input;
}

// ---- invariants ----

void check_segment_header(const Input& input) {
  const View page = View(input.bytes).first(kSegmentHeaderBytes);
  const auto header = thriftily(page, [&] { return decode_segment_header(page); });
  if (!header) return;
  expect(looks_like_segment(page), "what decodes looks like a segment");
  expect(header->number > 0 && header->number <= UINT32_MAX, "segments have a 32-bit number");
  expect(header->segment_bytes >= 2 * kPageBytes, "a segment has room for its header");
  expect(header->segment_bytes % kPageBytes == 0, "a segment consists of pages");
  Bytes expected(page.begin(), page.end());
  std::ranges::fill(std::span(expected).subspan(sizeof(SegmentHeader)), std::byte{0});  // reserved
  seal_segment_header(expected);
  Bytes again(kSegmentHeaderBytes);
  encode_segment_header(*header, again);
  expect(again == expected, "a segment header encodes to the same bytes");
}

// Lanes lie one after the other, from the header's end to the batch's.
void check_lanes(const BatchContents& contents) {
  uint64_t position = contents.header_bytes;
  for (uint32_t lane = 0; lane < contents.shape.lanes && !contents.values.empty(); ++lane) {
    for (size_t value = 0; value < contents.values.size(); ++value) {
      expect(contents.lane_offset_bytes(lane, value) == position, "lanes follow each other");
      const uint64_t bytes = contents.lane_bytes(lane, value);
      expect(bytes > 0, "no lane is empty");
      position += bytes;
      const auto sums = contents.lane_checksums(lane, value);  // checks its bounds
      expect(sums.size() == chunks_of(bytes, contents.shape.chunk_bytes),
             "each chunk has a checksum");
    }
  }
  expect(position == contents.size_bytes(), "lanes fill the batch");
  for (size_t value = 0; value < contents.values.size(); ++value)
    expect(contents.values[value].size_bytes <= contents.value_bytes(value),
           "a value fits its lanes");
}

// The checksums of each lane follow those of the one before: [value][lane][chunk].
void check_checksums(const BatchContents& contents) {
  const uint64_t* position = contents.checksums.data();
  for (size_t value = 0; value < contents.values.size(); ++value)
    for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane) {
      const auto sums = contents.lane_checksums(lane, value);
      expect(sums.data() == position, "checksums follow each other");
      position += sums.size();
    }
  expect(position == contents.checksums.data() + contents.checksums.size(),
         "each checksum is a chunk's");
}

// Behind the last checksum.
size_t padding_begin(const BatchContents& contents) {
  return sizeof(BatchHeader) + contents.values.size() * sizeof(ValueRecord) +
         contents.removals.size() * sizeof(RemovalRecord) +
         contents.lane_pages.size() * sizeof(uint32_t) +
         contents.checksums.size() * sizeof(uint64_t);
}

void check_entries(const BatchContents& contents, const Input& input) {
  const auto page = static_cast<uint32_t>(input.offset_bytes / kPageBytes);
  std::vector<CheckpointEntry> entries;
  append_entries(contents, page, entries);
  expect(entries.size() == contents.values.size() + contents.removals.size(),
         "each record has an entry");
  for (const CheckpointEntry& entry : entries) {
    if (entry.removal != 0) continue;
    expect(entry.header_pages > 0, "an entry says how much of its batch to read");
    expect(entry.value < contents.values.size(), "an entry is of a value of its batch");
    expect(contents.values[entry.value].key == entry.key, "an entry has its value's key");
  }
}

void check_batch_header(const Input& input) {
  const View page = View(input.bytes).first(kPageBytes);
  const auto length = batch_header_bytes(page, input.segment, input.offset_bytes);
  if (!length) return;
  expect(*length > 0 && *length % kPageBytes == 0, "a batch header consists of pages");
  expect(input.offset_bytes + *length <= input.segment.size_bytes, "a batch header fits");
  if (*length > input.bytes.size()) return;
  const View bytes = View(input.bytes).first(*length);
  const auto contents = thriftily(
      bytes, [&] { return decode_batch_header(bytes, input.segment, input.offset_bytes); });
  if (!contents) return;
  expect(looks_like_batch(page), "what decodes looks like a batch");
  expect(contents->size_bytes() <= input.segment.size_bytes - input.offset_bytes, "a batch fits");
  check_lanes(*contents);
  check_checksums(*contents);
  check_entries(*contents, input);
  Bytes expected(bytes.begin(), bytes.end());
  write_as(std::span(expected).subspan(offsetof(BatchHeader, reserved)), uint32_t{0});
  std::ranges::fill(std::span(expected).subspan(padding_begin(*contents)), std::byte{0});
  seal(expected, Structure::kBatchHeader);
  Bytes again(*length);
  encode_batch_header(*contents, input.segment, input.offset_bytes, again);
  expect(again == expected, "a batch header encodes to the same bytes");
}

Result<Checkpoint> decode(View bytes, const SegmentContext& segment) {
  auto checkpoint = decode_checkpoint(bytes, segment);
#ifdef HIFC_FUZZ_CANARY
  // As if the decoder did not look where the batches of the entries are.
  if (!checkpoint && checkpoint.error().context == "an entry of the checkpoint makes no sense") {
    const auto trailer = read_as<CheckpointTrailer>(bytes.subspan(trailer_offset(bytes)));
    checkpoint = Checkpoint{.covered_bytes = trailer.covered_bytes};
    checkpoint->entries.resize(trailer.entries);
    std::memcpy(checkpoint->entries.data(), bytes.data(),
                trailer.entries * sizeof checkpoint->entries[0]);
  }
#endif
  return checkpoint;
}

void check_checkpoint(const Input& input) {
  const auto length = checkpoint_bytes(View(input.bytes).last(kPageBytes), input.segment);
  if (!length) return;
  expect(*length > 0 && *length % kPageBytes == 0, "a checkpoint consists of pages");
  expect(*length <= input.segment.size_bytes - kSegmentHeaderBytes, "a checkpoint fits");
  if (*length > input.bytes.size()) return;
  const View bytes = View(input.bytes).last(*length);
  const auto checkpoint = thriftily(bytes, [&] { return decode(bytes, input.segment); });
  if (!checkpoint) return;
  expect(looks_like_checkpoint(bytes.last(kPageBytes)), "what decodes looks like a checkpoint");
  expect(checkpoint->covered_bytes <= input.segment.size_bytes - *length,
         "a checkpoint covers nothing of itself");
  for (const CheckpointEntry& entry : checkpoint->entries) {
    expect(entry.batch_page * kPageBytes < checkpoint->covered_bytes,
           "a checkpoint covers its entries");
    expect(entry.removal != 0 || location_of(entry, kNumber).segment == kNumber,
           "an entry's value is in its segment");
  }
  Bytes expected(bytes.begin(), bytes.end());
  const size_t at = trailer_offset(expected);
  auto trailer = read_as<CheckpointTrailer>(bytes.subspan(at));
  trailer.sealed = checkpoint->sealed ? 1 : 0;  // any other number means no
  trailer.reserved = 0;
  write_as(std::span(expected).subspan(at), trailer);
  const size_t entries_end = checkpoint->entries.size() * sizeof(CheckpointEntry);
  std::ranges::fill(std::span(expected).subspan(entries_end, at - entries_end), std::byte{0});
  seal(expected, Structure::kCheckpoint);
  Bytes again(*length);
  encode_checkpoint(*checkpoint, input.segment, again);
  expect(again == expected, "a checkpoint encodes to the same bytes");
}

}  // namespace
}  // namespace hifc::flash

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  __sanitizer_install_malloc_and_free_hooks(hifc::flash::count_allocation,
                                            [](const volatile void*) {});
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace hifc::flash;
  FuzzedDataProvider data(bytes, size);
  const Input input = input_from(data);
  check_segment_header(input);
  check_batch_header(input);
  check_checkpoint(input);
  return 0;
}
