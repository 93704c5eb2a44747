// Logits as logarithms of probabilities, in double precision.
#pragma once

#include <cstdint>
#include <span>

namespace hifc::apps {

// What to take from a logit for its token's log-probability. logits: [vocabulary], not empty.
double log_sum_exp(std::span<const float> logits);

// Natural logarithm of the probability that `logits` give to `token`.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace hifc::apps
