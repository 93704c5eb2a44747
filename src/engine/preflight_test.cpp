// What preflight finds for the identity of stored KV; what it refuses is in model_test.cpp.
#include "engine/preflight.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "gguf.h"
#include "testing/temp_directory.h"

namespace hifc::engine {
namespace {

using Metadata = std::function<void(gguf_context*)>;

class PreflightTest : public ::testing::Test {
 protected:
  // A GGUF file without tensors.
  std::string write(const std::string& name, const Metadata& metadata) {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> gguf(gguf_init_empty(), gguf_free);
    gguf_set_val_str(gguf.get(), "general.architecture", "llama");
    metadata(gguf.get());
    const std::string path = directory_.file(name);
    EXPECT_TRUE(gguf_write_to_file(gguf.get(), path.c_str(), /*only_meta=*/true));
    return path;
  }
  Preflight preflight(const Metadata& metadata) {
    auto outcome = inspect(write("model.gguf", metadata));
    EXPECT_TRUE(outcome) << outcome.error().message();
    return outcome.value_or(Preflight{});
  }

  testing::TempDirectory directory_;
};

void set_rope(gguf_context* gguf) {
  gguf_set_val_f32(gguf, "llama.rope.freq_base", 10000);
  gguf_set_val_u32(gguf, "llama.rope.dimension_count", 64);
  gguf_set_val_str(gguf, "llama.rope.scaling.type", "yarn");
  gguf_set_val_f32(gguf, "llama.rope.scaling.factor", 4);
  gguf_set_val_bool(gguf, "llama.rope.scaling.finetuned", true);
  const std::array<int32_t, 4> sections = {16, 24, 24, 0};
  gguf_set_arr_data(gguf, "llama.rope.dimension_sections", GGUF_TYPE_INT32, sections.data(), 4);
  std::array<const char*, 2> names = {"a", "b"};
  gguf_set_arr_str(gguf, "llama.rope.names", names.data(), names.size());
}

TEST_F(PreflightTest, RopeDependsOnEveryRopeKey) {
  const std::vector<Metadata> changes = {
      [](gguf_context*) {},
      [](gguf_context* gguf) { gguf_set_val_f32(gguf, "llama.rope.freq_base", 500000); },
      [](gguf_context* gguf) { gguf_set_val_i32(gguf, "llama.rope.dimension_count", 64); },
      [](gguf_context* gguf) { gguf_set_val_str(gguf, "llama.rope.scaling.type", "linear"); },
      [](gguf_context* gguf) { gguf_set_val_f32(gguf, "llama.rope.scaling.factor", 8); },
      [](gguf_context* gguf) { gguf_set_val_bool(gguf, "llama.rope.scaling.finetuned", false); },
      [](gguf_context* gguf) { gguf_remove_key(gguf, "llama.rope.scaling.finetuned"); },
      [](gguf_context* gguf) { gguf_set_val_f64(gguf, "llama.rope.new", 0); },
      [](gguf_context* gguf) {
        const std::array<int32_t, 4> sections = {16, 24, 24, 1};
        gguf_set_arr_data(gguf, "llama.rope.dimension_sections", GGUF_TYPE_INT32, sections.data(),
                          4);
      },
      [](gguf_context* gguf) {
        std::array<const char*, 1> names = {"ab"};
        gguf_set_arr_str(gguf, "llama.rope.names", names.data(), names.size());
      },
      [](gguf_context* gguf) {
        gguf_set_arr_data(gguf, "llama.rope.names", GGUF_TYPE_UINT8, nullptr, 0);
      },
  };
  std::set<std::vector<std::byte>> seen;
  for (const Metadata& change : changes) {
    const Preflight found = preflight([&](gguf_context* gguf) {
      set_rope(gguf);
      change(gguf);
    });
    EXPECT_TRUE(seen.insert(found.rope).second) << seen.size();
  }
}

TEST_F(PreflightTest, RopeDependsOnNothingElse) {
  const Preflight plain = preflight(set_rope);
  EXPECT_FALSE(plain.rope.empty());
  const Preflight other = preflight([](gguf_context* gguf) {
    gguf_set_val_str(gguf, "llama.rope.scaling.type", "yarn");  // set again: in another order
    gguf_set_val_str(gguf, "general.name", "rope");
    gguf_set_val_u32(gguf, "llama.block_count", 2);
    set_rope(gguf);
  });
  EXPECT_EQ(other.rope, plain.rope);
  EXPECT_NE(other.fingerprint, plain.fingerprint);
  EXPECT_TRUE(preflight([](gguf_context*) {}).rope.empty());
}

TEST_F(PreflightTest, NamesTheFilesOfAModel) {
  const auto split = [](gguf_context* gguf) { gguf_set_val_u16(gguf, "split.count", 3); };
  const auto files_of = [&](const std::string& name, const Metadata& metadata) {
    return inspect(write(name, metadata)).value().files;
  };
  const auto in_directory = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(directory_.file(name));
    return paths;
  };
  EXPECT_EQ(files_of("m.gguf", [](gguf_context*) {}), in_directory({"m.gguf"}));
  EXPECT_EQ(
      files_of("m-00001-of-00003.gguf", split),
      in_directory({"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"}));
  EXPECT_EQ(files_of("renamed.gguf", split), in_directory({"renamed.gguf"}));
}

}  // namespace
}  // namespace hifc::engine
