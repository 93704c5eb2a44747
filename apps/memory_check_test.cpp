#include "apps/memory_check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/config.h"
#include "cache/kv_cache.h"
#include "kv/layout.h"

namespace hifc::apps {
namespace {

kv::ModelShape shape() {
  return {.layers = 30,
          .query_heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .window = std::vector<uint32_t>(30)};
}

TEST(MemoryCheck, CountsEveryPolicyAsSmallAsItIs) {
  const kv::CodecPolicy exact(30), small(30, {.k = kv::Codec::kI4, .v = kv::Codec::kI3});
  const auto bytes = [](const kv::CodecPolicy& policy) {
    const auto layout = kv::GroupLayout::make(shape(), kDefaultBlockTokens, policy).value();
    return cache::KvCache::bytes_for_all(layout, 4096, 48);
  };
  EXPECT_EQ(kv_memory(shape(), std::vector{exact, small, small}, 4096, 48).value(),
            bytes(exact) + 2 * bytes(small));
  EXPECT_LT(bytes(small), bytes(exact) / 2);
}

TEST(MemoryCheck, RefusesOneByteTooMuch) {
  EXPECT_TRUE(check_memory("it", 5u << 20, 5u << 20));
  EXPECT_FALSE(check_memory("it", 5u << 20, (5u << 20) - 1));
}

TEST(MemoryCheck, SaysWhatIsNeededAndWhatIsThere) {
  const auto refused = check_memory("4096 tokens under 3 policies", 9u << 20, 7u << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_EQ(refused.error().message(),
            "K and V of 4096 tokens under 3 policies need 9.0 MiB of memory, but 7.0 MiB are "
            "available: give fewer --tokens");
}

TEST(MemoryCheck, AcceptsWhatCannotBeJudged) {
  EXPECT_TRUE(check_memory("it", UINT64_MAX, std::nullopt));
}

TEST(MemoryCheck, KnowsWhatThisMachineHas) {
  const auto available = available_memory();
  ASSERT_TRUE(available);
  EXPECT_GT(*available, 16u << 20);
  EXPECT_LT(*available, uint64_t{1} << 50);
}

}  // namespace
}  // namespace hifc::apps
