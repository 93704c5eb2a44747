#include "io/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "io/ring.h"

namespace hifc::io {
namespace {

uintptr_t address(const AlignedMemory& memory) {
  return reinterpret_cast<uintptr_t>(memory.data());
}

TEST(AlignedMemoryTest, SmallIsPageAlignedRoundedUpAndZero) {
  const auto memory = AlignedMemory::allocate(5000);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->size_bytes(), 8192u);
  EXPECT_EQ(address(*memory) % kAlignment, 0u);
  EXPECT_TRUE(std::ranges::all_of(memory->span(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(AlignedMemoryTest, LargeIsAlignedToHugePagesAndUsableToItsEnds) {
  const auto memory = AlignedMemory::allocate((4u << 20) + 1);
  ASSERT_TRUE(memory);
  EXPECT_EQ(address(*memory) % (2u << 20), 0u);
  memory->span().front() = std::byte{1};
  memory->span().back() = std::byte{2};
}

TEST(AlignedMemoryTest, NothingIsAnEmptySpan) {
  const auto memory = AlignedMemory::allocate(0);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(memory->span().empty());
}

TEST(AlignedMemoryTest, ImpossibleSizeIsAnError) {
  EXPECT_FALSE(AlignedMemory::allocate(std::numeric_limits<size_t>::max()));
  EXPECT_FALSE(AlignedMemory::allocate(size_t{1} << 60));
}

TEST(AlignedMemoryTest, MovingHandsTheMappingOver) {
  auto first = *AlignedMemory::allocate(kAlignment);
  first.data()[0] = std::byte{7};
  AlignedMemory second = std::move(first);
  AlignedMemory third;
  third = std::move(second);
  EXPECT_EQ(third.data()[0], std::byte{7});
}

}  // namespace
}  // namespace hifc::io
