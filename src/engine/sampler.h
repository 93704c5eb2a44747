// Picks the next token from logits, by libllama's own samplers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

struct llama_sampler;

namespace hifc::engine {

struct SamplerOptions {
  float temperature = 0.8f;  // 0: greedy
  int32_t top_k = 40;        // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  uint32_t seed = 0;         // equal seeds and logits give equal tokens
};

class Sampler {
 public:
  // kInvalid names the option that is out of range and what is accepted.
  static Result<Sampler> create(const SamplerOptions& options);

  int32_t sample(std::span<const float> logits);

 private:
  struct Deleter {
    void operator()(llama_sampler* sampler) const;
  };
  explicit Sampler(llama_sampler* chain) : chain_(chain) {}
  std::unique_ptr<llama_sampler, Deleter> chain_;
};

// Index of the largest logit, the first where several are equal.
int32_t argmax(std::span<const float> logits);

}  // namespace hifc::engine
