#include "base/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>

namespace hifc {
namespace {

std::string document(std::string_view keys) {
  return "hifc_config:\n" + std::string(keys);
}

Config accepted(std::string_view keys, Config base = {}) {
  auto config = parse_config(document(keys), "test.yaml", std::move(base));
  EXPECT_TRUE(config.has_value()) << (config ? "" : config.error().context);
  return config.value_or(Config{});
}

std::string refused(std::string_view keys) {
  const auto config = parse_config(document(keys), "test.yaml");
  EXPECT_FALSE(config.has_value()) << keys;
  return config ? "" : config.error().context;
}

std::string refused_yaml(std::string_view yaml) {
  const auto config = parse_config(yaml, "test.yaml");
  EXPECT_FALSE(config.has_value()) << yaml;
  return config ? "" : config.error().context;
}

TEST(ParseConfig, ReadsEveryKey) {
  const Config config = accepted(
      "  flash_cache_size: 64 GB\n  flash_path: /flash\n  flash_free_space: 1GiB\n"
      "  flash_deadline: 30\n  hot_cache_ratio: 0.6\n"
      "  hot_cache_size: 2GiB\n  warm_cache_size: auto\n  prefetch_window: 1024\n"
      "  prefetch_workers: 64\n  block_tokens: 4096\n  context: 32768\n  ubatch: 512\n"
      "  threads: 2\n  deterministic: true\n  resume: false\n  policy: auto75\n  tenant: \"alice: "
      "2\"\n"
      "  attention: sparse\n  mass: 0.9\n  page_budget: 32\n  mass_bound: 0.5\n"
      "  predictor: hot_span\n  on_miss: skip\n  miss_deadline: 3\n"
      "  io_backend: threads\n  direct_io: false\n");
  const Config expected = {.flash_cache_size = 64'000'000'000,
                           .flash_path = "/flash",
                           .flash_free_space = 1ull << 30,
                           .flash_deadline = 30,
                           .hot_cache_ratio = 0.6,
                           .hot_cache_size = 2ull << 30,
                           .warm_cache_size = std::nullopt,
                           .prefetch_window = 1024,
                           .prefetch_workers = 64,
                           .block_tokens = 4096,
                           .block_bytes = std::nullopt,
                           .context = 32768,
                           .ubatch = 512,
                           .threads = 2,
                           .deterministic = true,
                           .resume = false,
                           .tenant = "alice: 2",
                           .attention = AttentionMode::kSparse,
                           .mass = 0.9,
                           .page_budget = 32,
                           .mass_bound = 0.5,
                           .predictor = PredictorKind::kHotSpan,
                           .on_miss = OnMiss::kSkip,
                           .miss_deadline = 3,
                           .policy = "auto75",
                           .io_backend = IoBackend::kThreads,
                           .direct_io = false};
  EXPECT_EQ(config, expected);
}

TEST(ParseConfig, KeepsWhatItDoesNotMention) {
  const Config base = {.hot_cache_ratio = 0.25, .threads = 3};
  const Config config = accepted("  threads: 4\n", base);
  EXPECT_EQ(config.hot_cache_ratio, 0.25);
  EXPECT_EQ(config.threads, 4u);
  EXPECT_EQ(accepted("", base), base);
}

TEST(ParseConfig, AutoTakesBackAnEarlierSize) {
  EXPECT_EQ(accepted("  hot_cache_size: auto\n", {.hot_cache_size = 1}).hot_cache_size,
            std::nullopt);
}

TEST(ParseConfig, LaterWayToSizeABlockReplacesTheEarlier) {
  const Config config = accepted("  block_bytes: 4MiB\n", {.block_tokens = 512});
  EXPECT_EQ(config.block_bytes, 4u << 20);
  EXPECT_EQ(config.block_tokens, std::nullopt);
  EXPECT_EQ(accepted("  block_tokens: 64\n", config).block_bytes, std::nullopt);
}

TEST(ParseConfig, SuggestsTheNearestKey) {
  EXPECT_EQ(refused("  threads: 2\n  flash_cach_size: 64GB\n"),
            "test.yaml line 3: \"flash_cach_size\" is not a key of hifc_config; did you mean "
            "flash_cache_size?");
  EXPECT_NE(refused("  banana: 1\n").find("accepted are flash_cache_size, flash_path, "),
            std::string::npos);
}

TEST(ParseConfig, RefusesImpossibleValuesInOneSentence) {
  EXPECT_NE(refused("  flash_cache_size: 64 GB of flash\n")
                .find("test.yaml line 2: flash_cache_size: \"64 GB of flash\" is not a size; "),
            std::string::npos);
  EXPECT_EQ(
      refused("  hot_cache_ratio: 1.5\n"),
      "test.yaml line 2: hot_cache_ratio: \"1.5\" is not accepted; accepted is a number from 0 "
      "to 1, such as 0.6");
  EXPECT_EQ(refused("  prefetch_window: 0\n"),
            "test.yaml line 2: prefetch_window: \"0\" is not accepted; accepted is a whole number "
            "from 1 to 1024");
  EXPECT_EQ(refused("  block_tokens: 100\n"),
            "test.yaml line 2: block_tokens: \"100\" is not accepted; accepted is 64, 128 or a "
            "multiple of 256 up to 4096");
  EXPECT_EQ(refused("  attention: dense\n"),
            "test.yaml line 2: attention: \"dense\" is not accepted; accepted is exact or sparse");
  for (const std::string_view value : {"0", "1.01", "-1", "nan", "much"})
    EXPECT_EQ(refused(fmt::format("  mass: {}\n", value)),
              fmt::format("test.yaml line 2: mass: \"{}\" is not accepted; accepted is a number "
                          "above 0 and at most 1, such as 0.6",
                          value));
  EXPECT_EQ(
      refused("  deterministic: maybe\n"),
      "test.yaml line 2: deterministic: \"maybe\" is not accepted; accepted is true or false");
  EXPECT_EQ(refused("  io_backend: spdk\n"),
            "test.yaml line 2: io_backend: \"spdk\" is not accepted; accepted is auto, uring or "
            "threads");
  EXPECT_TRUE(refused("  warm_cache_size: some\n").ends_with("such as 64GB or 1.5GiB, or auto"));
}

TEST(ParseConfig, RefusesValuesOutsideTheRange) {
  for (const auto line : {"hot_cache_ratio: -0.1", "hot_cache_ratio: nan",  "hot_cache_ratio: inf",
                          "hot_cache_ratio: 60%",  "prefetch_window: 1025", "prefetch_window: 8.0",
                          "prefetch_window: -1",   "prefetch_workers: 0",   "prefetch_workers: 65",
                          "block_tokens: 0",       "block_tokens: 192",     "block_tokens: 4160",
                          "block_bytes: 0",        "block_bytes: 2GiB",     "context: 2147483648",
                          "ubatch: 65537",         "threads: 513",          "threads: 99999999999",
                          "flash_path: ''",        "direct_io: yes",        "resume: 1",
                          "flash_deadline: 86401", "flash_deadline: 0.5",   "flash_deadline: -1",
                          "flash_free_space: -1",  "flash_free_space: auto"}) {
    EXPECT_FALSE(parse_config(document("  " + std::string(line)), "t").has_value()) << line;
  }
}

TEST(ParseConfig, TenantIsAnyNameOfAtMost256Bytes) {
  EXPECT_EQ(accepted("  tenant: " + std::string(256, 'a') + "\n").tenant, std::string(256, 'a'));
  EXPECT_EQ(accepted("  tenant: ''\n", {.tenant = "alice"}).tenant, "");
  const std::string sentence = refused("  tenant: " + std::string(257, 'a') + "\n");
  EXPECT_TRUE(sentence.ends_with("accepted is a name of at most 256 bytes")) << sentence;
}

TEST(ParseConfig, RefusesWhatIsNotOneValue) {
  EXPECT_EQ(
      refused("  context: [1, 2]\n"),
      "test.yaml line 2: context: a list is not accepted; accepted is one value of the form N");
  EXPECT_NE(refused("  context:\n").find("context: nothing is not accepted"), std::string::npos);
  EXPECT_NE(refused("  flash_path: ~\n").find("flash_path: nothing"), std::string::npos);
  EXPECT_NE(refused("  context: {a: 1}\n").find("context: a map"), std::string::npos);
  EXPECT_NE(refused("  [a, b]: 1\n").find("must be a plain word"), std::string::npos);
}

TEST(ParseConfig, RefusesContradictionsWithinOneSource) {
  EXPECT_EQ(
      refused("  threads: 1\n  threads: 2\n"),
      "test.yaml line 3: threads is given twice, as \"1\" and as \"2\"; accepted is one value");
  EXPECT_EQ(refused("  block_tokens: 64\n  block_bytes: 4MiB\n"),
            "test.yaml line 2: block_tokens and test.yaml line 3: block_bytes are both given; "
            "accepted is one of them, the other follows");
}

TEST(ParseConfig, RefusesAnotherShapeOfDocument) {
  constexpr std::string_view kAccepted =
      "; accepted is one document with hifc_config: and its keys below it";
  for (const auto yaml :
       {"", "# nothing\n", "~", "just text", "[1, 2]", "flash_cache_size: 64GB\n",
        "hifc_config: 3\n", "hifc_config: [a]\n", "hifc_config: {}\nother: 1\n",
        "hifc_config: {}\nhifc_config: {}\n", "hifc_config: {}\n---\nhifc_config: {}\n", ",",
        "hifc_config: {}\n---\n,", "[a, b]: 1\n"}) {
    EXPECT_TRUE(refused_yaml(yaml).ends_with(kAccepted)) << yaml << '\n' << refused_yaml(yaml);
  }
}

TEST(ParseConfig, AcceptsDocumentMarkersAndAnEmptyMap) {
  for (const auto yaml : {"---\nhifc_config: {}\n", "hifc_config:\n...\n", "hifc_config: ~"})
    EXPECT_TRUE(parse_config(yaml, "t").has_value()) << yaml;
}

TEST(ParseConfig, NamesTheLineOfMalformedYaml) {
  const std::string sentence = refused_yaml("hifc_config:\n  threads: 2\n context: [3\n");
  EXPECT_TRUE(sentence.starts_with("test.yaml line ")) << sentence;
  EXPECT_NE(sentence.find("not valid YAML"), std::string::npos) << sentence;
  EXPECT_NE(refused_yaml(std::string("hifc_config: {}\0x: 1", 20)).find("zero byte"),
            std::string::npos);
  EXPECT_FALSE(parse_config(std::string(100'000, '['), "t").has_value());
}

TEST(LoadConfigFile, ReadsAFileAndNamesItInFailures) {
  const std::string path = testing::TempDir() + "hifc_config_test.yaml";
  std::ofstream(path) << "hifc_config:\n  contxt: 5\n";
  EXPECT_EQ(load_config_file(path).error().context,
            path + " line 2: \"contxt\" is not a key of hifc_config; did you mean context?");
  std::ofstream(path) << "hifc_config:\n  context: 5\n";
  EXPECT_EQ(load_config_file(path).value().context, 5u);
  std::remove(path.c_str());
}

TEST(LoadConfigFile, RefusesWhatCannotBeAConfiguration) {
  const auto missing = load_config_file("/nonexistent/hifc.yaml");
  EXPECT_EQ(
      missing.error().message(),
      "cannot read the configuration file \"/nonexistent/hifc.yaml\": No such file or directory");
  EXPECT_EQ(load_config_file("/").error().code, Code::kIo);
  EXPECT_NE(load_config_file("/dev/zero").error().context.find("more than 1048576 bytes"),
            std::string::npos);
}

TEST(Preset, EmbeddedTextIsTheFile) {
  std::set<std::string_view> names;
  for (const Preset& preset : presets()) {
    names.insert(preset.name);
    std::ifstream file(HIFC_PRESETS_DIR "/" + std::string(preset.name) + ".yaml");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(preset.yaml, text);
    const auto config = load_preset(preset.name);
    ASSERT_TRUE(config.has_value()) << config.error().context;
    EXPECT_TRUE(validate(*config).has_value());
  }
  EXPECT_TRUE(names.contains("rtx4090"));
  EXPECT_TRUE(names.contains("dgx-a100"));
}

TEST(Preset, HasThePublishedValues) {
  const Config rtx = load_preset("rtx4090").value();
  EXPECT_EQ(rtx.flash_cache_size, 64'000'000'000u);
  EXPECT_EQ(rtx.hot_cache_ratio, 0.6);
  EXPECT_EQ(rtx.prefetch_window, 8u);
  const Config dgx = load_preset("dgx-a100").value();
  EXPECT_EQ(dgx.flash_cache_size, 2'000'000'000'000u);
  EXPECT_EQ(dgx.hot_cache_ratio, 0.75);
  EXPECT_EQ(dgx.prefetch_workers, 4u);
}

TEST(Preset, UnknownNameListsTheAccepted) {
  EXPECT_EQ(load_preset("rtx5090").error().context,
            "preset \"rtx5090\" does not exist; accepted are dgx-a100, rtx4090");
}

TEST(ConfigKeys, PrintedValuesAreAcceptedAgain) {
  const Config full = {.flash_cache_size = 1,
                       .flash_path = "/f",
                       .flash_free_space = 0,
                       .flash_deadline = 0,
                       .hot_cache_ratio = 0.1,
                       .hot_cache_size = 2,
                       .warm_cache_size = std::nullopt,
                       .block_tokens = 64,
                       .deterministic = true,
                       .resume = false,
                       .tenant = std::string(" \n\"~\0", 5),
                       .attention = AttentionMode::kSparse,
                       .mass = 0.25,
                       .io_backend = IoBackend::kUring};
  for (const Config& config : {Config{}, full}) {
    Config copy;
    for (const ConfigKey& key : config_keys()) {
      const std::string value = key.get(config);
      if (!value.empty()) {
        EXPECT_TRUE(key.set(copy, value).has_value()) << key.name;
      }
    }
    EXPECT_EQ(copy, config);
  }
}

TEST(ConfigKeys, FailuresUseTheNameShown) {
  Config config;
  const ConfigKey& key = *find_config_key("prefetch_window");
  EXPECT_EQ(flag_name(key), "--prefetch-window");
  EXPECT_TRUE(key.set(config, "x").error().context.starts_with("prefetch_window: \"x\""));
  EXPECT_TRUE(key.set(config, "x", "--window").error().context.starts_with("--window: \"x\""));
  EXPECT_EQ(config, Config{});
}

TEST(ConfigKeys, HomeIsExpandedInPaths) {
  setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(accepted("  flash_path: ~/kv\n").flash_path, "/home/someone/kv");
  EXPECT_EQ(accepted("  flash_path: /a/~/kv\n").flash_path, "/a/~/kv");
}

TEST(Validate, RefusesWhatDoesNotFitTogether) {
  EXPECT_TRUE(validate({}).has_value());
  EXPECT_FALSE(validate({.block_tokens = 64, .block_bytes = 4096}).has_value());
  EXPECT_FALSE(validate({.flash_cache_size = 4096, .block_bytes = 8192}).has_value());
  EXPECT_TRUE(validate({.flash_cache_size = 0, .block_bytes = 8192}).has_value());
}

}  // namespace
}  // namespace hifc
