// Values that others put: of several lanes, each of its own length.
#include "capi/value_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "flash/store_fixture.h"
#include "testing/sim_ring.h"

namespace hifc::capi {
namespace {

constexpr flash::ValueShape kUneven{
    .lanes = 5, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 200 << 10};

class ValueReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    h_.open(16u << 20);
    const flash::TestBatch batch(kUneven, {1, 2});
    ASSERT_TRUE(h_.put(batch));
    for (const auto lane : batch.values[1].lanes)
      value_.insert(value_.end(), lane.begin(), lane.end());
  }
  Result<ReadResult> read(ReadRequest& request) {
    ValueReader reader(*h_.store, 4);
    request.key = flash::key_of(2);
    bool done = false;
    reader.add(request, [&] { done = true; });
    reader.advance();
    while (!done) {
      h_.store->wait();
      reader.advance();
    }
    return request.result;
  }

  testing::SimRing ring_{{}};
  flash::StoreHarness h_{ring_};
  std::vector<std::byte> value_;
};

TEST_F(ValueReaderTest, ReadsLaneAfterLane) {
  std::vector<std::byte> got(value_.size());
  ReadRequest request{.target = got};
  const auto result = read(request);
  ASSERT_TRUE(result && result->found);
  EXPECT_EQ(result->value_bytes, value_.size());
  EXPECT_TRUE(got == value_);
}

TEST_F(ValueReaderTest, ReadsAnyRangeAcrossLanes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t begin = random() % value_.size();
    const uint64_t size = 1 + random() % (value_.size() - begin);
    std::vector<std::byte> got(size);
    ReadRequest request{
        .extent = ReadRequest::Extent::kRange, .offset_bytes = begin, .target = got};
    const auto result = read(request);
    ASSERT_TRUE(result && result->found);
    EXPECT_TRUE(std::ranges::equal(got, std::span(value_).subspan(begin, size)))
        << size << " bytes from " << begin << " on";
  }
}

TEST_F(ValueReaderTest, BeginsAndEndsAtTheEndsOfLanes) {
  uint64_t begin = 0;
  for (uint32_t lane = 0; lane < kUneven.lanes; ++lane) {
    const uint64_t size = kUneven.length(2, 0, lane);
    std::vector<std::byte> got(size);
    ReadRequest request{
        .extent = ReadRequest::Extent::kRange, .offset_bytes = begin, .target = got};
    const auto result = read(request);
    ASSERT_TRUE(result && result->found);
    EXPECT_TRUE(std::ranges::equal(got, std::span(value_).subspan(begin, size))) << lane;
    begin += size;
  }
}

}  // namespace
}  // namespace hifc::capi
