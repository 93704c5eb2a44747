#include "apps/memory_check.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/config.h"
#include "base/text.h"
#include "base/units.h"
#include "cache/kv_cache.h"
#include "kv/layout.h"

namespace hifc::apps {
namespace {

constexpr uint32_t kStepTokens = 512;
constexpr uint64_t kLlamaRuns = 2 + 1 + 1;  // in units of F16

}  // namespace

std::optional<uint64_t> available_memory() {
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

Result<void> check_memory(const kv::ModelShape& shape, std::span<const kv::CodecPolicy> policies,
                          uint32_t tokens, std::optional<uint64_t> available) {
  if (!available) return {};
  const auto bytes_of = [&](const kv::CodecPolicy& policy) -> Result<uint64_t> {
    HIFC_ASSIGN(const auto layout, kv::GroupLayout::make(shape, kDefaultBlockTokens, policy));
    return cache::KvCache::bytes_for_all(layout, tokens, kStepTokens);
  };
  HIFC_ASSIGN(const uint64_t f16, bytes_of(kv::CodecPolicy(shape.layers)));
  uint64_t need = kLlamaRuns * f16;
  for (const kv::CodecPolicy& policy : policies) {
    HIFC_ASSIGN(const uint64_t bytes, bytes_of(policy));
    need += bytes;
  }
  if (need <= *available) return {};
  return failure(Code::kInvalid,
                 fmt::format("{} need {} of memory for K and V under {} policies side by side and "
                             "in llama.cpp, but {} are available: give fewer --tokens",
                             plural(tokens, "token"), format_size(need), policies.size(),
                             format_size(*available)));
}

}  // namespace hifc::apps
