// What the engine's tests share: models by name, budgets that force streaming, and one generation.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/thread_pool.h"
#include "testing/sim_clock.h"

namespace hifc::engine {

// A random-weight model of tests/models/make_models.py or a downloaded one.
std::string model_path(std::string_view name);
// Every model that HiFC runs.
const std::vector<std::string>& running_models();
// A parameter's name, as GoogleTest wants it.
std::string test_name(const ::testing::TestParamInfo<std::string>& info);

// The first tokens of the GPL; there are 7,000 for every model.
std::vector<int32_t> text_tokens(const Model& model, size_t count);

// A configuration without flash whose chunks are small enough for every budget, so that the chunk
// grid is always the same.
Config memory_config();
// The least memory that streams from `directory`, split between hot and warm.
Config least_memory_config(const Model& model, uint32_t block_tokens,
                           const std::filesystem::path& directory);
uint64_t block_bytes(const Model& model, uint32_t block_tokens);
// A prompt that is half as long again as what that memory holds, and ends inside a page.
uint32_t streaming_prompt_tokens(const Model& model, uint32_t block_tokens);

struct Generation {
  std::vector<int32_t> tokens;
  uint64_t logits_hash = 0;
  uint64_t recomputed_groups = 0;

  bool same_as(const Generation& other) const {
    return tokens == other.tokens && logits_hash == other.logits_hash;
  }
};

// Greedy decoding of `count` tokens after what the engine has computed; `before` runs ahead of each
// step with its number.
Result<Generation> decode(Engine& engine, uint32_t count,
                          const std::function<void(uint32_t step)>& before = {});
// Prefill, then decode().
Result<Generation> generate(Engine& engine, std::span<const int32_t> prompt, uint32_t count);

// A test of one model.
class ModelTest : public ::testing::Test {
 protected:
  void load(const std::string& name, kernels::Rounding rounding = kernels::Rounding::kFastest);
  // Without a ring of the test's own, time stands still: loading what is stored always seems worth
  // it, whatever else the machine does.
  std::unique_ptr<Engine> make(const Config& config, io::Ring* ring = nullptr);

  std::unique_ptr<Model> model_;
  std::unique_ptr<ThreadPool> pool_;
  std::atomic<bool> cancelled_ = false;
  testing::SimClock standing_clock_;
};

}  // namespace hifc::engine
