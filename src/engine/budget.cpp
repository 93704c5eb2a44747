#include "engine/budget.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/units.h"
#include "cache/kv_cache.h"
#include "tier/tiers.h"

namespace hifc::engine {
namespace {

constexpr uint32_t kDefaultUbatch = 512;
constexpr uint32_t kUbatchMax = 4096;
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
  if (!config.block_bytes) return config.block_tokens.value_or(kDefaultBlockTokens);
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

// Flash that surely holds `need` bytes of groups: a segment's last batch may not fit into its rest.
uint64_t flash_bytes_for(uint64_t need, uint64_t group_bytes) {
  constexpr uint64_t kSegmentBytes = 256u << 20, kHeaders = 256u << 10;
  const uint64_t batch = std::max(group_bytes, uint64_t{16} << 20);
  const uint64_t segments = std::max<uint64_t>(4, need / kSegmentBytes + 1);
  return need + segments * (batch + kHeaders);
}

class Planner {
 public:
  Planner(const Config& config, const kv::ModelShape& shape) : config_(config), shape_(shape) {}

  Result<Budget> plan(uint32_t model_context) {
    HIFC_TRY(plan_context(model_context));
    HIFC_ASSIGN(const uint32_t tokens, block_tokens(config_, shape_));
    HIFC_ASSIGN(budget_.layout, kv::BlockLayout::make(shape_, tokens));
    block_bytes_ = budget_.layout.block_bytes();
    budget_.group_bytes = block_bytes_ * shape_.layers;
    const uint64_t groups = (budget_.context_tokens + tokens - 1) / tokens;
    budget_.kv_bytes_at_limit = groups * budget_.group_bytes;
    plan_flash();
    plan_hot();
    plan_warm();
    HIFC_TRY(check_minimum());
    plan_ubatch();
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
        std::max({kFlashBytesMin, 2 * budget_.kv_bytes_at_limit, need}));
  }

  void plan_hot() {
    uint64_t hot = UINT64_MAX;
    if (config_.hot_cache_size) hot = *config_.hot_cache_size;
    if (config_.hot_cache_ratio) {
      const double share = *config_.hot_cache_ratio * static_cast<double>(blocks_at_limit());
      hot = std::min(hot, static_cast<uint64_t>(std::llround(share)) * block_bytes_);
    }
    if (hot == UINT64_MAX) hot = std::min(budget_.kv_bytes_at_limit, physical_memory_bytes() / 2);
    // More than the longest context's KV would never be used.
    budget_.hot_bytes = std::min(hot, budget_.kv_bytes_at_limit);
  }

  // Automatic: what streaming needs over flash, and whatever hot does not hold without flash.
  void plan_warm() {
    if (config_.warm_cache_size) {
      const uint64_t open = uint64_t{2} * budget_.kv_bytes_at_limit + least_frames() * block_bytes_;
      budget_.warm_bytes = std::min(*config_.warm_cache_size, open);
      return;
    }
    const uint64_t cold =
        budget_.kv_bytes_at_limit - std::min(budget_.kv_bytes_at_limit, budget_.hot_bytes);
    if (!budget_.flash) {
      budget_.warm_bytes = cold;
      return;
    }
    const uint64_t ubatch = config_.ubatch != 0 ? config_.ubatch : kDefaultUbatch;
    const uint64_t open = cache::KvCache::frames_for_ubatch(shape_, budget_.layout.block_tokens(),
                                                            static_cast<uint32_t>(ubatch));
    const uint64_t cold_per_layer = cold / block_bytes_ / shape_.layers + 1;
    const uint64_t ahead =
        std::min<uint64_t>(cold_per_layer * (config_.prefetch_window + 1), blocks_at_limit() / 4);
    const uint64_t hot_frames = budget_.hot_bytes / block_bytes_;
    const uint64_t least = least_frames() - std::min(least_frames(), hot_frames);
    budget_.warm_bytes = std::max(open + (cold > 0 ? ahead : 0), least) * block_bytes_;
  }

  // Small groups are written several at a time, so that writes reach 4 MiB: those wait in memory
  // while the next one is filled.
  uint64_t least_frames() const {
    return cache::KvCache::frames_min(shape_, budget_.layout.block_tokens()) +
           uint64_t{waiting_groups() - 1} * shape_.layers;
  }
  uint32_t waiting_groups() const {
    return tier::Tiers::groups_per_write_min(block_bytes_, shape_.layers);
  }

  Result<void> check_minimum() const {
    if (!budget_.flash) return {};
    const uint64_t frames = budget_.hot_bytes / block_bytes_ + budget_.warm_bytes / block_bytes_;
    const uint64_t least = least_frames();
    if (frames >= least) return {};
    return failure(
        Code::kInvalid,
        fmt::format("hot_cache_size {} + warm_cache_size {} is below the minimum of {} for this "
                    "model: {} groups of {} tokens being filled or written, and one layer in "
                    "flight",
                    format_size(budget_.hot_bytes), format_size(budget_.warm_bytes),
                    format_size((least + 1) * block_bytes_), 1 + waiting_groups(),
                    budget_.layout.block_tokens()));
  }

  // The largest chunk up to the default whose groups the memory holds while past blocks stream.
  void plan_ubatch() {
    const uint32_t tokens = budget_.layout.block_tokens();
    const uint64_t frames = budget_.hot_bytes / block_bytes_ + budget_.warm_bytes / block_bytes_;
    uint32_t ubatch = config_.ubatch != 0 ? config_.ubatch : kDefaultUbatch;
    while (budget_.flash && ubatch > 64 &&
           cache::KvCache::frames_for_ubatch(shape_, tokens, ubatch) > frames)
      ubatch /= 2;
    budget_.ubatch_tokens = std::min(ubatch, std::max(64u, budget_.context_tokens));
  }

  uint64_t blocks_at_limit() const { return budget_.kv_bytes_at_limit / block_bytes_; }

  const Config& config_;
  const kv::ModelShape& shape_;
  uint64_t block_bytes_ = 0;
  Budget budget_;
};

}  // namespace

Result<Budget> plan_budget(const Config& config, const kv::ModelShape& shape,
                           uint32_t model_context) {
  return Planner(config, shape).plan(model_context);
}

Result<void> check_fits(const Budget& budget, uint64_t tokens) {
  const uint64_t groups =
      (tokens + budget.layout.block_tokens() - 1) / budget.layout.block_tokens();
  const uint64_t memory_groups = (budget.hot_bytes + budget.warm_bytes) / budget.group_bytes;
  const uint64_t need = groups * budget.group_bytes;
  if (groups <= memory_groups) return {};
  if (!budget.flash)
    return failure(
        Code::kInvalid,
        fmt::format("{} tokens need {} of KV, but hot_cache_size {} + warm_cache_size {} "
                    "hold {} and there is no flash tier (flash_path)",
                    tokens, format_size(need), format_size(budget.hot_bytes),
                    format_size(budget.warm_bytes),
                    format_size(memory_groups * budget.group_bytes)));
  const uint64_t flash_need = flash_bytes_for(need, budget.group_bytes);
  if (flash_need <= budget.flash_bytes) return {};
  return failure(Code::kInvalid,
                 fmt::format("{} tokens need up to {} of flash, but flash_cache_size is {}", tokens,
                             format_size(flash_need), format_size(budget.flash_bytes)));
}

uint32_t next_ubatch(const ChunkOutcome& outcome, const kv::ModelShape& shape,
                     uint32_t block_tokens) {
  const uint32_t larger = 2 * outcome.ubatch_tokens;
  const bool waits = static_cast<double>(outcome.stall_ns) >
                     kStallShareToGrow * static_cast<double>(outcome.chunk_ns);
  const bool allowed =
      larger <= kUbatchMax && outcome.length % larger == 0 &&
      cache::KvCache::frames_for_ubatch(shape, block_tokens, larger) <= outcome.frames;
  return waits && allowed ? larger : outcome.ubatch_tokens;
}

}  // namespace hifc::engine
