// What a user can configure, and the one table that drives the YAML file, the command line, the
// help text and the documentation alike.
//
// Sources are applied in the order preset, file, flags, each on top of the result of the one before
// (load_preset, load_config_file, apply_settings); validate() judges the outcome.
//
// Every failure is kInvalid (kIo for an unreadable file) with one sentence that names the key, the
// value, what is accepted and, for a file, its name and line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/attention_options.h"
#include "base/result.h"

namespace hifc {

enum class IoBackend : uint8_t { kAutomatic, kUring, kThreads };

// Fields bear the names of their keys; sizes are bytes. Empty optionals were left open.
struct Config {
  std::optional<uint64_t> flash_cache_size = {};  // 0: no flash
  std::optional<std::string> flash_path = {};
  uint64_t flash_free_space = 64ull << 20;
  uint32_t flash_deadline = 10;                  // seconds; 0: never
  std::optional<double> hot_cache_ratio = {};    // 0 to 1
  std::optional<uint64_t> hot_cache_size = {};   // empty: automatic; the smaller of the two wins
  std::optional<uint64_t> warm_cache_size = {};  // empty: automatic
  uint32_t prefetch_window = 8;                  // layers
  uint32_t prefetch_workers = 4;
  std::optional<uint32_t> block_tokens = {};  // with block_bytes empty too: kDefaultBlockTokens
  std::optional<uint64_t> block_bytes = {};   // K and V of one layer; the header page comes on top
  uint32_t context = 0;                       // tokens; 0: the model's
  uint32_t ubatch = 0;                        // tokens; 0: automatic
  uint32_t threads = 0;                       // 0: all cores
  bool deterministic = false;
  bool resume = true;
  std::string tenant = {};
  AttentionMode attention = AttentionMode::kExact;
  // Of sparse attention:
  double mass = 0.98;        // of each query's attention, that the pages attended to hold
  uint32_t page_budget = 0;  // pages of a layer and KV head; 0: as many as `mass` needs
  double mass_bound = 1;     // of each query's attention, that surely is not left out; 1: no matter
  PredictorKind predictor = PredictorKind::kDecayedMean;
  OnMiss on_miss = OnMiss::kFetch;
  uint32_t miss_deadline = 0;  // milliseconds of each layer
  std::string policy = "f16";  // a name or the path of a file; engine/policy.h
  IoBackend io_backend = IoBackend::kAutomatic;
  bool direct_io = true;

  bool operator==(const Config&) const = default;
};

inline constexpr uint32_t kDefaultBlockTokens = 256;
// Reads in flight for each of prefetch_workers where the backend is io_uring.
inline constexpr uint32_t kReadsPerWorker = 4;

struct ConfigKey {
  std::string_view name;        // as in YAML; the flag is "--" + name with '-' for '_'
  std::string_view value_hint;  // "SIZE", "auto|uring|threads"
  std::string_view help;        // one sentence without a full stop, with the default
  bool is_switch = false;       // takes true or false; as a flag it may stand without a value

  // `shown_name` is what a failure calls the key; empty for `name`.
  Result<void> set(Config& config, std::string_view value, std::string_view shown_name = {}) const;
  // As set() would accept it; "" for what was left open.
  std::string get(const Config& config) const;

  Result<void> (*parse)(Config& config, std::string_view value, std::string_view shown_name);
  std::string (*print)(const Config& config);
};

std::span<const ConfigKey> config_keys();
const ConfigKey* find_config_key(std::string_view name);  // nullptr if there is none
std::string flag_name(const ConfigKey& key);              // "--flash-cache-size"

// One value from one source.
struct Setting {
  const ConfigKey* key = nullptr;
  std::string value;
  std::string shown_name;  // what failures call it, such as "--hot-cache-size"
};

// `base` with the settings of one source applied. A source may give a key once, and only one of
// block_tokens and block_bytes; the one it gives replaces the other one of an earlier source.
Result<Config> apply_settings(Config base, std::span<const Setting> settings);

// A YAML document of the form `hifc_config: { key: value, ... }`. `source` names it in failures.
Result<Config> parse_config(std::string_view yaml, std::string_view source, Config base = {});
Result<Config> load_config_file(const std::string& path, Config base = {});

// The files of presets/, embedded when HiFC is built.
struct Preset {
  std::string_view name;
  std::string_view yaml;
};
std::span<const Preset> presets();
Result<Config> load_preset(std::string_view name, Config base = {});

// Constraints between keys; call it on the final configuration.
Result<void> validate(const Config& config);

}  // namespace hifc
