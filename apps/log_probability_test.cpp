#include "apps/log_probability.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace hifc::apps {
namespace {

TEST(LogProbability, ProbabilitiesAddUpToOne) {
  const std::array<float, 4> logits = {1.5f, -2.0f, 0.0f, 7.25f};
  double sum = 0;
  for (int32_t token = 0; token < 4; ++token) sum += std::exp(log_probability(logits, token));
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(log_probability(logits, 3) - log_probability(logits, 0), 7.25 - 1.5, 1e-12);
}

TEST(LogProbability, EqualLogitsShareEvenly) {
  const std::array<float, 8> logits = {};
  EXPECT_NEAR(log_probability(logits, 5), -std::log(8), 1e-12);
}

TEST(LogProbability, LargeLogitsDoNotOverflow) {
  const std::array<float, 2> large = {30000.0f, 29999.0f}, small = {-30000.0f, -30001.0f};
  EXPECT_NEAR(log_probability(large, 1), -1 - std::log1p(std::exp(-1)), 1e-9);
  EXPECT_NEAR(log_probability(small, 0), -std::log1p(std::exp(-1)), 1e-9);
}

}  // namespace
}  // namespace hifc::apps
