#include "engine/policy_tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/policy.h"
#include "kv/layout.h"

namespace hifc::engine {
namespace {

using kv::Codec;

kv::ModelShape shape_of(uint32_t layers) {
  return {.layers = layers,
          .query_heads = 2,
          .kv_heads = 1,
          .head_dim = 64,
          .window = std::vector<uint32_t>(layers)};
}

double saved(const kv::ModelShape& shape, const kv::CodecPolicy& policy) {
  const auto layout = kv::GroupLayout::make(shape, 64, policy).value();
  return 1 - layout.token_bytes() / (shape.layers * layout.exact.token_bytes());
}

double squared_error(const Sensitivity& sensitivity, const kv::CodecPolicy& policy) {
  double sum = 0;
  for (size_t i = 0; i < policy.size(); ++i)
    sum += std::pow(error_of(sensitivity[i], policy[i]), 2);
  return sum;
}

// Errors that grow as bits go, more in some layers than in others.
Sensitivity random_sensitivity(uint32_t layers, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> scale(0.2, 5);
  Sensitivity sensitivity(layers);
  for (LayerSensitivity& layer : sensitivity) {
    const double k = scale(random), v = scale(random);
    layer.k = {0.002 * k, 0.03 * k, 0.07 * k, 0.2 * k};
    layer.v = {0.001 * v, 0.02 * v, 0.04 * v, 0.1 * v};
  }
  return sensitivity;
}

TEST(PolicySaving, SavesWhatIsAskedForAndLittleMore) {
  const kv::ModelShape shape = shape_of(30);
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const double share : {0.01, 0.25, 0.35, 0.6, 0.75, 0.8, 0.84}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", share " + std::to_string(share));
      const auto policy = policy_saving(random_sensitivity(30, seed), shape, share);
      ASSERT_TRUE(policy) << policy.error().message();
      EXPECT_GE(saved(shape, *policy), share);
      // One part of one layer by one bit is 0.1 % of all; from F16 to 8 bits it is 0.8 %.
      EXPECT_LT(saved(shape, *policy), share + 0.009);
    }
}

TEST(PolicySaving, IsNoWorseThanAUniformPolicyOfAsManyBytes) {
  const kv::ModelShape shape = shape_of(30);
  const Sensitivity sensitivity = random_sensitivity(30, 5);
  for (const char* name : {"auto35", "auto60", "auto75"}) {
    const kv::CodecPolicy uniform = named_policy(name, 30).value();
    const auto tuned = policy_saving(sensitivity, shape, saved(shape, uniform));
    ASSERT_TRUE(tuned);
    EXPECT_LE(squared_error(sensitivity, *tuned), squared_error(sensitivity, uniform) * (1 + 1e-9))
        << name;
    if (name != std::string("auto35"))  // which has no layer that may give to another
      EXPECT_LT(squared_error(sensitivity, *tuned), 0.95 * squared_error(sensitivity, uniform))
          << name;
  }
}

TEST(PolicySaving, SparesTheLayersThatTheOutputDependsOn) {
  const kv::ModelShape shape = shape_of(2);
  Sensitivity sensitivity = random_sensitivity(1, 3);
  sensitivity.push_back(sensitivity.front());
  weigh(sensitivity, {.k = Codec::kI2, .v = Codec::kI2}, std::array{0.01, 0.0001});
  const kv::CodecPolicy policy = policy_saving(sensitivity, shape, 0.7).value();
  EXPECT_LT(error_of(sensitivity[0], policy[0]), error_of(sensitivity[1], policy[1]));
}

TEST(Weights, AreTheOutputsLossForAnErrorOfOne) {
  const kv::LayerCodecs probe{.k = Codec::kI2, .v = Codec::kI2};
  Sensitivity sensitivity = random_sensitivity(3, 4);
  const std::array<double, 3> kl = {0.004, -0.0001, 0.002};
  weigh(sensitivity, probe, kl);
  const auto loss = [&](size_t layer) {
    return sensitivity[layer].weight * std::pow(error_of(sensitivity[layer], probe), 2);
  };
  EXPECT_NEAR(loss(0), 0.004, 1e-12);
  EXPECT_NEAR(loss(2), 0.002, 1e-12);
  // Noise: little, but never nothing.
  EXPECT_GT(loss(1), 0);
  EXPECT_LT(loss(1), 0.0002);
}

TEST(Weights, StayEqualWhereNothingWasMeasured) {
  const kv::LayerCodecs probe{.k = Codec::kI2, .v = Codec::kI2};
  Sensitivity sensitivity = random_sensitivity(3, 4);
  weigh(sensitivity, probe, std::array{-0.001, 0.0005, 0.0});
  for (const LayerSensitivity& layer : sensitivity) EXPECT_EQ(layer.weight, 1);
  sensitivity.front() = {};  // loses nothing
  weigh(sensitivity, probe, std::array{0.001, 0.001, 0.001});
  EXPECT_EQ(sensitivity.front().weight, 1);
}

TEST(PolicySaving, RefusesWhatNoCodecSaves) {
  const auto refused = policy_saving(random_sensitivity(4, 1), shape_of(4), 0.9);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().message().find("2 bits everywhere save 84.3 %"), std::string::npos)
      << refused.error().message();
}

// A layer that could not be measured, with errors that are no numbers or infinite.
Sensitivity with_unmeasured_layer(double error, uint32_t layers) {
  Sensitivity sensitivity = random_sensitivity(layers, 6);
  sensitivity[1].k.fill(error);
  sensitivity[1].v.fill(error);
  return sensitivity;
}
constexpr double kNotMeasured[] = {std::numeric_limits<double>::quiet_NaN(),
                                   std::numeric_limits<double>::infinity()};

TEST(PolicySaving, LeavesWhatCouldNotBeMeasuredExact) {
  const kv::ModelShape shape = shape_of(4);
  for (const double error : kNotMeasured) {
    const auto policy = policy_saving(with_unmeasured_layer(error, 4), shape, 0.6);
    ASSERT_TRUE(policy) << policy.error().message();
    EXPECT_EQ((*policy)[1], kv::LayerCodecs{});
    EXPECT_GE(saved(shape, *policy), 0.6);
  }
}

TEST(PolicySaving, NeverSavesLessThanAskedWithoutAWord) {
  const kv::ModelShape shape = shape_of(4);
  for (const double error : kNotMeasured) {
    const auto refused = policy_saving(with_unmeasured_layer(error, 4), shape, 0.7);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalid);
    // Three of four layers save 84.375 % each.
    EXPECT_EQ(refused.error().message(),
              "70 % fewer bytes cannot be had: errors were measured for too few layers and codecs "
              "(the others gave no finite numbers), which save 63.2 % at most");
  }
}

TEST(Weights, StayEqualWhereOneIsNoNumber) {
  const kv::LayerCodecs probe{.k = Codec::kI2, .v = Codec::kI2};
  for (const double kl : kNotMeasured) {
    Sensitivity sensitivity = random_sensitivity(3, 4);
    weigh(sensitivity, probe, std::array{0.001, kl, 0.002});
    for (const LayerSensitivity& layer : sensitivity) EXPECT_EQ(layer.weight, 1);
  }
}

TEST(PolicyRecovering, LeavesWhatCouldNotBeMeasuredExact) {
  for (const double error : kNotMeasured) {
    Sensitivity sensitivity = with_unmeasured_layer(error, 4);
    kv::CodecPolicy policy = policy_recovering(sensitivity, shape_of(4), 0.9);
    EXPECT_EQ(policy[1], kv::LayerCodecs{});
    // One number among others: the rest can be chosen from.
    sensitivity[1] = sensitivity[0];
    sensitivity[1].k.back() = error;
    policy = policy_recovering(sensitivity, shape_of(4), 0.9);
    EXPECT_LE(error_of(sensitivity[1], policy[1]), 0.1);
    EXPECT_TRUE(policy[1].lossy());
  }
}

TEST(PolicyRecovering, KeepsEveryLayerAboveTheShareInTheFewestBytes) {
  const kv::ModelShape shape = shape_of(12);
  const Sensitivity sensitivity = random_sensitivity(12, 9);
  double last = 0;
  for (const double recovery : {0.9999, 0.99, 0.95, 0.8}) {
    const kv::CodecPolicy policy = policy_recovering(sensitivity, shape, recovery);
    for (size_t layer = 0; layer < policy.size(); ++layer)
      EXPECT_LE(error_of(sensitivity[layer], policy[layer]), 1 - recovery);
    EXPECT_GE(saved(shape, policy), last);
    last = saved(shape, policy);
  }
  EXPECT_GT(last, 0.6);
  EXPECT_EQ(policy_recovering(sensitivity, shape, 0.9999), named_policy("f16", 12).value());
}

TEST(PolicyRecovering, NeverTakesCodecsThatProvedToLoseMore) {
  const kv::ModelShape shape = shape_of(1);
  constexpr double kRecovery = 0.9;
  Sensitivity sensitivity = random_sensitivity(1, 4);
  std::vector<kv::LayerCodecs> tried;
  for (;;) {
    const kv::LayerCodecs codecs = policy_recovering(sensitivity, shape, kRecovery)[0];
    EXPECT_EQ(std::ranges::find(tried, codecs), tried.end());
    tried.push_back(codecs);
    if (codecs == kv::LayerCodecs{}) break;
    ASSERT_LT(tried.size(), 25u);
    // The least that is more than what may be lost.
    raise_to(sensitivity[0], codecs, std::nextafter(1 - kRecovery, 1.0));
    EXPECT_GT(error_of(sensitivity[0], codecs), 1 - kRecovery);
  }
  EXPECT_GT(tried.size(), 1u);
}

TEST(PolicyRecovering, LeavesExactWhatMeasuresAsNoNumber) {
  Sensitivity sensitivity = random_sensitivity(2, 5);
  const kv::LayerCodecs codecs = policy_recovering(sensitivity, shape_of(2), 0.9)[0];
  ASSERT_TRUE(codecs.lossy());
  raise_to(sensitivity[0], codecs, std::numeric_limits<double>::quiet_NaN());
  const kv::CodecPolicy policy = policy_recovering(sensitivity, shape_of(2), 0.9);
  EXPECT_FALSE(policy[0].lossy());
  EXPECT_TRUE(policy[1].lossy());
}

TEST(RaiseTo, LeavesErrorsThatAreLargeEnough) {
  LayerSensitivity layer = random_sensitivity(1, 6)[0];
  const LayerSensitivity before = layer;
  const kv::LayerCodecs codecs{.k = Codec::kI4, .v = Codec::kI3};
  raise_to(layer, codecs, error_of(layer, codecs) / 2);
  EXPECT_EQ(layer.k, before.k);
  EXPECT_EQ(layer.v, before.v);
}

TEST(NamedPolicy, SavesWhatItsNameSays) {
  const kv::ModelShape shape = shape_of(32);
  EXPECT_EQ(saved(shape, named_policy("f16", 32).value()), 0);
  EXPECT_GE(saved(shape, named_policy("auto35", 32).value()), 0.35);
  EXPECT_GE(saved(shape, named_policy("auto60", 32).value()), 0.60);
  EXPECT_GE(saved(shape, named_policy("auto75", 32).value()), 0.75);
}

TEST(NamedPolicy, ReferenceGoesByRelativeDepth) {
  for (const uint32_t layers : {1u, 4u, 30u, 32u, 80u}) {
    const kv::CodecPolicy policy = named_policy("reference", layers).value();
    ASSERT_EQ(policy.size(), layers);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const Codec expected = 4 * layer < layers       ? Codec::kI8
                             : 4 * layer < 3 * layers ? Codec::kI4
                                                      : Codec::kF16;
      EXPECT_EQ(policy[layer].k, expected) << layer << " of " << layers;
      EXPECT_EQ(policy[layer].v, Codec::kF16);
    }
  }
  // Layers 1-8, 9-24 and 25-32 of 32.
  const kv::CodecPolicy policy = named_policy("reference", 32).value();
  EXPECT_EQ(policy[7].k, Codec::kI8);
  EXPECT_EQ(policy[8].k, Codec::kI4);
  EXPECT_EQ(policy[23].k, Codec::kI4);
  EXPECT_EQ(policy[24].k, Codec::kF16);
}

TEST(NamedPolicy, RefusesOtherNames) {
  const auto refused = named_policy("auto42", 32);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "policy 'auto42' is none of f16, reference, auto35, auto60, auto75, nor the path of a "
            "policy file (.yaml), which 'hifc tune quality' writes for other savings");
}

}  // namespace
}  // namespace hifc::engine
