// The blocking store on a device with faults.
#include "capi/blocking_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::capi {
namespace {

using testing::Fault;

constexpr uint64_t kMiB = 1u << 20;

class BlockingStoreFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto choose = [this](const io::Request& request) {
      return request.operation == faulty_ ? fault_.load() : Fault::kNone;
    };
    auto opened = BlockingStore::open(
        {.directory = directory_.file("store"), .capacity_bytes = 64 * kMiB},
        std::make_unique<testing::SimRing>(testing::FaultPlan{.choose = choose}));
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(*opened);
  }
  // Of all requests of this kind from now on.
  void inject(io::Operation operation, Fault fault) {
    faulty_ = operation;
    fault_ = fault;
  }

  static flash::Key key_of(uint8_t id) { return {std::byte{id}}; }
  static std::vector<std::byte> value_of(uint8_t id, size_t size) {
    return std::vector<std::byte>(size, std::byte(id + 1));
  }
  Result<ReadResult> read(uint8_t id, std::span<std::byte> target) {
    ReadRequest request{.key = key_of(id), .target = target};
    store_->read({&request, 1});
    return request.result;
  }
  bool found(uint8_t id, size_t size) {
    std::vector<std::byte> target(size);
    const auto result = read(id, target);
    return result && result->found && target == value_of(id, size);
  }

  testing::TempDirectory directory_;
  std::atomic<io::Operation> faulty_ = io::Operation::kRead;
  std::atomic<Fault> fault_ = Fault::kNone;
  std::unique_ptr<BlockingStore> store_;  // last: its ring uses the above
};

TEST_F(BlockingStoreFaultTest, GatheredValuesThatCannotBeWrittenAreReportedByTheNextFlushOnce) {
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 5000)));
  ASSERT_TRUE(store_->put(key_of(2), value_of(2, 6000)));
  inject(io::Operation::kWrite, Fault::kIoError);
  EXPECT_TRUE(found(1, 5000));
  const auto flushed = store_->flush();
  ASSERT_FALSE(flushed);
  EXPECT_EQ(flushed.error().code, Code::kIo);
  inject(io::Operation::kWrite, Fault::kNone);
  EXPECT_TRUE(store_->flush());
  EXPECT_EQ(store_->statistics().lost_values, 2u);
  EXPECT_EQ(store_->statistics().buffered_values, 0u);
  EXPECT_FALSE(found(1, 5000));
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 5000)));
  EXPECT_TRUE(store_->flush());
  EXPECT_TRUE(found(1, 5000));
}

TEST_F(BlockingStoreFaultTest, ALargeValueThatCannotBeWrittenIsReportedByItsPut) {
  inject(io::Operation::kWrite, Fault::kNoSpace);
  EXPECT_FALSE(store_->put(key_of(1), value_of(1, 5 * kMiB)));
  inject(io::Operation::kWrite, Fault::kNone);
  EXPECT_TRUE(store_->flush());
  EXPECT_EQ(store_->statistics().lost_values, 0u);
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 5 * kMiB)));
  EXPECT_TRUE(found(1, 5 * kMiB));
}

TEST_F(BlockingStoreFaultTest, AFailedReadIsAnErrorForItsRequestAndLeavesZeros) {
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 3 * kMiB)));
  ASSERT_TRUE(store_->flush());
  inject(io::Operation::kRead, Fault::kIoError);
  std::vector<std::byte> target(3 * kMiB, std::byte{0xEE});
  const auto result = read(1, target);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kIo);
  EXPECT_EQ(std::ranges::count(target, std::byte{0}), static_cast<long>(target.size()));
  inject(io::Operation::kRead, Fault::kNone);
  EXPECT_TRUE(found(1, 3 * kMiB)) << "the value itself is whole";
}

TEST_F(BlockingStoreFaultTest, FlippedBitsAreAMissAndNeverReachAnAlignedTarget) {
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 2 * kMiB)));
  ASSERT_TRUE(store_->put(key_of(2), value_of(2, 2 * kMiB)));
  ASSERT_TRUE(store_->flush());
  inject(io::Operation::kRead, Fault::kBitFlip);
  auto target = *io::AlignedMemory::allocate(2 * kMiB);
  const auto result = read(1, target.span());
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_FALSE(result->found);
  EXPECT_EQ(std::ranges::count(target.span(), std::byte{0}),
            static_cast<long>(target.size_bytes()));
  inject(io::Operation::kRead, Fault::kNone);
  EXPECT_EQ(store_->statistics().flash.quarantined_values, 1u);
  EXPECT_FALSE(store_->contains(key_of(1)));
  EXPECT_TRUE(found(2, 2 * kMiB));
}

TEST_F(BlockingStoreFaultTest, ClosingReportsWhatCouldNotBeWritten) {
  ASSERT_TRUE(store_->put(key_of(1), value_of(1, 10)));
  inject(io::Operation::kWrite, Fault::kIoError);
  EXPECT_FALSE(store_->close());
}

}  // namespace
}  // namespace hifc::capi
