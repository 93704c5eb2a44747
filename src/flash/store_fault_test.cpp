// The store on a device that fails: what is damaged is a miss, everything else keeps working.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "flash/store_fixture.h"
#include "testing/sim_ring.h"

namespace hifc::flash {
namespace {

using io::Operation;
using testing::Fault;
using testing::SimRing;

constexpr ValueShape kShape{.lanes = 2, .lane_bytes = 8192, .chunk_bytes = 4096};
constexpr uint64_t kMiB = 1u << 20;

class StoreFaultTest : public ::testing::Test {
 protected:
  void SetUp() override { h_.open(16 * kMiB); }

  void put_range(uint64_t first, uint64_t count) {
    for (uint64_t id = first; id < first + count; ++id)
      ASSERT_TRUE(h_.put(TestBatch(kShape, {id})));
  }
  void expect_intact(uint64_t first, uint64_t count) {
    for (uint64_t id = first; id < first + count; ++id)
      EXPECT_TRUE(h_.findable_and_intact(kShape, id)) << id;
  }

  SimRing ring_{{}};
  StoreHarness h_{ring_};
};

TEST_F(StoreFaultTest, AFullDeviceLosesOneBatchAndItsSpaceIsReused) {
  put_range(0, 50);
  const uint64_t bytes_before = h_.bytes_in_directory();
  for (const auto& plan :
       {testing::FaultPlan{.no_space = 1}, testing::FaultPlan{.write_error = 1}}) {
    ring_.set_plan(plan);
    for (int i = 0; i < 10'000; ++i) {
      const auto handles = h_.put(TestBatch(kShape, id_range(1000, 2)));
      ASSERT_FALSE(handles);
      EXPECT_EQ(handles.error().code, Code::kIo);
      EXPECT_EQ(handles.error().system_errno, plan.no_space > 0 ? ENOSPC : EIO);
    }
    EXPECT_FALSE(h_.contains(1000));
  }
  ring_.set_plan({});
  EXPECT_EQ(h_.bytes_in_directory(), bytes_before) << "space of failed batches was not reused";
  put_range(50, 50);
  expect_intact(0, 100);
  h_.check_bytes();
  EXPECT_EQ(h_.store->statistics().payload_bytes_put, 100u * 2 * 8192);
}

TEST_F(StoreFaultTest, AFailedReadIsAMissForItsValueOnly) {
  put_range(0, 100);
  for (const auto& plan : {testing::FaultPlan{.read_error = 1}, testing::FaultPlan{.short_read = 1},
                           testing::FaultPlan{.bit_flip = 1}}) {
    ring_.set_plan(plan);
    EXPECT_FALSE(h_.findable_and_intact(kShape, 42));
    ring_.set_plan({});
    expect_intact(0, 100);
  }
  EXPECT_EQ(h_.store->statistics().corrupt_chunks, 1u);
}

TEST_F(StoreFaultTest, ATornWriteIsNeverTakenForData) {
  ring_.set_plan({.torn_write = 1});
  ASSERT_TRUE(h_.put(TestBatch(kShape, id_range(0, 8))));
  ring_.set_plan({});
  put_range(8, 50);
  int intact = 0;
  for (uint64_t id = 0; id < 8; ++id) intact += h_.findable_and_intact(kShape, id);
  EXPECT_EQ(intact, 0) << "each value's second lane was in the half that was lost";
  EXPECT_GT(h_.store->statistics().corrupt_chunks, 0u);
  expect_intact(8, 50);
}

// Of the batch's several writes one fails, whichever comes last.
TEST_F(StoreFaultTest, ABatchIsThereAsAWholeOrNotAtAll) {
  const ValueShape large{.lanes = 4, .lane_bytes = 8 << 20, .chunk_bytes = 1 << 20};
  h_.store.reset();
  h_.open(256 * kMiB);
  put_range(50, 1);  // opens the segment
  const TestBatch batch(large, {1});
  for (uint64_t failing = 0; failing < 4; ++failing) {
    uint64_t writes = 0;
    ring_.set_plan(
        {.seed = failing, .delay_polls_max = 8, .choose = [&](const io::Request& request) {
           if (request.operation != Operation::kWrite) return Fault::kNone;
           EXPECT_FALSE(h_.contains(1));
           return writes++ == failing ? Fault::kIoError : Fault::kNone;
         }});
    ASSERT_FALSE(h_.put(batch));
    EXPECT_EQ(writes, 4u);
    EXPECT_FALSE(h_.contains(1));
  }
  ring_.set_plan({.delay_polls_max = 8});
  ASSERT_TRUE(h_.put(batch));
  EXPECT_TRUE(h_.findable_and_intact(large, 1));
}

TEST_F(StoreFaultTest, ReadsGoBeforeWaitingWrites) {
  put_range(0, 4);
  std::vector<Operation> order;
  ring_.set_plan({.choose = [&](const io::Request& request) {
    order.push_back(request.operation);
    return Fault::kNone;
  }});
  const TestBatch batch(kShape, {100});
  for (int i = 0; i < 60; ++i)
    ASSERT_TRUE(
        h_.store->put(kShape.batch(), batch.values, [](auto result) { EXPECT_TRUE(result); }));
  auto memory = *io::AlignedMemory::allocate(8192);
  const Handle handle = h_.find(0);
  const LaneRead run{&handle, memory.data()};
  ASSERT_TRUE(h_.store->read(0, {&run, 1}, [](auto result) { EXPECT_TRUE(result); }));
  h_.wait_all();
  const auto read = std::ranges::find(order, Operation::kRead) - order.begin();
  EXPECT_LE(read, 24) << "no more than the writes that were on their way";
  EXPECT_EQ(order.size(), 61u);
  ring_.set_plan({});  // closing writes too
}

TEST_F(StoreFaultTest, ARingFilledByOthersIsBusyAndNothingHangs) {
  auto memory = *io::AlignedMemory::allocate(io::kAlignment);
  const auto file = *io::File::open(h_.directory.file("other"), {.mode = io::File::Mode::kCreate});
  while (ring_.in_flight() < ring_.depth())
    ASSERT_TRUE(ring_.submit({.operation = Operation::kWrite,
                              .file = &file,
                              .vectors = {{memory.data(), io::kAlignment}},
                              .done = [](Result<void>) {}}));
  const TestBatch batch(kShape, {1});
  const auto refused = h_.store->put(kShape.batch(), batch.values, [](auto) { FAIL(); });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  h_.wait_all();
  EXPECT_TRUE(h_.put(batch));
}

// Segments that are still being written cannot be freed now, but soon.
TEST_F(StoreFaultTest, RoomThatIsBeingWrittenIsBusyNotFull) {
  h_.store.reset();
  h_.open(64u << 10);
  std::vector<std::unique_ptr<TestBatch>> batches;
  Result<void> last;
  for (uint64_t id = 0; last && id < 100; ++id) {
    batches.push_back(std::make_unique<TestBatch>(kShape, std::vector<uint64_t>{id}));
    last = h_.store->put(kShape.batch(), batches.back()->values, [](auto) {});
  }
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::kBusy);
  h_.wait_all();
  EXPECT_TRUE(h_.put(*batches.back()));
  h_.check_bytes();
}

}  // namespace
}  // namespace hifc::flash
