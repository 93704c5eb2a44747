// hifc tune quality: measures how much each layer's attention suffers from each codec of K and of V
// on a text, and writes the policy that saves so many bytes at the least loss, or that keeps so
// much of every layer in few bytes.
#include "apps/tune.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/arguments.h"
#include "apps/bench_report.h"
#include "apps/calibration.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/quality.h"
#include "base/log.h"
#include "base/policy_file.h"
#include "base/text.h"
#include "engine/policy.h"
#include "engine/policy_tuning.h"

namespace hifc::apps {
namespace {

struct TuneOptions {
  std::string model;
  std::string file;
  std::optional<double> save_bytes, recovery;  // one of them
  std::string output_path = "policy.yaml";
  uint32_t tokens = 0;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// "35%" or "0.35".
double parse_share(const std::string& names, const std::string& text) {
  const bool percent = text.ends_with('%');
  const auto number = to_number<double>(std::string_view(text).substr(0, text.size() - percent));
  const double share = number.value_or(0) / (percent ? 100 : 1);
  if (!(share > 0 && share < 1))
    throw BadValue(names, text, "a share between 0 and 1, such as 35% or 0.35");
  return share;
}

CLI::Option* add_share(CLI::App& app, const std::string& names, std::optional<double>& share,
                       const std::string& help) {
  const CLI::callback_t parse = [&share, names](const CLI::results_t& words) {
    share = parse_share(names, words.back());
    return true;
  };
  return app.add_option(names, parse, help)->type_name("SHARE");
}

Result<void> check_goal(const TuneOptions& options) {
  if (!is_policy_path(options.output_path))
    return failure(Code::kInvalid,
                   fmt::format("-o '{}' would not be taken for a file by --policy: give it an "
                               "ending of .yaml or a path with a '/'",
                               options.output_path));
  if (options.save_bytes.has_value() == options.recovery.has_value())
    return failure(Code::kInvalid, "give one of --save-bytes SHARE and --recovery SHARE");
  return {};
}

class Tune {
 public:
  explicit Tune(const TuneOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_TRY(check_policy_output(options_.output_path));
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    config_ = in_memory(config);
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    if (options_.save_bytes) HIFC_TRY(engine::check_saving(model_->shape(), *options_.save_bytes));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config_.threads));
    HIFC_ASSIGN(const engine::Budget budget, engine::plan_budget(config_, *model_));
    HIFC_ASSIGN(tokens_, tokens_of(*model_, budget, options_.file, options_.tokens,
                                   Calibration::kTokensDefault));
    HIFC_TRY(Calibration::check(tokens_));
    const Calibration calibration(*model_, *pool_, config_, Progress::style(options_.quiet));
    HIFC_TRY(calibration.check_memory(tokens_.size()));
    HIFC_ASSIGN(const Tuned tuned,
                options_.save_bytes ? fit_to_bytes(calibration) : fit_to_recovery(calibration));
    HIFC_TRY(engine::write_policy(options_.output_path, tuned.policy, *model_, comment()));
    HIFC_ASSIGN(const BenchReport report, check(tuned));
    HIFC_ASSIGN(const int status, publish(report, options_.output));
    if (!options_.output.json)
      fmt::print("{}: use it with --policy {}\n", options_.output_path, options_.output_path);
    return status;
  }

 private:
  std::string comment() const {
    const std::string goal = options_.save_bytes
                                 ? fmt::format("--save-bytes {}", *options_.save_bytes)
                                 : fmt::format("--recovery {}", *options_.recovery);
    return fmt::format("written by hifc tune quality -m {} -f {} --tokens {} {}", options_.model,
                       options_.file, tokens_.size(), goal);
  }

  struct Tuned {
    engine::Sensitivity sensitivity;
    kv::CodecPolicy policy;
    std::vector<double> recovery;  // [layer]
    bool weighed = false;
  };

  Result<Tuned> fit_to_bytes(const Calibration& calibration) const {
    Tuned tuned;
    HIFC_ASSIGN(tuned.sensitivity, calibration.measure_errors(tokens_));
    HIFC_ASSIGN(tuned.weighed, calibration.measure_weights(tokens_, tuned.sensitivity));
    HIFC_ASSIGN(tuned.policy,
                engine::policy_saving(tuned.sensitivity, model_->shape(), *options_.save_bytes));
    HIFC_ASSIGN(tuned.recovery, calibration.measure_recovery(tokens_, tuned.policy));
    return tuned;
  }

  // Errors of K and of V together are estimated from those of each alone: where that proves to be
  // too little, the layer's estimates are raised and it is tried again. No layer gets the same
  // codecs twice, and F16 has no error, so that this ends.
  Result<Tuned> fit_to_recovery(const Calibration& calibration) const {
    Tuned tuned;
    HIFC_ASSIGN(tuned.sensitivity, calibration.measure_errors(tokens_));
    uint32_t attempt = 1;
    for (bool kept = false; !kept; ++attempt) {
      tuned.policy =
          engine::policy_recovering(tuned.sensitivity, model_->shape(), *options_.recovery);
      HIFC_ASSIGN(tuned.recovery, calibration.measure_recovery(tokens_, tuned.policy, attempt));
      kept = true;
      for (size_t layer = 0; layer < tuned.policy.size(); ++layer)
        if (tuned.policy[layer].lossy() && !keeps(tuned, layer)) {
          engine::raise_to(tuned.sensitivity[layer], tuned.policy[layer],
                           1 - tuned.recovery[layer]);
          kept = false;
        }
    }
    for (size_t layer = 0; layer < tuned.policy.size(); ++layer)
      if (!keeps(tuned, layer))
        log_warn("layer {} gave no finite numbers: it is left in F16", layer);
    return tuned;
  }

  bool keeps(const Tuned& tuned, size_t layer) const {
    return tuned.recovery[layer] >= *options_.recovery;
  }

  // What the policy does to the same text.
  Result<BenchReport> check(const Tuned& tuned) {
    const kv::CodecPolicy& policy = tuned.policy;
    QualityRuns runs(*model_, *pool_, tokens_);
    HIFC_TRY(runs.add({.config = config_, .codecs = policy}));
    Progress bar(
        {.label = "check", .total = tokens_.size(), .style = Progress::style(options_.quiet)});
    HIFC_TRY(runs.run([&](size_t done) { bar.update(done); }));
    bar.finish();
    BenchReport report("tune.quality", {{"model", model_->description()},
                                        {"file", options_.file},
                                        {"tokens", tokens_.size()},
                                        {"output", options_.output_path}});
    for (uint32_t layer = 0; layer < policy.size(); ++layer) {
      BenchReport::Json metrics = {{"k", kv::to_string(policy[layer].k)},
                                   {"v", kv::to_string(policy[layer].v)},
                                   {"recovery", tuned.recovery[layer]}};
      if (tuned.weighed) metrics["weight"] = tuned.sensitivity[layer].weight;
      report.add_row(fmt::format("layer{}", layer), std::move(metrics));
    }
    // Last, where it is not scrolled away.
    report.add_row("policy", runs.engine_metrics(0));
    return report;
  }

  const TuneOptions& options_;
  Config config_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  std::vector<int32_t> tokens_;
};

}  // namespace

void add_tune_command(CLI::App& app, Action& chosen) {
  CLI::App* tune = app.add_subcommand("tune", "Fit HiFC to a model and a machine");
  tune->require_subcommand(1);
  add_tune_heads(*tune, chosen);
  CLI::App* quality = tune->add_subcommand(
      "quality", "Find how few bits each layer's K and V need, and write a policy file");
  quality->footer(
      "Measures on a text of the kind the model is used for. Examples:\n"
      "  hifc tune quality -m MODEL -f TEXT --save-bytes 60% -o policy.yaml\n"
      "  hifc tune quality -m MODEL -f TEXT --recovery 98% -o policy.yaml\n"
      "  hifc run -m MODEL -p 'Hello' --policy policy.yaml");
  auto options = std::make_shared<TuneOptions>();
  quality->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  quality->add_option("-f,--file", options->file, "Text to measure on")->required();
  add_share(*quality, "--save-bytes", options->save_bytes,
            "Share of the bytes of F16 to save, scales included, such as 35%");
  add_share(*quality, "--recovery", options->recovery,
            "Share of its attention output that every layer keeps, such as 98%");
  quality->add_option("-o,--output", options->output_path, "Policy file to write")
      ->capture_default_str();
  add_number(*quality, "--tokens", options->tokens,
             between(0u, std::numeric_limits<uint32_t>::max()),
             "Tokens of the text to use; 0: up to 4096");
  quality->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*quality, options->output);
  options->config = std::make_unique<ConfigOptions>(*quality, kWithoutTiers);
  quality->callback([=, &chosen] {
    require(check_goal(*options));
    chosen = [=] { return Tune(*options)(); };
  });
}

}  // namespace hifc::apps
