// The configuration on the command line: a flag for each row of config_keys(), short names for the
// frequent ones, and --preset NAME and --config FILE below them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace hifc::apps {

class ConfigOptions {
 public:
  // Adds the options to `app`, which must outlive this object.
  // `without`: keys whose flags `app` defines itself.
  explicit ConfigOptions(CLI::App& app, std::initializer_list<std::string_view> without = {});

  // After `app` has parsed: preset, then file, then flags, validated. Failures are the sentences of
  // base/config.h with the flag's name in place of the key's.
  Result<Config> resolve() const;

 private:
  struct Flag {
    const ConfigKey* key;
    const CLI::Option* option;
    std::string_view fixed_value;  // what the flag stands for, or "" to take its own value
  };
  void add(const ConfigKey& key, CLI::Option* option, std::string_view fixed_value);
  std::vector<Setting> settings() const;

  std::vector<Flag> flags_;
  const CLI::Option* preset_;
  const CLI::Option* file_;
};

// One sentence for a command line that `app` refused, with the option that was probably meant.
std::string explain(const CLI::App& app, const CLI::ParseError& error);

// Every key with its flags and meaning, as a Markdown list.
std::string config_reference();

}  // namespace hifc::apps
