// What the benchmarks that run a model share: options, the model, and enough tokens of real text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "apps/bench_report.h"
#include "apps/options.h"
#include "apps/scratch_directory.h"
#include "apps/trace_file.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/reference.h"

namespace hifc::apps {

struct ModelBenchOptions {
  std::string model;
  // One after the other; a text that is shorter than the context goes round.
  std::vector<std::string> files = {"/usr/share/common-licenses/GPL-3",
                                    "/usr/share/common-licenses/GFDL-1.3"};
  std::vector<uint32_t> contexts;
  std::vector<double> hot_ratios = {1.0};
  // Side by side, where the command has lists of them; empty: what the configuration says.
  std::vector<std::string> policies, attentions;
  uint32_t rounds = 5;  // 0: nothing is timed
  uint32_t tokens = 8;  // decoded by each contender in each round
  BenchOutput output;
  TraceFile trace;  // of the commands that have the option
  std::unique_ptr<ConfigOptions> config;
};

// Whether --policy and --attention take several values.
enum class Variants : uint8_t { kOne, kSeveral };

struct ModelBenchDefaults {
  std::vector<uint32_t> contexts;
  uint32_t rounds = 5;  // 0: without the option
  Variants variants = Variants::kOne;
  std::vector<double> hot_ratios = {1.0};
  uint32_t context_min = 1;
};
std::shared_ptr<ModelBenchOptions> add_model_bench_options(CLI::App& command,
                                                           ModelBenchDefaults defaults);

// Makes `prefix` what the engine holds, of which it holds the beginning, or more of it.
Result<void> go_to(engine::Engine& engine, std::span<const int32_t> prefix);

// A policy's name in rows: "fp16", "auto75", or a policy file's name without its ending.
std::string policy_label(const std::string& policy);

// Everything that its engines store is removed with it.
struct ModelBench {
  const ModelBenchOptions& options;
  Config config;  // flash_path is set where there is a flash tier
  SystemClock clock;
  ScratchDirectory scratch;  // of the flash tier, in flash_path
  std::unique_ptr<engine::Model> model;
  std::unique_ptr<engine::ThreadPool> pool;
  std::string text;             // of the file
  std::vector<int32_t> tokens;  // of the text, which goes round where it is too short
  uint32_t engines = 0;         // made so far over flash

  explicit ModelBench(const ModelBenchOptions& bench_options) : options(bench_options) {}

  Result<void> prepare(uint64_t tokens_needed);
  BenchReport::Json parameters() const;

  struct EngineSetup {
    double hot_ratio = 1;  // of the KV of `context` tokens
    uint32_t context = 0;
    std::string policy = {}, attention = {}, predictor = {};  // empty: as configured
    cache::LayerObserver* layer_observer = nullptr;
    bool flash = true;  // where there is a flash tier; else all is in memory
    // Keeps what is stored there. Empty: nothing is taken from an earlier engine, nothing is kept.
    std::string flash_path = {};
  };
  Result<std::unique_ptr<engine::Engine>> make_engine(const EngineSetup& setup);
  Result<std::unique_ptr<engine::Reference>> make_reference(engine::ReferenceMode mode,
                                                            uint32_t context);

  // Appends the seconds that `work` takes.
  template <typename Work>
  Result<void> time(std::vector<double>& seconds, Work work) {
    HIFC_TRY(check_interrupted());
    const uint64_t start_ns = clock.now_ns();
    HIFC_TRY(work());
    seconds.push_back(milliseconds(clock.now_ns() - start_ns) / 1000);
    return {};
  }
};

}  // namespace hifc::apps
