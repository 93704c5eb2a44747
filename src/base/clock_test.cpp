#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace hifc {
namespace {

TEST(SystemClock, AdvancesByAtLeastTheTimeSlept) {
  const SystemClock clock;
  const uint64_t before_ns = clock.now_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_GE(clock.now_ns() - before_ns, 2'000'000u);
}

}  // namespace
}  // namespace hifc
