// Which codecs each layer's K and V get: by name, or from a file that `hifc tune quality` wrote.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/model.h"
#include "kv/codec.h"

namespace hifc::engine {

// The policy of that name for a model of so many layers; kInvalid for any other name.
//
//   f16        nothing is encoded
//   reference  by relative depth: K in 8 bits in the first quarter of the layers, in 4 bits in the
//              middle half; all else F16 (the table of the published system)
//   auto35, auto60, auto75
//              at least so many percent fewer bytes of K and V than F16, scales and mins included,
//              where head_dim is a multiple of 64 (others: up to 5 less); the best uniform choice
//              on SmolLM2 (docs/measurements.md). To save 80 % no uniform choice is good enough.
Result<kv::CodecPolicy> named_policy(std::string_view name, uint32_t layers);

// What Config::policy says: a name, or the path of a policy file (is_policy_path() in
// base/policy_file.h). kInvalid where it is neither, or for another model than this one; kIo.
Result<kv::CodecPolicy> resolve_policy(const std::string& policy, const Model& model);

// The file that resolve_policy() reads for this model. kIo.
Result<void> write_policy(const std::string& path, const kv::CodecPolicy& policy,
                          const Model& model, std::string_view comment);

}  // namespace hifc::engine
