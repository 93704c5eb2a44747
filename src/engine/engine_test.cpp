#include "engine/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "engine/engine_fixture.h"
#include "engine/reference.h"
#include "engine/sampler.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

class EveryModel : public ModelTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { load(GetParam()); }

  // Long enough for the windows of window layers to matter.
  uint32_t prompt_tokens() const {
    uint32_t window = 0;
    for (const uint32_t each : model_->shape().window) window = std::max(window, each);
    return std::max(384u, (window + 128) / 64 * 64);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, ::testing::ValuesIn(running_models()), test_name);

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

double divergence(std::span<const float> reference, std::span<const float> logits) {
  const double reference_norm = log_sum_exp(reference), norm = log_sum_exp(logits);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_norm;
    kl += std::exp(log_p) * (log_p - (logits[i] - norm));
  }
  return kl;
}

// Of each row of one step, against an F32 cache.
struct Distance {
  std::vector<double> kl;
  uint32_t top1_agreed = 0;

  double mean_kl() const {
    return std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
  }
};

template <typename Rows>
Distance distance(const Reference& reference, const Rows& rows, uint32_t count) {
  Distance distance;
  for (uint32_t row = 0; row < count; ++row) {
    distance.kl.push_back(divergence(reference.logits(row), rows.logits(row)));
    distance.top1_agreed += argmax(reference.logits(row)) == argmax(rows.logits(row)) ? 1 : 0;
  }
  return distance;
}

// The standard error of the mean difference between two runs over the same rows.
double standard_error(const Distance& one, const Distance& other) {
  const auto count = static_cast<double>(one.kl.size());
  const double mean = one.mean_kl() - other.mean_kl();
  double squares = 0;
  for (size_t i = 0; i < one.kl.size(); ++i) {
    const double deviation = one.kl[i] - other.kl[i] - mean;
    squares += deviation * deviation;
  }
  return std::sqrt(squares / (count - 1) / count);
}

// llama.cpp's own F16 cache sets the noise that is allowed: equal chunks, so that only attention
// and the cache differ. Both distances are samples of that noise over few rows, hence two standard
// errors more.
TEST_P(EveryModel, IsAsCloseToAnF32CacheAsLlamasF16Cache) {
  constexpr uint32_t kRows = 48;
  const uint32_t prompt = prompt_tokens();
  const std::vector<int32_t> tokens = text_tokens(*model_, prompt + kRows);
  const auto head = std::span(tokens).first(prompt), tail = std::span(tokens).subspan(prompt);
  std::vector<std::unique_ptr<Reference>> references;
  for (const ReferenceMode mode : {ReferenceMode::kF32, ReferenceMode::kF16}) {
    auto reference = Reference::create(*model_, *pool_,
                                       {.mode = mode,
                                        .context_tokens = prompt + kRows,
                                        .ubatch_tokens = 64,
                                        .outputs_max = kRows});
    ASSERT_TRUE(reference) << reference.error().message();
    ASSERT_TRUE((*reference)->prefill(head));
    ASSERT_TRUE((*reference)->step(tail, /*all_outputs=*/true));
    references.push_back(std::move(*reference));
  }
  const auto engine = make(memory_config());
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->prefill(head));
  ASSERT_TRUE(engine->step(tail, Outputs::kAll, cache::StepKind::kPrompt));

  const Distance llama = distance(*references[0], *references[1], kRows);
  const Distance hifc = distance(*references[0], *engine, kRows);
  RecordProperty("kl_llama", fmt::format("{:.3g}", llama.mean_kl()));
  RecordProperty("kl_hifc", fmt::format("{:.3g}", hifc.mean_kl()));
  EXPECT_LE(hifc.mean_kl(), 1.1 * llama.mean_kl() + 2 * standard_error(hifc, llama));
  EXPECT_GE(hifc.top1_agreed + 2, llama.top1_agreed);
}

TEST(Reference, SaysWhatItsCacheTakes) {
  const kv::ModelShape shape{
      .layers = 30, .query_heads = 9, .kv_heads = 3, .head_dim = 64, .window = {}};
  constexpr uint64_t kTokenBytes = 23040;
  EXPECT_EQ(Reference::kv_bytes(shape, {.mode = ReferenceMode::kF16, .context_tokens = 256}),
            256 * kTokenBytes);
  EXPECT_EQ(Reference::kv_bytes(
                shape, {.mode = ReferenceMode::kF16FlashAttention, .context_tokens = 8048}),
            8192 * kTokenBytes);
  EXPECT_EQ(Reference::kv_bytes(shape, {.mode = ReferenceMode::kF32, .context_tokens = 1}),
            512 * kTokenBytes);
}

struct Variant {
  uint32_t block_tokens;
  uint32_t threads;
  std::optional<IoBackend> flash;  // none: all in memory
};

// L1: where blocks are, how they get there and how many threads compute changes no bit.
TEST_P(EveryModel, GivesTheSameBitsWhereverTheKvIs) {
  const std::vector<int32_t> prompt =
      text_tokens(*model_, std::max(streaming_prompt_tokens(*model_, 256), prompt_tokens()));
  constexpr uint32_t kDecoded = 6;
  const auto expected = [&] {
    const auto engine = make(memory_config());
    return generate(*engine, prompt, kDecoded);
  }();
  ASSERT_TRUE(expected) << expected.error().message();
  const std::vector<Variant> variants = {{64, 2, IoBackend::kUring},
                                         {256, 1, IoBackend::kThreads},
                                         {512, 1, IoBackend::kUring},
                                         {64, 1, std::nullopt}};
  // The downloaded models are slow, and have nothing that the small ones lack but their size.
  const size_t count = model_->weight_bytes() > (64u << 20) ? 2 : variants.size();
  for (const Variant& variant : std::span(variants).first(count)) {
    SCOPED_TRACE(fmt::format("block_tokens {}, {} threads, flash {}", variant.block_tokens,
                             variant.threads,
                             variant.flash ? static_cast<int>(*variant.flash) : -1));
    const testing::TempDirectory directory;
    auto pool = ThreadPool::create(variant.threads);
    ASSERT_TRUE(pool);
    pool_ = std::move(*pool);
    Config config = memory_config();
    if (variant.flash)
      config = least_memory_config(*model_, variant.block_tokens, directory.file("kv"));
    config.block_tokens = variant.block_tokens;
    config.io_backend = variant.flash.value_or(IoBackend::kAutomatic);
    const auto engine = make(config);
    ASSERT_NE(engine, nullptr);
    const auto generation = generate(*engine, prompt, kDecoded);
    ASSERT_TRUE(generation) << generation.error().message();
    EXPECT_EQ(generation->tokens, expected->tokens);
    EXPECT_EQ(generation->logits_hash, expected->logits_hash);
    EXPECT_EQ(generation->recomputed_groups, 0u);
    if (variant.flash && variant.block_tokens < 512) {
      EXPECT_GT(engine->tiers().counters(tier::Tier::kCold).hits, 0u);
    }
  }
}

class EngineTest : public ModelTest {};

// Blocks that attention took from flash and bytes read from it, per decoded token at a context of
// `length`.
struct ColdUse {
  double blocks = 0, bytes = 0;
};

ColdUse cold_use(Engine& engine, const std::vector<int32_t>& text, uint32_t length) {
  constexpr uint32_t kTokens = 8;
  EXPECT_TRUE(engine.prefill(std::span(text).subspan(engine.length(), length - engine.length())));
  EXPECT_TRUE(engine.flush());
  EXPECT_TRUE(decode(engine, 2));  // what prefill read ahead is used up
  const auto now = [&] {
    return ColdUse{static_cast<double>(engine.tiers().counters(tier::Tier::kCold).hits),
                   static_cast<double>(engine.tiers().store().statistics().read_bytes)};
  };
  const ColdUse before = now();
  EXPECT_TRUE(decode(engine, kTokens));
  return {(now().blocks - before.blocks) / kTokens, (now().bytes - before.bytes) / kTokens};
}

// Every full layer reads as many blocks more as the context has grown by; a window layer reads
// none more.
TEST_F(EngineTest, WindowLayersReadNothingBeyondTheirWindow) {
  load("gemma2-softcap");
  const auto full_layers = static_cast<double>(std::ranges::count(model_->shape().window, 0u));
  ASSERT_EQ(full_layers, 2);
  const testing::TempDirectory directory;
  const auto engine = make(least_memory_config(*model_, 64, directory.file("kv")));
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> text = text_tokens(*model_, 3584);
  const ColdUse shorter = cold_use(*engine, text, 2560), longer = cold_use(*engine, text, 3584);
  const double grown_blocks = full_layers * (3584 - 2560) / 64;
  EXPECT_NEAR(longer.blocks - shorter.blocks, grown_blocks, 2);
  const double bytes = static_cast<double>(block_bytes(*model_, 64));
  EXPECT_NEAR(longer.bytes - shorter.bytes, grown_blocks * bytes, 4 * bytes);
}

TEST_F(EngineTest, Gemma3ReadsItsFullLayersAndWindowsAlone) {
  load("gemma3-270m");
  const auto& windows = model_->shape().window;
  const auto full_layers = static_cast<double>(std::ranges::count(windows, 0u));
  EXPECT_EQ(full_layers, 3);
  EXPECT_EQ(std::ranges::count(windows, 512u), 15);
  const testing::TempDirectory directory;
  const auto engine = make(least_memory_config(*model_, 64, directory.file("kv")));
  ASSERT_NE(engine, nullptr);
  constexpr uint32_t kLength = 1024;
  const ColdUse use = cold_use(*engine, text_tokens(*model_, kLength), kLength);
  const double visible = full_layers * (kLength / 64) + 15 * (512 / 64 + 1);
  EXPECT_LE(use.blocks, visible);
  EXPECT_LE(use.bytes, visible * static_cast<double>(block_bytes(*model_, 64)) * 1.1);
}

TEST_F(EngineTest, RefusesTokensBeyondTheContext) {
  load("llama-hd128");
  Config config = memory_config();
  config.context = 100;
  const auto engine = make(config);
  ASSERT_NE(engine, nullptr);
  const std::vector<int32_t> text = text_tokens(*model_, 101);
  ASSERT_TRUE(engine->prefill(std::span(text).first(100)));
  const auto outcome =
      engine->step(std::span(text).last(1), Outputs::kLast, cache::StepKind::kGeneration);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kInvalid);
  EXPECT_EQ(outcome.error().message(), "101 tokens are more than the context of 100");
}

// Truncation forgets the rest entirely: another continuation is as if the first had never been.
TEST_F(EngineTest, ContinuesElsewhereAfterTruncation) {
  load("llama-32l");
  const std::vector<int32_t> text = text_tokens(*model_, 640);
  const testing::TempDirectory directory;
  const auto engine = make(least_memory_config(*model_, 64, directory.file("kv")));
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(generate(*engine, std::span(text).first(601), 3));
  engine->truncate(256);
  EXPECT_EQ(engine->length(), 256u);
  ASSERT_TRUE(engine->prefill(std::span(text).subspan(500, 101)));
  const std::vector<float> after(engine->logits().begin(), engine->logits().end());

  const auto fresh = make(memory_config());
  ASSERT_TRUE(fresh->prefill(std::span(text).first(256)));
  ASSERT_TRUE(fresh->prefill(std::span(text).subspan(500, 101)));
  EXPECT_TRUE(std::ranges::equal(after, fresh->logits()));
}

}  // namespace
}  // namespace hifc::engine
