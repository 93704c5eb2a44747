// What codecs leave of each layer's attention output, on the queries, keys and values of a run that
// is exact: recovery = 1 - |output - exact output| / |exact output|, L2 norms over all tokens and
// heads of a text. Errors do not add up from layer to layer, since each gets exact inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/parallel.h"
#include "base/result.h"
#include "cache/kv_cache.h"
#include "kernels/attention.h"
#include "kv/codec.h"
#include "kv/shape.h"
#include "tier/tiers.h"

namespace hifc::engine {

// Is told of every step of an engine, on the thread that drives it.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  virtual void begin_step(uint32_t position, std::span<const int32_t> tokens,
                          cache::StepKind kind) = 0;
  // `computed.out` has what attention gave.
  virtual Result<void> attended(const cache::LayerInput& computed) = 0;
  // In place of the rest of the step where it failed.
  virtual void abort_step() = 0;
  virtual void end_step() = 0;
};

struct RecoveryOptions {
  kv::ModelShape shape;
  std::vector<kv::CodecPolicy> policies;  // to be compared with the observed engine's, which is F16
  uint32_t tokens_max = 0;
  uint32_t ubatch_tokens = 0;
};

// Keeps K and V of its own for each policy, in memory.
class Recovery final : public AttentionObserver {
 public:
  // kernels and parallel must outlive it.
  static Result<std::unique_ptr<Recovery>> create(RecoveryOptions options,
                                                  const kernels::Kernels& kernels,
                                                  Parallel& parallel);

  void begin_step(uint32_t position, std::span<const int32_t> tokens,
                  cache::StepKind kind) override;
  Result<void> attended(const cache::LayerInput& computed) override;
  void abort_step() override;
  void end_step() override;

  // Of policy `index` over all steps so far.
  double recovery(size_t index, uint32_t layer) const;

 private:
  // Policy `index`'s attention over what it has been told.
  struct Candidate {
    std::unique_ptr<tier::Tiers> tiers;
    std::unique_ptr<cache::KvCache> cache;
    std::vector<double> squared_errors;  // [layer]
  };
  explicit Recovery(RecoveryOptions options) : options_(std::move(options)) {}
  Result<Candidate> make(const kv::CodecPolicy& policy, const kernels::Kernels& kernels,
                         Parallel& parallel) const;

  RecoveryOptions options_;
  SystemClock clock_;
  std::vector<Candidate> candidates_;
  std::vector<double> squares_;  // [layer] of the exact output
  uint32_t tokens_ = 0;          // of the running step
  std::vector<float> out_;
};

}  // namespace hifc::engine
