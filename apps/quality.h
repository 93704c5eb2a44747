// Quality of runs over a text against stock llama.cpp with an F32 cache and flash attention off.
// All runs go through the text side by side, piece by piece, so that memory does not grow with its
// length.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/reference.h"

namespace hifc::apps {

// Comparison of one run with the reference over a whole text.
struct Quality {
  double nll = 0;  // sum of negative log likelihoods of the text's tokens, natural logarithm
  double kl = 0;   // sum over tokens of KL(reference || this), natural logarithm
  uint64_t top1_agreed = 0;
  uint64_t tokens = 0;

  double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
  double mean_kl() const { return kl / static_cast<double>(tokens); }
  double top1() const { return static_cast<double>(top1_agreed) / static_cast<double>(tokens); }
};

// The text's tokens, all of them or the first `tokens` (0: all that fit the budget's context, and
// `standard` at most). Fails where they are not there, or do not fit the budget.
Result<std::vector<int32_t>> tokens_of(const engine::Model& model, const engine::Budget& budget,
                                       const std::string& file, uint32_t tokens,
                                       size_t standard = SIZE_MAX);

class QualityRuns {
 public:
  // llama.cpp's own F16-cache runs, beside the reference.
  enum Llama : uint8_t { kF32, kF16, kF16FlashAttention };
  static constexpr size_t kLlamaRuns = 3;
  // Logits of so many tokens of all runs are held at a time (48 MiB each with 262,144 tokens of
  // vocabulary and F32).
  static constexpr uint32_t kPieceTokens = 48;

  // Whether llama.cpp's F16-cache runs are made.
  enum class Floor : uint8_t { kMeasured, kLeftOut };

  // model and pool must outlive it.
  QualityRuns(const engine::Model& model, engine::ThreadPool& pool, std::vector<int32_t> tokens,
              Floor floor = Floor::kMeasured)
      : model_(model), pool_(pool), tokens_(std::move(tokens)), floor_(floor) {}

  // Adds an engine to be compared; returns its index. options.outputs_max is set here.
  Result<size_t> add(engine::EngineOptions options);
  // `progress` gets the number of tokens done.
  Result<void> run(FunctionRef<void(size_t done)> progress);

  size_t engines() const { return engines_.size(); }
  const Quality& engine_quality(size_t index) const { return engines_[index].quality; }
  engine::Engine& engine(size_t index) { return *engines_[index].engine; }
  // KL of llama.cpp's better F16-cache run: what differs without any fault.
  double kl_floor() const;

  // For a report: of a run of llama.cpp, and of an engine with what its policy saves.
  BenchReport::Json llama_metrics(Llama run) const;
  BenchReport::Json engine_metrics(size_t index) const;

 private:
  struct Run {
    std::unique_ptr<engine::Engine> engine;
    Quality quality = {};
    bool one_by_one = false;
    std::vector<float> logits = {};  // of a piece whose tokens were computed one by one
  };
  Result<void> step(Run& run, std::span<const int32_t> tokens);
  Result<void> add_llama();
  size_t piece_tokens(size_t at) const;
  Result<void> piece(size_t at, size_t count);
  BenchReport::Json metrics_of(const Quality& quality) const;
  std::span<const float> logits(size_t run, uint32_t row) const;

  const engine::Model& model_;
  engine::ThreadPool& pool_;
  std::vector<int32_t> tokens_;
  Floor floor_;
  std::vector<std::unique_ptr<engine::Reference>> llama_;
  std::array<Quality, kLlamaRuns> llama_quality_;
  std::vector<Run> engines_;
};

}  // namespace hifc::apps
