// hifc eval: quality of HiFC's output on a text, against stock llama.cpp with an F32 cache and
// flash attention off, beside what llama.cpp's own F16-cache runs show against it (the noise
// floor).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>

#include "apps/arguments.h"
#include "apps/bench_report.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "apps/quality.h"
#include "apps/report.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;

struct EvalOptions {
  std::string model;
  std::string file;
  uint32_t tokens = 0;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

class Eval {
 public:
  explicit Eval(const EvalOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    HIFC_ASSIGN(model_, engine::Model::load(options_.model, engine::rounding_of(config)));
    HIFC_ASSIGN(const engine::Budget budget, engine::plan_budget(config, *model_));
    HIFC_ASSIGN(auto tokens, tokens_of(*model_, budget, options_.file, options_.tokens));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config.threads));
    token_count_ = tokens.size();
    QualityRuns runs(*model_, *pool_, std::move(tokens));
    HIFC_TRY(runs.add({.config = config}));
    Progress progress(
        {.label = "eval", .total = token_count_, .style = Progress::style(options_.quiet)});
    HIFC_TRY(runs.run([&](size_t done) { progress.update(done); }));
    progress.finish();
    return publish(report(config, runs), options_.output);
  }

 private:
  BenchReport report(const Config& config, QualityRuns& runs) const {
    const engine::Engine& hifc = runs.engine(0);
    BenchReport report("eval", {{"model", model_->description()},
                                {"file", options_.file},
                                {"tokens", token_count_},
                                {"policy", config.policy},
                                {"hot_bytes", hifc.budget().hot_bytes},
                                {"warm_bytes", hifc.budget().warm_bytes},
                                {"flash", hifc.budget().flash}});
    report.add_row("llama.f32", runs.llama_metrics(QualityRuns::kF32));
    report.add_row("llama.f16", runs.llama_metrics(QualityRuns::kF16));
    report.add_row("llama.f16.fa", runs.llama_metrics(QualityRuns::kF16FlashAttention));

    Json metrics = runs.engine_metrics(0);
    metrics["logits_hash"] = fmt::format("{:016x}", hifc.statistics().logits_hash);
    metrics["peak_rss_bytes"] = resident_memory().peak_bytes;
    metrics["attention"] = attention_json(hifc);
    // What a lossy policy may cost is its own affair.
    const bool sparse = config.attention == AttentionMode::kSparse;
    std::vector<BenchReport::Target> targets;
    if (!kv::lossy(hifc.codecs()))
      targets = {{"perplexity_distance", BenchReport::Bound::kAtMost, 0.005},
                 {"kl_over_floor", BenchReport::Bound::kAtMost, sparse ? 2.0 : 1.1}};
    report.add_row("hifc", std::move(metrics), targets);
    return report;
  }

  const EvalOptions& options_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  size_t token_count_ = 0;
};

}  // namespace

void add_eval_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* eval = app.add_subcommand(
      "eval", "Perplexity and KL divergence against llama.cpp with an F32 cache");
  eval->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  eval->add_option("-f,--file", options->file, "Text to predict")->required();
  add_number(*eval, "--tokens", options->tokens, between(0u, std::numeric_limits<uint32_t>::max()),
             "Tokens of the text to use; 0: all that fit");
  eval->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*eval, options->output);
  options->config = std::make_unique<ConfigOptions>(*eval);
  eval->callback([options, &chosen] { chosen = [options] { return Eval(*options)(); }; });
}

}  // namespace hifc::apps
