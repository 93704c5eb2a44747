// Choosing a policy from what each layer's attention loses by each codec.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/codec.h"
#include "kv/shape.h"

namespace hifc::engine {

inline constexpr auto kLossyCodecs = std::span(kv::kCodecs).subspan<1>();

// Relative L2 errors of one layer's attention output (recovery.h), by index into kLossyCodecs. What
// is not finite could not be measured: no policy has it.
struct LayerSensitivity {
  std::array<double, kLossyCodecs.size()> k = {};  // with K encoded alone
  std::array<double, kLossyCodecs.size()> v = {};
  // What a squared error of this layer does to the model's output, by any measure that all layers
  // share.
  double weight = 1;
};
using Sensitivity = std::vector<LayerSensitivity>;  // [layer]

// Of both together, as if the two were independent of each other.
double error_of(const LayerSensitivity& layer, kv::LayerCodecs codecs);

// Where error_of() `codecs` is less than the measured `error`: raises all of the layer's errors in
// proportion, so that it is a little more. What is not finite excludes every codec.
void raise_to(LayerSensitivity& layer, kv::LayerCodecs codecs, double error);

// Sets the weights from what the model's output loses (KL divergence) with one layer at a time in
// codecs `probe`: kl[layer], noise included, which may make it negative; 5 % of the mean is the
// least that counts. False, and nothing is set, where their mean is not above 0.
bool weigh(Sensitivity& sensitivity, kv::LayerCodecs probe, std::span<const double> kl);

// kInvalid where no codec saves such a share of F16's bytes.
Result<void> check_saving(const kv::ModelShape& shape, double share);

// The least weighted sum of squared errors of all layers with at least this share of F16's bytes
// saved, scales and mins included. kInvalid where no codec saves so much, or none of those whose
// errors are finite.
Result<kv::CodecPolicy> policy_saving(const Sensitivity& sensitivity, const kv::ModelShape& shape,
                                      double share);

// The fewest bytes with every layer's error_of() at most 1 - recovery. What is measured with K and
// V encoded together may be a little more: raise_to().
kv::CodecPolicy policy_recovering(const Sensitivity& sensitivity, const kv::ModelShape& shape,
                                  double recovery);

}  // namespace hifc::engine
