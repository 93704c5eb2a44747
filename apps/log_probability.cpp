#include "apps/log_probability.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace hifc::apps {

double log_sum_exp(std::span<const float> logits) {
  HIFC_CHECK(!logits.empty());
  const double top = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

double log_probability(std::span<const float> logits, int32_t token) {
  const auto index = static_cast<size_t>(token);
  HIFC_CHECK(index < logits.size());
  return logits[index] - log_sum_exp(logits);
}

}  // namespace hifc::apps
