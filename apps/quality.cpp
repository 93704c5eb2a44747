#include "apps/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "apps/command.h"
#include "apps/log_probability.h"
#include "base/check.h"
#include "base/text.h"
#include "engine/sampler.h"

namespace hifc::apps {
namespace {

using engine::ReferenceMode;

struct TokenQuality {
  double nll = 0, kl = 0;
  bool top1_agreed = false;
};

// One row of the reference's logits, as all runs are compared with it.
class ReferenceRow {
 public:
  ReferenceRow(std::span<const float> logits, int32_t next)
      : next_(static_cast<size_t>(next)), top1_(engine::argmax(logits)) {
    const double norm = log_sum_exp(logits);
    tokens_.reserve(logits.size());
    for (const float logit : logits)
      tokens_.push_back({.p = std::exp(logit - norm), .log_p = logit - norm});
  }

  TokenQuality compare(std::span<const float> logits) const {
    const double norm = log_sum_exp(logits);
    double kl = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      kl += tokens_[i].p * (tokens_[i].log_p - (logits[i] - norm));
    return {.nll = norm - logits[next_], .kl = kl, .top1_agreed = engine::argmax(logits) == top1_};
  }

 private:
  struct Token {
    double p = 0, log_p = 0;
  };
  size_t next_;
  int32_t top1_;
  std::vector<Token> tokens_;  // of the vocabulary
};

// Bytes of K and V that a sealed token has less than one in F16, scales and mins counted.
double saved_share(const kv::GroupLayout& layout) {
  return 1 - layout.token_bytes() / (layout.layers() * layout.exact.token_bytes());
}

void add(Quality& quality, const TokenQuality& token) {
  quality.nll += token.nll;
  quality.kl += token.kl;
  quality.top1_agreed += token.top1_agreed ? 1 : 0;
  ++quality.tokens;
}

}  // namespace

Result<std::vector<int32_t>> tokens_of(const engine::Model& model, const engine::Budget& budget,
                                       const std::string& file, uint32_t count, size_t standard) {
  HIFC_ASSIGN(const std::string text, read_text(file));
  if (text.empty()) return failure(Code::kInvalid, fmt::format("text file '{}' is empty", file));
  HIFC_ASSIGN(std::vector<int32_t> tokens, model.tokenize(text, false));
  if (count > tokens.size())
    return failure(Code::kInvalid, fmt::format("--tokens {} is more than text file '{}' has: {}",
                                               count, file, plural(tokens.size(), "token")));
  if (count > budget.context_tokens)
    return failure(Code::kInvalid, fmt::format("--tokens {} is more than the context of {}", count,
                                               plural(budget.context_tokens, "token")));
  const size_t most = count != 0 ? count : standard;
  tokens.resize(std::min({tokens.size(), most, size_t{budget.context_tokens}}));
  if (tokens.size() < 2)
    return failure(Code::kInvalid, fmt::format("text file '{}' has {}, and so nothing to predict",
                                               file, plural(tokens.size(), "token")));
  HIFC_TRY(engine::check_fits(budget, tokens.size()));
  return tokens;
}

Result<size_t> QualityRuns::add(engine::EngineOptions options) {
  options.outputs_max = kPieceTokens;
  const bool one_by_one = options.config.attention == AttentionMode::kSparse;
  options.cancelled = &interrupted();
  HIFC_ASSIGN(auto engine, engine::Engine::create(model_, pool_, std::move(options)));
  engines_.push_back({.engine = std::move(engine), .one_by_one = one_by_one});
  return engines_.size() - 1;
}

Result<void> QualityRuns::add_llama() {
  constexpr std::array<ReferenceMode, kLlamaRuns> modes = {ReferenceMode::kF32, ReferenceMode::kF16,
                                                           ReferenceMode::kF16FlashAttention};
  for (const ReferenceMode mode : modes) {
    if (mode != ReferenceMode::kF32 && floor_ == Floor::kLeftOut) continue;
    HIFC_ASSIGN(auto run,
                engine::Reference::create(model_, pool_,
                                          {.mode = mode,
                                           .context_tokens = static_cast<uint32_t>(tokens_.size()),
                                           .ubatch_tokens = kPieceTokens,
                                           .outputs_max = kPieceTokens}));
    llama_.push_back(std::move(run));
  }
  return {};
}

Result<void> QualityRuns::run(FunctionRef<void(size_t)> progress) {
  HIFC_TRY(add_llama());
  for (size_t at = 0; at + 1 < tokens_.size();) {
    const size_t count = piece_tokens(at);
    HIFC_TRY(piece(at, count));
    at += count;
    progress(at);
  }
  return {};
}

// No piece goes past the end of an engine's chunk, as no step of a prompt does.
size_t QualityRuns::piece_tokens(size_t at) const {
  size_t count = std::min<size_t>(kPieceTokens, tokens_.size() - at);
  for (const Run& run : engines_) {
    const size_t chunk = run.engine->ubatch_tokens();
    count = std::min(count, chunk - at % chunk);
  }
  return count;
}

std::span<const float> QualityRuns::logits(size_t run, uint32_t row) const {
  if (run < llama_.size()) return llama_[run]->logits(row);
  const Run& of = engines_[run - llama_.size()];
  if (!of.one_by_one) return of.engine->logits(row);
  return std::span(of.logits).subspan(row * model_.vocabulary_size(), model_.vocabulary_size());
}

// Attention is sparse in steps of one token alone.
Result<void> QualityRuns::step(Run& run, std::span<const int32_t> tokens) {
  if (!run.one_by_one)
    return run.engine->step(tokens, engine::Outputs::kAll, cache::StepKind::kPrompt);
  run.logits.clear();
  for (const int32_t token : tokens) {
    HIFC_TRY(run.engine->step({&token, 1}, engine::Outputs::kAll, cache::StepKind::kGeneration));
    std::ranges::copy(run.engine->logits(), std::back_inserter(run.logits));
  }
  return {};
}

Result<void> QualityRuns::piece(size_t at, size_t count) {
  const auto tokens = std::span(tokens_).subspan(at, count);
  for (Run& run : engines_) HIFC_TRY(step(run, tokens));
  for (auto& run : llama_) HIFC_TRY(run->step(tokens, /*all_outputs=*/true));
  // The text's last token has nothing to predict.
  const auto rows = static_cast<uint32_t>(std::min(count, tokens_.size() - 1 - at));
  const size_t runs = llama_.size() + engines_.size();
  std::vector<TokenQuality> qualities(rows * runs);
  pool_.run(rows, [&](uint32_t row, uint32_t) {
    const ReferenceRow reference(logits(kF32, row), tokens_[at + row + 1]);
    for (size_t run = 0; run < runs; ++run)
      qualities[row * runs + run] = reference.compare(logits(run, row));
  });
  for (size_t row = 0; row < rows; ++row)
    for (size_t run = 0; run < runs; ++run)
      apps::add(run < llama_.size() ? llama_quality_[run] : engines_[run - llama_.size()].quality,
                qualities[row * runs + run]);
  return {};
}

double QualityRuns::kl_floor() const {
  HIFC_CHECK(floor_ == Floor::kMeasured);
  return std::min(llama_quality_[kF16].mean_kl(), llama_quality_[kF16FlashAttention].mean_kl());
}

BenchReport::Json QualityRuns::metrics_of(const Quality& quality) const {
  const double reference = llama_quality_[kF32].perplexity();
  return {{"perplexity", quality.perplexity()},
          {"perplexity_change", quality.perplexity() / reference - 1},
          {"kl", quality.mean_kl()},
          {"top1", quality.top1()}};
}

BenchReport::Json QualityRuns::llama_metrics(Llama run) const {
  return metrics_of(llama_quality_[run]);
}

BenchReport::Json QualityRuns::engine_metrics(size_t index) const {
  const Quality& quality = engines_[index].quality;
  const kv::GroupLayout& layout = engines_[index].engine->budget().layout;
  BenchReport::Json metrics = metrics_of(quality);
  const double change = metrics["perplexity_change"];
  metrics["perplexity_distance"] = std::abs(change);
  metrics["reference_perplexity"] = llama_quality_[kF32].perplexity();
  metrics["kl_floor"] = kl_floor();
  metrics["kl_over_floor"] = quality.mean_kl() / kl_floor();
  metrics["bytes_per_token"] = layout.token_bytes();
  metrics["flash_bytes_per_token"] =
      static_cast<double>(layout.sealed_bytes()) / layout.block_tokens();
  metrics["saved"] = saved_share(layout);
  return metrics;
}

}  // namespace hifc::apps
