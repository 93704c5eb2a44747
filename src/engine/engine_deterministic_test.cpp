// Goal: --deterministic (L2) gives the same bits however a prompt is cut into steps, and for what
// was generated once and is part of a prompt then. A program of its own, since ggml decides but
// once how it multiplies (Model::load()).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

class Deterministic : public ModelTest, public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { load(GetParam(), kernels::Rounding::kOne); }
};

INSTANTIATE_TEST_SUITE_P(Models, Deterministic, ::testing::ValuesIn(running_models()), test_name);

TEST_P(Deterministic, EveryChunkSizeGivesTheSameBits) {
  const std::vector<int32_t> prompt = text_tokens(*model_, 301);
  Config config = memory_config();
  config.deterministic = true;
  config.ubatch = 512;
  std::optional<Generation> expected;
  for (const uint32_t chunk : {300u, 1u, 2u, 16u, 37u, 256u}) {
    SCOPED_TRACE(fmt::format("chunks of {} tokens", chunk));
    const auto engine = make(config);
    ASSERT_NE(engine, nullptr);
    const auto all = std::span<const int32_t>(prompt);
    for (size_t at = 0; at < all.size(); at += chunk) {
      const auto tokens = all.subspan(at, std::min<size_t>(chunk, all.size() - at));
      const bool last = at + tokens.size() == all.size();
      ASSERT_TRUE(
          engine->step(tokens, last ? Outputs::kLast : Outputs::kNone, cache::StepKind::kPrompt));
    }
    const auto generation = decode(*engine, 8);
    ASSERT_TRUE(generation) << generation.error().message();
    if (!expected) expected = *generation;
    EXPECT_EQ(generation->tokens, expected->tokens);
    EXPECT_EQ(generation->logits_hash, expected->logits_hash);
  }
}

// The history is parked whole: prompt and answer.
TEST_P(Deterministic, AConversationGoesOnAsIfAllOfItWereAPrompt) {
  constexpr uint32_t kPrompt = 240, kGenerated = 6, kNext = 37;
  const testing::TempDirectory directory;
  Config config = least_memory_config(*model_, 64, directory.file("kv"));
  config.deterministic = true;
  const std::vector<int32_t> text = text_tokens(*model_, kPrompt + kNext);
  std::vector<int32_t> history(text.begin(), text.begin() + kPrompt);
  {
    const auto engine = make(config);
    ASSERT_NE(engine, nullptr);
    const auto generation = generate(*engine, history, kGenerated);
    ASSERT_TRUE(generation) << generation.error().message();
    history.insert(history.end(), generation->tokens.begin(), generation->tokens.end());
    ASSERT_TRUE(engine->save());
  }
  history.insert(history.end(), text.begin() + kPrompt, text.end());
  const auto engine = make(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->resume(history), kPrompt + kGenerated);
  const auto next = generate(*engine, std::span(history).subspan(kPrompt + kGenerated), kGenerated);
  ASSERT_TRUE(next) << next.error().message();

  Config fresh = memory_config();
  fresh.deterministic = true;
  const auto whole = make(fresh);
  ASSERT_NE(whole, nullptr);
  const auto expected = generate(*whole, history, kGenerated);
  ASSERT_TRUE(expected) << expected.error().message();
  EXPECT_TRUE(next->same_as(*expected));
}

TEST_P(Deterministic, WhatItStoresIsNotForOthers) {
  const testing::TempDirectory directory;
  Config config = least_memory_config(*model_, 64, directory.file("kv"));
  const std::vector<int32_t> text = text_tokens(*model_, 240);
  const auto found_by = [&](kernels::Rounding rounding) {
    load(GetParam(), rounding);
    config.deterministic = rounding == kernels::Rounding::kOne;
    const auto engine = make(config);
    const uint32_t found = engine->resume(text);
    EXPECT_TRUE(engine->prefill(std::span(text).subspan(found)));
    EXPECT_TRUE(engine->save());
    return found;
  };
  EXPECT_EQ(found_by(kernels::Rounding::kOne), 0u);
  EXPECT_EQ(found_by(kernels::Rounding::kFastest), 0u);
  EXPECT_GT(found_by(kernels::Rounding::kOne), 0u);
  EXPECT_GT(found_by(kernels::Rounding::kFastest), 0u);
}

TEST(Rounding, StaysOneInAProcessThatBeganWithIt) {
  const std::string path = model_path("llama-32l");
  ASSERT_FALSE(Model::load(path + ".absent"));
  ASSERT_TRUE(Model::load(path, kernels::Rounding::kOne));
  // Slower than it might be, and that is all.
  ASSERT_TRUE(Model::load(path));
  EXPECT_TRUE(Model::load(path, kernels::Rounding::kOne));
}

}  // namespace
}  // namespace hifc::engine
