#include "flash/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "flash/format_fixture.h"

namespace hifc::flash {
namespace {

constexpr SegmentContext kSegment{.number = 7, .nonce = 0x1234567890, .size_bytes = 1u << 20};

Key key_of(int id) {
  Key key = {};
  key.fill(static_cast<std::byte>(id));
  return key;
}

BatchContents example_batch() {
  BatchContents batch;
  batch.shape = {.lanes = 2, .chunk_bytes = 8192};
  for (int i = 1; i <= 3; ++i) batch.values.push_back({.key = key_of(i), .size_bytes = 1000u * i});
  batch.lane_pages = {1, 3, 2, 1, 4, 2};
  batch.removals.push_back(
      {.key = key_of(9), .segment = 5, .batch_page = 33, .value = 2, .reserved = 0});
  batch.lay_out();
  for (uint64_t i = 0; i < batch.checksum_count(); ++i) batch.checksums.push_back(100 + i);
  return batch;
}

std::vector<std::byte> encoded(const BatchContents& batch, uint64_t offset = 8192) {
  std::vector<std::byte> bytes(batch.header_bytes);
  encode_batch_header(batch, kSegment, offset, bytes);
  return bytes;
}

Checkpoint example_checkpoint() {
  Checkpoint checkpoint{.covered_bytes = 65536, .sealed = true, .entries = {}};
  append_entries(example_batch(), 2, checkpoint.entries);
  return checkpoint;
}

std::vector<std::byte> encoded(const Checkpoint& checkpoint) {
  std::vector<std::byte> bytes(checkpoint_bytes(checkpoint.entries.size()));
  encode_checkpoint(checkpoint, kSegment, bytes);
  return bytes;
}

// Lane 0 of the three values has 1, 2 and 4 pages, lane 1 has 3, 1 and 2.
TEST(Format, LaysOutLanesOneAfterTheOther) {
  const BatchContents batch = example_batch();
  EXPECT_EQ(batch.header_bytes, kPageBytes);
  EXPECT_EQ(batch.payload_bytes, 13 * kPageBytes);
  EXPECT_EQ(batch.size_bytes(), 14 * kPageBytes);
  EXPECT_EQ(batch.value_bytes(1), 3 * kPageBytes);
  const uint64_t begin_pages[2][3] = {{1, 2, 4}, {8, 11, 12}};
  for (uint32_t lane = 0; lane < 2; ++lane)
    for (size_t value = 0; value < 3; ++value)
      EXPECT_EQ(batch.lane_offset_bytes(lane, value), begin_pages[lane][value] * kPageBytes)
          << "lane " << lane << " of value " << value;
}

TEST(Format, EachLaneHasTheChecksumsOfItsOwnChunks) {
  const BatchContents batch = example_batch();
  EXPECT_EQ(batch.checksum_count(), 8u) << "chunks of two pages";
  const auto sums = [&](uint32_t lane, size_t value) {
    const auto found = batch.lane_checksums(lane, value);
    return std::vector<uint64_t>(found.begin(), found.end());
  };
  EXPECT_EQ(sums(0, 0), (std::vector<uint64_t>{100}));
  EXPECT_EQ(sums(1, 0), (std::vector<uint64_t>{101, 102}));
  EXPECT_EQ(sums(0, 1), (std::vector<uint64_t>{103}));
  EXPECT_EQ(sums(1, 1), (std::vector<uint64_t>{104}));
  EXPECT_EQ(sums(0, 2), (std::vector<uint64_t>{105, 106}));
  EXPECT_EQ(sums(1, 2), (std::vector<uint64_t>{107}));
}

TEST(Format, BatchHeadersComeBack) {
  const BatchContents batch = example_batch();
  const auto bytes = encoded(batch);
  EXPECT_EQ(batch_header_bytes(bytes, kSegment, 8192), bytes.size());
  const auto decoded = decode_batch_header(bytes, kSegment, 8192);
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(decoded->shape.lanes, 2u);
  EXPECT_EQ(decoded->shape.chunk_bytes, 8192u);
  EXPECT_EQ(decoded->size_bytes(), batch.size_bytes());
  EXPECT_EQ(decoded->lane_pages, batch.lane_pages);
  ASSERT_EQ(decoded->values.size(), 3u);
  EXPECT_EQ(decoded->values[2].key, key_of(3));
  EXPECT_EQ(decoded->values[2].size_bytes, 3000u);
  ASSERT_EQ(decoded->removals.size(), 1u);
  EXPECT_EQ(decoded->removals[0].batch_page, 33u);
  for (uint32_t lane = 0; lane < 2; ++lane)
    for (size_t value = 0; value < 3; ++value) {
      EXPECT_EQ(decoded->lane_offset_bytes(lane, value), batch.lane_offset_bytes(lane, value));
      EXPECT_TRUE(std::ranges::equal(decoded->lane_checksums(lane, value),
                                     batch.lane_checksums(lane, value)));
    }
}

// What a batch header with these lengths of lanes says is wrong with it, its checksum being right.
std::string problem_with_lengths(std::vector<uint32_t> lane_pages) {
  BatchContents batch = example_batch();
  batch.lane_pages = std::move(lane_pages);
  const auto decoded = decode_batch_header(encoded(batch), kSegment, 8192);
  return decoded ? "" : decoded.error().context;
}

TEST(Format, LengthsOfLanesThatDoNotHoldTogetherAreFound) {
  EXPECT_EQ(problem_with_lengths({1, 3, 2, 1, 4, 2}), "");
  EXPECT_EQ(problem_with_lengths({0, 4, 2, 1, 4, 2}), "a lane of a batch is empty");
  EXPECT_EQ(problem_with_lengths({1, 3, 2, 2, 4, 2}), "the lanes of a batch are longer than it");
  EXPECT_EQ(problem_with_lengths({1, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 2}),
            "the lanes of a batch are longer than it");
  EXPECT_EQ(problem_with_lengths({1, 3, 2, 1, 4, 1}), "the lanes of a batch do not fill it");
}

TEST(Format, AValueIsNoLargerThanItsLanes) {
  BatchContents batch = example_batch();
  batch.values[1].size_bytes = 3 * kPageBytes;
  EXPECT_TRUE(decode_batch_header(encoded(batch), kSegment, 8192));
  ++batch.values[1].size_bytes;
  EXPECT_EQ(decode_batch_header(encoded(batch), kSegment, 8192).error().context,
            "a value of a batch is larger than its lanes");
}

TEST(Format, ABatchIsOnlyOneWhereItWasWritten) {
  const auto bytes = encoded(example_batch());
  EXPECT_FALSE(decode_batch_header(bytes, kSegment, 12288)) << "misdirected";
  SegmentContext other = kSegment;
  other.number = 8;
  EXPECT_FALSE(decode_batch_header(bytes, other, 8192));
  other = kSegment;
  other.nonce ^= 1;
  EXPECT_FALSE(decode_batch_header(bytes, other, 8192)) << "left from an earlier use";
  other = kSegment;
  other.size_bytes = 8192 + 13 * kPageBytes;
  EXPECT_FALSE(decode_batch_header(bytes, other, 8192)) << "does not fit";
}

TEST(Format, CheckpointsComeBack) {
  const Checkpoint checkpoint = example_checkpoint();
  const auto bytes = encoded(checkpoint);
  EXPECT_EQ(checkpoint_bytes(std::span(bytes).last(kPageBytes), kSegment), bytes.size());
  const auto decoded = decode_checkpoint(bytes, kSegment);
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_TRUE(decoded->sealed);
  EXPECT_EQ(decoded->covered_bytes, 65536u);
  ASSERT_EQ(decoded->entries.size(), 4u);
  EXPECT_EQ(location_of(decoded->entries[0], 7),
            (Location{.segment = 5, .batch_page = 33, .value = 2, .header_pages = 0}))
      << "removals come before what the batch puts";
  EXPECT_EQ(location_of(decoded->entries[3], 7),
            (Location{.segment = 7, .batch_page = 2, .value = 2, .header_pages = 1}));
}

TEST(Format, SegmentHeadersComeBack) {
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  EXPECT_TRUE(looks_like_segment(bytes)) << "a file that was never written";
  encode_segment_header(
      {.number = 3, .segment_bytes = 1 << 20, .nonce = 99, .overwrites = 4, .checksum = 0}, bytes);
  const auto header = decode_segment_header(bytes);
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->number, 3u);
  EXPECT_EQ(header->nonce, 99u);
  EXPECT_EQ(header->overwrites, 4u);
  EXPECT_TRUE(looks_like_segment(bytes));
}

// Every bit counts: of headers, and of what is behind them.
template <typename Decode>
void expect_every_flip_is_found(std::vector<std::byte> bytes, Decode decode) {
  ASSERT_TRUE(decode(bytes).has_value());
  for (size_t i = 0; i < bytes.size(); i += i < 512 ? 1 : 61) {
    bytes[i] ^= std::byte{1} << (i % 8);
    const auto decoded = decode(bytes);
    ASSERT_FALSE(decoded) << i;
    ASSERT_EQ(decoded.error().code, Code::kCorrupt) << i;
    bytes[i] ^= std::byte{1} << (i % 8);
  }
}

TEST(Format, AFlippedBitIsFoundInEveryStructure) {
  expect_every_flip_is_found(encoded(example_batch()), [](const auto& bytes) {
    return decode_batch_header(bytes, kSegment, 8192);
  });
  expect_every_flip_is_found(encoded(example_checkpoint()),
                             [](const auto& bytes) { return decode_checkpoint(bytes, kSegment); });
  std::vector<std::byte> header(kSegmentHeaderBytes);
  encode_segment_header(
      {.number = 3, .segment_bytes = 1 << 20, .nonce = 99, .overwrites = 4, .checksum = 0}, header);
  expect_every_flip_is_found(header,
                             [](const auto& bytes) { return decode_segment_header(bytes); });
}

std::vector<std::byte> header_of_version(uint32_t version) {
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  encode_segment_header(
      {.number = 3, .segment_bytes = 1 << 20, .nonce = 99, .overwrites = 0, .checksum = 0}, bytes);
  set_layout_version(bytes, version);
  return bytes;
}

TEST(Format, AnIntactTagOfANewerVersionIsToldFromDamage) {
  auto bytes = header_of_version(kLayoutVersion + 1);
  EXPECT_EQ(decode_segment_header(bytes).error().code, Code::kUnsupported);
  bytes[offsetof(LayoutTag, checksum)] ^= std::byte{1};
  EXPECT_EQ(decode_segment_header(bytes).error().code, Code::kCorrupt);
}

TEST(Format, AnIntactTagOfAnOlderVersionIsToldFromDamage) {
  auto bytes = header_of_version(kLayoutVersion - 1);
  EXPECT_EQ(decode_segment_header(bytes).error().code, Code::kCorrupt);
  EXPECT_TRUE(is_older_layout(bytes));
  bytes[offsetof(LayoutTag, checksum)] ^= std::byte{1};
  EXPECT_FALSE(is_older_layout(bytes));
}

// Stored checksums are part of the layout: they must never change.
TEST(Format, ChecksumsKeepTheirValues) {
  std::vector<std::byte> bytes(4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  EXPECT_EQ(checksum(bytes), 10353854332864104805u);
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2u);
}

}  // namespace
}  // namespace hifc::flash
