// Measuring, on a text, what a policy is chosen from.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/progress.h"
#include "base/config.h"
#include "base/result.h"
#include "engine/model.h"
#include "engine/policy_tuning.h"
#include "engine/recovery.h"
#include "engine/thread_pool.h"
#include "kv/codec.h"

namespace hifc::apps {

// Measures beside exact runs. `config` is for exact attention over all KV in memory.
class Calibration {
 public:
  static constexpr size_t kWeightTokens = 1024;
  // Of a text, where nothing else is said.
  static constexpr size_t kTokensDefault = 4096;

  Calibration(const engine::Model& model, engine::ThreadPool& pool, const Config& config,
              Progress::Style progress)
      : model_(model), pool_(pool), config_(config), progress_(progress) {}

  // kInvalid where the text is too short to tell anything.
  static Result<void> check(std::span<const int32_t> tokens);
  // kInvalid where so many tokens need more memory than there is.
  Result<void> check_memory(size_t tokens) const;

  // What every codec of K and of V does to each layer's attention. All weights are 1.
  Result<engine::Sensitivity> measure_errors(std::span<const int32_t> tokens) const;
  // Sets the weights: what each layer with its K and V in two bits does to the model's output, on
  // the first kWeightTokens of the tokens. False where that cannot be told from noise.
  Result<bool> measure_weights(std::span<const int32_t> tokens,
                               engine::Sensitivity& sensitivity) const;
  // [layer] recovery under a policy, K and V encoded together. `attempt` is shown from 2 on.
  Result<std::vector<double>> measure_recovery(std::span<const int32_t> tokens,
                                               const kv::CodecPolicy& policy,
                                               uint32_t attempt = 1) const;

 private:
  std::vector<kv::CodecPolicy> candidates() const;
  Result<std::unique_ptr<engine::Recovery>> run(std::span<const int32_t> tokens,
                                                std::vector<kv::CodecPolicy> policies,
                                                const std::string& label) const;

  const engine::Model& model_;
  engine::ThreadPool& pool_;
  const Config& config_;
  Progress::Style progress_;
};

}  // namespace hifc::apps
