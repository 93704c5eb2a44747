#include "engine/recovery.h"

#include <cmath>

namespace hifc::engine {
namespace {

constexpr uint32_t kBlockTokens = 256;

}  // namespace

Result<std::unique_ptr<Recovery>> Recovery::create(RecoveryOptions options,
                                                   const kernels::Kernels& kernels,
                                                   Parallel& parallel) {
  std::unique_ptr<Recovery> recovery(new Recovery(std::move(options)));
  recovery->squares_.resize(recovery->options_.shape.layers);
  for (const kv::CodecPolicy& policy : recovery->options_.policies) {
    HIFC_ASSIGN(Candidate candidate, recovery->make(policy, kernels, parallel));
    recovery->candidates_.push_back(std::move(candidate));
  }
  return recovery;
}

Result<Recovery::Candidate> Recovery::make(const kv::CodecPolicy& policy,
                                           const kernels::Kernels& kernels,
                                           Parallel& parallel) const {
  const kv::ModelShape& shape = options_.shape;
  HIFC_ASSIGN(const kv::GroupLayout layout, kv::GroupLayout::make(shape, kBlockTokens, policy));
  const uint64_t block = layout.block_bytes_max();
  const uint64_t bytes =
      cache::KvCache::bytes_for_all(layout, options_.tokens_max, options_.ubatch_tokens);
  Candidate candidate;
  HIFC_ASSIGN(candidate.tiers, tier::Tiers::create({.block_bytes = block,
                                                    .blocks_per_group = shape.layers,
                                                    .hot_bytes = 0,
                                                    .warm_bytes = (bytes / block + 1) * block,
                                                    .exact_bytes = cache::KvCache::exact_bytes(
                                                        layout, options_.ubatch_tokens,
                                                        /*cold_tier=*/false),
                                                    .flash = std::nullopt,
                                                    .ring = {}}));
  HIFC_ASSIGN(candidate.cache, cache::KvCache::create({.shape = shape,
                                                       .block_tokens = kBlockTokens,
                                                       .codecs = policy,
                                                       .fingerprint = {},
                                                       .prefetch = {}},
                                                      *candidate.tiers, kernels, parallel, clock_));
  candidate.squared_errors.resize(shape.layers);
  return candidate;
}

void Recovery::begin_step(uint32_t position, std::span<const int32_t> tokens,
                          cache::StepKind kind) {
  tokens_ = static_cast<uint32_t>(tokens.size());
  for (Candidate& candidate : candidates_) candidate.cache->begin_step(position, tokens, kind);
}

Result<void> Recovery::attended(const cache::LayerInput& computed) {
  const size_t values = size_t{tokens_} * options_.shape.query_heads * options_.shape.head_dim;
  for (size_t i = 0; i < values; ++i)
    squares_[computed.layer] += static_cast<double>(computed.out[i]) * computed.out[i];
  out_.resize(values);
  cache::LayerInput input = computed;
  input.out = out_.data();
  for (Candidate& candidate : candidates_) {
    HIFC_TRY(candidate.cache->attend(input));
    double& sum = candidate.squared_errors[computed.layer];
    for (size_t i = 0; i < values; ++i) {
      const double error = static_cast<double>(out_[i]) - computed.out[i];
      sum += error * error;
    }
  }
  return {};
}

void Recovery::abort_step() {
  for (Candidate& candidate : candidates_) candidate.cache->abort_step();
}

void Recovery::end_step() {
  for (Candidate& candidate : candidates_) candidate.cache->end_step();
}

double Recovery::recovery(size_t index, uint32_t layer) const {
  if (squares_[layer] == 0) return 1;
  return 1 - std::sqrt(candidates_[index].squared_errors[layer] / squares_[layer]);
}

}  // namespace hifc::engine
