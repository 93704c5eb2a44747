// What the readers of HiFC's YAML files share: one document that is one map under a root key, and
// failures that name file and line. Internal to src/base, as yaml-cpp is.
#pragma once

#include <yaml-cpp/yaml.h>

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hifc::yaml {

// One kind of file.
struct Kind {
  std::string_view root_key;
  std::string_view name;  // as in "cannot read the configuration file"
};
inline constexpr Kind kConfiguration = {.root_key = "hifc_config", .name = "configuration file"};
inline constexpr Kind kPolicy = {.root_key = "hifc_policy", .name = "policy file"};

// The root key and what is below it: a map, or null for nothing.
struct Root {
  YAML::Node name;
  YAML::Node value;
};

// `source` names the text in failures.
Result<Root> load(std::string_view text, std::string_view source, const Kind& kind);
// The text of a file; kIo when it cannot be read, kInvalid when it is too large to be of the kind.
Result<std::string> read_file(const std::string& path, const Kind& kind);

// "FILE line 3", or "FILE" where yaml-cpp knows no position.
std::string place(std::string_view source, const YAML::Mark& mark);
// "nothing", "a map", "a list" or the quoted text of one value.
std::string describe(const YAML::Node& node);

// kInvalid: "WHERE: WHAT".
std::unexpected<Error> refuse(std::string_view where, std::string_view what);

// The keys a map may have; `owner` is what failures call the map.
struct Keys {
  std::string_view owner;
  std::span<const std::string_view> names;
};
std::unexpected<Error> unknown_key(std::string_view where, std::string_view word, const Keys& keys);

}  // namespace hifc::yaml
