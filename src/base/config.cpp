#include "base/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/policy_file.h"
#include "base/text.h"
#include "base/units.h"

namespace hifc {
namespace {

std::unexpected<Error> refuse(std::string_view name, std::string_view value,
                              std::string_view accepted) {
  return failure(Code::kInvalid, fmt::format("{}: {} is not accepted; accepted is {}", name,
                                             quote(value), accepted));
}

template <typename T>
const T* open_or_value(const std::optional<T>& field) {
  return field ? &*field : nullptr;
}
template <typename T>
const T* open_or_value(const T& field) {
  return &field;
}

// Makers of table rows: each binds a field of Config to its parser and printer.

template <auto kField>
constexpr ConfigKey size_key(std::string_view name, std::string_view help) {
  return {
      .name = name,
      .value_hint = "SIZE",
      .help = help,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        HIFC_ASSIGN(config.*kField, parse_size(value, shown));
        return {};
      },
      .print =
          [](const Config& config) {
            const uint64_t* const value = open_or_value(config.*kField);
            return value != nullptr ? fmt::to_string(*value) : std::string();
          }};
}

template <auto kField>
constexpr ConfigKey size_or_auto_key(std::string_view name, std::string_view help) {
  return {
      .name = name,
      .value_hint = "SIZE|auto",
      .help = help,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        (config.*kField).reset();
        if (value == "auto") return {};
        auto size = parse_size(value, shown);
        if (!size) {
          size.error().context += ", or auto";
          return std::unexpected(std::move(size).error());
        }
        config.*kField = *size;
        return {};
      },
      .print =
          [](const Config& config) {
            return config.*kField ? fmt::to_string(*(config.*kField)) : std::string("auto");
          }};
}

template <auto kField, uint32_t kLeast, uint32_t kMost>
constexpr ConfigKey count_key(std::string_view name, std::string_view help) {
  return {
      .name = name,
      .value_hint = "N",
      .help = help,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        const auto number = to_number<uint32_t>(value);
        const bool in_range = number && *number >= kLeast && *number <= kMost;
        if (!in_range)
          return refuse(shown, value, fmt::format("a whole number from {} to {}", kLeast, kMost));
        config.*kField = *number;
        return {};
      },
      .print =
          [](const Config& config) {
            const uint32_t* const value = open_or_value(config.*kField);
            return value != nullptr ? fmt::to_string(*value) : std::string();
          }};
}

template <auto kField>
constexpr ConfigKey switch_key(std::string_view name, std::string_view help) {
  return {
      .name = name,
      .value_hint = "true|false",
      .help = help,
      .is_switch = true,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        if (value != "true" && value != "false") return refuse(shown, value, "true or false");
        config.*kField = value == "true";
        return {};
      },
      .print = [](const Config& config) -> std::string {
        return config.*kField ? "true" : "false";
      }};
}

// Blocks and the 256-token splits of attention have to nest.
Result<void> parse_block_tokens(Config& config, std::string_view value, std::string_view shown) {
  const auto number = to_number<uint32_t>(value);
  const bool nests = number && (*number == 64 || *number == 128 ||
                                (*number % 256 == 0 && *number >= 256 && *number <= 4096));
  if (!nests) return refuse(shown, value, "64, 128 or a multiple of 256 up to 4096");
  config.block_tokens = *number;
  return {};
}

std::string print_block_tokens(const Config& config) {
  return config.block_tokens ? fmt::to_string(*config.block_tokens) : std::string();
}

// A share; kPositive: not 0.
enum class Share : uint8_t { kAny, kPositive };

template <auto kField, Share kShare>
constexpr ConfigKey share_key(std::string_view name, std::string_view help) {
  return {
      .name = name,
      .value_hint = "0..1",
      .help = help,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        const auto share = to_number<double>(value);
        // Written so that NaN is refused too.
        const bool in_range =
            share && *share >= 0 && *share <= 1 && (kShare == Share::kAny || *share > 0);
        if (!in_range)
          return refuse(shown, value,
                        kShare == Share::kAny ? "a number from 0 to 1, such as 0.6"
                                              : "a number above 0 and at most 1, such as 0.6");
        config.*kField = *share;
        return {};
      },
      .print =
          [](const Config& config) {
            const double* const value = open_or_value(config.*kField);
            return value != nullptr ? fmt::to_string(*value) : std::string();
          }};
}

std::string alternatives(std::span<const std::string_view> names) {
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "), names.back());
}

// One of the names of an enumeration's values, in their order.
template <auto kField, const auto& kNames>
constexpr ConfigKey choice_key(std::string_view name, std::string_view hint,
                               std::string_view help) {
  return {
      .name = name,
      .value_hint = hint,
      .help = help,
      .parse = [](Config& config, std::string_view value, std::string_view shown) -> Result<void> {
        const auto found = std::ranges::find(kNames, value);
        if (found == kNames.end()) return refuse(shown, value, alternatives(kNames));
        using Enum = std::remove_reference_t<decltype(config.*kField)>;
        config.*kField = static_cast<Enum>(found - kNames.begin());
        return {};
      },
      .print = [](const Config& config) -> std::string {
        return std::string(kNames[static_cast<size_t>(config.*kField)]);
      }};
}

// No shell expands a "~/" that stands in a file or after "--flash=".
std::string expand_home(std::string_view path) {
  const char* home = std::getenv("HOME");
  if (!path.starts_with("~/") || home == nullptr) return std::string(path);
  return home + std::string(path.substr(1));
}

Result<void> parse_path(Config& config, std::string_view value, std::string_view shown) {
  if (value.empty()) return refuse(shown, value, "the path of a directory");
  config.flash_path = expand_home(value);
  return {};
}

std::string print_path(const Config& config) {
  return config.flash_path.value_or("");
}

// A name is for people; whatever is longer was meant to be something else.
constexpr size_t kTenantBytesMost = 256;

Result<void> parse_tenant(Config& config, std::string_view value, std::string_view shown) {
  if (value.size() > kTenantBytesMost)
    return refuse(shown, value, fmt::format("a name of at most {} bytes", kTenantBytesMost));
  config.tenant = value;
  return {};
}

std::string print_tenant(const Config& config) {
  return config.tenant;
}

Result<void> parse_policy(Config& config, std::string_view value, std::string_view shown) {
  const bool named =
      value == "fp16" || std::ranges::find(kPolicyNames, value) != kPolicyNames.end();
  if (!named && !is_policy_path(value))
    return refuse(shown, value,
                  fmt::format("{}, or the path of a policy file (.yaml), which 'hifc tune quality' "
                              "writes",
                              fmt::join(kPolicyNames, ", ")));
  config.policy = value == "fp16" ? "f16" : value;
  return {};
}

std::string print_policy(const Config& config) {
  return config.policy;
}

constexpr uint64_t kBlockBytesLeast = 4096;
constexpr uint64_t kBlockBytesMost = 1ull << 30;

Result<void> parse_block_bytes(Config& config, std::string_view value, std::string_view shown) {
  HIFC_ASSIGN(const uint64_t size, parse_size(value, shown));
  if (size < kBlockBytesLeast || size > kBlockBytesMost)
    return refuse(shown, value, "a size from 4KiB to 1GiB");
  config.block_bytes = size;
  return {};
}

std::string print_block_bytes(const Config& config) {
  return config.block_bytes ? fmt::to_string(*config.block_bytes) : std::string();
}

constexpr auto kBackendNames = std::to_array<std::string_view>({"auto", "uring", "threads"});

constexpr std::array kKeys = {
    size_key<&Config::flash_cache_size>(
        "flash_cache_size", "Bytes HiFC may occupy in flash_path, everything counted; 0: no flash"),
    ConfigKey{
        .name = "flash_path",
        .value_hint = "DIR",
        .help = "Directory of the flash tier; created if missing, used by one process at a time",
        .parse = parse_path,
        .print = print_path},
    size_key<&Config::flash_free_space>(
        "flash_free_space",
        "Bytes that stay free on the file system of flash_path (default 64MiB)"),
    // A day and more is no deadline.
    count_key<&Config::flash_deadline, 0, 86400>(
        "flash_deadline",
        "Seconds after which a read or write of flash counts as failed; 0: never (default 10)"),
    share_key<&Config::hot_cache_ratio, Share::kAny>(
        "hot_cache_ratio",
        "Share of the KV at the context limit that stays hot; with hot_cache_size too, the smaller "
        "wins"),
    size_or_auto_key<&Config::hot_cache_size>("hot_cache_size",
                                              "Bytes of the hot tier (default auto)"),
    size_or_auto_key<&Config::warm_cache_size>(
        "warm_cache_size", "Bytes of the warm tier, staging buffers included (default auto)"),
    count_key<&Config::prefetch_window, 1, 1024>("prefetch_window",
                                                 "Layers that are read ahead (default 8)"),
    count_key<&Config::prefetch_workers, 1, 64>(
        "prefetch_workers",
        "Concurrent reads: 4 for each worker with io_uring, 1 with threads (default 4)"),
    ConfigKey{.name = "block_tokens",
              .value_hint = "N",
              .help = "Tokens of a block: 64, 128 or a multiple of 256; block_bytes follows "
                      "(default 256)",
              .parse = parse_block_tokens,
              .print = print_block_tokens},
    ConfigKey{
        .name = "block_bytes",
        .value_hint = "SIZE",
        .help = "Bytes of K and V of one layer's block, in place of block_tokens, which follows",
        .parse = parse_block_bytes,
        .print = print_block_bytes},
    // llama.cpp counts positions in 32-bit signed integers.
    count_key<&Config::context, 0, 0x7FFF'FFFF>("context",
                                                "Context limit in tokens (default 0: the model's)"),
    count_key<&Config::ubatch, 0, 65536>("ubatch",
                                         "Tokens computed at a time (default 0: automatic)"),
    count_key<&Config::threads, 0, 512>("threads", "Compute threads (default 0: all cores)"),
    switch_key<&Config::deterministic>(
        "deterministic",
        "Bit-identical results whatever the chunking, resumption and batching (default false)"),
    switch_key<&Config::resume>("resume", "Reuse stored KV of a prompt's prefix (default true)"),
    choice_key<&Config::attention, kAttentionModeNames>(
        "attention", "exact|sparse",
        "Attention of generated tokens: over all tokens, or over the pages that hold most of it "
        "(default exact)"),
    share_key<&Config::mass, Share::kPositive>(
        "mass", "Share of the attention that the pages of sparse attention hold (default 0.98)"),
    count_key<&Config::page_budget, 0, 1u << 24>(
        "page_budget",
        "Most pages of 64 tokens that sparse attention takes of a layer and KV head, besides the "
        "first and the newest (default 0: as many as mass needs)"),
    share_key<&Config::mass_bound, Share::kPositive>(
        "mass_bound",
        "Share of each query's attention that sparse attention surely does not leave out more of "
        "(default 1: no promise)"),
    choice_key<&Config::predictor, kPredictorNames>(
        "predictor", "decayed_mean|decayed_max|mean|hot_span",
        "What sparse attention reads ahead by (default decayed_mean)"),
    choice_key<&Config::on_miss, kOnMissNames>(
        "on_miss", "fetch|skip",
        "Whether sparse attention waits for pages that were not read ahead, or does without them "
        "(default fetch)"),
    count_key<&Config::miss_deadline, 0, 60000>(
        "miss_deadline",
        "Milliseconds that a layer waits for pages under on_miss skip (default 0)"),
    ConfigKey{.name = "policy",
              .value_hint = "NAME|FILE",
              .help = "How K and V are encoded once they leave the newest 128 tokens: f16, "
                      "reference, auto35, auto60, auto75, or a file that 'hifc tune "
                      "quality' wrote (default f16)",
              .parse = parse_policy,
              .print = print_policy},
    ConfigKey{.name = "tenant",
              .value_hint = "NAME",
              .help = "Cache entries are shared only within one tenant name (default: no name)",
              .parse = parse_tenant,
              .print = print_tenant},
    choice_key<&Config::io_backend, kBackendNames>(
        "io_backend", "auto|uring|threads",
        "How flash is read and written (default auto: io_uring where the system allows it)"),
    switch_key<&Config::direct_io>(
        "direct_io", "Bypass the page cache where the file system can (default true)"),
};

std::unexpected<Error> both_block_keys(std::string_view tokens, std::string_view bytes) {
  return failure(Code::kInvalid,
                 fmt::format("{} and {} are both given; accepted is one of them, the other follows",
                             tokens, bytes));
}

// A source that contradicts itself leaves no way to tell what was meant.
Result<void> check_source(std::span<const Setting> settings) {
  const Setting *tokens = nullptr, *bytes = nullptr;
  for (size_t i = 0; i < settings.size(); ++i) {
    const Setting& setting = settings[i];
    const auto before = settings.first(i);
    const auto earlier = std::ranges::find(before, setting.key, &Setting::key);
    if (earlier != before.end()) {
      return failure(Code::kInvalid,
                     fmt::format("{} is given twice, as {} and as {}; accepted is one value",
                                 setting.shown_name, quote(earlier->value), quote(setting.value)));
    }
    if (setting.key->name == "block_tokens") tokens = &setting;
    if (setting.key->name == "block_bytes") bytes = &setting;
  }
  if (tokens != nullptr && bytes != nullptr)
    return both_block_keys(tokens->shown_name, bytes->shown_name);
  return {};
}

}  // namespace

Result<void> ConfigKey::set(Config& config, std::string_view value,
                            std::string_view shown_name) const {
  return parse(config, value, shown_name.empty() ? name : shown_name);
}

std::string ConfigKey::get(const Config& config) const {
  return print(config);
}

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

const ConfigKey* find_config_key(std::string_view name) {
  const auto found = std::ranges::find(kKeys, name, &ConfigKey::name);
  return found == kKeys.end() ? nullptr : &*found;
}

std::string flag_name(const ConfigKey& key) {
  std::string flag = "--" + std::string(key.name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

Result<Config> apply_settings(Config base, std::span<const Setting> settings) {
  HIFC_TRY(check_source(settings));
  for (const Setting& setting : settings) {
    if (setting.key->name == "block_tokens") base.block_bytes.reset();
    if (setting.key->name == "block_bytes") base.block_tokens.reset();
    HIFC_TRY(setting.key->set(base, setting.value, setting.shown_name));
  }
  return base;
}

Result<Config> load_preset(std::string_view name, Config base) {
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) {
    if (preset.name == name)
      return parse_config(preset.yaml, fmt::format("preset {}", name), std::move(base));
    names.push_back(preset.name);
  }
  return failure(Code::kInvalid, fmt::format("preset {} does not exist; accepted are {}",
                                             quote(name), fmt::join(names, ", ")));
}

Result<void> validate(const Config& config) {
  if (config.block_tokens && config.block_bytes)
    return both_block_keys("block_tokens", "block_bytes");
  const uint64_t flash = config.flash_cache_size.value_or(0);
  if (flash != 0 && config.block_bytes && flash < *config.block_bytes) {
    return failure(Code::kInvalid,
                   fmt::format("flash_cache_size: {} bytes cannot hold one block of {} bytes "
                               "(block_bytes); accepted are 0 (no flash) or room for many blocks",
                               flash, *config.block_bytes));
  }
  return {};
}

}  // namespace hifc
