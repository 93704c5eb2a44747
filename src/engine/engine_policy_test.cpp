// Engines under lossy policies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/policy.h"
#include "engine/recovery.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

class EveryModelUnderPolicies : public ModelTest,
                                public ::testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { load(GetParam()); }
  testing::TempDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Models, EveryModelUnderPolicies, ::testing::ValuesIn(running_models()),
                         test_name);

// L1 holds for what is encoded too: sealing goes by position.
TEST_P(EveryModelUnderPolicies, GiveTheSameBitsWhereverTheKvIs) {
  const std::vector<int32_t> prompt = text_tokens(*model_, 900);
  for (const std::string policy : {"reference", "auto75"}) {
    SCOPED_TRACE(policy);
    Config config = memory_config();
    config.policy = policy;
    const auto in_memory = make(config);
    ASSERT_NE(in_memory, nullptr);
    const auto expected = generate(*in_memory, prompt, 6);
    ASSERT_TRUE(expected) << expected.error().message();

    config.flash_cache_size = uint64_t{256} << 20;
    config.flash_path = directory_.file(policy);
    config.block_tokens = 64;
    config.hot_cache_size = 0;
    config.prefetch_window = 1;
    const auto streaming = make(config);
    ASSERT_NE(streaming, nullptr);
    const auto got = generate(*streaming, prompt, 6);
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_TRUE(got->same_as(*expected));
    EXPECT_GT(streaming->tiers().counters(tier::Tier::kCold).bytes_written, 0u);
    // Small models fit in what streaming takes at least.
    const uint64_t sealed = streaming->budget().layout.sealed_bytes(900 / 64);
    if (2 * streaming->tiers().memory_bytes() < 3 * sealed)
      EXPECT_GT(streaming->tiers().counters(tier::Tier::kCold).bytes_read, 0u);
  }
}

TEST_P(EveryModelUnderPolicies, ResumeWhatTheyStored) {
  const std::vector<int32_t> prompt = text_tokens(*model_, 700);
  Config config = memory_config();
  config.policy = "auto60";
  config.flash_cache_size = uint64_t{256} << 20;
  config.flash_path = directory_.file("kv");
  config.block_tokens = 64;
  const auto run = [&](uint32_t expected_reused) {
    const auto engine = make(config);
    ASSERT_NE(engine, nullptr);
    const uint32_t reused = engine->resume(prompt);
    EXPECT_EQ(reused, expected_reused);
    const auto generation = generate(*engine, std::span(prompt).subspan(reused), 3);
    ASSERT_TRUE(generation) << generation.error().message();
    const auto saved = engine->save();
    ASSERT_TRUE(saved) << saved.error().message();
  };
  run(0);
  run(640);  // the rest was parked with what was generated after it
  // What one policy stored is nothing to another.
  config.policy = "auto75";
  run(0);
}

class Policies : public ModelTest {
 protected:
  void SetUp() override { load("smollm2-135m"); }
  Result<kv::CodecPolicy> resolve(const std::string& path) const {
    return resolve_policy(path, *model_);
  }
  testing::TempDirectory directory_;
};

TEST_F(Policies, AreReadAsTheyWereWritten) {
  const std::string path = directory_.file("policy.yaml");
  kv::CodecPolicy policy = named_policy("reference", model_->shape().layers).value();
  policy[3].v = kv::Codec::kI2;
  ASSERT_TRUE(write_policy(path, policy, *model_, "a test"));
  EXPECT_EQ(resolve(path).value(), policy);
}

TEST_F(Policies, OfAnotherModelAreRefused) {
  const std::string path = directory_.file("policy.yaml");
  const kv::CodecPolicy policy = named_policy("auto75", model_->shape().layers).value();
  ASSERT_TRUE(write_policy(path, policy, *model_, "a test"));
  std::string text;
  {
    std::ifstream file(path);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  const size_t at = text.find("architecture: llama");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(path) << text.replace(at, 19, "architecture: qwen2");
  const auto refused = resolve(path);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message().find("is for qwen2 with"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("but this model is llama with"), std::string::npos);
}

TEST_F(Policies, AreRefusedWhereOnlyExactBitsWillDo) {
  Config config = memory_config();
  config.policy = "auto35";
  config.deterministic = true;
  auto engine = Engine::create(*model_, *pool_, {.config = config});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().message(), "deterministic needs policy f16, but it is 'auto35'");
  config.policy = "f16";
  engine = Engine::create(*model_, *pool_, {.config = config});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().message(), "deterministic needs a model that was loaded for it");
}

// More bits keep more of every layer; F16 keeps all.
TEST_F(Policies, RecoveryFollowsTheBits) {
  const uint32_t layers = model_->shape().layers;
  std::vector<kv::CodecPolicy> policies;
  for (const kv::Codec codec :
       {kv::Codec::kF16, kv::Codec::kI8, kv::Codec::kI4, kv::Codec::kI3, kv::Codec::kI2})
    policies.emplace_back(layers, kv::LayerCodecs{.k = codec, .v = codec});
  const auto kernels = kernels::select_kernels();
  ASSERT_TRUE(kernels);
  const auto recovery = Recovery::create(
      {.shape = model_->shape(), .policies = policies, .tokens_max = 700, .ubatch_tokens = 64},
      **kernels, *pool_);
  ASSERT_TRUE(recovery) << recovery.error().message();
  const auto engine =
      Engine::create(*model_, *pool_, {.config = memory_config(), .observer = recovery->get()});
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->prefill(text_tokens(*model_, 700)));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    EXPECT_EQ((*recovery)->recovery(0, layer), 1.0) << layer;
    for (size_t i = 1; i < policies.size(); ++i)
      EXPECT_LT((*recovery)->recovery(i, layer), (*recovery)->recovery(i - 1, layer)) << layer;
    EXPECT_GT((*recovery)->recovery(1, layer), 0.98) << layer;
    EXPECT_GT((*recovery)->recovery(4, layer), 0.3) << layer;
  }
}

}  // namespace
}  // namespace hifc::engine
