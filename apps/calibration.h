// Measuring, on a text, what a policy is chosen from.
#pragma once

#include <cstdint>
#include <span>

#include "apps/progress.h"
#include "base/config.h"
#include "base/result.h"
#include "engine/model.h"
#include "engine/policy_tuning.h"
#include "engine/thread_pool.h"

namespace hifc::apps {

// What every codec of K and of V does to each layer's attention, beside one exact run; then, on the
// first kWeightTokens of the tokens, what each layer with its K and V in two bits does to the
// model's output. `config` names the policy f16.
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

  Result<engine::Sensitivity> measure(std::span<const int32_t> tokens) const;

 private:
  Result<engine::Sensitivity> measure_errors(std::span<const int32_t> tokens) const;
  Result<void> measure_weights(std::span<const int32_t> tokens,
                               engine::Sensitivity& sensitivity) const;

  const engine::Model& model_;
  engine::ThreadPool& pool_;
  const Config& config_;
  Progress::Style progress_;
};

}  // namespace hifc::apps
