// hifc eval: quality of HiFC's output on a text, against stock llama.cpp with an F32 cache and
// flash attention off, beside what llama.cpp's own F16-cache runs show against it (the noise
// floor). All runs go through the text side by side, piece by piece, so memory does not grow with
// its length.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "apps/bench_report.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/progress.h"
#include "engine/engine.h"
#include "engine/reference.h"
#include "engine/sampler.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using engine::ReferenceMode;

struct EvalOptions {
  std::string model;
  std::string file;
  uint32_t tokens = 0;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// Logits of this many tokens of four runs are held at a time (4 x 48 MiB with 262,144 tokens of
// vocabulary and F32).
constexpr uint32_t kPieceTokensMax = 48;

// Comparison of one run with the reference over the whole text.
struct Quality {
  double nll = 0;  // sum of negative log likelihoods of the text's tokens, natural logarithm
  double kl = 0;   // sum over tokens of KL(reference || this), natural logarithm
  uint64_t top1_agreed = 0;
  uint64_t tokens = 0;

  double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
  double mean_kl() const { return kl / static_cast<double>(tokens); }
  double top1() const { return static_cast<double>(top1_agreed) / static_cast<double>(tokens); }
};

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

struct TokenQuality {
  double nll = 0, kl = 0;
  bool top1_agreed = false;
};

TokenQuality compare(std::span<const float> reference, std::span<const float> logits,
                     int32_t next) {
  const double reference_norm = log_sum_exp(reference), norm = log_sum_exp(logits);
  TokenQuality quality;
  quality.nll = norm - logits[static_cast<size_t>(next)];
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_norm;
    quality.kl += std::exp(log_p) * (log_p - (logits[i] - norm));
  }
  quality.top1_agreed = engine::argmax(reference) == engine::argmax(logits);
  return quality;
}

class Eval {
 public:
  explicit Eval(const EvalOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_TRY(prepare());
    Progress progress(
        {.label = "eval",
         .total = tokens_.size(),
         .style = options_.quiet ? Progress::Style::kQuiet : Progress::Style::kAutomatic});
    for (size_t at = 0; at + 1 < tokens_.size(); at += piece_tokens_) {
      HIFC_TRY(piece(at));
      progress.update(std::min(at + piece_tokens_, tokens_.size()));
    }
    progress.finish();
    return publish(report(), options_.output);
  }

 private:
  // The runs in the order of their rows; the reference itself comes first.
  static constexpr size_t kRuns = 4;
  static constexpr size_t kReference = 0, kLlamaF16 = 1, kLlamaFa = 2, kHifc = 3;
  static constexpr std::array<const char*, kRuns> kNames = {"llama.f32", "llama.f16",
                                                            "llama.f16.fa", "hifc"};

  Result<void> prepare() {
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    HIFC_ASSIGN(const std::string text, read_text(options_.file));
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    HIFC_ASSIGN(tokens_, model_->tokenize(text, false));
    if (options_.tokens > tokens_.size())
      return failure(Code::kInvalid, fmt::format("--tokens {} is more than the {} of '{}'",
                                                 options_.tokens, tokens_.size(), options_.file));
    HIFC_ASSIGN(const engine::Budget budget,
                engine::plan_budget(config, model_->shape(), model_->context_tokens()));
    if (options_.tokens != 0) tokens_.resize(options_.tokens);
    tokens_.resize(std::min<size_t>(tokens_.size(), budget.context_tokens));
    if (tokens_.size() < 2)
      return failure(Code::kInvalid,
                     fmt::format("{} tokens of text leave nothing to predict", tokens_.size()));
    HIFC_TRY(engine::check_fits(budget, tokens_.size()));
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(config.threads));
    HIFC_ASSIGN(hifc_, engine::Engine::create(*model_, *pool_,
                                              {.config = config,
                                               .outputs_max = kPieceTokensMax,
                                               .ring = nullptr,
                                               .cancelled = &interrupted()}));
    piece_tokens_ = std::min(kPieceTokensMax, hifc_->ubatch_tokens());
    constexpr std::array modes = {ReferenceMode::kF32, ReferenceMode::kF16,
                                  ReferenceMode::kF16FlashAttention};
    for (const ReferenceMode mode : modes) {
      HIFC_ASSIGN(auto run, engine::Reference::create(
                                *model_, *pool_,
                                {.mode = mode,
                                 .context_tokens = static_cast<uint32_t>(tokens_.size()),
                                 .ubatch_tokens = piece_tokens_,
                                 .outputs_max = piece_tokens_}));
      llama_.push_back(std::move(run));
    }
    return {};
  }

  std::span<const float> logits(size_t run, uint32_t row) const {
    return run == kHifc ? hifc_->logits(row) : llama_[run]->logits(row);
  }

  Result<void> piece(size_t at) {
    const size_t count = std::min<size_t>(piece_tokens_, tokens_.size() - at);
    const auto tokens = std::span(tokens_).subspan(at, count);
    HIFC_TRY(hifc_->step(tokens, engine::Outputs::kAll, cache::StepKind::kPrompt));
    for (auto& run : llama_) HIFC_TRY(run->step(tokens, /*all_outputs=*/true));
    // The text's last token has nothing to predict.
    const auto rows = static_cast<uint32_t>(std::min(count, tokens_.size() - 1 - at));
    std::vector<std::array<TokenQuality, kRuns>> qualities(rows);
    pool_->run(rows, [&](uint32_t row, uint32_t) {
      for (size_t run = 0; run < kRuns; ++run)
        qualities[row][run] =
            compare(logits(kReference, row), logits(run, row), tokens_[at + row + 1]);
    });
    for (const auto& row : qualities)
      for (size_t run = 0; run < kRuns; ++run) add(quality_[run], row[run]);
    return {};
  }

  static void add(Quality& quality, const TokenQuality& token) {
    quality.nll += token.nll;
    quality.kl += token.kl;
    quality.top1_agreed += token.top1_agreed ? 1 : 0;
    ++quality.tokens;
  }

  BenchReport report() const {
    BenchReport report("eval", {{"model", model_->description()},
                                {"file", options_.file},
                                {"tokens", tokens_.size()},
                                {"hot_bytes", hifc_->budget().hot_bytes},
                                {"warm_bytes", hifc_->budget().warm_bytes},
                                {"flash", hifc_->budget().flash}});
    const double reference = quality_[kReference].perplexity();
    const double floor = std::min(quality_[kLlamaF16].mean_kl(), quality_[kLlamaFa].mean_kl());
    for (size_t run = 0; run < kRuns; ++run) {
      const Quality& quality = quality_[run];
      Json metrics = {{"perplexity", quality.perplexity()},
                      {"perplexity_change", quality.perplexity() / reference - 1},
                      {"kl", quality.mean_kl()},
                      {"top1", quality.top1()}};
      if (run != kHifc) {
        report.add_row(kNames[run], std::move(metrics));
        continue;
      }
      metrics["reference_perplexity"] = reference;
      metrics["perplexity_distance"] = std::abs(quality.perplexity() / reference - 1);
      metrics["kl_floor"] = floor;
      metrics["kl_over_floor"] = quality.mean_kl() / floor;
      metrics["logits_hash"] = fmt::format("{:016x}", hifc_->statistics().logits_hash);
      metrics["peak_rss_bytes"] = resident_memory().peak_bytes;
      report.add_row(kNames[run], std::move(metrics),
                     {{"perplexity_distance", BenchReport::Bound::kAtMost, 0.005},
                      {"kl_over_floor", BenchReport::Bound::kAtMost, 1.1}});
    }
    return report;
  }

  const EvalOptions& options_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<engine::ThreadPool> pool_;
  std::unique_ptr<engine::Engine> hifc_;
  std::vector<std::unique_ptr<engine::Reference>> llama_;
  std::vector<int32_t> tokens_;
  uint32_t piece_tokens_ = 0;
  std::array<Quality, kRuns> quality_;
};

}  // namespace

void add_eval_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* eval = app.add_subcommand(
      "eval", "Perplexity and KL divergence against llama.cpp with an F32 cache");
  eval->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  eval->add_option("-f,--file", options->file, "Text to predict")->required();
  eval->add_option("--tokens", options->tokens, "Tokens of the text to use; 0: all that fit")
      ->capture_default_str();
  eval->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*eval, options->output);
  options->config = std::make_unique<ConfigOptions>(*eval);
  eval->callback([options, &chosen] { chosen = [options] { return Eval(*options)(); }; });
}

}  // namespace hifc::apps
