#include "apps/memory_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hifc::apps {
namespace {

constexpr uint32_t kTokens = 4096;

kv::ModelShape shape() {
  return {.layers = 30,
          .query_heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .window = std::vector<uint32_t>(30)};
}
// K and V in F16.
constexpr uint64_t kBytes = uint64_t{kTokens} * 30 * 3 * 64 * 2 * 2;

TEST(MemoryCheck, CountsEveryPolicyAndTheRunsOfLlama) {
  const std::vector<kv::CodecPolicy> two(2, kv::CodecPolicy(30));
  EXPECT_TRUE(check_memory(shape(), two, kTokens, 7 * kBytes));
  const auto refused = check_memory(shape(), two, kTokens, 6 * kBytes - 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  for (const char* word : {"4096 tokens", "2 policies", "540.0 MiB", "--tokens"})
    EXPECT_NE(refused.error().message().find(word), std::string::npos) << refused.error().message();
}

TEST(MemoryCheck, CountsEncodedPoliciesAsSmallAsTheyAre) {
  const kv::CodecPolicy small(30, {.k = kv::Codec::kI4, .v = kv::Codec::kI3});
  EXPECT_TRUE(check_memory(shape(), std::vector(4, small), kTokens, 6 * kBytes));
  EXPECT_FALSE(check_memory(shape(), std::vector(4, kv::CodecPolicy(30)), kTokens, 6 * kBytes));
}

TEST(MemoryCheck, AcceptsWhatCannotBeJudged) {
  EXPECT_TRUE(check_memory(shape(), std::vector(99, kv::CodecPolicy(30)), kTokens, std::nullopt));
}

TEST(MemoryCheck, KnowsWhatThisMachineHas) {
  const auto available = available_memory();
  ASSERT_TRUE(available);
  EXPECT_GT(*available, 16u << 20);
  EXPECT_LT(*available, uint64_t{1} << 50);
}

}  // namespace
}  // namespace hifc::apps
