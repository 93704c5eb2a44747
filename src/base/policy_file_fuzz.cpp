// Feeds arbitrary bytes to the parser of policy files: as a whole file, as what follows a valid
// version and model, and as the list of layers alone. Whatever it accepts must survive being
// printed and parsed again; whatever it refuses must come with one line of text.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/policy_file.h"

namespace {

constexpr std::array<std::string_view, 5> kCodecs = {"f16", "i8", "i4", "i3", "i2"};
constexpr std::string_view kStart =
    "hifc_policy:\n  version: 1\n  model: {architecture: llama, parameters: 134515008, layers: 4, "
    "kv_heads: 3, head_dim: 64}\n";

void expect(bool condition) {
  if (!condition) std::abort();
}

void check(std::string_view text, std::string_view comment) {
  const auto file = hifc::parse_policy_file(text, "input", kCodecs);
  if (!file) {
    expect(file.error().code == hifc::Code::kInvalid);
    expect(!file.error().context.empty());
    expect(file.error().context.find('\n') == std::string::npos);
    return;
  }
  expect(file->layers.size() == file->model.layers);
  expect(hifc::parse_policy_file(hifc::print_policy_file(*file, comment), "copy", kCodecs) ==
         *file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string start(kStart);
  check(text, "");
  check(start + std::string(text), "");
  check(start + "  layers: [" + std::string(text) + "]", "");
  // Once more with the input as the comment of a file that is accepted.
  check(start + "  layers: [{layers: 0-3, k: i8, v: i4}]", text);
  return 0;
}
