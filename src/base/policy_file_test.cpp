#include "base/policy_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "base/text.h"

namespace hifc {
namespace {

constexpr std::array<std::string_view, 5> kCodecs = {"f16", "i8", "i4", "i3", "i2"};

constexpr std::string_view kModel =
    "  model:\n"
    "    architecture: llama\n"
    "    parameters: 134515008\n"
    "    layers: 30\n"
    "    kv_heads: 3\n"
    "    head_dim: 64\n";

// Line 9 is the first of `entries`.
std::string document(std::string_view entries) {
  return "hifc_policy:\n  version: 1\n" + std::string(kModel) + "  layers:\n" +
         std::string(entries);
}

// A document whose model has `line` in place of the one with the same key; `line` is line 4 to 8.
std::string with_model_line(std::string_view line) {
  std::string text = document("    - {layers: 0-29, k: i8, v: i4}\n");
  const size_t begin = text.find("    " + std::string(line.substr(0, line.find(':') + 1)));
  return text.replace(begin, text.find('\n', begin) - begin, "    " + std::string(line));
}

Result<PolicyFile> parse(std::string_view yaml) {
  return parse_policy_file(yaml, "p.yaml", kCodecs);
}

std::string refused(std::string_view yaml) {
  const auto file = parse(yaml);
  EXPECT_FALSE(file.has_value()) << yaml;
  if (file) return "";
  EXPECT_EQ(file.error().code, Code::kInvalid);
  return file.error().context;
}

PolicyFile example() {
  PolicyFile file = {.model = {.architecture = "llama",
                               .parameters = 134515008,
                               .layers = 30,
                               .kv_heads = 3,
                               .head_dim = 64},
                     .layers = {30, {.k = "i4", .v = "f16"}}};
  for (int i = 0; i < 3; ++i) file.layers[i] = {.k = "i8", .v = "i4"};
  file.layers[3] = {.k = "i4", .v = "i3"};
  return file;
}

constexpr std::string_view kExampleEntries =
    "    - {layers: 0-2, k: i8, v: i4}\n"
    "    - {layers: 3, k: i4, v: i3}\n"
    "    - {layers: 4-29, k: i4, v: f16}\n";

TEST(ParsePolicyFile, ReadsModelAndLayers) {
  const auto file = parse("# written by hifc tune quality\n" + document(kExampleEntries));
  ASSERT_TRUE(file.has_value()) << file.error().context;
  EXPECT_EQ(*file, example());
}

TEST(ParsePolicyFile, KeysAndEntriesMayComeInAnyOrder) {
  const auto file = parse(
      "---\nhifc_policy:\n  layers:\n  - {v: f16, k: i4, layers: 4-29}\n"
      "  - layers: 3\n    k: i4\n    v: i3\n  - {layers: 0-2, k: 'i8', v: \"i4\"}\n" +
      std::string(kModel) + "  version: 1\n");
  ASSERT_TRUE(file.has_value()) << file.error().context;
  EXPECT_EQ(*file, example());
}

TEST(ParsePolicyFile, AcceptsTheLargestModel) {
  const auto file = parse(
      "hifc_policy:\n  version: 1\n  model: {architecture: qwen2.5-Max_e, "
      "parameters: 18446744073709551615, layers: 4096, kv_heads: 4096, head_dim: 512}\n"
      "  layers: [{layers: 0-4095, k: i2, v: i2}]\n");
  ASSERT_TRUE(file.has_value()) << file.error().context;
  EXPECT_EQ(file->model.parameters, 18446744073709551615u);
  EXPECT_EQ(file->layers, std::vector<PolicyLayer>(4096, {.k = "i2", .v = "i2"}));
}

TEST(ParsePolicyFile, SuggestsTheNearestKey) {
  EXPECT_EQ(refused(with_model_line("kv_heads: 3\n    kv_head: 3")),
            "p.yaml line 8: \"kv_head\" is not a key of model; did you mean kv_heads?");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i8, v: i4, q: f16}\n")),
            "p.yaml line 10: \"q\" is not a key of an entry of layers; did you mean k?");
  EXPECT_EQ(refused("hifc_policy:\n  banana: 1\n"),
            "p.yaml line 2: \"banana\" is not a key of hifc_policy; accepted are version, model, "
            "layers");
  EXPECT_EQ(refused("hifc_policy:\n  [version]: 1\n"),
            "p.yaml line 2: a key of hifc_policy must be a plain word");
}

TEST(ParsePolicyFile, NamesAMissingKey) {
  EXPECT_EQ(refused("hifc_policy: {}\n"),
            "p.yaml line 1: hifc_policy has no version; accepted is a map with version, model, "
            "layers");
  EXPECT_EQ(refused("hifc_policy:\n  version: 1\n" + std::string(kModel)),
            "p.yaml line 1: hifc_policy has no layers; accepted is a map with version, model, "
            "layers");
  EXPECT_EQ(refused("hifc_policy:\n  version: 1\n  model: {layers: 3}\n  layers: []\n"),
            "p.yaml line 3: model has no architecture; accepted is a map with architecture, "
            "parameters, layers, kv_heads, head_dim");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i8}\n")),
            "p.yaml line 10: an entry of layers has no v; accepted is a map with layers, k, v");
}

TEST(ParsePolicyFile, RefusesAKeyGivenTwice) {
  EXPECT_EQ(refused(with_model_line("kv_heads: 3\n    kv_heads: 4")),
            "p.yaml line 8: kv_heads is given twice, first in p.yaml line 7; accepted is one "
            "value");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i8, v: i4, k: i8}\n")),
            "p.yaml line 10: k is given twice, first in p.yaml line 10; accepted is one value");
}

TEST(ParsePolicyFile, RefusesAnotherVersionBeforeAnythingElse) {
  EXPECT_EQ(refused("hifc_policy:\n  rotation: true\n  version: 2\n"),
            "p.yaml line 3: version: \"2\" is not accepted; accepted is 1");
  for (const auto version : {"0", "-1", "1.0", "01", "one", "~", "[1]", "{a: 1}", "''"}) {
    const std::string text = "hifc_policy: {version: " + std::string(version) + "}";
    EXPECT_TRUE(refused(text).ends_with(" is not accepted; accepted is 1")) << refused(text);
  }
}

TEST(ParsePolicyFile, RefusesAnotherTypeOfValue) {
  EXPECT_EQ(refused("hifc_policy:\n  version: 1\n  model: llama\n  layers: []\n"),
            "p.yaml line 3: model: \"llama\" is not accepted; accepted is a map with architecture, "
            "parameters, layers, kv_heads, head_dim");
  EXPECT_EQ(refused("hifc_policy:\n"),
            "p.yaml line 1: hifc_policy: nothing is not accepted; accepted is a map with version, "
            "model, layers");
  EXPECT_EQ(refused(document("    {layers: 0-29, k: i8, v: i4}\n")),
            "p.yaml line 9: layers: a map is not accepted; accepted is a list of maps such as "
            "{layers: 0-2, k: i8, v: i4}");
  EXPECT_EQ(refused(document("    - i8\n")),
            "p.yaml line 10: an entry of layers: \"i8\" is not accepted; accepted is a map with "
            "layers, k, v");
  EXPECT_EQ(refused(document("    - {layers: [0, 1], k: i8, v: i4}\n")),
            "p.yaml line 10: layers: a list is not accepted; accepted is a layer or a range of "
            "layers within 0-29, such as 3 or 0-2");
  EXPECT_EQ(refused(with_model_line("kv_heads: {a: 3}")),
            "p.yaml line 7: kv_heads: a map is not accepted; accepted is a whole number from 1 to "
            "4096");
}

TEST(ParsePolicyFile, RefusesAnImpossibleModel) {
  EXPECT_EQ(refused(with_model_line("architecture: \"lla ma\"")),
            "p.yaml line 4: architecture: \"lla ma\" is not accepted; accepted is a word of at "
            "most 64 letters, digits, '-', '_' and '.', such as llama");
  EXPECT_EQ(refused(with_model_line("parameters: 0")),
            "p.yaml line 5: parameters: \"0\" is not accepted; accepted is a whole number from 1 "
            "to 18446744073709551615");
  EXPECT_EQ(refused(with_model_line("layers: 0")),
            "p.yaml line 6: layers: \"0\" is not accepted; accepted is a whole number from 1 to "
            "4096");
  EXPECT_EQ(refused(with_model_line("head_dim: 72")),
            "p.yaml line 8: head_dim: \"72\" is not accepted; accepted is a multiple of 16 up to "
            "512");
  const std::string long_word(65, 'a');
  for (const std::string line :
       {"architecture: ''",   "architecture: ~", "architecture: [llama]",
        "parameters: -1",     "parameters: 1e9", "parameters: 18446744073709551616",
        "parameters: 135M",   "layers: 4097",    "layers: 4294967296",
        "layers: 4294967297", "layers: -1",      "layers: 1e9",
        "layers: 30.0",       "layers: 0x1e",    "layers:",
        "kv_heads: 0",        "kv_heads: 4097",  "kv_heads: 4294967299",
        "kv_heads: -1",       "kv_heads: 1e9",   "head_dim: 0",
        "head_dim: 8",        "head_dim: 528",   "head_dim: 4294967360",
        "head_dim: -16",      "head_dim: +64",   "head_dim: 1e2"}) {
    EXPECT_NE(refused(with_model_line(line)).find(" is not accepted; accepted is "),
              std::string::npos)
        << line;
  }
  refused(with_model_line("architecture: " + long_word));
}

TEST(ParsePolicyFile, RefusesImpossibleRanges) {
  EXPECT_EQ(refused(document("    - {layers: 5-3, k: i8, v: i4}\n")),
            "p.yaml line 10: layers: \"5-3\" is reversed; accepted is the lower layer first, as in "
            "3-5");
  EXPECT_EQ(refused(document("    - {layers: 4-30, k: i8, v: i4}\n")),
            "p.yaml line 10: layers: \"4-30\" goes past the last layer of the model; accepted are "
            "layers within 0-29");
  EXPECT_EQ(
      refused(document("    - {layers: 0-29, k: i8, v: i4}\n    - {layers: 30, k: i8, v: i4}")),
      "p.yaml line 11: layers: \"30\" goes past the last layer of the model; accepted are "
      "layers within 0-29");
  for (const auto range : {"''", "-", "-1", "1-", "0--1", "0-1-2", "0 - 2", "0..2", "all", "1e1",
                           "0-4294967296", "4294967296", "~", "{a: 1}", "0x1"}) {
    const std::string text = document("    - {layers: " + std::string(range) + ", k: i8, v: i4}\n");
    EXPECT_TRUE(
        refused(text).ends_with("accepted is a layer or a range of layers within 0-29, "
                                "such as 3 or 0-2"))
        << range << '\n'
        << refused(text);
  }
}

TEST(ParsePolicyFile, RefusesALayerGivenTwice) {
  EXPECT_EQ(refused(document("    - {layers: 0-2, k: i8, v: i4}\n"
                             "    - {layers: 4-29, k: i8, v: i4}\n"
                             "    - {layers: 2-3, k: i8, v: i4}\n")),
            "p.yaml line 12: layers: layer 2 is given twice, first in p.yaml line 10; accepted is "
            "every layer once");
}

TEST(ParsePolicyFile, NamesTheLayersThatAreNotGiven) {
  EXPECT_EQ(refused(document("    - {layers: 0-2, k: i8, v: i4}\n"
                             "    - {layers: 4-29, k: i8, v: i4}\n")),
            "p.yaml line 9: layers: layer 3 is not given; accepted is every layer within 0-29 "
            "once");
  EXPECT_EQ(refused(document("    - {layers: 0-2, k: i8, v: i4}\n")),
            "p.yaml line 9: layers: layers 3-29 are not given; accepted is every layer within "
            "0-29 once");
  EXPECT_EQ(refused(document("    []\n")),
            "p.yaml line 9: layers: layers 0-29 are not given; accepted is every layer within "
            "0-29 once");
}

TEST(ParsePolicyFile, RefusesACodecThatDoesNotExist) {
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i5, v: i4}\n")),
            "p.yaml line 10: k: \"i5\" is not a codec; accepted are f16, i8, i4, i3, i2");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i8, v: [i4]}\n")),
            "p.yaml line 10: v: a list is not a codec; accepted are f16, i8, i4, i3, i2");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: I8, v: i4}\n")),
            "p.yaml line 10: k: \"I8\" is not a codec; accepted are f16, i8, i4, i3, i2");
  EXPECT_EQ(refused(document("    - {layers: 0-29, k: i8, v: }\n")),
            "p.yaml line 10: v: nothing is not a codec; accepted are f16, i8, i4, i3, i2");
}

TEST(ParsePolicyFile, RefusesWhatIsNoPolicyFile) {
  EXPECT_EQ(refused("hifc_config:\n  threads: 2\n"),
            "p.yaml line 1: hifc_config makes this a configuration file, which belongs to "
            "--config; accepted is one document with hifc_policy: and its keys below it");
  EXPECT_EQ(refused(""),
            "p.yaml: holds nothing; accepted is one document with hifc_policy: and its keys below "
            "it");
  constexpr std::string_view kAccepted =
      "; accepted is one document with hifc_policy: and its keys below it";
  for (const auto yaml :
       {"# nothing\n", "~", "text", "[1]", "version: 1\n", "hifc_policy: 3\n", "hifc_policy: [a]\n",
        "hifc_policy: {}\nhifc_config: {}\n", "hifc_policy: {}\nhifc_policy: {}\n", ",",
        "hifc_policy: {}\n---\nhifc_policy: {}\n", "[a, b]: 1\n"}) {
    EXPECT_TRUE(refused(yaml).ends_with(kAccepted)) << yaml << '\n' << refused(yaml);
  }
  EXPECT_NE(refused("hifc_policy:\n  version: [1\n").find("not valid YAML"), std::string::npos);
  EXPECT_NE(refused(std::string("GGUF\0\3", 6)).find("zero byte"), std::string::npos);
  refused(std::string(100'000, '['));
}

// An alias to the list around it is a list without end.
TEST(ParsePolicyFile, SurvivesAliasesToThemselves) {
  refused("hifc_policy: &a\n  version: *a\n");
  refused("hifc_policy:\n  version: 1\n" + std::string(kModel) + "  layers: &a [*a, *a]\n");
  refused("&a hifc_policy: &b {*a : *b}\n");
}

TEST(ReadPolicyFile, NamesTheFileInFailures) {
  const auto missing = read_policy_file("/nonexistent/p.yaml", kCodecs);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, Code::kIo);
  EXPECT_EQ(missing.error().message(),
            "cannot read the policy file \"/nonexistent/p.yaml\": No such file or directory");
  EXPECT_EQ(read_policy_file("/", kCodecs).error().code, Code::kIo);
  const auto large = read_policy_file("/dev/zero", kCodecs);
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, Code::kInvalid);
  EXPECT_EQ(large.error().context,
            "\"/dev/zero\" has more than 1048576 bytes; accepted is a YAML file with hifc_policy:");
  EXPECT_EQ(read_policy_file("/dev/null", kCodecs).error().context,
            "/dev/null: holds nothing; accepted is one document with hifc_policy: and its keys "
            "below it");
}

TEST(PrintPolicyFile, JoinsNeighbouringLayersThatAreEqual) {
  EXPECT_EQ(print_policy_file(example(), "written by hifc tune quality"),
            "# written by hifc tune quality\n" + document(kExampleEntries));
  EXPECT_EQ(print_policy_file(example()), document(kExampleEntries));
}

TEST(PrintPolicyFile, EveryLineOfTheCommentIsOne) {
  EXPECT_EQ(print_policy_file(example(), "a\n\nb\r: \x04[\n"),
            "# a\n#\n# b :  [\n" + document(kExampleEntries));
}

PolicyFile random_policy(std::mt19937& random, std::span<const std::string_view> codecs) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const auto up_to = [&](uint32_t most) { return static_cast<uint32_t>(random() % most) + 1; };
  PolicyFile file;
  for (uint32_t i = up_to(random() % 2 == 0 ? 64 : 3); i > 0; --i)
    file.model.architecture += kLetters[random() % kLetters.size()];
  file.model.parameters =
      std::max<uint64_t>(std::uniform_int_distribution<uint64_t>()(random) >> (random() % 64), 1);
  file.model.layers = up_to(random() % 20 == 0 ? 4096 : 40);
  file.model.kv_heads = up_to(4096);
  file.model.head_dim = 16 * up_to(32);
  const auto codec = [&] { return std::string(codecs[random() % codecs.size()]); };
  while (file.layers.size() < file.model.layers) {
    const bool same = !file.layers.empty() && random() % 3 != 0;
    file.layers.push_back(same ? file.layers.back() : PolicyLayer{.k = codec(), .v = codec()});
  }
  return file;
}

TEST(PrintPolicyFile, RandomPoliciesParseToTheSameAgain) {
  constexpr std::array<std::string_view, 8> kOddCodecs = {"f16",  "i8", "null", "~",
                                                          "true", "-",  "a: b", "{}"};
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::span<const std::string_view> codecs =
        i % 2 == 0 ? std::span<const std::string_view>(kCodecs) : kOddCodecs;
    const PolicyFile file = random_policy(random, codecs);
    std::string comment(random() % 50, ' ');
    for (char& c : comment) c = static_cast<char>(random());
    const std::string text = print_policy_file(file, comment);
    const auto copy = parse_policy_file(text, "p.yaml", codecs);
    ASSERT_TRUE(copy.has_value()) << copy.error().context << '\n' << text;
    ASSERT_EQ(*copy, file) << text;
  }
}

// Words that YAML takes for something else.
TEST(PrintPolicyFile, ArchitecturesThatLookLikeOtherValuesAreQuoted) {
  for (const auto word :
       {"null", "Null", "NULL", "true", "no", "1", "1.5", "-", "--", "---", "..."}) {
    PolicyFile file = example();
    file.model.architecture = word;
    const auto copy = parse(print_policy_file(file));
    ASSERT_TRUE(copy.has_value()) << copy.error().context;
    EXPECT_EQ(*copy, file);
  }
}

// A directory of one test that is removed after it.
class WritePolicyFile : public testing::Test {
 protected:
  WritePolicyFile() { std::filesystem::create_directories(directory_); }
  ~WritePolicyFile() override { std::filesystem::remove_all(directory_); }

  size_t file_count() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }

  std::string directory_ = testing::TempDir() + "hifc_policy_" + std::to_string(getpid());
  std::string path_ = directory_ + "/p.yaml";
};

TEST_F(WritePolicyFile, IsReadAgainAndLeavesNothingBeside) {
  ASSERT_TRUE(write_policy_file(path_, example(), "first").has_value());
  PolicyFile second = example();
  second.layers[7] = {.k = "i2", .v = "i2"};
  ASSERT_TRUE(write_policy_file(path_, second).has_value());
  const auto read = read_policy_file(path_, kCodecs);
  ASSERT_TRUE(read.has_value()) << read.error().context;
  EXPECT_EQ(*read, second);
  EXPECT_EQ(file_count(), 1u);
}

TEST_F(WritePolicyFile, PermissionsFollowTheUmask) {
  const mode_t before = umask(027);
  const auto written = write_policy_file(path_, example());
  umask(before);
  ASSERT_TRUE(written.has_value());
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
}

TEST_F(WritePolicyFile, TakesAnotherNameThanAFileThatWasLeftBehind) {
  const std::string left = path_ + "." + std::to_string(getpid()) + ".0";
  std::ofstream(left) << "left";
  ASSERT_TRUE(write_policy_file(path_, example()).has_value());
  EXPECT_TRUE(read_policy_file(path_, kCodecs).has_value());
  std::ifstream file(left);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "left");
}

TEST_F(WritePolicyFile, FailuresNameThePath) {
  const auto nowhere = write_policy_file("/nonexistent/p.yaml", example());
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_EQ(nowhere.error().code, Code::kIo);
  EXPECT_EQ(nowhere.error().message(),
            "cannot write the policy file \"/nonexistent/p.yaml\": No such file or directory");
}

// A pipe stands for devices such as /dev/null, which a test run by root would take away.
TEST_F(WritePolicyFile, NeverReplacesWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const auto pipe = write_policy_file(path_, example());
  ASSERT_FALSE(pipe.has_value());
  EXPECT_EQ(pipe.error().code, Code::kInvalid);
  EXPECT_EQ(pipe.error().context,
            quote(path_) + " is not a file; accepted is the path of a policy file to write");
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
  EXPECT_EQ(write_policy_file(directory_, example()).error().code, Code::kInvalid);
  EXPECT_EQ(file_count(), 1u);
}

}  // namespace
}  // namespace hifc
