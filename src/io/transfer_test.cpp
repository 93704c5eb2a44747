#include "io/transfer.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "io/memory.h"
#include "testing/temp_directory.h"

namespace hifc::io {
namespace {

constexpr int64_t kPage = kAlignment;

// A transfer of two separate runs of two pages each, fed with answers as a kernel might give them.
class TransferTest : public ::testing::Test {
 protected:
  Transfer transfer(Operation operation) {
    std::byte* const memory = memory_.data();
    return Transfer({.operation = operation,
                     .file = &file_,
                     .offset_bytes = 8 * kAlignment,
                     .vectors = {{memory, kAlignment},
                                 {memory + kPage, kAlignment},
                                 {memory + 4 * kPage, 2 * kAlignment}},
                     .done = [this](Result<void> result) { outcome_ = std::move(result); }});
  }

  testing::TempDirectory directory_;
  File file_ = *File::open(directory_.file("a"), {.mode = File::Mode::kCreate});
  AlignedMemory memory_ = *AlignedMemory::allocate(8 * kAlignment);
  RingStatistics statistics_;
  Result<void> outcome_ = failure(Code::kInternal, "not completed");
};

TEST_F(TransferTest, JoinsNeighboursInMemory) {
  const Transfer whole = transfer(Operation::kRead);
  ASSERT_EQ(whole.vectors().size(), 2u);
  EXPECT_EQ(whole.vectors()[0].iov_len, 2 * kAlignment);
}

TEST_F(TransferTest, ShortAnswersContinueWithTheRest) {
  Transfer part = transfer(Operation::kRead);
  EXPECT_FALSE(part.advance(kPage));
  EXPECT_EQ(part.offset_bytes(), 9 * kAlignment);
  EXPECT_EQ(part.vectors()[0].iov_base, memory_.data() + kPage);
  EXPECT_FALSE(part.advance(-EAGAIN));
  EXPECT_FALSE(part.advance(-EINTR));
  EXPECT_FALSE(part.advance(2 * kPage));
  EXPECT_EQ(part.vectors().size(), 1u);
  EXPECT_TRUE(part.advance(kPage));
  part.complete(statistics_);
  EXPECT_TRUE(outcome_);
  EXPECT_EQ(statistics_.read_bytes, 4 * kAlignment);
}

TEST_F(TransferTest, PartOfAPageIsTransferredAgain) {
  Transfer part = transfer(Operation::kRead);
  EXPECT_FALSE(part.advance(kPage + 512));
  EXPECT_EQ(part.offset_bytes(), 9 * kAlignment);
}

TEST_F(TransferTest, NoProgressIsAnError) {
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    Transfer part = transfer(operation);
    EXPECT_FALSE(part.advance(kPage));
    EXPECT_TRUE(part.advance(512));
    part.complete(statistics_);
    ASSERT_FALSE(outcome_);
    EXPECT_EQ(outcome_.error().code, Code::kIo);
    EXPECT_NE(outcome_.error().message().find(file_.path()), std::string::npos);
  }
  EXPECT_EQ(statistics_.read_errors, 1u);
  EXPECT_EQ(statistics_.write_errors, 1u);
}

TEST_F(TransferTest, AnErrnoEndsIt) {
  Transfer part = transfer(Operation::kWrite);
  EXPECT_TRUE(part.advance(-ENOSPC));
  part.complete(statistics_);
  ASSERT_FALSE(outcome_);
  EXPECT_EQ(outcome_.error().system_errno, ENOSPC);
}

}  // namespace
}  // namespace hifc::io
