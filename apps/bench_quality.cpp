// hifc bench quality: what policies save and what they cost, on several texts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <numeric>

#include "apps/bench.h"
#include "apps/bench_report.h"
#include "apps/options.h"
#include "apps/quality.h"
#include "engine/policy.h"
#include "engine/recovery.h"
#include "kernels/attention.h"

namespace hifc::apps {
namespace {

using Bound = BenchReport::Bound;
using Json = BenchReport::Json;

struct QualityBenchOptions {
  std::string model;
  std::vector<std::string> texts = {"gpl3=/usr/share/common-licenses/GPL-3",
                                    "gfdl=/usr/share/common-licenses/GFDL-1.3"};
  std::vector<std::string> policies = {"reference", "auto35", "auto60", "auto75", "auto80"};
  uint32_t tokens = 4096;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// "NAME=PATH", or a path, whose file name's letters and digits are the name.
struct Text {
  std::string name, path;
};
Text parse_text(const std::string& given) {
  if (const size_t equals = given.find('='); equals != std::string::npos)
    return {.name = given.substr(0, equals), .path = given.substr(equals + 1)};
  Text text{.name = "", .path = given};
  for (const char letter : given.substr(given.find_last_of('/') + 1))
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0)
      text.name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

// What each named policy promises on SmolLM2 and GPL-3; perplexity against the F32 reference (of
// `reference` against HiFC's F16), KL against llama.cpp's own with an F16 cache.
struct Promise {
  std::string_view policy;
  double saved = 0, perplexity_distance = 0, kl_over_floor = 0;
};
constexpr std::array<Promise, 5> kPromises = {{{"reference", 0, 0.003, 0},
                                               {"auto35", 0.35, 0.003, 1.2},
                                               {"auto60", 0.60, 0.003, 1.6},
                                               {"auto75", 0.75, 0.005, 2.5},
                                               {"auto80", 0.80, 0.01, 0}}};

std::vector<BenchReport::Target> targets_of(const std::string& policy) {
  std::vector<BenchReport::Target> targets;
  for (const Promise& promise : kPromises) {
    if (promise.policy != policy) continue;
    const char* const metric = policy == "reference" ? "perplexity_vs_fp16" : "perplexity_distance";
    targets.push_back({metric, Bound::kAtMost, promise.perplexity_distance});
    if (promise.saved > 0) targets.push_back({"saved", Bound::kAtLeast, promise.saved});
    if (promise.kl_over_floor > 0)
      targets.push_back({"kl_over_floor", Bound::kAtMost, promise.kl_over_floor});
  }
  // The published figures of that table.
  if (policy == "reference") {
    targets.push_back({"recovery_k8", Bound::kAtLeast, 0.992});
    targets.push_back({"recovery_k4", Bound::kAtLeast, 0.978});
  }
  return targets;
}

class QualityBench {
 public:
  explicit QualityBench(const QualityBenchOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_ASSIGN(config_, options_.config->resolve());
    config_.flash_cache_size = 0;
    config_.deterministic = false;
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    for (const std::string& name : options_.policies) {
      HIFC_ASSIGN(auto policy, engine::resolve_policy(name, *model_));
      policies_.push_back(std::move(policy));
    }
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config_.threads));
    BenchReport report("quality", {{"model", model_->description()},
                                   {"texts", options_.texts},
                                   {"policies", options_.policies},
                                   {"tokens", options_.tokens},
                                   {"threads", pool_->threads()}});
    for (const std::string& given : options_.texts) HIFC_TRY(measure(report, parse_text(given)));
    return publish(report, options_.output);
  }

 private:
  Result<void> measure(BenchReport& report, const Text& text) {
    Config config = config_;
    config.policy = "f16";
    HIFC_ASSIGN(auto tokens, tokens_of(*model_, config, text.path, options_.tokens));
    const auto count = static_cast<uint32_t>(tokens.size());
    HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
    HIFC_ASSIGN(const auto recovery,
                engine::Recovery::create({.shape = model_->shape(),
                                          .policies = policies_,
                                          .tokens_max = count,
                                          .ubatch_tokens = QualityRuns::kPieceTokens},
                                         *kernels, *pool_));
    QualityRuns runs(*model_, *pool_, std::move(tokens));
    HIFC_TRY(runs.add({.config = config, .observer = recovery.get()}));
    for (const kv::CodecPolicy& policy : policies_)
      HIFC_TRY(runs.add({.config = config, .codecs = policy}));
    Progress progress(
        {.label = text.name,
         .total = count,
         .style = options_.quiet ? Progress::Style::kQuiet : Progress::Style::kAutomatic});
    HIFC_TRY(runs.run(progress));
    add_rows(report, text, runs, *recovery);
    return {};
  }

  void add_rows(BenchReport& report, const Text& text, QualityRuns& runs,
                const engine::Recovery& recovery) const {
    report.add_row(fmt::format("quality.fp16.{}", text.name), metrics_of(runs, 0));
    for (size_t i = 0; i < policies_.size(); ++i) {
      Json metrics = metrics_of(runs, i + 1);
      add_recovery(metrics, policies_[i], recovery, i);
      report.add_row(fmt::format("quality.{}.{}", options_.policies[i], text.name),
                     std::move(metrics), targets_of(options_.policies[i]));
    }
  }

  static Json metrics_of(QualityRuns& runs, size_t run) {
    const kv::GroupLayout& layout = runs.engine(run).budget().layout;
    const Quality& quality = runs.engine_quality(run);
    const double reference = runs.llama(QualityRuns::kF32).perplexity();
    return {{"bytes_per_token", layout.token_bytes()},
            {"flash_bytes_per_token",
             static_cast<double>(layout.sealed_bytes()) / layout.block_tokens()},
            {"saved", saved_share(layout)},
            {"perplexity", quality.perplexity()},
            {"reference_perplexity", reference},
            {"perplexity_change", quality.perplexity() / reference - 1},
            {"perplexity_distance", std::abs(quality.perplexity() / reference - 1)},
            {"perplexity_vs_fp16", quality.perplexity() / runs.engine_quality(0).perplexity() - 1},
            {"kl", quality.mean_kl()},
            {"kl_floor", runs.kl_floor()},
            {"kl_over_floor", quality.mean_kl() / runs.kl_floor()},
            {"top1", quality.top1()}};
  }

  // Of all layers, of those with K in 8 bits, of those with K in 4, and each.
  static void add_recovery(Json& metrics, const kv::CodecPolicy& policy,
                           const engine::Recovery& recovery, size_t index) {
    std::vector<double> layers, k8, k4;
    for (uint32_t layer = 0; layer < policy.size(); ++layer) {
      layers.push_back(recovery.recovery(index, layer));
      if (policy[layer].k == kv::Codec::kI8) k8.push_back(layers.back());
      if (policy[layer].k == kv::Codec::kI4) k4.push_back(layers.back());
    }
    const auto mean = [](const std::vector<double>& values) -> Json {
      if (values.empty()) return nullptr;
      return std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(values.size());
    };
    metrics["recovery"] = mean(layers);
    metrics["recovery_min"] = *std::ranges::min_element(layers);
    metrics["recovery_k8"] = mean(k8);
    metrics["recovery_k4"] = mean(k4);
    metrics["recovery_layers"] = layers;
  }

  const QualityBenchOptions& options_;
  Config config_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  std::vector<kv::CodecPolicy> policies_;
};

}  // namespace

void add_bench_quality(CLI::App& bench, Action& chosen) {
  CLI::App* quality = bench.add_subcommand(
      "quality", "What policies save, and perplexity, KL divergence and recovery under them");
  quality->footer(
      "Recovery of a layer is 1 - the relative L2 error of its attention output, on the queries,\n"
      "keys and values of an exact run. Targets are for SmolLM2 on GPL-3. Example:\n"
      "  hifc bench quality -m MODEL --policies auto75,policy.yaml --text notes.txt --tokens 2048");
  auto options = std::make_shared<QualityBenchOptions>();
  quality->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  quality->add_option("--text", options->texts, "Texts, each as PATH or NAME=PATH")
      ->delimiter(',')
      ->type_name("TEXT,...")
      ->capture_default_str();
  quality->add_option("--policies", options->policies, "Policies to compare with f16")
      ->delimiter(',')
      ->type_name("NAME|FILE,...")
      ->capture_default_str();
  quality->add_option("--tokens", options->tokens, "Tokens of each text; 0: all that fit")
      ->capture_default_str();
  quality->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*quality, options->output);
  options->config = std::make_unique<ConfigOptions>(
      *quality, std::initializer_list<std::string_view>{"policy", "deterministic"});
  quality->callback([=, &chosen] { chosen = [=] { return QualityBench(*options)(); }; });
}

}  // namespace hifc::apps
