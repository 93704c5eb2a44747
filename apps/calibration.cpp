#include "apps/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "apps/command.h"
#include "apps/memory_check.h"
#include "apps/quality.h"
#include "base/text.h"
#include "kernels/attention.h"

namespace hifc::apps {
namespace {

// Layers that are tried side by side: each has an engine with a KV cache of its own.
constexpr uint32_t kLayersAtOnce = 8;
// The newest 128 tokens are exact in all of them.
constexpr size_t kTokensMin = 512;
constexpr kv::LayerCodecs kProbe{.k = kv::Codec::kI2, .v = kv::Codec::kI2};

}  // namespace

Result<void> Calibration::check(std::span<const int32_t> tokens) {
  if (tokens.size() >= kTokensMin) return {};
  return failure(Code::kInvalid, fmt::format("{} of text are too few to measure on; accepted are "
                                             "{} or more",
                                             plural(tokens.size(), "token"), kTokensMin));
}

// K of an even one is encoded as kLossyCodecs has it, V of the odd one after it.
std::vector<kv::CodecPolicy> Calibration::candidates() const {
  std::vector<kv::CodecPolicy> candidates;
  for (const kv::Codec codec : engine::kLossyCodecs) {
    candidates.emplace_back(model_.shape().layers, kv::LayerCodecs{.k = codec});
    candidates.emplace_back(model_.shape().layers, kv::LayerCodecs{.v = codec});
  }
  return candidates;
}

Result<void> Calibration::check_memory(size_t tokens) const {
  const kv::CodecPolicy exact(model_.shape().layers);
  std::vector<kv::CodecPolicy> policies = candidates();
  policies.push_back(exact);
  HIFC_ASSIGN(const uint64_t errors,
              kv_memory(model_.shape(), policies, static_cast<uint32_t>(tokens),
                        QualityRuns::kPieceTokens));
  // Beside one that is exact, and llama.cpp in F32. The check after it needs less.
  const std::vector<kv::CodecPolicy> probed(kLayersAtOnce + 1 + 2, exact);
  HIFC_ASSIGN(
      const uint64_t weights,
      kv_memory(model_.shape(), probed, static_cast<uint32_t>(std::min(tokens, kWeightTokens)),
                QualityRuns::kPieceTokens));
  return apps::check_memory(fmt::format("{} with K and V each under {} codecs, side by side,",
                                        plural(tokens, "token"), engine::kLossyCodecs.size()),
                            std::max(errors, weights));
}

Result<std::unique_ptr<engine::Recovery>> Calibration::run(std::span<const int32_t> tokens,
                                                           std::vector<kv::CodecPolicy> policies,
                                                           const std::string& label) const {
  HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
  // What a query sees of its own step is exact: steps are short, as generation's are.
  Config config = config_;
  config.ubatch = QualityRuns::kPieceTokens;
  HIFC_ASSIGN(auto recovery,
              engine::Recovery::create({.shape = model_.shape(),
                                        .policies = std::move(policies),
                                        .tokens_max = static_cast<uint32_t>(tokens.size()),
                                        .ubatch_tokens = config.ubatch},
                                       *kernels, pool_));
  HIFC_ASSIGN(const auto engine, engine::Engine::create(model_, pool_,
                                                        {.config = std::move(config),
                                                         .observer = recovery.get(),
                                                         .cancelled = &interrupted()}));
  Progress bar({.label = label, .total = tokens.size(), .style = progress_});
  HIFC_TRY(engine->prefill(tokens, [&](uint32_t done) { bar.update(done); }));
  bar.finish();
  return recovery;
}

Result<std::vector<double>> Calibration::measure_recovery(std::span<const int32_t> tokens,
                                                          const kv::CodecPolicy& policy,
                                                          uint32_t attempt) const {
  const std::string label = attempt == 1 ? "recovery" : fmt::format("recovery {}", attempt);
  HIFC_ASSIGN(const auto recovery, run(tokens, {policy}, label));
  std::vector<double> layers;
  for (uint32_t layer = 0; layer < policy.size(); ++layer)
    layers.push_back(recovery->recovery(0, layer));
  return layers;
}

Result<engine::Sensitivity> Calibration::measure_errors(std::span<const int32_t> tokens) const {
  HIFC_ASSIGN(const auto recovery, run(tokens, candidates(), "layers"));
  const uint32_t layers = model_.shape().layers;
  engine::Sensitivity sensitivity(layers);
  for (uint32_t layer = 0; layer < layers; ++layer)
    for (size_t i = 0; i < engine::kLossyCodecs.size(); ++i) {
      sensitivity[layer].k[i] = 1 - recovery->recovery(2 * i, layer);
      sensitivity[layer].v[i] = 1 - recovery->recovery(2 * i + 1, layer);
    }
  return sensitivity;
}

Result<bool> Calibration::measure_weights(std::span<const int32_t> text,
                                          engine::Sensitivity& sensitivity) const {
  const auto tokens = text.first(std::min(text.size(), kWeightTokens));
  const uint32_t layers = model_.shape().layers;
  const uint32_t batches = (layers + kLayersAtOnce - 1) / kLayersAtOnce;
  Progress bar({.label = "output", .total = batches * tokens.size(), .style = progress_});
  std::vector<double> kl;
  double exact_kl = 0;
  for (uint32_t first = 0; first < layers; first += kLayersAtOnce) {
    QualityRuns runs(model_, pool_, {tokens.begin(), tokens.end()}, QualityRuns::Floor::kLeftOut);
    if (first == 0) HIFC_TRY(runs.add({.config = config_}));
    for (uint32_t layer = first; layer < std::min(first + kLayersAtOnce, layers); ++layer) {
      kv::CodecPolicy policy(layers);
      policy[layer] = kProbe;
      HIFC_TRY(runs.add({.config = config_, .codecs = std::move(policy)}));
    }
    HIFC_TRY(
        runs.run([&](size_t done) { bar.update(first / kLayersAtOnce * tokens.size() + done); }));
    if (first == 0) exact_kl = runs.engine_quality(0).mean_kl();
    for (size_t i = first == 0 ? 1 : 0; i < runs.engines(); ++i)
      kl.push_back(runs.engine_quality(i).mean_kl() - exact_kl);
  }
  bar.finish();
  return engine::weigh(sensitivity, kProbe, kl);
}

}  // namespace hifc::apps
