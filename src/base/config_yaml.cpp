// The YAML side of config.h.
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/config.h"
#include "base/yaml_document.h"

namespace hifc {
namespace {

std::unexpected<Error> unknown_key(const std::string& where, std::string_view word) {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : config_keys()) names.push_back(key.name);
  return yaml::unknown_key(where, word, {yaml::kConfiguration.root_key, names});
}

Result<Setting> to_setting(const YAML::Node& name, const YAML::Node& value,
                           std::string_view source) {
  const std::string where = yaml::place(source, name.Mark());
  if (!name.IsScalar())
    return yaml::refuse(
        where, fmt::format("a key of {} must be a plain word", yaml::kConfiguration.root_key));
  const ConfigKey* const key = find_config_key(name.Scalar());
  if (key == nullptr) return unknown_key(where, name.Scalar());
  if (!value.IsScalar()) {
    return yaml::refuse(where,
                        fmt::format("{}: {} is not accepted; accepted is one value of the form {}",
                                    key->name, yaml::describe(value), key->value_hint));
  }
  return Setting{key, value.Scalar(), fmt::format("{}: {}", where, key->name)};
}

}  // namespace

Result<Config> parse_config(std::string_view yaml, std::string_view source, Config base) {
  HIFC_ASSIGN(const yaml::Root root, yaml::load(yaml, source, yaml::kConfiguration));
  std::vector<Setting> settings;
  for (const auto& entry : root.value) {
    HIFC_ASSIGN(Setting setting, to_setting(entry.first, entry.second, source));
    settings.push_back(std::move(setting));
  }
  return apply_settings(std::move(base), settings);
}

Result<Config> load_config_file(const std::string& path, Config base) {
  HIFC_ASSIGN(const std::string text, yaml::read_file(path, yaml::kConfiguration));
  return parse_config(text, path, std::move(base));
}

}  // namespace hifc
