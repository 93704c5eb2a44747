#include "engine/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/policy_file.h"
#include "llama.h"

namespace hifc::engine {
namespace {

using kv::Codec;
using kv::LayerCodecs;

// The table for 32 layers is 1-8, 9-24 and 25-32.
LayerCodecs reference_codecs(uint32_t layer, uint32_t layers) {
  if (4 * layer < layers) return {.k = Codec::kI8};
  if (4 * layer < 3 * layers) return {.k = Codec::kI4};
  return {};
}

PolicyModel model_of(const Model& model) {
  return {.architecture = model.identity().architecture,
          .parameters = llama_model_n_params(model.handle()),
          .layers = model.shape().layers,
          .kv_heads = model.shape().kv_heads,
          .head_dim = model.shape().head_dim};
}

std::string describe(const PolicyModel& model) {
  return fmt::format("{} with {} parameters, {} layers, {} KV heads of {}", model.architecture,
                     model.parameters, model.layers, model.kv_heads, model.head_dim);
}

}  // namespace

Result<kv::CodecPolicy> named_policy(std::string_view name, uint32_t layers) {
  const auto uniform = [&](LayerCodecs codecs) { return kv::CodecPolicy(layers, codecs); };
  if (name == "f16") return uniform({});
  if (name == "auto35") return uniform({.k = Codec::kI8, .v = Codec::kI8});
  if (name == "auto60") return uniform({.k = Codec::kI8, .v = Codec::kI3});
  if (name == "auto75") return uniform({.k = Codec::kI4, .v = Codec::kI3});
  if (name == "reference") {
    kv::CodecPolicy policy;
    for (uint32_t layer = 0; layer < layers; ++layer)
      policy.push_back(reference_codecs(layer, layers));
    return policy;
  }
  return failure(Code::kInvalid,
                 fmt::format("policy '{}' is none of {}, nor the path of a policy file (.yaml), "
                             "which 'hifc tune quality' writes for other savings",
                             name, fmt::join(kPolicyNames, ", ")));
}

Result<kv::CodecPolicy> resolve_policy(const std::string& policy, const Model& model) {
  if (!is_policy_path(policy)) return named_policy(policy, model.shape().layers);
  HIFC_ASSIGN(const PolicyFile file, read_policy_file(policy, kv::kCodecNames));
  const PolicyModel here = model_of(model);
  if (file.model != here)
    return failure(Code::kInvalid, fmt::format("policy file '{}' is for {}, but this model is {}",
                                               policy, describe(file.model), describe(here)));
  kv::CodecPolicy codecs;
  for (const PolicyLayer& layer : file.layers)
    codecs.push_back({.k = kv::find_codec(layer.k).value(), .v = kv::find_codec(layer.v).value()});
  return codecs;
}

Result<void> write_policy(const std::string& path, const kv::CodecPolicy& policy,
                          const Model& model, std::string_view comment) {
  PolicyFile file{.model = model_of(model), .layers = {}};
  for (const LayerCodecs& codecs : policy)
    file.layers.push_back(
        {.k = std::string(kv::to_string(codecs.k)), .v = std::string(kv::to_string(codecs.v))});
  return write_policy_file(path, file, comment);
}

}  // namespace hifc::engine
