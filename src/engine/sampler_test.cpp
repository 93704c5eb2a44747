#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace hifc::engine {
namespace {

const std::vector<float> kLogits = {0.5f, 3.0f, 2.5f, -1.0f, 2.75f, 0.0f};

std::vector<int32_t> samples(const SamplerOptions& options, int count) {
  auto sampler = Sampler::create(options);
  EXPECT_TRUE(sampler);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler->sample(kLogits));
  return tokens;
}

TEST(Sampler, WithoutTemperatureTakesTheLargestLogit) {
  for (const int32_t token : samples({.temperature = 0, .seed = 3}, 20)) EXPECT_EQ(token, 1);
}

TEST(Sampler, EqualSeedsGiveEqualTokens) {
  const SamplerOptions options{.temperature = 1.5f, .seed = 42};
  EXPECT_EQ(samples(options, 50), samples(options, 50));
  EXPECT_NE(samples(options, 50), samples({.temperature = 1.5f, .seed = 43}, 50));
}

TEST(Sampler, TopKLeavesOnlyTheLikeliest) {
  const auto tokens = samples({.temperature = 5, .top_k = 3, .top_p = 1, .min_p = 0}, 200);
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()), (std::set<int32_t>{1, 2, 4}));
}

TEST(Sampler, RefusesValuesOutOfRange) {
  const std::vector<std::pair<SamplerOptions, std::string>> cases = {
      {{.temperature = -1}, "--temp -1 is not 0 or more"},
      {{.temperature = NAN}, "--temp nan is not 0 or more"},
      {{.top_k = -5}, "--top-k -5 is not 0 or more"},
      {{.top_p = 0}, "--top-p 0 is not above 0 and at most 1"},
      {{.top_p = 2}, "--top-p 2 is not above 0 and at most 1"},
      {{.min_p = -0.5f}, "--min-p -0.5 is not from 0 to 1"},
  };
  for (const auto& [options, message] : cases) {
    const auto sampler = Sampler::create(options);
    ASSERT_FALSE(sampler) << message;
    EXPECT_EQ(sampler.error().message(), message);
  }
}

TEST(Argmax, TakesTheFirstOfEqualOnes) {
  EXPECT_EQ(argmax(std::vector<float>{1, 7, 3, 7}), 1);
}

}  // namespace
}  // namespace hifc::engine
