#include "apps/samples.h"

#include <gtest/gtest.h>

namespace hifc::apps {
namespace {

using Values = std::vector<double>;

TEST(Samples, AreSummedUpByTheirMedianAndSpread) {
  EXPECT_EQ(median({5, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(spread({1, 4, 2}), 1.5);
  EXPECT_EQ(spread({3}), 0);
  EXPECT_EQ(spread({}), 0);
}

TEST(Samples, AreComparedRoundByRound) {
  EXPECT_EQ(ratios({2, 9, 5}, {4, 3}), Values({0.5, 3}));
  EXPECT_EQ(ratios({}, {1}), Values());
}

TEST(Samples, OfTheBetterOfTwo) {
  EXPECT_EQ(smaller({2, 9}, {4, 3}), Values({2, 3}));
  EXPECT_EQ(smaller({2, 9}, {1}), Values({1, 9}));
  EXPECT_EQ(smaller({}, {1, 2}), Values({1, 2}));
}

}  // namespace
}  // namespace hifc::apps
