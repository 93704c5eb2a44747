// hifc tune quality: measures how much each layer's attention suffers from each codec of K and of V
// on a text, and writes the policy that saves so many bytes at the least loss, or that keeps so
// much of every layer in the fewest bytes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

#include "apps/bench_report.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/quality.h"
#include "engine/policy.h"
#include "engine/policy_tuning.h"
#include "engine/recovery.h"
#include "kernels/attention.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;

struct TuneOptions {
  std::string model;
  std::string file;
  std::string save_bytes;
  double recovery = 0;
  std::string output_path = "policy.yaml";
  uint32_t tokens = 4096;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// "35%" or "0.35".
Result<double> parse_share(const std::string& text) {
  const bool percent = text.ends_with('%');
  double value = 0;
  const char* const end = text.data() + text.size() - (percent ? 1 : 0);
  const auto parsed = std::from_chars(text.data(), end, value);
  if (percent) value /= 100;
  if (parsed.ec != std::errc() || parsed.ptr != end || !(value > 0) || !(value < 1))
    return failure(Code::kInvalid,
                   fmt::format("--save-bytes '{}' is not a share between 0 and 1, such as 35% or "
                               "0.35",
                               text));
  return value;
}

class Tune {
 public:
  explicit Tune(const TuneOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_TRY(check_goal());
    HIFC_ASSIGN(config_, options_.config->resolve());
    config_.policy = "f16";
    config_.deterministic = false;
    config_.flash_cache_size = 0;
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config_.threads));
    HIFC_ASSIGN(tokens_, tokens_of(*model_, config_, options_.file, options_.tokens));
    HIFC_ASSIGN(const auto sensitivity, measure());
    HIFC_ASSIGN(const kv::CodecPolicy policy, choose(sensitivity));
    HIFC_TRY(engine::write_policy(options_.output_path, policy, *model_, comment()));
    HIFC_ASSIGN(const BenchReport report, check(sensitivity, policy));
    const int status = publish(report, options_.output);
    if (!options_.output.json)
      fmt::print("{}: use it with --policy {}\n", options_.output_path, options_.output_path);
    return status;
  }

 private:
  Result<void> check_goal() {
    if (!engine::is_policy_path(options_.output_path))
      return failure(Code::kInvalid,
                     fmt::format("-o '{}' would not be taken for a file by --policy: give it an "
                                 "ending of .yaml or a path with a '/'",
                                 options_.output_path));
    if (options_.save_bytes.empty() == (options_.recovery == 0))
      return failure(Code::kInvalid, "give one of --save-bytes SHARE and --recovery SHARE");
    if (options_.save_bytes.empty()) return {};
    HIFC_ASSIGN(save_bytes_, parse_share(options_.save_bytes));
    return {};
  }

  std::string comment() const {
    const std::string goal = save_bytes_ ? fmt::format("--save-bytes {}", options_.save_bytes)
                                         : fmt::format("--recovery {}", options_.recovery);
    return fmt::format("written by hifc tune quality -m {} -f {} --tokens {} {}", options_.model,
                       options_.file, tokens_.size(), goal);
  }

  Progress progress(const char* label) const {
    return Progress(
        {.label = label,
         .total = tokens_.size(),
         .style = options_.quiet ? Progress::Style::kQuiet : Progress::Style::kAutomatic});
  }

  // Every codec of K alone and of V alone, beside one exact run.
  Result<engine::Sensitivity> measure() {
    const uint32_t layers = model_->shape().layers;
    std::vector<kv::CodecPolicy> candidates;
    for (const kv::Codec codec : engine::kLossyCodecs) {
      candidates.emplace_back(layers, kv::LayerCodecs{.k = codec});
      candidates.emplace_back(layers, kv::LayerCodecs{.v = codec});
    }
    engine::EngineOptions exact{.config = config_};
    exact.cancelled = &interrupted();
    HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
    const auto count = static_cast<uint32_t>(tokens_.size());
    const uint32_t ubatch = config_.ubatch != 0 ? config_.ubatch : 512;
    HIFC_ASSIGN(const auto recovery, engine::Recovery::create({.shape = model_->shape(),
                                                               .policies = candidates,
                                                               .tokens_max = count,
                                                               .ubatch_tokens = ubatch},
                                                              *kernels, *pool_));
    exact.observer = recovery.get();
    HIFC_ASSIGN(const auto engine, engine::Engine::create(*model_, *pool_, std::move(exact)));
    Progress bar = progress("measure");
    HIFC_TRY(engine->prefill(tokens_, [&](uint32_t done) { bar.update(done); }));
    bar.finish();
    engine::Sensitivity sensitivity(layers);
    for (uint32_t layer = 0; layer < layers; ++layer)
      for (size_t i = 0; i < engine::kLossyCodecs.size(); ++i) {
        sensitivity[layer].k[i] = 1 - recovery->recovery(2 * i, layer);
        sensitivity[layer].v[i] = 1 - recovery->recovery(2 * i + 1, layer);
      }
    return sensitivity;
  }

  Result<kv::CodecPolicy> choose(const engine::Sensitivity& sensitivity) const {
    return save_bytes_ ? engine::policy_saving(sensitivity, model_->shape(), *save_bytes_)
                       : engine::policy_recovering(sensitivity, model_->shape(), options_.recovery);
  }

  // What the policy does to the same text.
  Result<BenchReport> check(const engine::Sensitivity& sensitivity, const kv::CodecPolicy& policy) {
    QualityRuns runs(*model_, *pool_, tokens_);
    HIFC_TRY(runs.add({.config = config_, .codecs = policy}));
    Progress bar = progress("check");
    HIFC_TRY(runs.run(bar));
    BenchReport report("tune.quality", {{"model", model_->description()},
                                        {"file", options_.file},
                                        {"tokens", tokens_.size()},
                                        {"output", options_.output_path}});
    const kv::GroupLayout& layout = runs.engine(0).budget().layout;
    const Quality& quality = runs.engine_quality(0);
    const double reference = runs.llama(QualityRuns::kF32).perplexity();
    report.add_row("policy", {{"bytes_per_token", layout.token_bytes()},
                              {"saved", saved_share(layout)},
                              {"perplexity_change", quality.perplexity() / reference - 1},
                              {"kl", quality.mean_kl()},
                              {"kl_over_floor", quality.mean_kl() / runs.kl_floor()},
                              {"top1", quality.top1()}});
    for (uint32_t layer = 0; layer < policy.size(); ++layer)
      report.add_row(fmt::format("layer{}", layer),
                     {{"k", kv::to_string(policy[layer].k)},
                      {"v", kv::to_string(policy[layer].v)},
                      {"recovery", 1 - engine::error_of(sensitivity[layer], policy[layer])}});
    return report;
  }

  const TuneOptions& options_;
  Config config_;
  std::optional<double> save_bytes_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  std::vector<int32_t> tokens_;
};

}  // namespace

void add_tune_command(CLI::App& app, Action& chosen) {
  CLI::App* tune = app.add_subcommand("tune", "Fit HiFC to a model and a machine");
  tune->require_subcommand(1);
  CLI::App* quality = tune->add_subcommand(
      "quality", "Find how few bits each layer's K and V need, and write a policy file");
  quality->footer(
      "Measures on a text of the kind the model is used for. Examples:\n"
      "  hifc tune quality -m MODEL -f TEXT --save-bytes 60% -o policy.yaml\n"
      "  hifc tune quality -m MODEL -f TEXT --recovery 0.98 -o policy.yaml\n"
      "  hifc run -m MODEL -p 'Hello' --policy policy.yaml");
  auto options = std::make_shared<TuneOptions>();
  quality->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  quality->add_option("-f,--file", options->file, "Text to measure on")->required();
  quality
      ->add_option("--save-bytes", options->save_bytes,
                   "Share of the bytes of F16 to save, scales included, such as 35%")
      ->type_name("SHARE");
  quality
      ->add_option("--recovery", options->recovery,
                   "Share of its attention output that every layer keeps, such as 0.98")
      ->check(CLI::Range(0.5, 0.9999))
      ->type_name("0.5..0.9999");
  quality->add_option("-o,--output", options->output_path, "Policy file to write")
      ->capture_default_str();
  quality->add_option("--tokens", options->tokens, "Tokens of the text to use; 0: all that fit")
      ->capture_default_str();
  quality->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*quality, options->output);
  options->config = std::make_unique<ConfigOptions>(
      *quality, std::initializer_list<std::string_view>{"policy", "deterministic"});
  quality->callback([=, &chosen] { chosen = [=] { return Tune(*options)(); }; });
}

}  // namespace hifc::apps
