#include "apps/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "apps/arguments.h"
#include "base/check.h"
#include "base/text.h"

namespace hifc::apps {
namespace {

struct ShortName {
  std::string_view key;
  std::string_view flag;
};
constexpr std::array<ShortName, 5> kShortNames = {{{"hot_cache_size", "--hot"},
                                                   {"warm_cache_size", "--warm"},
                                                   {"flash_path", "--flash"},
                                                   {"flash_cache_size", "--flash-size"},
                                                   {"hot_cache_ratio", "--hot-ratio"}}};

std::vector<std::string> flag_names(const ConfigKey& key) {
  std::vector<std::string> names = {flag_name(key)};
  for (const ShortName& short_name : kShortNames) {
    if (short_name.key == key.name) names.emplace_back(short_name.flag);
  }
  return names;
}

// The values are judged by the configuration's own parsers, so CLI11 only collects their text, one
// for each time the option stands on the command line.
CLI::Option* add_text_option(CLI::App& app, const std::string& names, std::string_view hint,
                             std::string_view help) {
  const CLI::callback_t accept_anything = [](const CLI::results_t&) { return true; };
  return app.add_option(names, accept_anything, std::string(help))
      ->type_name(std::string(hint))
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

// Stands alone, or as "--direct-io=false".
CLI::Option* add_switch(CLI::App& app, const std::string& name, std::string_view description) {
  const std::string help(description);  // const: add_flag would take another string for the result
  return app.add_flag(name, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

std::string preset_help() {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return fmt::format("Configuration to start from: {}", fmt::join(names, ", "));
}

Result<std::optional<std::string>> single_value(const CLI::Option& option, std::string_view name) {
  const auto& values = option.results();
  if (values.size() > 1) {
    return failure(Code::kInvalid,
                   fmt::format("{} is given twice, as {} and as {}; accepted is one value", name,
                               quote(values[0]), quote(values[1])));
  }
  if (values.empty()) return std::nullopt;
  return values[0];
}

// The long options of `app` and of the subcommands that were chosen.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* subcommand : app.get_subcommands()) {
    for (std::string& name : option_names(*subcommand)) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

ConfigOptions::ConfigOptions(CLI::App& app, std::span<const std::string_view> without)
    : preset_(add_text_option(app, "--preset", "NAME", preset_help())),
      file_(add_text_option(app, "--config", "FILE",
                            "YAML file with hifc_config:, applied over the preset")) {
  check_while_parsing(preset_);
  check_while_parsing(file_);
  for (const ConfigKey& key : config_keys()) {
    if (std::ranges::find(without, key.name) != without.end()) continue;
    const std::string name = flag_name(key);
    if (!key.is_switch) {
      const std::string names = fmt::format("{}", fmt::join(flag_names(key), ","));
      add(key, add_text_option(app, names, key.value_hint, key.help), "");
      continue;
    }
    add(key, add_switch(app, name, key.help), "");
    CLI::Option* const off = add_switch(app, "--no-" + name.substr(2), "Turns " + name + " off");
    add(key, off->disable_flag_override(), "false");
  }
}

void ConfigOptions::add(const ConfigKey& key, CLI::Option* option, std::string_view fixed_value) {
  option->group("Cache");
  flags_.push_back({&key, option, fixed_value});
  check_while_parsing(option);
}

// Flags that contradict each other are only seen together: each looks at all of them, which are
// known by then.
void ConfigOptions::check_while_parsing(CLI::Option* option) const {
  option->check([this](const std::string&) {
    require(check());
    return std::string();
  });
}

std::vector<Setting> ConfigOptions::settings() const {
  std::vector<Setting> settings;
  for (const Flag& flag : flags_) {
    for (const std::string& value : flag.option->results())
      settings.push_back({flag.key,
                          flag.fixed_value.empty() ? value : std::string(flag.fixed_value),
                          flag_name(*flag.key)});
  }
  return settings;
}

Result<Config> ConfigOptions::resolve_preset() const {
  HIFC_ASSIGN(const auto preset, single_value(*preset_, "--preset"));
  return preset ? load_preset(*preset, {}) : Config{};
}

// Without the file, which need not be readable while the command line is parsed.
Result<void> ConfigOptions::check() const {
  HIFC_ASSIGN(Config config, resolve_preset());
  HIFC_TRY(single_value(*file_, "--config"));
  HIFC_TRY(apply_settings(std::move(config), settings()));
  return {};
}

Result<Config> ConfigOptions::resolve() const {
  HIFC_ASSIGN(Config config, resolve_preset());
  HIFC_ASSIGN(const auto file, single_value(*file_, "--config"));
  if (file) {
    HIFC_ASSIGN(config, load_config_file(*file, std::move(config)));
  }
  HIFC_ASSIGN(config, apply_settings(std::move(config), settings()));
  HIFC_TRY(validate(config));
  return config;
}

Config in_memory(const Config& config) {
  Config result;
  for (const ConfigKey& key : config_keys())
    if (std::ranges::find(kWithoutTiers, key.name) == kWithoutTiers.end())
      HIFC_CHECK(key.set(result, key.get(config)).has_value());
  result.flash_cache_size = 0;
  return result;
}

std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    std::span<const std::string> arguments) {
  if (const auto* bad = dynamic_cast<const BadValue*>(&error)) return bad->sentence(arguments);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return error.what();
  const std::vector<std::string> names = option_names(app);
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  for (const std::string& argument : app.remaining(true)) {
    const std::string word = argument.substr(0, argument.find('='));
    if (!word.starts_with("-")) continue;
    const std::string_view nearest = nearest_name(word, candidates);
    if (nearest.empty()) return fmt::format("{} is not an option; --help lists them", quote(word));
    return fmt::format("{} is not an option; did you mean {}?", quote(word), nearest);
  }
  return fmt::format("{} is not expected here; --help lists what is accepted",
                     quote(fmt::format("{}", fmt::join(app.remaining(true), " "))));
}

std::string config_reference() {
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    text += fmt::format("- `{}: {}` (`{}`): {}.\n", key.name, key.value_hint,
                        fmt::join(flag_names(key), "`, `"), key.help);
  }
  return text;
}

}  // namespace hifc::apps
