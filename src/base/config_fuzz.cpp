// Feeds arbitrary bytes to the YAML and size parsers. Whatever they accept must survive being
// printed and parsed again; whatever they refuse must come with one line of text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/config.h"
#include "base/units.h"

namespace {

void expect(bool condition) {
  if (!condition) std::abort();
}

void expect_sentence(const hifc::Error& error) {
  expect(!error.context.empty());
  expect(error.context.find('\n') == std::string::npos);
}

void check_size(std::string_view text) {
  const auto size = hifc::parse_size(text, "size");
  if (!size) return expect_sentence(size.error());
  expect(!hifc::format_size(*size).empty());
  expect(hifc::parse_size(std::to_string(*size), "size") == *size);
}

void check_config(std::string_view text) {
  const auto config = hifc::parse_config(text, "input");
  if (!config) return expect_sentence(config.error());
  hifc::Config copy;
  for (const hifc::ConfigKey& key : hifc::config_keys()) {
    const std::string value = key.get(*config);
    if (!value.empty()) expect(key.set(copy, value).has_value());
  }
  expect(copy == *config);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_size(text);
  check_config(text);
  check_config("hifc_config: {" + std::string(text) + "}");
  return 0;
}
