// Goal: an engine that begins with what an earlier one left on flash gives the tokens and logits of
// one that computed everything, and begins with it only when it is the same model, tenant and
// layout. Method: engines one after the other over one directory, as processes would be; the same
// generation in memory as the expectation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

namespace fs = std::filesystem;
using hifc::testing::Fault;
using hifc::testing::SimRing;

constexpr uint32_t kBlockTokens = 64;
constexpr uint32_t kGenerated = 6;
// Three groups, and the beginning of a fourth.
constexpr uint32_t kPrompt = 240;
constexpr uint32_t kFullGroups = 192;

class ResumeEngine : public ModelTest {
 protected:
  void start(const std::string& name, uint32_t prompt_tokens) {
    load(name);
    prompt_ = text_tokens(*model_, prompt_tokens);
  }
  Config streaming() const {
    return least_memory_config(*model_, kBlockTokens, directory_.file("kv"));
  }
  Config roomy() const {
    Config config = streaming();
    config.hot_cache_size = uint64_t{256} << 20;
    return config;
  }
  struct Outcome {
    Generation generation;
    ResumeReport report;
    uint64_t payload_bytes_put = 0;
  };
  // What `hifc run` does.
  Outcome run(const Config& config, std::span<const int32_t> prompt, io::Ring* ring = nullptr) {
    const auto engine = make(config, ring);
    if (engine == nullptr) return {};
    const uint32_t reused = engine->resume(prompt);
    EXPECT_LT(reused, prompt.size());
    const auto generation = generate(*engine, prompt.subspan(reused), kGenerated);
    EXPECT_TRUE(generation) << generation.error().message();
    const auto saved = engine->save();
    if (ring == nullptr) EXPECT_TRUE(saved) << saved.error().message();
    return {.generation = generation.value_or(Generation{}),
            .report = engine->resume_report(),
            .payload_bytes_put =
                config.flash_path ? engine->tiers().store().statistics().payload_bytes_put : 0};
  }
  Generation fresh(std::span<const int32_t> prompt) {
    const auto engine = make(memory_config());
    return generate(*engine, prompt, kGenerated).value_or(Generation{});
  }
  void expect_same(const Outcome& outcome, std::span<const int32_t> prompt) {
    const Generation expected = fresh(prompt);
    EXPECT_EQ(outcome.generation.tokens, expected.tokens);
    EXPECT_EQ(outcome.generation.logits_hash, expected.logits_hash);
  }

  testing::TempDirectory directory_;
  std::vector<int32_t> prompt_;
};

class EveryModelResumes : public ResumeEngine, public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, EveryModelResumes, ::testing::ValuesIn(running_models()),
                         test_name);

TEST_P(EveryModelResumes, TheSamePromptComputesOnlyItsTail) {
  start(GetParam(), kPrompt);
  const Outcome first = run(streaming(), prompt_);
  EXPECT_EQ(first.report.decision, ResumeDecision::kNothing);
  EXPECT_EQ(first.report.reused_tokens, 0u);
  expect_same(first, prompt_);

  const Outcome again = run(roomy(), prompt_);
  EXPECT_EQ(again.report.decision, ResumeDecision::kLoaded);
  EXPECT_EQ(again.report.reused_tokens, kFullGroups);
  EXPECT_TRUE(again.generation.same_as(first.generation));
}

TEST_F(ResumeEngine, RestoresTheSamePrefixThreeTimesWithoutWriting) {
  start("llama-32l", kFullGroups);
  const Outcome first = run(roomy(), prompt_);
  for (int i = 0; i < 3; ++i) {
    const Outcome again = run(roomy(), prompt_);
    // All of the prompt is stored, so that its last token alone is computed.
    EXPECT_EQ(again.report.reused_tokens, kFullGroups - 1);
    EXPECT_TRUE(again.generation.same_as(first.generation));
    EXPECT_LE(again.payload_bytes_put, kRecordBytes);
  }
}

TEST_F(ResumeEngine, PromptsShareWhatTheyBeginWith) {
  start("qwen2-gqa-bias", kPrompt);
  run(streaming(), prompt_);
  std::vector<int32_t> other = prompt_;
  other[150] = other[150] == 5 ? 6 : 5;
  const Outcome outcome = run(streaming(), other);
  EXPECT_EQ(outcome.report.reused_tokens, 128u);
  expect_same(outcome, other);
}

TEST_F(ResumeEngine, AnotherTenantBlockSizeOrModelIsAMiss) {
  start("llama-hd96", kPrompt);
  Config config = roomy();
  run(config, prompt_);
  config.tenant = "somebody else";
  EXPECT_EQ(run(config, prompt_).report.stored_tokens, 0u);
  EXPECT_EQ(run(config, prompt_).report.reused_tokens, kFullGroups);  // each has its own
  config = roomy();
  config.block_tokens = 128;
  EXPECT_EQ(run(config, prompt_).report.stored_tokens, 0u);
  config = roomy();
  EXPECT_EQ(run(config, prompt_).report.reused_tokens, kFullGroups);
}

TEST_F(ResumeEngine, IsTurnedOffByTheConfiguration) {
  start("llama-hd96", 200);
  Config config = roomy();
  run(config, prompt_);
  config.resume = false;
  const Outcome outcome = run(config, prompt_);
  EXPECT_EQ(outcome.report.decision, ResumeDecision::kOff);
  EXPECT_EQ(outcome.report.reused_tokens, 0u);
  expect_same(outcome, prompt_);
}

// Same name, size and metadata, once as a copy and once in place.
TEST_F(ResumeEngine, AChangedTensorIsAMiss) {
  const std::string path = directory_.file("model.gguf");
  fs::copy_file(model_path("llama-hd96"), path);
  const auto load_copy = [&] {
    auto model = Model::load(path);
    ASSERT_TRUE(model) << model.error().message();
    model_ = std::move(*model);
  };
  start("llama-hd96", 200);
  load_copy();
  const Outcome first = run(roomy(), prompt_);
  EXPECT_GE(run(roomy(), prompt_).report.reused_tokens, 192u);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-4096, std::ios::end);
    const int byte = file.get();
    file.seekp(-4096, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  // The loaded model is not what the file has now.
  const auto stale = Engine::create(*model_, *pool_, {.config = roomy()});
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code, Code::kBusy);
  load_copy();
  EXPECT_EQ(run(roomy(), prompt_).report.stored_tokens, 0u);
  load("llama-hd96");
  const Outcome original = run(roomy(), prompt_);
  EXPECT_GE(original.report.reused_tokens, 192u);  // by content, not by name
  EXPECT_TRUE(original.generation.same_as(first.generation));
}

TEST_F(ResumeEngine, FlippedBytesAreNeverUsed) {
  start("qwen2-gqa-bias", kPrompt);
  const Outcome first = run(streaming(), prompt_);
  for (const auto& entry : fs::directory_iterator(directory_.file("kv"))) {
    if (entry.path().extension() != ".seg") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<std::streamoff>(entry.file_size());
    for (std::streamoff at = 8192 + 77; at < size; at += 300'000) {
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 4));
    }
  }
  const Outcome outcome = run(streaming(), prompt_);
  EXPECT_TRUE(outcome.generation.same_as(first.generation));
}

TEST_F(ResumeEngine, ReadErrorsHalfWayMakeItCompute) {
  start("qwen2-gqa-bias", kPrompt);
  const Outcome first = run(streaming(), prompt_);
  for (const double chance : {0.02, 0.3, 1.0}) {
    SCOPED_TRACE(chance);
    SimRing ring({});
    const auto engine = make(streaming(), &ring);
    ASSERT_NE(engine, nullptr);
    ring.set_plan({.seed = 5, .read_error = chance});
    const uint32_t reused = engine->resume(prompt_);
    if (chance == 1.0) ring.set_plan({});
    const auto generation = generate(*engine, std::span(prompt_).subspan(reused), kGenerated);
    ring.set_plan({});
    ASSERT_TRUE(generation) << generation.error().message();
    EXPECT_TRUE(generation->same_as(first.generation));
  }
}

TEST_F(ResumeEngine, ADeviceThatHangsMakesItCompute) {
  start("llama-hd96", kPrompt);
  Config config = roomy();
  const Outcome first = run(config, prompt_);
  config.flash_deadline = 1;
  SimRing ring({});
  {
    const auto engine = make(config, &ring);
    ASSERT_NE(engine, nullptr);
    ring.set_plan({.choose = [](const io::Request& request) {
      return request.operation == io::Operation::kRead ? Fault::kHang : Fault::kNone;
    }});
    const uint32_t reused = engine->resume(prompt_);
    const auto generation = generate(*engine, std::span(prompt_).subspan(reused), kGenerated);
    ASSERT_TRUE(generation) << generation.error().message();
    EXPECT_TRUE(generation->same_as(first.generation));
    EXPECT_EQ(engine->resume_report().reused_tokens, 0u);
    ring.set_plan({});
    ring.release_hung();
  }
}

// Everything is pinned and the first group is there when the device stops answering.
TEST_F(ResumeEngine, ADeviceThatHangsInTheFirstStepMakesItCompute) {
  start("llama-hd96", kPrompt);
  const Outcome first = run(roomy(), prompt_);
  SimRing ring({});
  const auto engine = make(roomy(), &ring);
  ASSERT_NE(engine, nullptr);
  const uint32_t reused = engine->resume(prompt_);
  ASSERT_EQ(reused, kFullGroups);
  ring.set_plan({.choose = [](const io::Request& request) {
    return request.operation == io::Operation::kRead ? Fault::kHang : Fault::kNone;
  }});
  uint32_t last_progress = 0;
  ASSERT_TRUE(engine->prefill(std::span(prompt_).subspan(reused),
                              [&](uint32_t done) { last_progress = done; }));
  EXPECT_EQ(last_progress, prompt_.size() - reused);
  EXPECT_EQ(engine->resume_report().decision, ResumeDecision::kTooSlow);
  // The group that was read already is whole in memory.
  EXPECT_EQ(engine->resume_report().reused_tokens, kBlockTokens);
  const auto generation = decode(*engine, kGenerated);
  ASSERT_TRUE(generation) << generation.error().message();
  EXPECT_TRUE(generation->same_as(first.generation));
  ring.set_plan({});
  ring.release_hung();
}

TEST_F(ResumeEngine, AnswersThatWereInterruptedAreFoundToo) {
  start("llama-32l", kPrompt);
  {
    const auto engine = make(streaming());
    ASSERT_NE(engine, nullptr);
    const auto outcome = engine->prefill(prompt_, [&](uint32_t done) { cancelled_ = done >= 128; });
    ASSERT_FALSE(outcome);
    ASSERT_TRUE(engine->save());
    cancelled_ = false;
  }
  const Outcome outcome = run(streaming(), prompt_);
  EXPECT_EQ(outcome.report.reused_tokens, 128u);
  expect_same(outcome, prompt_);
}

}  // namespace
}  // namespace hifc::engine
