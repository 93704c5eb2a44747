#include "engine/budget.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/text.h"
#include "base/units.h"
#include "cache/kv_cache.h"
#include "engine/policy.h"
#include "flash/directory.h"
#include "io/file_system.h"
#include "tier/tiers.h"

namespace hifc::engine {
namespace {

constexpr uint32_t kDefaultUbatch = 512;
constexpr uint32_t kUbatchMax = 4096;
constexpr uint32_t kUbatchMin = kv::kPageTokens;  // of automatic ones
// A chunk grows while more than this share of its time goes into waiting for flash.
constexpr double kStallShareToGrow = 0.1;
constexpr uint64_t kFlashBytesMin = uint64_t{1} << 30;

uint64_t physical_memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? uint64_t(pages) * uint64_t(page_bytes) : uint64_t{4} << 30;
}

std::string default_flash_path() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0')
    return fmt::format("{}/hifc", cache);
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fmt::format("{}/.cache/hifc", home);
  return "hifc-flash";
}

// block_tokens as configured, or the most tokens whose K and V fit in block_bytes.
Result<uint32_t> block_tokens(const Config& config, const kv::ModelShape& shape) {
  // What sparse attention selects are pages.
  const uint32_t standard =
      config.attention == AttentionMode::kSparse ? kv::kPageTokens : kDefaultBlockTokens;
  if (!config.block_bytes) return config.block_tokens.value_or(standard);
  const uint64_t token_bytes = uint64_t{4} * shape.kv_heads * shape.head_dim;
  uint64_t tokens = *config.block_bytes / token_bytes;
  if (tokens >= 256)
    tokens = std::min<uint64_t>(tokens / 256 * 256, 4096);
  else
    tokens = tokens >= 128 ? 128 : tokens >= 64 ? 64 : 0;
  if (tokens == 0)
    return failure(Code::kInvalid,
                   fmt::format("block_bytes {} holds less than 64 tokens of this model ({} are "
                               "needed)",
                               *config.block_bytes, 64 * token_bytes));
  return static_cast<uint32_t>(tokens);
}

// Of a batch and its segment, without the groups themselves: far more than their records have.
constexpr uint64_t kHeaders = 256u << 10;

// Flash that surely holds `need` bytes of groups: a segment's last batch may not fit into its rest.
uint64_t flash_bytes_for(uint64_t need, uint64_t group_bytes) {
  constexpr uint64_t kSegmentBytes = 256u << 20;
  const uint64_t batch = std::max(group_bytes, uint64_t{16} << 20);
  const uint64_t segments = std::max<uint64_t>(4, need / kSegmentBytes + 1);
  return need + segments * (batch + kHeaders);
}

class Planner {
 public:
  Planner(const Config& config, const kv::ModelShape& shape, const kv::CodecPolicy& codecs)
      : config_(config), shape_(shape), codecs_(codecs) {}

  Result<Budget> plan(uint32_t model_context) {
    HIFC_TRY(plan_context(model_context));
    HIFC_ASSIGN(const uint32_t tokens, block_tokens(config_, shape_));
    HIFC_ASSIGN(budget_.layout, kv::GroupLayout::make(shape_, tokens, codecs_));
    block_bytes_ = budget_.layout.block_bytes_max();
    budget_.group_bytes = budget_.layout.sealed_bytes();
    budget_.kv_bytes_at_limit =
        budget_.layout.sealed_bytes(budget_.layout.groups_of(budget_.context_tokens));
    budget_.memory_bytes_at_limit = round_up(
        cache::KvCache::bytes_for_all(budget_.layout, budget_.context_tokens, wanted_ubatch()));
    plan_flash();
    plan_hot();
    HIFC_TRY(plan_statistics());
    plan_warm();
    plan_ubatch();
    HIFC_TRY(check_minimum());
    HIFC_TRY(check_flash_minimum());
    return budget_;
  }

 private:
  Result<void> plan_context(uint32_t model_context) {
    if (config_.context > model_context)
      return failure(Code::kInvalid,
                     fmt::format("context {} is more than the {} tokens the model was trained for",
                                 config_.context, model_context));
    budget_.context_tokens = config_.context != 0 ? config_.context : model_context;
    return {};
  }

  void plan_flash() {
    const bool off = config_.flash_cache_size && *config_.flash_cache_size == 0;
    budget_.flash = !off && (config_.flash_path || config_.flash_cache_size);
    if (!budget_.flash) return;
    budget_.flash_path = config_.flash_path.value_or(default_flash_path());
    const uint64_t need = flash_bytes_for(budget_.kv_bytes_at_limit, budget_.group_bytes);
    budget_.flash_bytes = config_.flash_cache_size.value_or(
        std::max({kFlashBytesMin, 2 * budget_.kv_bytes_at_limit, need, stored_bytes()}));
  }

  // What a run with more room has left there is not removed unless somebody says so.
  uint64_t stored_bytes() const {
    return flash::Directory::segments_bytes(budget_.flash_path, io::system_files());
  }

  void plan_hot() {
    uint64_t hot = UINT64_MAX;
    if (config_.hot_cache_size) hot = *config_.hot_cache_size;
    if (config_.hot_cache_ratio) {
      const double blocks = static_cast<double>(budget_.kv_bytes_at_limit) /
                            static_cast<double>(block_bytes_) * *config_.hot_cache_ratio;
      hot = std::min(hot, static_cast<uint64_t>(std::llround(blocks)) * block_bytes_);
    }
    const uint64_t most = budget_.memory_bytes_at_limit;
    if (hot == UINT64_MAX) hot = std::min(most, physical_memory_bytes() / 2);
    // More than the longest context's KV would never be used.
    budget_.hot_bytes = std::min(hot, most);
  }

  Result<void> plan_statistics() {
    if (config_.attention == AttentionMode::kExact) return {};
    const uint32_t pages = (budget_.context_tokens + kv::kPageTokens - 1) / kv::kPageTokens;
    budget_.statistics_bytes = cache::PageSelector::bytes(shape_, pages);
    if (!config_.warm_cache_size || *config_.warm_cache_size >= budget_.statistics_bytes) return {};
    return failure(Code::kInvalid,
                   fmt::format("warm_cache_size {} is below the {} that sparse attention keeps "
                               "about {} tokens",
                               format_size(*config_.warm_cache_size),
                               format_size(budget_.statistics_bytes), budget_.context_tokens));
  }

  // Automatic: what streaming needs over flash, and whatever hot does not hold without flash.
  void plan_warm() {
    if (config_.warm_cache_size) {
      budget_.warm_bytes = std::min(*config_.warm_cache_size - budget_.statistics_bytes,
                                    2 * budget_.memory_bytes_at_limit + round_up(least_bytes()));
      return;
    }
    const uint64_t hot = budget_.hot_bytes / block_bytes_ * block_bytes_;  // that is used
    const auto beyond_hot = [&](uint64_t bytes) { return bytes - std::min(bytes, hot); };
    if (!budget_.flash) {
      budget_.warm_bytes = beyond_hot(budget_.memory_bytes_at_limit);
      return;
    }
    const uint64_t open = cache::KvCache::bytes_for_ubatch(budget_.layout, wanted_ubatch());
    const uint64_t cold = beyond_hot(budget_.kv_bytes_at_limit);
    const uint64_t block = budget_.layout.sealed_block_bytes_max();
    const uint64_t cold_per_layer = (cold / block / shape_.layers + 1) * block;
    const uint64_t ahead = std::min(cold_per_layer * (config_.prefetch_window + 1),
                                    budget_.kv_bytes_at_limit / 4 / block * block);
    const uint64_t least = beyond_hot(least_bytes());
    budget_.warm_bytes = round_up(std::max(open + (cold > 0 ? ahead : 0), least));
  }

  uint32_t wanted_ubatch() const { return config_.ubatch != 0 ? config_.ubatch : kDefaultUbatch; }
  // Of the tiers' budgets only whole multiples of the longest block count.
  uint64_t round_up(uint64_t bytes) const {
    return (bytes + block_bytes_ - 1) / block_bytes_ * block_bytes_;
  }
  uint64_t usable_bytes() const {
    return (budget_.hot_bytes / block_bytes_ + budget_.warm_bytes / block_bytes_) * block_bytes_;
  }

  // Small groups are written several at a time, so that writes reach 4 MiB: those wait in memory
  // while the next one is filled.
  uint64_t least_bytes() const {
    uint64_t least = cache::KvCache::bytes_min(budget_.layout);
    if (config_.ubatch != 0)
      least = std::max(least, cache::KvCache::bytes_for_ubatch(
                                  budget_.layout, std::min(config_.ubatch, kUbatchMin)));
    return least + (waiting_groups() - 1) * budget_.group_bytes;
  }
  uint32_t waiting_groups() const {
    return tier::groups_per_write_min(budget_.group_bytes, shape_.layers);
  }

  // One write of groups, in whole MiB so that what is named is enough.
  uint64_t least_flash_bytes() const {
    constexpr uint64_t kMiB = 1u << 20;
    const uint64_t bytes = waiting_groups() * budget_.group_bytes + kHeaders;
    return (bytes + kMiB - 1) / kMiB * kMiB;
  }

  Result<void> check_flash_minimum() const {
    if (!budget_.flash || budget_.flash_bytes >= least_flash_bytes()) return {};
    return failure(
        Code::kInvalid,
        fmt::format("flash_cache_size {} is below the minimum of {} for this model: one write of "
                    "{} of {} tokens",
                    format_size(budget_.flash_bytes), format_size(least_flash_bytes()),
                    plural(waiting_groups(), "group"), budget_.layout.block_tokens()));
  }

  Result<void> check_minimum() const {
    if (!budget_.flash) return {};
    const uint64_t least = least_bytes();
    if (usable_bytes() >= least) return {};
    return failure(
        Code::kInvalid,
        fmt::format("hot_cache_size {} + warm_cache_size {} is below the minimum of {} for this "
                    "model: {} groups of {} tokens being filled or written, and one layer in "
                    "flight",
                    format_size(budget_.hot_bytes), format_size(budget_.warm_bytes),
                    format_size(round_up(least) + block_bytes_), 1 + waiting_groups(),
                    budget_.layout.block_tokens()));
  }

  // The largest chunk up to the default whose groups the memory holds while past blocks stream.
  void plan_ubatch() {
    uint32_t ubatch = wanted_ubatch();
    while (budget_.flash && ubatch > kUbatchMin &&
           cache::KvCache::bytes_for_ubatch(budget_.layout, ubatch) > usable_bytes())
      ubatch = std::max(kUbatchMin, ubatch / 2 / kUbatchMin * kUbatchMin);
    budget_.ubatch_tokens = std::min(ubatch, std::max(kUbatchMin, budget_.context_tokens));
  }

  const Config& config_;
  const kv::ModelShape& shape_;
  const kv::CodecPolicy& codecs_;
  uint64_t block_bytes_ = 0;  // of the longest block
  Budget budget_;
};

}  // namespace

Result<Budget> plan_budget(const Config& config, const kv::ModelShape& shape,
                           const kv::CodecPolicy& codecs, uint32_t model_context) {
  return Planner(config, shape, codecs).plan(model_context);
}

Result<Budget> plan_budget(const Config& config, const Model& model) {
  HIFC_ASSIGN(const kv::CodecPolicy codecs, resolve_policy(config.policy, model));
  return plan_budget(config, model.shape(), codecs, model.context_tokens());
}

Result<void> check_fits(const Budget& budget, uint64_t tokens) {
  const auto count = static_cast<uint32_t>(tokens);
  const uint64_t need = budget.layout.sealed_bytes(budget.layout.groups_of(count));
  const uint64_t need_memory =
      cache::KvCache::bytes_for_all(budget.layout, count, budget.ubatch_tokens);
  const uint64_t memory = budget.hot_bytes + budget.warm_bytes;
  if (need_memory <= memory) return {};
  if (!budget.flash)
    return failure(
        Code::kInvalid,
        fmt::format("{} tokens need {} of KV, but hot_cache_size {} + warm_cache_size {} "
                    "hold {} and there is no flash tier (flash_path)",
                    tokens, format_size(need_memory), format_size(budget.hot_bytes),
                    format_size(budget.warm_bytes), format_size(memory)));
  const uint64_t flash_need = flash_bytes_for(need, budget.group_bytes);
  if (flash_need <= budget.flash_bytes) return {};
  return failure(Code::kInvalid,
                 fmt::format("{} tokens need up to {} of flash, but flash_cache_size is {}", tokens,
                             format_size(flash_need), format_size(budget.flash_bytes)));
}

uint32_t next_ubatch(const ChunkOutcome& outcome, const kv::GroupLayout& layout) {
  const uint32_t larger = 2 * outcome.ubatch_tokens;
  const bool waits = static_cast<double>(outcome.stall_ns) >
                     kStallShareToGrow * static_cast<double>(outcome.chunk_ns);
  const bool allowed = larger <= kUbatchMax && outcome.length % larger == 0 &&
                       cache::KvCache::bytes_for_ubatch(layout, larger) <= outcome.memory_bytes;
  return waits && allowed ? larger : outcome.ubatch_tokens;
}

}  // namespace hifc::engine
