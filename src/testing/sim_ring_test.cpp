#include "testing/sim_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

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
  io::File file_ = *io::File::open(directory_.file("a"), {.mode = io::File::Mode::kCreate});
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
