// A codec policy as a YAML file: how K and V of each layer of one model are encoded.
//
//   hifc_policy:
//     version: 1
//     model:
//       architecture: llama
//       parameters: 134515008
//       layers: 30
//       kv_heads: 3
//       head_dim: 64
//     layers:
//       - {layers: 0-2, k: i8, v: i4}
//       - {layers: 3-29, k: i4, v: f16}
//
// Every layer is given once, in any order. Codecs are names here; the caller says which exist.
//
// What cannot be read fails with kInvalid (kIo for an unreadable file) and one sentence that names
// the file, the line, the value and what is accepted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hifc {

// Policies that need no file (engine/policy.h says what they are).
inline constexpr std::array<std::string_view, 5> kPolicyNames = {"f16", "reference", "auto35",
                                                                 "auto60", "auto75"};
// Whether Config::policy is taken for a file: it has a '/' or ends in ".yaml" or ".yml".
inline bool is_policy_path(std::string_view policy) {
  return policy.find('/') != std::string_view::npos || policy.ends_with(".yaml") ||
         policy.ends_with(".yml");
}

// The model that a policy is for, as far as a reader can compare it with the one at hand.
struct PolicyModel {
  std::string architecture = {};  // 1 to 64 letters, digits, '-', '_' and '.'
  uint64_t parameters = 0;        // at least 1
  uint32_t layers = 0;            // 1 to 4096
  uint32_t kv_heads = 0;          // 1 to 4096
  uint32_t head_dim = 0;          // a multiple of 16 up to 512

  bool operator==(const PolicyModel&) const = default;
};

// Names of codecs.
struct PolicyLayer {
  std::string k = {};
  std::string v = {};

  bool operator==(const PolicyLayer&) const = default;
};

struct PolicyFile {
  PolicyModel model = {};
  std::vector<PolicyLayer> layers = {};  // [model.layers]

  bool operator==(const PolicyFile&) const = default;
};

// `source` names the text in failures; `codecs` are the names accepted for k and v.
Result<PolicyFile> parse_policy_file(std::string_view yaml, std::string_view source,
                                     std::span<const std::string_view> codecs);
Result<PolicyFile> read_policy_file(const std::string& path,
                                    std::span<const std::string_view> codecs);

// Parses to the same again. Neighbouring layers that are equal are one range; each line of
// `comment` becomes a comment on top.
std::string print_policy_file(const PolicyFile& file, std::string_view comment = {});

// At any moment `path` has its former content or all of the new. The file gets mode 0644 as the
// umask allows; what is no file (a directory, /dev/null, a symbolic link) is refused with kInvalid,
// everything else that fails is kIo.
Result<void> write_policy_file(const std::string& path, const PolicyFile& file,
                               std::string_view comment = {});
// Fails where writing that file now would, and leaves nothing behind.
Result<void> check_policy_output(const std::string& path);

}  // namespace hifc
