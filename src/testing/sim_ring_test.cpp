#include "testing/sim_ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "io/memory.h"
#include "testing/temp_directory.h"

namespace hifc::testing {
namespace {

using io::Operation;
constexpr size_t kBytes = 4 * io::kAlignment;

class SimRingTest : public ::testing::Test {
 protected:
  // Writes fours of pages filled with ones, reads them into zeros; the outcome of the last.
  Result<void> transfer(SimRing& ring, Operation operation) {
    std::memset(memory_.data(), operation == Operation::kRead ? 0 : 1, kBytes);
    Result<void> outcome = failure(Code::kInternal, "not completed");
    EXPECT_TRUE(ring.submit({.operation = operation,
                             .file = &file_,
                             .offset_bytes = 0,
                             .vectors = {{memory_.data(), kBytes}},
                             .done = [&](Result<void> result) { outcome = std::move(result); }}));
    while (ring.in_flight() > 0) ring.wait();
    return outcome;
  }

  int ones() const {
    int bits = 0;
    for (const std::byte value : memory_.span())
      bits += std::popcount(std::to_integer<uint8_t>(value));
    return bits;
  }

  TempDirectory directory_;
  io::File file_ =
      *io::File::open(directory_.file("a"), {.mode = io::File::Mode::kCreate, .direct = false});
  io::AlignedMemory memory_ = *io::AlignedMemory::allocate(kBytes);
};

TEST_F(SimRingTest, WithoutFaultsItTransfers) {
  SimRing ring({});
  ASSERT_TRUE(transfer(ring, Operation::kWrite));
  ASSERT_TRUE(transfer(ring, Operation::kRead));
  EXPECT_EQ(ones(), static_cast<int>(kBytes));
  EXPECT_EQ(ring.statistics().read_bytes, kBytes);
}

TEST_F(SimRingTest, EachFaultDoesWhatItsNameSays) {
  SimRing ring({});
  ASSERT_TRUE(transfer(ring, Operation::kWrite));

  ring.set_plan({.read_error = 1});
  EXPECT_EQ(transfer(ring, Operation::kRead).error().system_errno, EIO);
  ring.set_plan({.short_read = 1});
  EXPECT_FALSE(transfer(ring, Operation::kRead));
  EXPECT_EQ(ones(), static_cast<int>(kBytes / 2));
  ring.set_plan({.bit_flip = 1});
  EXPECT_TRUE(transfer(ring, Operation::kRead));
  EXPECT_EQ(std::abs(ones() - static_cast<int>(kBytes)), 1);
  ring.set_plan({.no_space = 1});
  EXPECT_EQ(transfer(ring, Operation::kWrite).error().system_errno, ENOSPC);
  EXPECT_EQ(ring.injected(Fault::kBitFlip), 1u);
}

TEST_F(SimRingTest, ATornWriteClaimsSuccess) {
  SimRing ring({.torn_write = 1});
  ASSERT_TRUE(transfer(ring, Operation::kWrite));
  EXPECT_EQ(file_.size_bytes().value(), kBytes / 2);
}

TEST_F(SimRingTest, ALostWriteClaimsSuccess) {
  SimRing ring({.lost_write = 1});
  ASSERT_TRUE(transfer(ring, Operation::kWrite));
  EXPECT_EQ(file_.size_bytes().value(), 0u);
}

// The first byte of each page.
std::vector<int> pages_of(const io::File& file) {
  std::vector<int> values;
  for (uint64_t offset = 0; offset < file.size_bytes().value(); offset += io::kAlignment) {
    uint8_t value = 0;
    EXPECT_EQ(pread(file.descriptor(), &value, 1, static_cast<off_t>(offset)), 1);
    values.push_back(value);
  }
  return values;
}

TEST_F(SimRingTest, AMisdirectedTransferGoesToAnotherPageOfTheFile) {
  SimRing ring({});
  ASSERT_TRUE(transfer(ring, Operation::kWrite));
  const auto one_page = [&](Operation operation, uint64_t page) {
    Result<void> outcome = failure(Code::kInternal, "not completed");
    EXPECT_TRUE(ring.submit({.operation = operation,
                             .file = &file_,
                             .offset_bytes = page * io::kAlignment,
                             .vectors = {{memory_.data(), io::kAlignment}},
                             .done = [&](Result<void> result) { outcome = std::move(result); }}));
    ring.wait();
    return outcome;
  };
  std::memset(memory_.data(), 9, io::kAlignment);
  ring.set_plan({.misdirected_write = 1});
  ASSERT_TRUE(one_page(Operation::kWrite, 1));
  EXPECT_EQ(std::ranges::count(pages_of(file_), 9), 1);
  EXPECT_EQ(pages_of(file_)[1], 1);

  // A file of two pages has one wrong place.
  ASSERT_TRUE(file_.truncate(2 * io::kAlignment));
  ring.set_plan({});
  ASSERT_TRUE(one_page(Operation::kWrite, 0));
  ring.set_plan({.misdirected_read = 1});
  ASSERT_TRUE(one_page(Operation::kRead, 0));
  EXPECT_EQ(memory_.data()[0], std::byte{1});

  // And one of one page none.
  ASSERT_TRUE(file_.truncate(io::kAlignment));
  ASSERT_TRUE(one_page(Operation::kRead, 0));
  EXPECT_EQ(memory_.data()[0], std::byte{9});
}

TEST_F(SimRingTest, WhatHangsCompletesOnlyWhenReleased) {
  SimClock clock;
  SimRing ring({.hang = 1}, {.clock = &clock});
  Result<void> outcome = failure(Code::kInternal, "not completed");
  std::memset(memory_.data(), 1, kBytes);
  ASSERT_TRUE(ring.submit({.operation = Operation::kWrite,
                           .file = &file_,
                           .vectors = {{memory_.data(), kBytes}},
                           .done = [&](Result<void> result) { outcome = std::move(result); }}));
  EXPECT_EQ(ring.wait_for(50'000'000), 0u);
  EXPECT_EQ(clock.now_ns(), 50'000'000u);
  EXPECT_EQ(ring.wait_for(50'000'000), 0u);
  EXPECT_EQ(clock.now_ns(), 100'000'000u);
  EXPECT_EQ(ring.in_flight(), 1u);
  EXPECT_EQ(ring.hung(), 1u);
  EXPECT_EQ(file_.size_bytes().value(), 0u);

  ring.release_hung();
  EXPECT_EQ(ring.wait(), 1u);
  EXPECT_TRUE(outcome);
  EXPECT_EQ(file_.size_bytes().value(), kBytes);
}

TEST_F(SimRingTest, DestructionReleasesWhatHangs) {
  bool completed = false;
  {
    SimRing ring({.hang = 1});
    ASSERT_TRUE(ring.submit(
        {.operation = Operation::kSync, .file = &file_, .done = [&](Result<void> result) {
           completed = result.has_value();
         }}));
    EXPECT_EQ(ring.poll(), 0u);
  }
  EXPECT_TRUE(completed);
}

TEST_F(SimRingTest, AWaitEndsInTimeThoughRequestsAreHeldBack) {
  SimClock clock;
  SimRing ring({.seed = 3, .delay_polls_max = 1000}, {.clock = &clock});
  ASSERT_TRUE(ring.submit({.operation = Operation::kSync, .file = &file_}));
  EXPECT_EQ(ring.wait_for(2 * SimRing::kPollNs), 0u);
  EXPECT_EQ(clock.now_ns(), 2 * SimRing::kPollNs);
  EXPECT_EQ(ring.wait(), 1u);
  EXPECT_LE(clock.now_ns(), 1001 * SimRing::kPollNs);
  EXPECT_EQ(ring.wait(), 0u);
}

// Eight requests, held back: their order of completion.
std::vector<int> completion_order(const io::File& file, std::byte* memory, uint64_t seed) {
  SimRing ring({.seed = seed, .delay_polls_max = 5});
  std::vector<int> order;
  for (int i = 0; i < 8; ++i)
    EXPECT_TRUE(ring.submit({.operation = Operation::kWrite,
                             .file = &file,
                             .offset_bytes = 0,
                             .vectors = {{memory, io::kAlignment}},
                             .done = [&order, i](Result<void>) { order.push_back(i); }}));
  while (ring.in_flight() > 0) ring.wait();
  return order;
}

TEST_F(SimRingTest, TheSameSeedGivesTheSameOrder) {
  const auto order = completion_order(file_, memory_.data(), 7);
  EXPECT_EQ(order, completion_order(file_, memory_.data(), 7));
  EXPECT_NE(order, completion_order(file_, memory_.data(), 8));
  EXPECT_FALSE(std::ranges::is_sorted(order));
}

}  // namespace
}  // namespace hifc::testing
