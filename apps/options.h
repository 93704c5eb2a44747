// The configuration on the command line: a flag for each row of config_keys(), short names for the
// frequent ones, and --preset NAME and --config FILE below them.
#pragma once

#include <array>
#include <span>
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

// For commands that hold all KV in memory, whose policy is their own affair (in_memory()).
inline constexpr auto kWithoutTiers = std::to_array<std::string_view>(
    {"flash_cache_size", "flash_path",     "flash_free_space", "flash_deadline",
     "hot_cache_ratio",  "hot_cache_size", "warm_cache_size",  "prefetch_window",
     "prefetch_workers", "block_bytes",    "block_tokens",     "ubatch",
     "deterministic",    "resume",         "attention",        "mass",
     "page_budget",      "mass_bound",     "predictor",        "on_miss",
     "miss_deadline",    "policy",         "tenant",           "io_backend",
     "direct_io"});

class ConfigOptions {
 public:
  // Adds the options to `app`, which must outlive this object and parse while it lives: what the
  // flags alone show to be wrong ends the parsing (UsageError).
  // `without`: keys whose flags `app` defines itself.
  explicit ConfigOptions(CLI::App& app, std::span<const std::string_view> without = {});
  ConfigOptions(const ConfigOptions&) = delete;
  ConfigOptions& operator=(const ConfigOptions&) = delete;

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
  Result<void> check() const;
  Result<Config> resolve_preset() const;
  void check_while_parsing(CLI::Option* option) const;

  std::vector<Flag> flags_;
  CLI::Option* preset_;
  CLI::Option* file_;
};

// `config` with every key of kWithoutTiers as it is by default, and no flash: what a file or a
// preset says of them is not for those commands.
Config in_memory(const Config& config);

// One sentence for a command line that `app` refused, with the option that was probably meant.
// `arguments`: the words that it parsed.
std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    std::span<const std::string> arguments);

// Every key with its flags and meaning, as a Markdown list.
std::string config_reference();

}  // namespace hifc::apps
