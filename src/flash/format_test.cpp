#include "flash/format.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "flash/segment.h"

namespace hifc::flash {
namespace {

// A batch header holds all that is needed to rebuild the index from flash.
TEST(FormatTest, BatchHeaderHoldsShapeKeysAndChecksums) {
  const ValueShape shape{.lanes = 2, .lane_bytes = 12288, .chunk_bytes = 8192};
  std::vector<StoredValue> values(3);
  for (size_t i = 0; i < values.size(); ++i) values[i].key.fill(static_cast<std::byte>(i + 1));
  std::vector<uint64_t> sums;
  for (uint64_t i = 0; i < 3 * 2 * 2; ++i) sums.push_back(100 + i);
  std::vector<std::byte> bytes(batch_header_bytes(shape, 3));
  ASSERT_EQ(bytes.size(), io::kAlignment);
  encode_batch_header({shape, 7, 4096, values, sums}, bytes);

  BatchHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ(std::memcmp(header.magic, "HIFCBAT\n", 8), 0);
  EXPECT_EQ(header.lanes, 2u);
  EXPECT_EQ(header.lane_bytes, 12288u);
  EXPECT_EQ(header.chunk_bytes, 8192u);
  EXPECT_EQ(header.values, 3u);
  EXPECT_EQ(header.generation, 7u);
  EXPECT_EQ(header.offset_bytes, 4096u);
  EXPECT_EQ(header.header_bytes, bytes.size());
  const std::byte* const keys = bytes.data() + sizeof(header);
  EXPECT_EQ(keys[2 * sizeof(Key)], std::byte{3});
  EXPECT_EQ(std::memcmp(keys + 3 * sizeof(Key), sums.data(), sums.size() * 8), 0);

  std::memset(bytes.data() + offsetof(BatchHeader, checksum), 0, sizeof(uint64_t));
  EXPECT_EQ(checksum(bytes), header.checksum);
}

TEST(FormatTest, BatchHeaderGrowsByWholePages) {
  const ValueShape shape{.lanes = 32, .lane_bytes = 4 << 20, .chunk_bytes = 64 << 10};
  EXPECT_EQ(batch_header_bytes(shape, 1), 5 * io::kAlignment);  // 64 + 32 + 32 * 64 * 8
}

// Stored checksums are part of the layout: they must never change.
TEST(FormatTest, ChecksumsKeepTheirValues) {
  std::vector<std::byte> bytes(4096);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  EXPECT_EQ(checksum(bytes), 10353854332864104805u);
  EXPECT_EQ(checksum({}), 0x2d06800538d394c2u);
}

TEST(FormatTest, OurOwnVersionIsNotNewer) {
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  EXPECT_FALSE(newer_version(bytes));
  EXPECT_FALSE(newer_version({}));
  encode_segment_header(3, 1 << 20, bytes);
  EXPECT_FALSE(newer_version(bytes));
}

}  // namespace
}  // namespace hifc::flash
