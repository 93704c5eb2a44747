#include "apps/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "base/config.h"
#include "base/units.h"
#include "cache/kv_cache.h"
#include "kv/layout.h"

namespace hifc::apps {

std::optional<uint64_t> available_memory() {
  std::optional<uint64_t> available;
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") available = kib * 1024;
  }
  // "max" is no number.
  std::ifstream group("/sys/fs/cgroup/memory.max");
  if (uint64_t limit = 0; group >> limit) available = std::min(limit, available.value_or(limit));
  return available;
}

Result<uint64_t> kv_memory(const kv::ModelShape& shape, std::span<const kv::CodecPolicy> policies,
                           uint32_t tokens, uint32_t step_tokens) {
  uint64_t bytes = 0;
  for (const kv::CodecPolicy& policy : policies) {
    HIFC_ASSIGN(const auto layout, kv::GroupLayout::make(shape, kDefaultBlockTokens, policy));
    bytes += cache::KvCache::bytes_for_all(layout, tokens, step_tokens);
  }
  return bytes;
}

Result<void> check_memory(std::string_view what, uint64_t need, std::optional<uint64_t> available) {
  if (!available || need <= *available) return {};
  return failure(Code::kInvalid,
                 fmt::format("K and V of {} need {} of memory, but {} are available: give fewer "
                             "--tokens",
                             what, format_size(need), format_size(*available)));
}

}  // namespace hifc::apps
