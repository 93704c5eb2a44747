// What every backend must do; each test runs on io_uring and on threads.
#include "io/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "io/memory.h"
#include "testing/temp_directory.h"

namespace hifc::io {
namespace {

using Backend = RingOptions::Backend;

class RingTest : public ::testing::TestWithParam<Backend> {
 protected:
  static constexpr size_t kPages = 64;

  void SetUp() override {
    auto ring = Ring::create({.backend = GetParam(), .depth = kDepth});
    if (!ring && GetParam() == Backend::kUring) GTEST_SKIP() << ring.error().message();
    ring_ = std::move(*ring);
    for (size_t i = 0; i < memory_.size_bytes(); ++i)
      memory_.data()[i] = static_cast<std::byte>(i / 7 + i / kAlignment);
  }

  std::byte* page(size_t index) { return memory_.data() + index * kAlignment; }
  std::byte* target(size_t index) { return target_.data() + index * kAlignment; }

  Request request(Operation operation, uint64_t offset, std::vector<iovec> vectors) {
    return {.operation = operation,
            .file = &file_,
            .offset_bytes = offset,
            .vectors = std::move(vectors),
            .done = [this](Result<void> result) { outcomes_.push_back(std::move(result)); }};
  }

  // Submits and waits; the request's outcome.
  Result<void> run(Request request) {
    outcomes_.clear();
    HIFC_TRY(ring_->submit(std::move(request)));
    while (outcomes_.empty()) EXPECT_GT(ring_->wait(), 0u);
    return outcomes_.back();
  }

  static constexpr uint32_t kDepth = 4;
  testing::TempDirectory directory_;
  File file_ = *File::open(directory_.file("data"), {.mode = File::Mode::kCreate});
  AlignedMemory memory_ = *AlignedMemory::allocate(kPages * kAlignment);
  AlignedMemory target_ = *AlignedMemory::allocate(kPages * kAlignment);
  std::vector<Result<void>> outcomes_;
  std::unique_ptr<Ring> ring_;  // last: its destructor runs completions
};

TEST_P(RingTest, ReadsBackWhatItWroteAcrossScatteredMemory) {
  ASSERT_TRUE(run(
      request(Operation::kWrite, kAlignment, {{page(5), kAlignment}, {page(2), 2 * kAlignment}})));
  ASSERT_TRUE(run(request(Operation::kSync, 0, {})));
  ASSERT_TRUE(run(request(Operation::kRead, kAlignment,
                          {{target(9), 2 * kAlignment}, {target(0), kAlignment}})));
  EXPECT_EQ(std::memcmp(target(9), page(5), kAlignment), 0);
  EXPECT_EQ(std::memcmp(target(10), page(2), kAlignment), 0);
  EXPECT_EQ(std::memcmp(target(0), page(3), kAlignment), 0);
  EXPECT_EQ(ring_->statistics().writes, 1u);
  EXPECT_EQ(ring_->statistics().written_bytes, 3 * kAlignment);
  EXPECT_EQ(ring_->statistics().reads, 1u);
}

TEST_P(RingTest, RegisteredMemoryTransfersTheSameBytes) {
  // Best effort: an unprivileged user's limit may refuse it, and then the transfers work as well.
  ring_->register_memory(memory_.span());
  ring_->register_memory(target_.span());
  ring_->register_memory({});
  ASSERT_TRUE(run(request(Operation::kWrite, 0, {{page(1), 3 * kAlignment}})));
  ASSERT_TRUE(run(request(Operation::kRead, 0, {{target(2), 3 * kAlignment}})));
  EXPECT_EQ(std::memcmp(target(2), page(1), 3 * kAlignment), 0);
}

TEST_P(RingTest, OneRequestTakesTheMostVectors) {
  auto many = *AlignedMemory::allocate(2 * IOV_MAX * kAlignment);
  std::vector<iovec> vectors;
  for (size_t i = 0; i < IOV_MAX; ++i) {
    std::byte* const every_second = many.data() + 2 * i * kAlignment;
    std::memset(every_second, static_cast<int>(i), kAlignment);
    vectors.push_back({every_second, kAlignment});
  }
  ASSERT_TRUE(run(request(Operation::kWrite, 0, vectors)));
  ASSERT_TRUE(run(request(Operation::kRead, 700 * kAlignment, {{target(0), kAlignment}})));
  EXPECT_EQ(target(0)[0], static_cast<std::byte>(700 % 256));
  EXPECT_FALSE(ring_->submit(request(Operation::kRead, 0, std::vector(IOV_MAX + 1, vectors[0]))));
}

TEST_P(RingTest, ReadingPastTheEndIsAnError) {
  ASSERT_TRUE(run(request(Operation::kWrite, 0, {{page(0), 2 * kAlignment}})));
  for (const uint64_t offset : {kAlignment, 2 * kAlignment, 100 * kAlignment}) {
    const auto outcome = run(request(Operation::kRead, offset, {{target(0), 2 * kAlignment}}));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kIo);
  }
  ASSERT_TRUE(file_.truncate(kAlignment + 100));
  EXPECT_FALSE(run(request(Operation::kRead, 0, {{target(0), 2 * kAlignment}})));
  EXPECT_EQ(ring_->statistics().read_errors, 4u);
}

TEST_P(RingTest, WhatIsNotAlignedIsRefusedAtOnce) {
  std::vector<Request> bad;
  bad.push_back(request(Operation::kRead, 512, {{target(0), kAlignment}}));
  bad.push_back(request(Operation::kRead, 0, {{target(0) + 8, kAlignment}}));
  bad.push_back(request(Operation::kRead, 0, {{target(0), 100}}));
  bad.push_back(request(Operation::kRead, 0, {{target(0), 0}}));
  bad.push_back(request(Operation::kWrite, 0, {}));
  bad.push_back(request(Operation::kSync, 0, {{target(0), kAlignment}}));
  for (Request& one : bad) {
    const auto accepted = ring_->submit(std::move(one));
    ASSERT_FALSE(accepted);
    EXPECT_EQ(accepted.error().code, Code::kInvalid);
  }
  EXPECT_EQ(ring_->wait(), 0u);
  EXPECT_TRUE(outcomes_.empty());
}

TEST_P(RingTest, MoreThanItsDepthIsBusyAndCompletesNothing) {
  ASSERT_TRUE(run(request(Operation::kWrite, 0, {{page(0), kAlignment}})));
  outcomes_.clear();
  for (uint32_t i = 0; i < kDepth; ++i)
    ASSERT_TRUE(ring_->submit(request(Operation::kRead, 0, {{target(i), kAlignment}})));
  EXPECT_EQ(ring_->in_flight(), kDepth);
  const auto refused = ring_->submit(request(Operation::kRead, 0, {{target(9), kAlignment}}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_TRUE(outcomes_.empty()) << "no completion runs inside submit()";
  while (ring_->in_flight() > 0) ring_->wait();
  EXPECT_EQ(outcomes_.size(), kDepth);
}

TEST_P(RingTest, CompletionsSubmitFurtherRequests) {
  ASSERT_TRUE(run(request(Operation::kWrite, 0, {{page(0), kAlignment}})));
  int left = 1000;
  std::function<void()> next = [&] {
    Request again = request(Operation::kRead, 0, {{target(0), kAlignment}});
    again.done = [&](Result<void> result) {
      EXPECT_TRUE(result);
      if (--left > 0) next();
    };
    EXPECT_TRUE(ring_->submit(std::move(again)));
  };
  next();
  while (ring_->in_flight() > 0) ring_->wait();
  EXPECT_EQ(left, 0);
}

TEST_P(RingTest, PollingAloneBringsCompletions) {
  ASSERT_TRUE(ring_->submit(request(Operation::kWrite, 0, {{page(0), kAlignment}})));
  while (ring_->poll() == 0) continue;
  EXPECT_EQ(ring_->in_flight(), 0u);
  EXPECT_EQ(ring_->wait(), 0u);
}

// A pipe nobody writes to yet: a read of it stays in flight for as long as the test wants.
class Silence {
 public:
  Silence() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Silence() {
    if (!ended_) end();
    ::close(ends_[0]);
  }
  int take_reader() const { return dup(ends_[0]); }
  void end() {
    ::close(ends_[1]);
    ended_ = true;
  }

 private:
  int ends_[2] = {};
  bool ended_ = false;
};

TEST_P(RingTest, WaitingForATimeEndsWithNothing) {
  EXPECT_EQ(ring_->wait_for(Ring::kForever), 0u) << "nothing is in flight";
  if (GetParam() == Backend::kThreads) GTEST_SKIP() << "preadv refuses pipes at once";
  Silence silence;
  const File pipe = File::adopt(silence.take_reader(), false, "a pipe");
  Request read = request(Operation::kRead, 0, {{target(0), kAlignment}});
  read.file = &pipe;
  ASSERT_TRUE(ring_->submit(std::move(read)));
  EXPECT_EQ(ring_->wait_for(0), 0u);
  EXPECT_EQ(ring_->wait_for(1'000'000), 0u);
  EXPECT_EQ(ring_->in_flight(), 1u);
  silence.end();
  EXPECT_EQ(ring_->wait_for(Ring::kForever), 1u);
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_FALSE(outcomes_[0]);
}

TEST_P(RingTest, WaitingForATimeBringsWhatArrives) {
  ASSERT_TRUE(ring_->submit(request(Operation::kWrite, 0, {{page(0), kAlignment}})));
  while (ring_->wait_for(1'000) == 0) continue;
  ASSERT_TRUE(ring_->submit(request(Operation::kSync, 0, {})));
  EXPECT_EQ(ring_->wait_for(Ring::kForever - 1), 1u);
  ASSERT_EQ(outcomes_.size(), 2u);
  EXPECT_TRUE(outcomes_[1]);
}

TEST_P(RingTest, OneFailingRequestLeavesTheOthersAlone) {
  auto read_only = *File::open(directory_.file("data"), {.mode = File::Mode::kReadOnly});
  ASSERT_TRUE(run(request(Operation::kWrite, 0, {{page(0), kAlignment}})));
  outcomes_.clear();
  for (int round = 0; round < 100; ++round) {
    Request refused = request(Operation::kWrite, 0, {{page(0), kAlignment}});
    refused.file = &read_only;
    ASSERT_TRUE(ring_->submit(std::move(refused)));
    ASSERT_TRUE(ring_->submit(request(Operation::kRead, 0, {{target(0), kAlignment}})));
    while (ring_->in_flight() > 0) ring_->wait();
  }
  EXPECT_EQ(std::ranges::count_if(outcomes_, [](const auto& r) { return r.has_value(); }), 100);
  EXPECT_EQ(ring_->statistics().write_errors, 100u);
}

TEST_P(RingTest, AFullDeviceIsAnErrorWithItsReason) {
  const auto full = File::open("/dev/full", {.mode = File::Mode::kReadWrite});
  if (!full) GTEST_SKIP() << full.error().message();
  Request write = request(Operation::kWrite, 0, {{page(0), kAlignment}});
  write.file = &*full;
  const auto outcome = run(std::move(write));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().system_errno, ENOSPC);
}

TEST_P(RingTest, DestructionRunsWhatIsInFlight) {
  for (uint32_t i = 0; i < kDepth; ++i)
    ASSERT_TRUE(ring_->submit(request(Operation::kWrite, i * kAlignment, {{page(i), kAlignment}})));
  ring_.reset();
  ASSERT_EQ(outcomes_.size(), kDepth);
  for (const auto& outcome : outcomes_) EXPECT_TRUE(outcome);
}

std::string backend_name(const ::testing::TestParamInfo<Backend>& parameter) {
  return parameter.param == Backend::kUring ? "uring" : "threads";
}
INSTANTIATE_TEST_SUITE_P(Backends, RingTest, ::testing::Values(Backend::kUring, Backend::kThreads),
                         backend_name);

// The descriptor of the only io_uring instance of this process; -1 where there is none.
int uring_descriptor() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored))
    if (std::filesystem::read_symlink(entry.path(), ignored) == "anon_inode:[io_uring]")
      return std::stoi(entry.path().filename());
  return -1;
}

TEST(UringTest, WhatTheKernelRefusesForGoodCompletesWithItsError) {
  auto ring = Ring::create({.backend = Backend::kUring, .depth = 4});
  if (!ring) GTEST_SKIP() << ring.error().message();
  const testing::TempDirectory directory;
  const File file = *File::open(directory.file("a"), {.mode = File::Mode::kCreate});
  // From here on io_uring_enter meets something that is no ring.
  const File null = *File::open("/dev/null", {.direct = false});
  const int descriptor = uring_descriptor();
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(dup2(null.descriptor(), descriptor), descriptor);

  std::vector<Result<void>> outcomes;
  const auto submit = [&] {
    return (*ring)->submit({.operation = Operation::kSync,
                            .file = &file,
                            .done = [&](Result<void> result) { outcomes.push_back(result); }});
  };
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(submit());
  EXPECT_TRUE(outcomes.empty()) << "no completion runs inside submit()";
  EXPECT_EQ((*ring)->wait(), 4u);
  ASSERT_TRUE(submit());
  EXPECT_EQ((*ring)->wait_for(1'000'000'000), 1u);
  for (const auto& outcome : outcomes) {
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kIo);
    EXPECT_NE(outcome.error().system_errno, 0);
  }
}

TEST(RingCreateTest, AutomaticAlwaysFindsABackend) {
  const auto ring = Ring::create({});
  ASSERT_TRUE(ring) << ring.error().message();
  EXPECT_TRUE((*ring)->name() == "io_uring" || (*ring)->name() == "threads");
}

TEST(RingCreateTest, ImpossibleOptionsAreNamed) {
  for (const RingOptions& options : {RingOptions{.depth = 0}, RingOptions{.depth = 1u << 20},
                                     RingOptions{.workers = 0}, RingOptions{.workers = 1000}}) {
    const auto ring = Ring::create(options);
    ASSERT_FALSE(ring);
    EXPECT_EQ(ring.error().code, Code::kInvalid);
  }
}

}  // namespace
}  // namespace hifc::io
