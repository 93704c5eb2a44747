#include "engine/budget.h"

#include <gtest/gtest.h>

#include "cache/kv_cache.h"
#include "io/file_system.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

constexpr uint32_t kModelContext = 8192;
constexpr uint64_t kMiB = 1 << 20;

// 2 x 4 x 64 F16 values a token and layer: 1 KiB, so a block of 256 tokens has 256 KiB and a
// header.
kv::ModelShape shape() {
  return {.layers = 8,
          .query_heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .window = std::vector<uint32_t>(8)};
}
constexpr uint64_t kBlockBytes = 256 * 1024 + 4096;

// What check_minimum() asks for: groups of 2 MiB are written two at a time.
kv::GroupLayout layout() {
  return kv::GroupLayout::make(shape(), 256).value();
}

uint64_t least_bytes() {
  return cache::KvCache::bytes_min(layout()) + layout().exact_bytes();
}

Result<Budget> plan(const Config& config, const kv::CodecPolicy& codecs = {}) {
  return plan_budget(config, shape(), codecs, kModelContext);
}

std::string refusal(const Config& config) {
  const auto budget = plan(config);
  EXPECT_FALSE(budget);
  if (budget) return "";
  EXPECT_EQ(budget.error().code, Code::kInvalid);
  return budget.error().message();
}

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Budget, WithoutConfigurationHoldsTheWholeContextHot) {
  const auto budget = plan({});
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->context_tokens, kModelContext);
  EXPECT_EQ(budget->group_bytes, 8 * kBlockBytes);
  EXPECT_EQ(budget->kv_bytes_at_limit, 32 * 8 * kBlockBytes);
  EXPECT_EQ(budget->hot_bytes, budget->kv_bytes_at_limit);
  EXPECT_EQ(budget->warm_bytes, 0u);
  EXPECT_FALSE(budget->flash);
}

TEST(Budget, HotRatioCountsBlocksAtTheContextLimit) {
  Config config;
  config.hot_cache_ratio = 0.25;
  const auto budget = plan(config);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->hot_bytes, 64 * kBlockBytes);
  // Without flash, warm takes the rest.
  EXPECT_EQ(budget->warm_bytes, 192 * kBlockBytes);
  config.hot_cache_size = kBlockBytes;
  EXPECT_EQ(plan(config)->hot_bytes, kBlockBytes);
  config.hot_cache_size = 100 * kBlockBytes;
  EXPECT_EQ(plan(config)->hot_bytes, 64 * kBlockBytes);
}

TEST(Budget, FlashIsOnWithAPathOrASizeAndOffWithSizeZero) {
  Config config;
  config.flash_path = "/somewhere";
  EXPECT_TRUE(plan(config)->flash);
  EXPECT_EQ(plan(config)->flash_path, "/somewhere");
  EXPECT_GE(plan(config)->flash_bytes, 2 * plan(config)->kv_bytes_at_limit);
  config.flash_cache_size = 0;
  EXPECT_FALSE(plan(config)->flash);
  config = {};
  config.flash_cache_size = 100 * kMiB;
  EXPECT_TRUE(plan(config)->flash);
  EXPECT_FALSE(plan(config)->flash_path.empty());
  EXPECT_EQ(plan(config)->flash_bytes, 100 * kMiB);
}

TEST(Budget, BelowTheMinimumIsRefusedWithAMinimumThatWorks) {
  Config config;
  config.flash_path = "/somewhere";
  config.hot_cache_size = kMiB;
  config.warm_cache_size = kMiB;
  const std::string message = refusal(config);
  expect_contains(message, "hot_cache_size 1.0 MiB + warm_cache_size 1.0 MiB");
  expect_contains(message, "the minimum of 6.9 MiB");
  config.warm_cache_size = 6 * kMiB;
  EXPECT_TRUE(plan(config));
}

// What an earlier run had room for; anything else in the directory does not count.
TEST(Budget, AutomaticFlashHoldsWhatIsThereAlready) {
  testing::TempDirectory directory;
  Config config;
  config.flash_path = directory.path().string();
  const uint64_t standard = plan(config)->flash_bytes;
  const auto make = [&](const std::string& name, uint64_t bytes) {
    ASSERT_TRUE(io::system_files().create(directory.file(name), bytes, false));
  };
  make("hifc-00000000.seg", standard);
  make("others", standard);
  EXPECT_EQ(plan(config)->flash_bytes, standard);
  make("hifc-00000001.seg", 5 * kMiB);
  EXPECT_EQ(plan(config)->flash_bytes, standard + 5 * kMiB);
  config.flash_cache_size = 100 * kMiB;
  EXPECT_EQ(plan(config)->flash_bytes, 100 * kMiB);
}

TEST(Budget, FlashForLessThanAWriteIsRefusedWithAMinimumThatWorks) {
  Config config;
  config.flash_cache_size = kMiB;
  expect_contains(refusal(config), "flash_cache_size 1.0 MiB is below the minimum of 5.0 MiB");
  config.flash_cache_size = 5 * kMiB;
  EXPECT_TRUE(plan(config));
  config.flash_cache_size = 0;
  EXPECT_TRUE(plan(config));
}

// The announced minimum is enough wherever hot and warm are split.
TEST(Budget, TheMinimumIsEnoughForEverySplit) {
  const uint64_t least = least_bytes() + kBlockBytes;
  for (uint64_t hot = 0; hot <= least; hot += 77'777) {
    Config config;
    config.flash_path = "/somewhere";
    config.hot_cache_size = hot;
    config.warm_cache_size = least - hot;
    EXPECT_TRUE(plan(config)) << hot;
  }
}

TEST(Budget, SmallMemoryMeansSmallChunks) {
  Config config;
  config.flash_path = "/somewhere";
  config.hot_cache_size = 0;
  config.warm_cache_size = least_bytes();
  EXPECT_LE(plan(config)->ubatch_tokens, 512u);
  const uint32_t ubatch = plan(config)->ubatch_tokens;
  EXPECT_LE(cache::KvCache::bytes_for_ubatch(layout(), ubatch), least_bytes());
  config.context = 10;
  EXPECT_EQ(plan(config)->ubatch_tokens, 64u);
}

TEST(Budget, BlockBytesGiveBlockTokens) {
  Config config;
  config.block_bytes = 1 * kMiB;
  EXPECT_EQ(plan(config)->layout.block_tokens(), 1024u);
  config.block_bytes = 1000 * 1024;
  EXPECT_EQ(plan(config)->layout.block_tokens(), 768u);
  config.block_bytes = 200 * 1024;
  EXPECT_EQ(plan(config)->layout.block_tokens(), 128u);
  config.block_bytes = 64 * 1024;
  EXPECT_EQ(plan(config)->layout.block_tokens(), 64u);
  config.block_bytes = 64 * 1024 - 4096;
  expect_contains(refusal(config),
                  "block_bytes 61440 holds less than 64 tokens of this model "
                  "(65536 are needed)");
}

TEST(Budget, ContextBeyondTheModelsIsRefused) {
  Config config;
  config.context = kModelContext + 1;
  EXPECT_EQ(refusal(config), "context 8193 is more than the 8192 tokens the model was trained for");
}

TEST(Budget, SaysWhereTokensWouldNotFit) {
  Config config;
  config.hot_cache_size = 3 * 8 * kBlockBytes;
  config.warm_cache_size = 0;
  const auto memory = plan(config);
  ASSERT_TRUE(memory);
  EXPECT_TRUE(check_fits(*memory, 768));
  const auto refused = check_fits(*memory, 769);
  ASSERT_FALSE(refused);
  expect_contains(refused.error().message(), "769 tokens need 8.1 MiB of KV");
  expect_contains(refused.error().message(), "no flash tier (flash_path)");

  config.hot_cache_size = least_bytes();
  config.flash_path = "/somewhere";
  config.flash_cache_size = 90 * kMiB;
  const auto flash = plan(config);
  ASSERT_TRUE(flash);
  EXPECT_TRUE(check_fits(*flash, 2048));
  const auto too_long = check_fits(*flash, 4096);
  ASSERT_FALSE(too_long);
  expect_contains(too_long.error().message(), "flash_cache_size is 90.0 MiB");
}

// Without sizes from the user, nothing the planner chose may be below its own minimum.
TEST(Budget, AutomaticSizesSuffice) {
  for (const uint32_t context : {64u, 300u, 4096u})
    for (const uint32_t block_tokens : {64u, 128u, 256u, 512u})
      for (const bool all_cold : {false, true}) {
        Config config;
        config.flash_path = "/somewhere";
        config.context = context;
        config.block_tokens = block_tokens;
        if (all_cold) config.hot_cache_size = 0;
        const auto budget = plan(config);
        EXPECT_TRUE(budget) << "context " << context << ", block_tokens " << block_tokens;
      }
}

// Groups larger than a segment too: what flash gets by default holds the longest context.
TEST(Budget, AutomaticFlashHoldsTheContext) {
  const kv::ModelShape large{.layers = 80,
                             .query_heads = 64,
                             .kv_heads = 64,
                             .head_dim = 128,
                             .window = std::vector<uint32_t>(80)};
  for (const uint32_t context : {256u, 2048u, 32768u}) {
    Config config;
    config.flash_path = "/somewhere";
    config.hot_cache_size = 0;
    const auto budget = plan_budget(config, large, {}, context);
    ASSERT_TRUE(budget) << context;
    EXPECT_TRUE(check_fits(*budget, context)) << context;
  }
}

TEST(NextUbatch, GrowsWhilePrefillWaitsForFlash) {
  const ChunkOutcome waits{.ubatch_tokens = 512,
                           .length = 2048,
                           .chunk_ns = 1000,
                           .stall_ns = 200,
                           .memory_bytes = UINT64_MAX};
  const auto next = [](ChunkOutcome outcome) { return next_ubatch(outcome, layout()); };
  EXPECT_EQ(next(waits), 1024u);
  ChunkOutcome outcome = waits;
  outcome.stall_ns = 50;
  EXPECT_EQ(next(outcome), 512u) << "hidden behind the computation";
  outcome = waits, outcome.length = 512;
  EXPECT_EQ(next(outcome), 512u) << "1,024-token chunks begin at multiples of 1,024";
  outcome = waits, outcome.memory_bytes = cache::KvCache::bytes_for_ubatch(layout(), 1024) - 1;
  EXPECT_EQ(next(outcome), 512u) << "the memory does not hold the larger chunk";
  outcome = waits, outcome.ubatch_tokens = 4096, outcome.length = 8192;
  EXPECT_EQ(next(outcome), 4096u);
}

}  // namespace
}  // namespace hifc::engine
