#include "engine/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace hifc::engine {
namespace {

TEST(ThreadPool, RunsEveryTaskExactlyOnce) {
  for (const uint32_t threads : {1u, 2u, 3u}) {
    const auto pool = ThreadPool::create(threads);
    ASSERT_TRUE(pool);
    EXPECT_EQ((*pool)->threads(), threads);
    for (const uint32_t count : {0u, 1u, 2u, 1000u}) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> thread_in_range = true;
      (*pool)->run(count, [&](uint32_t index, uint32_t thread) {
        ++runs[index];
        if (thread >= threads) thread_in_range = false;
      });
      for (const auto& each : runs) EXPECT_EQ(each, 1);
      EXPECT_TRUE(thread_in_range);
    }
  }
}

TEST(ThreadPool, ZeroThreadsMeansAllCores) {
  const auto pool = ThreadPool::create(0);
  ASSERT_TRUE(pool);
  EXPECT_GE((*pool)->threads(), 1u);
}

TEST(ThreadPool, RefusesMoreThreadsThanThereCanBe) {
  const auto pool = ThreadPool::create(100'000);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kInvalid);
  EXPECT_EQ(pool.error().message(), "threads 100000 is more than 512");
}

}  // namespace
}  // namespace hifc::engine
