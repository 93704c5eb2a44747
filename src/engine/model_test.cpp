#include "engine/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "engine/engine_fixture.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

std::string refusal(const std::string& path) {
  const auto model = Model::load(path);
  EXPECT_FALSE(model) << path;
  if (model) return "";
  const std::string message = model.error().message();
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_NE(message.find(path), std::string::npos) << message;
  return message;
}

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Model, CannotBeMadeDeterministicInAProcessThatIsNot) {
  unsetenv("GGML_CPU_TILED_MM");
  ASSERT_TRUE(Model::load(model_path("llama-32l")));
  const auto model = Model::load(model_path("llama-32l"), kernels::Rounding::kOne);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, Code::kUnsupported);
  expect_contains(model.error().message(), "GGML_CPU_TILED_MM=0");
}

TEST(Model, RefusesWhatAttentionCannotDoByName) {
  const std::vector<std::pair<std::string, std::string>> reasons = {
      {"bloom-alibi", "ALiBi"},           {"deepseek2-mla", "MLA"},
      {"mamba-recurrent", "recurrent"},   {"phi3-longrope", "LongRoPE"},
      {"gemma3n-shared", "share one KV"}, {"gptoss-sinks", "attention sinks"},
  };
  for (const auto& [name, reason] : reasons) {
    expect_contains(refusal(model_path(name)), reason);
    EXPECT_EQ(Model::load(model_path(name)).error().code, Code::kUnsupported);
  }
}

class DamagedFile : public ::testing::Test {
 protected:
  std::string with(const std::string& content) {
    const std::string path = directory_.file("damaged.gguf");
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static std::string bytes_of(const std::string& name) {
    std::ifstream file(model_path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  testing::TempDirectory directory_;
};

TEST_F(DamagedFile, MissingEmptyOrNoGgufIsSaid) {
  expect_contains(refusal(directory_.file("none.gguf")), "No such file");
  expect_contains(refusal(directory_.path()), "not a regular file");
  expect_contains(refusal(with("")), "not a GGUF file");
  expect_contains(refusal(with("GGU")), "not a GGUF file");
  expect_contains(refusal(with("a text, not a model")), "not a GGUF file");
  expect_contains(refusal(with("GGUF")), "damaged");
}

TEST_F(DamagedFile, TruncationIsSaid) {
  for (const std::string name : {"llama-hd96", "qwen2-gqa-bias"}) {
    const std::string bytes = bytes_of(name);
    for (const size_t percent : {10, 50, 90}) {
      const std::string path = with(bytes.substr(0, bytes.size() * percent / 100));
      expect_contains(refusal(path), "cut off");
    }
    const std::string message = refusal(with(bytes.substr(0, bytes.size() - 1)));
    expect_contains(message, fmt::format("{} of", bytes.size() - 1));
    expect_contains(refusal(with(bytes.substr(0, 200))), "damaged");
  }
}

// libllama ends the process over these where it is not held back.
TEST_F(DamagedFile, BrokenAssumptionsOfLibllamaAreRefusals) {
  std::string duplicate = bytes_of("llama-hd96");
  const size_t token = duplicate.find("<0x44>");
  ASSERT_NE(token, std::string::npos);
  duplicate[token + 4] = '5';
  expect_contains(refusal(with(duplicate)), "token_to_id.size()");

  std::string heads = bytes_of("qwen2-gqa-bias");
  const std::string key = "qwen2.attention.key_length";
  const size_t value = heads.find(key);
  ASSERT_NE(value, std::string::npos);
  heads[value + key.size() + 4] = 32;  // after the value's type; the tensors say 64
  EXPECT_FALSE(refusal(with(heads)).empty());
  EXPECT_TRUE(Model::load(model_path("qwen2-gqa-bias")));
}

TEST(Model, FindsTheShapesOfModelsAndTheirWindows) {
  const auto shape = [](const std::string& name) {
    return (*Model::load(model_path(name)))->shape();
  };
  const kv::ModelShape many = shape("llama-32l");
  EXPECT_EQ(many.layers, 32u);
  EXPECT_EQ(many.query_heads, many.kv_heads);
  const kv::ModelShape grouped = shape("qwen2-gqa-bias");
  EXPECT_EQ(grouped.query_heads, 8u);
  EXPECT_EQ(grouped.kv_heads, 2u);
  EXPECT_EQ(shape("llama-hd96").head_dim, 96u);
  EXPECT_EQ(shape("llama-hd128").head_dim, 128u);
  EXPECT_EQ(shape("gemma2-softcap").window, (std::vector<uint32_t>{128, 0, 128, 0}));
}

TEST_F(DamagedFile, EqualNamesOfDifferentModelsHaveDifferentFingerprints) {
  std::string bytes = bytes_of("llama-hd96");
  const std::string path = with(bytes);
  const auto original = (*Model::load(path))->identity().content;
  EXPECT_EQ((*Model::load(model_path("llama-hd96")))->identity().content, original);
  const size_t name = bytes.find("random weights");
  ASSERT_NE(name, std::string::npos);
  bytes[name] = 'R';
  EXPECT_NE((*Model::load(with(bytes)))->identity().content, original);
}

TEST(Model, TokenizesOnlyUtf8) {
  const auto model = Model::load(model_path("qwen2-gqa-bias"));
  ASSERT_TRUE(model);
  const std::string text = "plain, caf\xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80";
  const auto tokens = (*model)->tokenize(text, false);
  ASSERT_TRUE(tokens);
  std::string back;
  for (const int32_t token : *tokens) back += (*model)->piece(token);
  EXPECT_EQ(back, text);
  const std::vector<std::pair<std::string, size_t>> damaged = {
      {"abc\xff", 3},  {"\x80", 0},         {"ab\xc3", 2},           {"a\xe2\x82", 1},
      {"\xc0\xaf", 0}, {"\xed\xa0\x80", 0}, {"\xf4\x90\x80\x80", 0}, {"ok\xe0\x80\x80", 2}};
  for (const auto& [bytes, offset] : damaged) {
    const auto refused = (*model)->tokenize(bytes, false);
    ASSERT_FALSE(refused) << offset;
    EXPECT_EQ(refused.error().code, Code::kInvalid);
    expect_contains(refused.error().message(), fmt::format("at offset {}", offset));
  }
}

TEST(Model, SpecialTokensInTheTextAreParsedOnlyOnRequest) {
  const auto model = Model::load(model_path("smollm2-135m"));
  ASSERT_TRUE(model) << model.error().message();
  ASSERT_TRUE((*model)->has_chat_template());
  const auto text = (*model)->apply_chat_template("hello");
  ASSERT_TRUE(text);
  expect_contains(*text, "<|im_start|>user\nhello<|im_end|>");
  const auto plain = (*model)->tokenize("<|im_end|>", false);
  const auto special = (*model)->tokenize("<|im_end|>", true);
  ASSERT_TRUE(plain && special);
  EXPECT_EQ(special->size(), 1u);
  EXPECT_TRUE((*model)->ends_generation(special->back()));
  EXPECT_GT(plain->size(), 1u);
}

}  // namespace
}  // namespace hifc::engine
