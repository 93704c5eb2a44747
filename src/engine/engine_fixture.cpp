#include "engine/engine_fixture.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "cache/kv_cache.h"
#include "engine/sampler.h"
#include "kv/layout.h"

namespace hifc::engine {
namespace {

constexpr uint32_t kContext = 4096;
constexpr uint32_t kUbatch = 64;

// In exact blocks.
uint32_t least_frames(const Model& model, uint32_t block_tokens) {
  const auto layout = kv::GroupLayout::make(model.shape(), block_tokens).value();
  const uint32_t waiting = tier::groups_per_write_min(layout.exact_bytes(), layout.layers());
  const uint64_t bytes = cache::KvCache::bytes_min(layout) + (waiting - 1) * layout.exact_bytes();
  return static_cast<uint32_t>(bytes / layout.exact.block_bytes());
}

}  // namespace

std::string model_path(std::string_view name) {
  const std::string made = HIFC_TEST_MODEL_DIR "/" + std::string(name) + ".gguf";
  if (std::filesystem::exists(made)) return made;
  return HIFC_MODEL_DIR "/" + std::string(name) + ".gguf";
}

const std::vector<std::string>& running_models() {
  static const std::vector<std::string> models = {
      "llama-32l",      "qwen2-gqa-bias", "llama-hd96",  "llama-hd128",
      "gemma2-softcap", "smollm2-135m",   "gemma3-270m",
  };
  return models;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

std::vector<int32_t> text_tokens(const Model& model, size_t count) {
  std::ifstream file("/usr/share/common-licenses/GPL-3", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto tokens = model.tokenize(text, /*parse_special=*/false);
  if (!tokens || tokens->size() < count) {
    ADD_FAILURE() << "the text does not give " << count << " tokens";
    return std::vector<int32_t>(count);
  }
  tokens->resize(count);
  return *tokens;
}

Config memory_config() {
  Config config;
  config.flash_cache_size = 0;
  config.context = kContext;
  config.ubatch = kUbatch;
  return config;
}

uint64_t block_bytes(const Model& model, uint32_t block_tokens) {
  return kv::BlockLayout::make(model.shape(), block_tokens)->block_bytes();
}

Config least_memory_config(const Model& model, uint32_t block_tokens,
                           const std::filesystem::path& directory) {
  const uint64_t frames = least_frames(model, block_tokens);
  Config config = memory_config();
  config.block_tokens = block_tokens;
  config.hot_cache_size = frames / 2 * block_bytes(model, block_tokens);
  config.warm_cache_size = (frames - frames / 2) * block_bytes(model, block_tokens);
  config.flash_cache_size = uint64_t{256} << 20;
  config.flash_path = directory;
  return config;
}

uint32_t streaming_prompt_tokens(const Model& model, uint32_t block_tokens) {
  // Layers with a window keep next to nothing in memory.
  const auto full_layers = static_cast<uint32_t>(std::ranges::count(model.shape().window, 0u));
  const uint32_t held = least_frames(model, block_tokens) / full_layers * block_tokens;
  constexpr uint32_t kGenerated = 43;
  return std::min(std::max(576u, held * 3 / 2) + 21, kContext - kGenerated);
}

Result<Generation> decode(Engine& engine, uint32_t count,
                          const std::function<void(uint32_t)>& before) {
  Generation generation;
  for (uint32_t step = 0; step < count; ++step) {
    const int32_t token = argmax(engine.logits());
    generation.tokens.push_back(token);
    if (before) before(step);
    HIFC_TRY(engine.step({&token, 1}, Outputs::kLast, cache::StepKind::kGeneration));
  }
  generation.logits_hash = engine.statistics().logits_hash;
  generation.recomputed_groups = engine.statistics().recomputed_groups;
  return generation;
}

Result<Generation> generate(Engine& engine, std::span<const int32_t> prompt, uint32_t count) {
  HIFC_TRY(engine.prefill(prompt));
  return decode(engine, count);
}

// One thread: tests run beside each other, and threads that wait for each other spin.
void ModelTest::load(const std::string& name, kernels::Rounding rounding) {
  auto model = Model::load(model_path(name), rounding);
  ASSERT_TRUE(model) << model.error().message();
  model_ = std::move(*model);
  auto pool = ThreadPool::create(1);
  ASSERT_TRUE(pool) << pool.error().message();
  pool_ = std::move(*pool);
}

std::unique_ptr<Engine> ModelTest::make(const Config& config, io::Ring* ring) {
  auto engine = Engine::create(*model_, *pool_,
                               {.config = config,
                                .outputs_max = 64,
                                .ring = ring,
                                .clock = ring == nullptr ? &standing_clock_ : nullptr,
                                .cancelled = &cancelled_});
  if (engine) return std::move(*engine);
  ADD_FAILURE() << engine.error().message();
  return nullptr;
}

}  // namespace hifc::engine
