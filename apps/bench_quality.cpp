// hifc bench quality: what policies save and what they cost, on several texts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>

#include "apps/arguments.h"
#include "apps/bench.h"
#include "apps/bench_model.h"
#include "apps/bench_report.h"
#include "apps/calibration.h"
#include "apps/memory_check.h"
#include "apps/options.h"
#include "apps/quality.h"
#include "base/policy_file.h"
#include "base/text.h"
#include "engine/policy.h"
#include "engine/policy_tuning.h"
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
  std::vector<std::string> policies = {"reference", "auto35",  "auto60", "auto75",
                                       "tuned60",   "tuned75", "tuned80"};
  uint32_t tokens = 0;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// "NAME=PATH", or a path, whose file name's letters and digits are the name.
struct Text {
  std::string name, path;
  std::vector<int32_t> tokens = {};
};
Text parse_text(const std::string& given) {
  const size_t equals = given.find('=');
  if (equals != std::string::npos && equals > 0 && given.find('/') > equals)
    return {.name = given.substr(0, equals), .path = given.substr(equals + 1)};
  Text text{.name = "", .path = given};
  for (const char letter : given.substr(given.find_last_of('/') + 1))
    if (std::isalnum(static_cast<unsigned char>(letter)) != 0)
      text.name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

// What policies promise on SmolLM2 and this text; perplexity against the F32 reference (of
// `reference` against HiFC's F16), KL against llama.cpp's own with an F16 cache.
constexpr std::string_view kPromisedText = "gpl3";
struct Promise {
  std::string_view policy;
  double saved = 0, perplexity_distance = 0, kl_over_floor = 0;
};
constexpr std::array<Promise, 5> kPromises = {{{"reference", 0, 0.003, 0},
                                               {"auto35", 0.35, 0.003, 1.2},
                                               {"auto60", 0.60, 0.003, 1.6},
                                               {"auto75", 0.75, 0.005, 2.5},
                                               {"tuned80", 0.80, 0.01, 0}}};

constexpr std::string_view kTuned = "tuned";

// "tuned75": the share that a policy fitted to a text has to save.
std::optional<double> tuned_share(std::string_view policy) {
  if (!policy.starts_with(kTuned)) return std::nullopt;
  const std::string_view digits = policy.substr(kTuned.size());
  const auto percent = to_number<uint32_t>(digits);
  if (!percent || digits.starts_with('0') || *percent >= 100) return std::nullopt;
  return *percent / 100.0;
}

std::vector<BenchReport::Target> targets_of(const std::string& policy, const std::string& text) {
  std::vector<BenchReport::Target> targets;
  if (text != kPromisedText) return targets;
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
    HIFC_TRY(check_names());
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    config_ = in_memory(config);
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    for (const std::string& name : options_.policies) HIFC_TRY(resolve(name));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config_.threads));
    HIFC_TRY(read_texts());
    BenchReport report("quality", {{"model", model_->description()},
                                   {"texts", options_.texts},
                                   {"policies", options_.policies},
                                   {"tokens", token_counts()},
                                   {"threads", pool_->threads()}});
    for (size_t text = 0; text < texts_.size(); ++text) HIFC_TRY(measure(report, text));
    return publish(report, options_.output);
  }

 private:
  // Rows are found by their names.
  Result<void> check_names() {
    for (const std::string& given : options_.texts) texts_.push_back(parse_text(given));
    for (size_t i = 0; i < texts_.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        if (texts_[i].name == texts_[j].name)
          return failure(Code::kInvalid, fmt::format("--text has '{}' twice; give one of them "
                                                     "another name, as in NAME=PATH",
                                                     texts_[i].name));
        if (texts_[i].path == texts_[j].path)
          return failure(Code::kInvalid, fmt::format("--text has '{}' twice", texts_[i].path));
      }
    std::vector<std::string> labels;
    for (const std::string& policy : options_.policies) {
      const std::string label = policy_label(policy);
      if (label == policy_label("f16"))
        return failure(Code::kInvalid, "--policies has 'f16', which is always there");
      if (std::ranges::find(labels, label) != labels.end())
        return failure(Code::kInvalid, fmt::format("--policies has '{}' twice", label));
      labels.push_back(label);
    }
    return {};
  }

  Result<void> resolve(const std::string& name) {
    kv::CodecPolicy policy;
    if (const auto share = tuned_share(name)) {
      HIFC_TRY(engine::check_saving(model_->shape(), *share));
    } else if (name.starts_with(kTuned) && !is_policy_path(name)) {
      return failure(Code::kInvalid,
                     fmt::format("policy '{}' is not one of tuned1 to tuned99, such as tuned75: "
                                 "fitted to save so many percent",
                                 name));
    } else {
      HIFC_ASSIGN(policy, engine::resolve_policy(name, *model_));
    }
    policies_.push_back(std::move(policy));
    return {};
  }

  Result<void> read_texts() {
    HIFC_ASSIGN(const engine::Budget budget, engine::plan_budget(config_, *model_));
    for (Text& text : texts_) {
      HIFC_ASSIGN(text.tokens, tokens_of(*model_, budget, text.path, options_.tokens,
                                         Calibration::kTokensDefault));
      HIFC_TRY(check_memory(text));
    }
    return {};
  }

  Result<void> check_memory(const Text& text) const {
    const auto tokens = static_cast<uint32_t>(text.tokens.size());
    if (std::ranges::any_of(options_.policies, tuned)) {
      HIFC_TRY(Calibration::check(text.tokens));
      HIFC_TRY(calibration().check_memory(tokens));
    }
    // F16 is what HiFC has, and four times what llama.cpp's runs have. Of each policy there is an
    // engine and what measures recovery; a tuned one may turn out to be F16.
    const kv::CodecPolicy exact(model_->shape().layers);
    std::vector<kv::CodecPolicy> policies(5, exact);
    for (const kv::CodecPolicy& policy : policies_)
      policies.insert(policies.end(), 2, policy.empty() ? exact : policy);
    constexpr uint32_t kStepTokens = 512;  // that engines have room for
    HIFC_ASSIGN(const uint64_t need, kv_memory(model_->shape(), policies, tokens, kStepTokens));
    return apps::check_memory(
        fmt::format("{} of '{}' under {} policies, each of them run and measured, "
                    "and in llama.cpp",
                    plural(tokens, "token"), text.name, policies_.size()),
        need);
  }

  Result<void> measure(BenchReport& report, size_t index) {
    const Text& text = texts_[index];
    HIFC_ASSIGN(const auto policies, policies_for(index));
    const auto count = static_cast<uint32_t>(text.tokens.size());
    HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
    HIFC_ASSIGN(const auto recovery,
                engine::Recovery::create({.shape = model_->shape(),
                                          .policies = policies,
                                          .tokens_max = count,
                                          .ubatch_tokens = QualityRuns::kPieceTokens},
                                         *kernels, *pool_));
    QualityRuns runs(*model_, *pool_, text.tokens);
    HIFC_TRY(runs.add({.config = config_, .observer = recovery.get()}));
    for (const kv::CodecPolicy& policy : policies)
      HIFC_TRY(runs.add({.config = config_, .codecs = policy}));
    Progress progress(
        {.label = text.name, .total = count, .style = Progress::style(options_.quiet)});
    HIFC_TRY(runs.run([&](size_t done) { progress.update(done); }));
    progress.finish();
    add_rows(report, index, runs, policies, *recovery);
    return {};
  }

  Calibration calibration() const {
    return {*model_, *pool_, config_, Progress::style(options_.quiet)};
  }
  static bool tuned(const std::string& policy) { return tuned_share(policy).has_value(); }

  std::vector<size_t> token_counts() const {  // [text]
    std::vector<size_t> counts;
    for (const Text& text : texts_) counts.push_back(text.tokens.size());
    return counts;
  }

  // Tuned policies are fitted to another text than they are judged on, where there is one.
  size_t tuned_on(size_t text) const { return (text + 1) % texts_.size(); }

  Result<std::vector<kv::CodecPolicy>> policies_for(size_t text) const {
    std::vector<kv::CodecPolicy> policies = policies_;
    std::optional<engine::Sensitivity> sensitivity;
    for (size_t i = 0; i < policies.size(); ++i) {
      const auto share = tuned_share(options_.policies[i]);
      if (!share) continue;
      if (!sensitivity) {
        const Calibration calibration = this->calibration();
        const auto& tokens = texts_[tuned_on(text)].tokens;
        HIFC_ASSIGN(sensitivity, calibration.measure_errors(tokens));
        HIFC_TRY(calibration.measure_weights(tokens, *sensitivity));
      }
      HIFC_ASSIGN(policies[i], engine::policy_saving(*sensitivity, model_->shape(), *share));
    }
    return policies;
  }

  void add_rows(BenchReport& report, size_t text, QualityRuns& runs,
                const std::vector<kv::CodecPolicy>& policies,
                const engine::Recovery& recovery) const {
    const std::string& name = texts_[text].name;
    report.add_row(fmt::format("quality.fp16.{}", name), runs.engine_metrics(0));
    const double fp16 = runs.engine_quality(0).perplexity();
    for (size_t i = 0; i < policies.size(); ++i) {
      Json metrics = runs.engine_metrics(i + 1);
      metrics["perplexity_vs_fp16"] = runs.engine_quality(i + 1).perplexity() / fp16 - 1;
      if (tuned(options_.policies[i])) metrics["tuned_on"] = texts_[tuned_on(text)].name;
      add_recovery(metrics, policies[i], recovery, i);
      report.add_row(fmt::format("quality.{}.{}", policy_label(options_.policies[i]), name),
                     std::move(metrics), targets_of(options_.policies[i], name));
    }
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
  std::vector<Text> texts_;
  std::vector<kv::CodecPolicy> policies_;  // as options_.policies; empty where tuned
};

}  // namespace

void add_bench_quality(CLI::App& bench, Action& chosen) {
  CLI::App* quality = bench.add_subcommand(
      "quality", "What policies save, and perplexity, KL divergence and recovery under them");
  quality->footer(
      "Recovery of a layer is 1 - the relative L2 error of its attention output, on the queries,\n"
      "keys and values of an exact run. What is tuned for one text is fitted to the next one.\n"
      "Targets are for SmolLM2 on the text that is called gpl3. Example:\n"
      "  hifc bench quality -m MODEL --policies auto75,policy.yaml --text notes.txt --tokens 2048");
  auto options = std::make_shared<QualityBenchOptions>();
  quality->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  quality->add_option("--text", options->texts, "Texts, each as PATH or NAME=PATH")
      ->delimiter(',')
      ->type_name("TEXT,...")
      ->capture_default_str();
  quality
      ->add_option("--policies", options->policies,
                   "Policies to compare with f16; tuned75 is one that is fitted to save 75 %")
      ->delimiter(',')
      ->type_name("NAME|FILE,...")
      ->capture_default_str();
  add_number(*quality, "--tokens", options->tokens,
             between(0u, std::numeric_limits<uint32_t>::max()),
             "Tokens of each text; 0: up to 4096");
  quality->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*quality, options->output);
  options->config = std::make_unique<ConfigOptions>(*quality, kWithoutTiers);
  quality->callback([=, &chosen] { chosen = [=] { return QualityBench(*options)(); }; });
}

}  // namespace hifc::apps
