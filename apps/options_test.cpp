#include "apps/options.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "apps/arguments.h"

namespace hifc::apps {
namespace {

// Resolves a command line such as {"--hot", "2GiB"}.
Result<Config> resolve(std::vector<std::string> arguments) {
  CLI::App app;
  const ConfigOptions options(app);
  std::string prompt;
  app.add_option("prompt", prompt);
  std::ranges::reverse(arguments);  // CLI11 takes them last first
  try {
    app.parse(arguments);
  } catch (const UsageError& error) {
    return failure(Code::kInvalid, error.what());
  }
  return options.resolve();
}

std::string refused(std::vector<std::string> arguments) {
  const auto config = resolve(std::move(arguments));
  EXPECT_FALSE(config.has_value());
  return config ? "" : config.error().context;
}

TEST(ConfigOptions, WithoutFlagsGivesTheDefaults) {
  EXPECT_EQ(resolve({}).value(), Config{});
}

TEST(ConfigOptions, EveryKeyHasItsFlag) {
  const std::vector<std::pair<std::string, std::string>> values = {{"flash_free_space", "1GiB"},
                                                                   {"flash_deadline", "3"},
                                                                   {"tenant", "me"},
                                                                   {"policy", "auto75"},
                                                                   {"resume", "false"},
                                                                   {"flash_cache_size", "64 GB"},
                                                                   {"flash_path", "/f"},
                                                                   {"hot_cache_ratio", "0.5"},
                                                                   {"hot_cache_size", "1GiB"},
                                                                   {"warm_cache_size", "2GB"},
                                                                   {"prefetch_window", "3"},
                                                                   {"prefetch_workers", "5"},
                                                                   {"block_tokens", "128"},
                                                                   {"block_bytes", "4MiB"},
                                                                   {"context", "8192"},
                                                                   {"ubatch", "256"},
                                                                   {"threads", "2"},
                                                                   {"deterministic", "true"},
                                                                   {"attention", "sparse"},
                                                                   {"mass", "0.9"},
                                                                   {"page_budget", "16"},
                                                                   {"mass_bound", "0.5"},
                                                                   {"predictor", "mean"},
                                                                   {"on_miss", "skip"},
                                                                   {"miss_deadline", "2"},
                                                                   {"io_backend", "uring"},
                                                                   {"direct_io", "false"}};
  EXPECT_EQ(values.size(), config_keys().size());
  for (const auto& [name, value] : values) {
    const ConfigKey* const key = find_config_key(name);
    ASSERT_NE(key, nullptr) << name;
    Config expected;
    ASSERT_TRUE(key->set(expected, value).has_value());
    EXPECT_NE(expected, Config{}) << name;
    EXPECT_EQ(resolve({flag_name(*key) + "=" + value}).value(), expected) << name;
    if (!key->is_switch) {
      EXPECT_EQ(resolve({flag_name(*key), value, "prompt"}).value(), expected) << name;
    }
  }
}

TEST(ConfigOptions, ShortNames) {
  const Config config = resolve({"--hot", "1GB", "--warm", "auto", "--flash", "/f", "--flash-size",
                                 "2TB", "--hot-ratio", "0.25"})
                            .value();
  EXPECT_EQ(config, (Config{.flash_cache_size = 2'000'000'000'000,
                            .flash_path = "/f",
                            .hot_cache_ratio = 0.25,
                            .hot_cache_size = 1'000'000'000}));
}

TEST(ConfigOptions, SwitchesStandAloneAndCanBeTakenBack) {
  EXPECT_TRUE(resolve({"--deterministic", "prompt"}).value().deterministic);
  EXPECT_FALSE(resolve({"--deterministic=false"}).value().deterministic);
  EXPECT_FALSE(resolve({"--no-direct-io", "prompt"}).value().direct_io);
  EXPECT_EQ(refused({"--direct-io", "--no-direct-io"}),
            "--direct-io is given twice, as \"true\" and as \"false\"; accepted is one value");
}

TEST(ConfigOptions, FlagsWinOverTheFileAndTheFileOverThePreset) {
  const std::string path = testing::TempDir() + "hifc_options_test.yaml";
  std::ofstream(path)
      << "hifc_config:\n  hot_cache_ratio: 0.3\n  block_bytes: 1MiB\n  threads: 7\n";
  const Config config =
      resolve({"--threads", "2", "--block-tokens", "64", "--config", path, "--preset", "rtx4090"})
          .value();
  EXPECT_EQ(config, (Config{.flash_cache_size = 64'000'000'000,
                            .hot_cache_ratio = 0.3,
                            .prefetch_window = 8,
                            .block_tokens = 64,
                            .threads = 2}));
  std::remove(path.c_str());
}

TEST(ConfigOptions, FailuresNameTheFlag) {
  EXPECT_EQ(refused({"--prefetch-window", "0"}),
            "--prefetch-window: \"0\" is not accepted; accepted is a whole number from 1 to 1024");
  EXPECT_TRUE(refused({"--flash-size", "64 GB of flash"})
                  .starts_with("--flash-cache-size: \"64 GB of flash\" is not a size; accepted"));
  EXPECT_EQ(refused({"--direct-io=maybe"}),
            "--direct-io: \"maybe\" is not accepted; accepted is true or false");
  EXPECT_EQ(refused({"--hot", "1GB", "--hot-cache-size", "2GB"}),
            "--hot-cache-size is given twice, as \"1GB\" and as \"2GB\"; accepted is one value");
  EXPECT_EQ(refused({"--block-tokens", "64", "--block-bytes", "4MiB"}),
            "--block-tokens and --block-bytes are both given; accepted is one of them, the other "
            "follows");
  EXPECT_EQ(refused({"--preset", "h100"}),
            "preset \"h100\" does not exist; accepted are dgx-a100, rtx4090");
  EXPECT_EQ(refused({"--preset", "a", "--preset", "b"}),
            "--preset is given twice, as \"a\" and as \"b\"; accepted is one value");
  EXPECT_TRUE(refused({"--config", "/nonexistent"}).starts_with("cannot read the configuration"));
}

// What no file and no machine could make right is known before anything is loaded.
TEST(ConfigOptions, WrongFlagsEndTheParsing) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--hot", "12GiBB"},
      {"--hot-ratio", "2"},
      {"--hot-ratio", "nan"},
      {"--preset", "foo"},
      {"--direct-io=maybe"},
      {"--direct-io", "--no-direct-io"},
      {"--config", "a.yaml", "--config", "b.yaml"},
      {"--block-tokens", "64", "--block-bytes", "4MiB"}};
  for (std::vector<std::string> arguments : wrong) {
    CLI::App app;
    const ConfigOptions options(app);
    std::ranges::reverse(arguments);
    EXPECT_THROW(app.parse(arguments), UsageError) << arguments.back();
  }
}

TEST(ConfigOptions, ValuesReachTheParserAsWritten) {
  EXPECT_EQ(resolve({"--flash", "[a,b]"}).value().flash_path, "[a,b]");
  EXPECT_EQ(resolve({"--flash", "/with space,comma"}).value().flash_path, "/with space,comma");
  EXPECT_TRUE(refused({"--hot=-5GB"}).starts_with("--hot-cache-size: \"-5GB\" is not a size"));
}

TEST(InMemory, LeavesNothingOfTiersAndPolicies) {
  Config config;
  config.threads = 3;
  config.context = 4096;
  EXPECT_EQ(in_memory(config).threads, 3u);
  EXPECT_EQ(in_memory(config).context, 4096u);
  const Config plain = in_memory(config);
  config.attention = AttentionMode::kSparse;
  config.policy = "auto75";
  config.deterministic = true;
  config.flash_path = "/data/kv";
  config.hot_cache_ratio = 0.25;
  config.block_tokens = 64;
  config.ubatch = 128;
  EXPECT_EQ(in_memory(config), plain);
  EXPECT_EQ(plain.flash_cache_size, 0u);
  EXPECT_EQ(plain.attention, AttentionMode::kExact);
}

std::string explained(std::vector<std::string> arguments) {
  CLI::App app;
  CLI::App* const run = app.add_subcommand("run");
  const ConfigOptions options(*run);
  const std::vector<std::string> words = arguments;
  std::ranges::reverse(arguments);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return explain(app, error, words);
  }
  return "";
}

TEST(Explain, SuggestsTheNearestOption) {
  EXPECT_EQ(explained({"run", "--flash-siz", "3"}),
            "\"--flash-siz\" is not an option; did you mean --flash-size?");
  EXPECT_EQ(explained({"run", "--preset=rtx4090", "--warmth=3"}),
            "\"--warmth\" is not an option; did you mean --warm?");
  EXPECT_EQ(explained({"run", "--banana"}), "\"--banana\" is not an option; --help lists them");
  EXPECT_EQ(explained({"run", "a", "b"}),
            "\"a b\" is not expected here; --help lists what is accepted");
}

TEST(Explain, NamesTheOptionWithoutAValue) {
  EXPECT_NE(explained({"run", "--hot"}).find("--hot-cache-size"), std::string::npos);
}

TEST(ConfigReference, ListsEveryKeyAndFlag) {
  const std::string text = config_reference();
  for (const ConfigKey& key : config_keys()) {
    EXPECT_NE(text.find("`" + std::string(key.name) + ": "), std::string::npos);
    EXPECT_NE(text.find("`" + flag_name(key) + "`"), std::string::npos);
  }
  EXPECT_NE(text.find("(`--hot-cache-size`, `--hot`)"), std::string::npos);
}

TEST(ConfigReference, IsWhatTheDocumentationSays) {
  std::ifstream file(HIFC_DOCS_DIR "/configuration.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find(config_reference()), std::string::npos)
      << "docs/configuration.md should have:\n"
      << config_reference();
}

}  // namespace
}  // namespace hifc::apps
