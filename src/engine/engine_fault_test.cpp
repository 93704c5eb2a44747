// Goal: whatever flash does to stored KV, the text is the one of an undamaged run, or there is one
// clear error. Method: the least memory that streams, so that nearly every block comes from flash
// at every step; damage in the segment files between steps, or a ring that misbehaves; the same
// generation in memory as the expectation.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "engine/sampler.h"
#include "kv/layout.h"
#include "testing/sim_ring.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

namespace fs = std::filesystem;
using hifc::testing::Fault;
using hifc::testing::SimRing;

constexpr uint32_t kBlockTokens = 64;

std::vector<fs::path> segment_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".seg") files.push_back(entry.path());
  return files;
}

// Flips a bit of the K part of each stored copy of the block; returns how many there are.
uint32_t damage_block(const fs::path& directory, uint32_t layer, uint32_t group) {
  uint32_t damaged = 0;
  const kv::BlockHeader expected;
  for (const fs::path& path : segment_files(directory)) {
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    for (off_t at = 0; at < static_cast<off_t>(fs::file_size(path)); at += kv::kHeaderBytes) {
      kv::BlockHeader header;
      if (pread(file, &header, sizeof header, at) != sizeof header) break;
      // Beyond the data the file is a hole.
      const off_t data = lseek(file, at, SEEK_DATA);
      if (data < 0) break;
      if (header.magic != expected.magic || header.layer != layer ||
          header.tokens.first_position != group * kBlockTokens)
        continue;
      char byte = 0;
      EXPECT_EQ(pread(file, &byte, 1, at + kv::kHeaderBytes + 100), 1);
      byte = static_cast<char>(byte ^ 0x10);
      EXPECT_EQ(pwrite(file, &byte, 1, at + kv::kHeaderBytes + 100), 1);
      ++damaged;
    }
    EXPECT_EQ(fsync(file), 0);
    close(file);
  }
  return damaged;
}

class Streaming : public ModelTest {
 protected:
  void start(const std::string& name, io::Ring* ring = nullptr) {
    load(name);
    prompt_ = text_tokens(*model_, streaming_prompt_tokens(*model_, kBlockTokens));
    flash_ = directory_.file("kv");
    engine_ = make(least_memory_config(*model_, kBlockTokens, flash_), ring);
    ASSERT_NE(engine_, nullptr);
  }
  void start_and_prefill(const std::string& name, io::Ring* ring = nullptr) {
    start(name, ring);
    ASSERT_TRUE(engine_->prefill(prompt_));
    ASSERT_TRUE(engine_->flush());
  }
  // The same generation with everything in memory.
  Generation undamaged(uint32_t count) {
    const auto engine = make(memory_config());
    const auto generation = generate(*engine, prompt_, count);
    EXPECT_TRUE(generation);
    return generation.value_or(Generation{});
  }
  void expect_undamaged(const Result<Generation>& generation) {
    ASSERT_TRUE(generation) << generation.error().message();
    const Generation expected = undamaged(static_cast<uint32_t>(generation->tokens.size()));
    EXPECT_EQ(generation->tokens, expected.tokens);
    EXPECT_EQ(generation->logits_hash, expected.logits_hash);
  }

  testing::TempDirectory directory_;
  fs::path flash_;
  std::vector<int32_t> prompt_;
  std::unique_ptr<Engine> engine_;
};

class DamagedStreaming : public Streaming, public ::testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, DamagedStreaming,
                         ::testing::Values("llama-32l", "qwen2-gqa-bias", "gemma2-softcap",
                                           "smollm2-135m"),
                         test_name);

TEST_P(DamagedStreaming, RecomputesABlockDamagedInAnyLayer) {
  start_and_prefill(GetParam());
  const uint32_t layers = model_->shape().layers;
  const std::array<uint32_t, 3> damaged = {0, layers / 2, layers - 1};
  // The earliest groups are the ones that stay in memory.
  const auto cold = static_cast<uint32_t>(prompt_.size()) / kBlockTokens - 1;
  uint32_t copies = 0;
  // Three steps for each: what was read ahead before the damage is still good.
  const auto generation = decode(*engine_, 10, [&](uint32_t step) {
    if (step % 3 == 0 && step < 9)
      copies += damage_block(flash_, damaged[step / 3], cold - step / 3);
  });
  EXPECT_GE(copies, 3u);
  expect_undamaged(generation);
  // Of a window layer the damaged block may be out of sight.
  const uint32_t seen = GetParam() == "gemma2-softcap" ? 1 : 3;
  EXPECT_GE(generation->recomputed_groups, seen);
  EXPECT_LE(generation->recomputed_groups, 3u);
  EXPECT_EQ(engine_->statistics().recomputed_groups, engine_->cache_statistics().lost_groups);
}

TEST_P(DamagedStreaming, RecomputesEverythingWhenTheFileIsCutOff) {
  start_and_prefill(GetParam());
  const auto generation = decode(*engine_, 4, [&](uint32_t step) {
    if (step != 1) return;
    for (const fs::path& path : segment_files(flash_)) fs::resize_file(path, 4096);
  });
  expect_undamaged(generation);
  EXPECT_GT(generation->recomputed_groups, 0u);
}

// A few errors: the device recovers, as one that fails in every step does not.
TEST_F(Streaming, RecomputesAroundReadErrors) {
  uint32_t reads = 0;
  SimRing ring({.choose = [&](const io::Request& request) {
    if (request.operation != io::Operation::kRead) return Fault::kNone;
    // Of several blocks that are read together, one fails alone too.
    return ++reads % 101 < 2 && reads < 600 ? Fault::kIoError : Fault::kNone;
  }});
  start("qwen2-gqa-bias", &ring);
  ASSERT_TRUE(engine_->prefill(prompt_));
  const auto generation = decode(*engine_, 12);
  expect_undamaged(generation);
  EXPECT_GT(ring.injected(Fault::kIoError), 0u);
  EXPECT_GT(generation->recomputed_groups, 0u);
  engine_.reset();
}

TEST_F(Streaming, SurvivesAMixOfFaultsInAnyOrder) {
  SimRing ring({.seed = 7,
                .read_error = 0.004,
                .write_error = 0.05,
                .short_read = 0.004,
                .bit_flip = 0.004,
                .torn_write = 0.02,
                .delay_polls_max = 3});
  start("llama-hd96", &ring);
  ASSERT_TRUE(engine_->prefill(prompt_));
  expect_undamaged(decode(*engine_, 12));
  EXPECT_GT(engine_->statistics().recomputed_groups, 0u);
  engine_.reset();
}

void expect_one_sentence(const Error& error) {
  EXPECT_FALSE(error.context.empty());
  EXPECT_EQ(error.message().find('\n'), std::string::npos);
}

// Nothing read back is ever right: an error, not an endless repetition. Once the device works again
// so does the engine.
TEST_F(Streaming, GivesUpWithOneErrorWhenEveryReadIsDamaged) {
  for (const bool flips : {true, false}) {
    SCOPED_TRACE(flips ? "flipped bits" : "read errors");
    SimRing ring({});
    start_and_prefill("qwen2-gqa-bias", &ring);
    ring.set_plan({.read_error = flips ? 0.0 : 1.0, .bit_flip = flips ? 1.0 : 0.0});
    auto broken = decode(*engine_, 4);
    ASSERT_FALSE(broken);
    EXPECT_EQ(broken.error().code, Code::kCorrupt);
    expect_one_sentence(broken.error());
    EXPECT_NE(broken.error().message().find(flash_), std::string::npos);

    ring.set_plan({});
    const uint32_t length = engine_->length();
    ASSERT_GE(length, prompt_.size());
    const int32_t token = prompt_.front();
    ASSERT_TRUE(engine_->step({&token, 1}, Outputs::kLast, cache::StepKind::kGeneration));
    EXPECT_EQ(engine_->length(), length + 1);
    engine_.reset();
  }
}

TEST_F(Streaming, FullDiskChangesNothingWhileMemorySuffices) {
  SimRing ring({.no_space = 1});
  load("qwen2-gqa-bias");
  prompt_ = text_tokens(*model_, streaming_prompt_tokens(*model_, kBlockTokens));
  flash_ = directory_.file("kv");
  Config config = memory_config();
  config.block_tokens = kBlockTokens;
  config.flash_path = flash_;
  config.flash_cache_size = uint64_t{256} << 20;
  engine_ = make(config, &ring);
  ASSERT_NE(engine_, nullptr);
  ASSERT_TRUE(engine_->prefill(prompt_));
  const auto flushed = engine_->flush();
  ASSERT_FALSE(flushed);
  expect_one_sentence(flushed.error());
  EXPECT_GT(ring.injected(Fault::kNoSpace), 0u);
  expect_undamaged(decode(*engine_, 4));
  engine_.reset();
}

TEST_F(Streaming, FullDiskIsAClearErrorWhereMemoryIsShort) {
  SimRing ring({.no_space = 1});
  start("qwen2-gqa-bias", &ring);
  const auto outcome = engine_->prefill(prompt_);
  ASSERT_FALSE(outcome);
  expect_one_sentence(outcome.error());
  EXPECT_TRUE(outcome.error().code == Code::kFull || outcome.error().code == Code::kIo)
      << outcome.error().message();
  EXPECT_NE(outcome.error().message().find("No space left"), std::string::npos)
      << outcome.error().message();
  // What was computed stays, and so does the way out once there is room again.
  const uint32_t length = engine_->length();
  EXPECT_GT(length, 0u);
  engine_.reset();
}

TEST_F(Streaming, CancelledBetweenChunksGoesOnWhereItStopped) {
  start("llama-32l");
  const auto cancelled =
      engine_->prefill(prompt_, [&](uint32_t done) { cancelled_ = done >= 256; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, Code::kCancelled);
  EXPECT_EQ(engine_->length(), 256u);
  cancelled_ = false;
  ASSERT_TRUE(engine_->prefill(std::span(prompt_).subspan(engine_->length())));
  expect_undamaged(decode(*engine_, 4));
}

// A read that is about to be submitted raises the flag, so that the step stops in a middle layer.
TEST_F(Streaming, CancelledInsideAStepGoesOnWhereItStopped) {
  uint32_t reads = 0, cancel_at = 0;
  SimRing ring({.choose = [&](const io::Request& request) {
    if (request.operation == io::Operation::kRead && ++reads == cancel_at) cancelled_ = true;
    return Fault::kNone;
  }});
  start("llama-32l", &ring);
  uint32_t times_cancelled = 0;
  const auto through = [&](auto work) {
    for (auto outcome = work(); !outcome; outcome = work()) {
      ASSERT_EQ(outcome.error().code, Code::kCancelled) << outcome.error().message();
      ++times_cancelled;
      ASSERT_LT(times_cancelled, 20u);
      cancelled_ = false;
      // What was read is dropped with the step, so each attempt has to get further.
      cancel_at = reads + 100 * times_cancelled * times_cancelled;
    }
  };
  cancel_at = 75;
  through([&] { return engine_->prefill(std::span(prompt_).subspan(engine_->length())); });
  if (HasFatalFailure()) return;
  EXPECT_GE(times_cancelled, 2u);
  const uint32_t in_prefill = times_cancelled;
  cancel_at = reads + 50;
  Generation generation;
  for (uint32_t i = 0; i < 4; ++i) {
    const int32_t token = argmax(engine_->logits());
    generation.tokens.push_back(token);
    through(
        [&] { return engine_->step({&token, 1}, Outputs::kLast, cache::StepKind::kGeneration); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(times_cancelled, in_prefill);
  generation.logits_hash = engine_->statistics().logits_hash;
  expect_undamaged(generation);
  engine_.reset();
}

}  // namespace
}  // namespace hifc::engine
