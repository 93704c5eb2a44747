#include "engine/policy_tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kv/layout.h"

namespace hifc::engine {
namespace {

using kv::Codec;
using kv::LayerCodecs;

// Bytes of a token in one layer.
double bytes_of(const kv::ModelShape& shape, LayerCodecs codecs) {
  return kv::BlockLayout::make(shape, kv::kPageTokens, codecs)->token_bytes();
}

double error_of(const std::array<double, kLossyCodecs.size()>& errors, Codec codec) {
  const auto found = std::ranges::find(kLossyCodecs, codec);
  return found == kLossyCodecs.end() ? 0
                                     : errors[static_cast<size_t>(found - kLossyCodecs.begin())];
}

template <typename Visit>
void for_each_choice(Visit visit) {
  for (const Codec k : kv::kCodecs)
    for (const Codec v : kv::kCodecs) visit(LayerCodecs{.k = k, .v = v});
}

// The choice of one layer with the least error^2 + price * bytes: F16 where no error is a number.
LayerCodecs cheapest(const LayerSensitivity& layer, const kv::ModelShape& shape, double price) {
  LayerCodecs best;
  double least = std::numeric_limits<double>::infinity();
  for_each_choice([&](LayerCodecs codecs) {
    const double error = error_of(layer, codecs);
    const double cost = layer.weight * error * error + price * bytes_of(shape, codecs);
    if (cost < least) least = cost, best = codecs;
  });
  return best;
}

kv::CodecPolicy policy_at(const Sensitivity& sensitivity, const kv::ModelShape& shape,
                          double price) {
  kv::CodecPolicy policy;
  for (const LayerSensitivity& layer : sensitivity) policy.push_back(cheapest(layer, shape, price));
  return policy;
}

double bytes_of(const kv::CodecPolicy& policy, const kv::ModelShape& shape) {
  double bytes = 0;
  for (const LayerCodecs& codecs : policy) bytes += bytes_of(shape, codecs);
  return bytes;
}

double saved_by(const kv::CodecPolicy& policy, const kv::ModelShape& shape) {
  return 1 - bytes_of(policy, shape) / (shape.layers * bytes_of(shape, LayerCodecs{}));
}

// Layers whose errors are no numbers stay F16 at any price.
Result<void> check_saved(const kv::CodecPolicy& policy, const kv::ModelShape& shape, double share) {
  constexpr double kRounding = 1e-9;
  const double saved = saved_by(policy, shape);
  if (saved >= share - kRounding) return {};
  return failure(
      Code::kInvalid,
      fmt::format("{:g} % fewer bytes cannot be had: errors were measured for too few layers and "
                  "codecs (the others gave no finite numbers), which save {:.1f} % at most",
                  100 * share, std::floor(1000 * saved) / 10));
}

// A price leaves gaps between what it can reach: layers take back bits as long as there is room,
// the one that gains most for its bytes first.
void spend(kv::CodecPolicy& policy, const Sensitivity& sensitivity, const kv::ModelShape& shape,
           double room) {
  for (;;) {
    size_t layer = policy.size();
    LayerCodecs better;
    double most = 0;
    for (size_t i = 0; i < policy.size(); ++i)
      for_each_choice([&](LayerCodecs codecs) {
        const double more = bytes_of(shape, codecs) - bytes_of(shape, policy[i]);
        if (more <= 0 || more > room) return;
        const double now = error_of(sensitivity[i], policy[i]);
        const double then = error_of(sensitivity[i], codecs);
        const double gain = sensitivity[i].weight * (now * now - then * then) / more;
        if (gain > most) most = gain, layer = i, better = codecs;
      });
    if (layer == policy.size()) return;
    room -= bytes_of(shape, better) - bytes_of(shape, policy[layer]);
    policy[layer] = better;
  }
}

}  // namespace

double error_of(const LayerSensitivity& layer, LayerCodecs codecs) {
  return std::hypot(error_of(layer.k, codecs.k), error_of(layer.v, codecs.v));
}

void raise_to(LayerSensitivity& layer, LayerCodecs codecs, double error) {
  constexpr double kRounding = 1 + 1e-9;
  const double factor = error / error_of(layer, codecs) * kRounding;
  if (factor <= 1) return;
  for (size_t i = 0; i < kLossyCodecs.size(); ++i) layer.k[i] *= factor, layer.v[i] *= factor;
}

bool weigh(Sensitivity& sensitivity, LayerCodecs probe, std::span<const double> kl) {
  HIFC_CHECK(kl.size() == sensitivity.size());
  // Less than this share of the mean cannot be told from noise.
  constexpr double kLeast = 0.05;
  const double mean = std::accumulate(kl.begin(), kl.end(), 0.0) / static_cast<double>(kl.size());
  if (!(mean > 0) || !std::isfinite(mean)) return false;
  for (size_t i = 0; i < kl.size(); ++i) {
    const double error = error_of(sensitivity[i], probe);
    if (error > 0) sensitivity[i].weight = std::max(kl[i], kLeast * mean) / (error * error);
  }
  return true;
}

Result<void> check_saving(const kv::ModelShape& shape, double share) {
  const LayerCodecs least{.k = kLossyCodecs.back(), .v = kLossyCodecs.back()};
  const double most_saved = 1 - bytes_of(shape, least) / bytes_of(shape, LayerCodecs{});
  if (share <= most_saved) return {};
  return failure(Code::kInvalid,
                 fmt::format("{:g} % fewer bytes cannot be had: 2 bits everywhere save {:.1f} %",
                             100 * share, std::floor(1000 * most_saved) / 10));
}

Result<kv::CodecPolicy> policy_saving(const Sensitivity& sensitivity, const kv::ModelShape& shape,
                                      double share) {
  HIFC_CHECK(sensitivity.size() == shape.layers);
  HIFC_TRY(check_saving(shape, share));
  const double allowed = (1 - share) * shape.layers * bytes_of(shape, LayerCodecs{});
  // The policy's bytes fall as the price rises; 100 halvings of its logarithm's range.
  double low = -80, high = 80;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    const bool enough = bytes_of(policy_at(sensitivity, shape, std::exp(middle)), shape) <= allowed;
    (enough ? high : low) = middle;
  }
  kv::CodecPolicy policy = policy_at(sensitivity, shape, std::exp(high));
  HIFC_TRY(check_saved(policy, shape, share));
  spend(policy, sensitivity, shape, allowed - bytes_of(policy, shape));
  return policy;
}

kv::CodecPolicy policy_recovering(const Sensitivity& sensitivity, const kv::ModelShape& shape,
                                  double recovery) {
  HIFC_CHECK(sensitivity.size() == shape.layers);
  kv::CodecPolicy policy;
  for (const LayerSensitivity& layer : sensitivity) {
    LayerCodecs best;
    for_each_choice([&](LayerCodecs codecs) {
      if (!(error_of(layer, codecs) <= 1 - recovery)) return;
      const double fewer = bytes_of(shape, best) - bytes_of(shape, codecs);
      const bool better = fewer == 0 && error_of(layer, codecs) < error_of(layer, best);
      if (fewer > 0 || better) best = codecs;
    });
    policy.push_back(best);
  }
  return policy;
}

}  // namespace hifc::engine
