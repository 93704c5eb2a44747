#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "llama.h"

namespace hifc::engine {

void Sampler::Deleter::operator()(llama_sampler* sampler) const {
  llama_sampler_free(sampler);
}

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  const auto refuse = [](std::string_view name, double value, std::string_view accepted) {
    return failure(Code::kInvalid, fmt::format("{} {} is not {}", name, value, accepted));
  };
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    return refuse("--temp", options.temperature, "0 or more");
  if (options.top_k < 0) return refuse("--top-k", options.top_k, "0 or more");
  if (!(options.top_p > 0 && options.top_p <= 1))
    return refuse("--top-p", options.top_p, "above 0 and at most 1");
  if (!(options.min_p >= 0 && options.min_p <= 1))
    return refuse("--min-p", options.min_p, "from 0 to 1");
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  if (options.temperature == 0) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return Sampler(chain);
  }
  if (options.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(options.top_k));
  if (options.top_p < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(options.top_p, 1));
  if (options.min_p > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(options.min_p, 1));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(options.temperature));
  llama_sampler_chain_add(chain, llama_sampler_init_dist(options.seed));
  return Sampler(chain);
}

int32_t Sampler::sample(std::span<const float> logits) {
  std::vector<llama_token_data> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    candidates[i] = {.id = static_cast<int32_t>(i), .logit = logits[i], .p = 0};
  llama_token_data_array array{
      .data = candidates.data(), .size = candidates.size(), .selected = -1, .sorted = false};
  llama_sampler_apply(chain_.get(), &array);
  const int32_t token = array.data[array.selected].id;
  llama_sampler_accept(chain_.get(), token);
  return token;
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace hifc::engine
