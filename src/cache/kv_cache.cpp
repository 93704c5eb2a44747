#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/log.h"

namespace hifc::cache {
namespace {

using kernels::kSplitTokens;
using kv::kPageTokens;

// Elements below which appending on the calling thread beats waking the pool.
constexpr uint32_t kInlineAppendTokens = 8;

kv::BlockHeader header_for(const CacheOptions& options) {
  kv::BlockHeader header;
  header.kv_heads = static_cast<uint16_t>(options.shape.kv_heads);
  header.head_dim = options.shape.head_dim;
  header.block_tokens = options.block_tokens;
  header.model_fingerprint = options.fingerprint;
  return header;
}

// Two units in flight: one being computed, one being read.
uint32_t staging_min(uint32_t block_tokens) {
  return 2 * std::max(1u, kSplitTokens / block_tokens);
}

}  // namespace

uint32_t KvCache::frames_min(const kv::ModelShape& shape, uint32_t block_tokens) {
  return 2 * shape.layers + staging_min(block_tokens);
}

uint32_t KvCache::frames_for_ubatch(const kv::ModelShape& shape, uint32_t block_tokens,
                                    uint32_t ubatch) {
  // Chunks start at multiples of `ubatch`: that far into a group at most.
  const uint32_t offset = block_tokens - std::gcd(ubatch, block_tokens);
  const uint32_t groups = (offset + ubatch - 1) / block_tokens + 1;
  return std::max(groups, 2u) * shape.layers + staging_min(block_tokens);
}

Result<std::unique_ptr<KvCache>> KvCache::create(CacheOptions options, tier::Tiers& tiers,
                                                 const kernels::Kernels& kernels,
                                                 Parallel& parallel, const Clock& clock) {
  const uint32_t tokens = options.block_tokens;
  if (tokens != 64 && tokens != 128 && (tokens == 0 || tokens % kSplitTokens != 0))
    return failure(Code::kInvalid, fmt::format("block_tokens {} is not 64, 128 or a multiple of {}",
                                               tokens, kSplitTokens));
  HIFC_ASSIGN(const kv::BlockLayout layout, kv::BlockLayout::make(options.shape, tokens));
  HIFC_CHECK(tiers.block_bytes() == layout.block_bytes());
  const uint32_t frames = frames_min(options.shape, tokens);
  if (tiers.has_cold() && tiers.frames() < frames)
    return failure(Code::kInvalid,
                   fmt::format("hot_cache_size + warm_cache_size hold {} blocks, but the minimum "
                               "for this model is {} blocks of {} bytes",
                               tiers.frames(), frames, layout.block_bytes()));
  return std::unique_ptr<KvCache>(
      new KvCache(std::move(options), layout, tiers, kernels, parallel, clock));
}

KvCache::KvCache(CacheOptions options, kv::BlockLayout layout, tier::Tiers& tiers,
                 const kernels::Kernels& kernels, Parallel& parallel, const Clock& clock)
    : options_(std::move(options)),
      layout_(layout),
      header_(header_for(options_)),
      tiers_(tiers),
      kernels_(kernels),
      parallel_(parallel),
      clock_(clock),
      placement_(options_.shape, layout.block_tokens()),
      residency_(tiers_, sequence_, placement_),
      prefetcher_(options_.prefetch, tiers_, sequence_, residency_, placement_),
      writer_(tiers_, sequence_, residency_, header_),
      attention_(kernels, options_.shape, parallel) {}

KvCache::~KvCache() {
  truncate(0);
}

uint32_t KvCache::groups_per_unit() const {
  return std::max(1u, kSplitTokens / layout_.block_tokens());
}

uint32_t KvCache::splits_per_unit() const {
  return std::max(1u, layout_.block_tokens() / kSplitTokens);
}

uint32_t KvCache::first_split(uint32_t layer) const {
  const uint32_t window = options_.shape.window[layer];
  const bool all = window == 0 || step_.position < window;
  return all ? 0 : (step_.position + 1 - window) / kSplitTokens;
}

void KvCache::begin_step(uint32_t position, std::span<const int32_t> tokens, StepKind kind) {
  HIFC_CHECK(!tokens.empty());
  step_ = {.position = position, .tokens = {tokens.begin(), tokens.end()}, .kind = kind};
  step_.recompute = position < length();
  if (step_.recompute) {
    drop_read_ahead();
    drop_lost();
    Group& group = sequence_.groups[group_of(position)];
    HIFC_CHECK(group_of(position) == group_of(step_.end() - 1));
    if (group.stage == Group::Stage::kLost) ++statistics_.lost_groups;
    group.stage = Group::Stage::kOpen;
  } else {
    HIFC_CHECK(position == length());
    HIFC_CHECK(!first_lost_group());
    while (sequence_.groups.size() < groups_end())
      sequence_.groups.emplace_back().blocks.resize(options_.shape.layers);
  }
  plan();
  prefetcher_.begin_step(position, step_.end(), groups_end());
}

void KvCache::plan() {
  const uint32_t layers = options_.shape.layers;
  uint32_t to_open = 0;
  for (uint32_t g = group_of(step_.position); g < groups_end(); ++g)
    for (const Block& block : sequence_.groups[g].blocks)
      to_open += block.state == Block::State::kAbsent ? 1 : 0;
  residency_.expect_open(to_open);
  // With room to spare, a group being written does not hold up the next one being filled.
  uint32_t open_groups = groups_end() - group_of(step_.position);
  if (tiers_.frames() >= 4 * (open_groups + 1) * layers) ++open_groups;
  placement_.plan({.frames = tiers_.frames(),
                   .open_frames = open_groups * layers,
                   .staging_min = staging_min(layout_.block_tokens()),
                   .prefetch_layers = options_.prefetch.window_layers,
                   .length = std::max(length(), step_.end())});
  residency_.trim();
}

Result<void> KvCache::attend(const LayerInput& input) {
  if (cancelled()) return failure(Code::kCancelled, "interrupted");
  auto outcome = append(input);
  if (outcome) {
    residency_.set_running(input.layer);
    outcome = stream(input);
    residency_.set_running(Residency::kNoLayer);
  }
  return outcome;
}

Result<void> KvCache::open_block(uint32_t group, uint32_t layer) {
  Block& block = sequence_.groups[group].blocks[layer];
  if (block.state == Block::State::kResident) return {};
  const uint64_t start_ns = clock_.now_ns();
  while (!residency_.open(block)) {
    // Frames come back as writes and reads complete.
    if (tiers_.wait() == 0 && !writer_.push()) return std::unexpected(out_of_frames());
  }
  statistics_.stall_ns += clock_.now_ns() - start_ns;
  return {};
}

Error KvCache::out_of_frames() const {
  if (writer_.error()) return *writer_.error();
  if (tiers_.condemned_frames() > 0)
    return {.code = Code::kTimeout, .context = "the flash device does not answer"};
  return {.code = Code::kFull,
          .context = fmt::format("{} tokens of KV do not fit in hot_cache_size + warm_cache_size "
                                 "({} blocks){}",
                                 step_.end(), tiers_.frames(),
                                 tiers_.has_cold() ? " while flash takes none of it"
                                                   : " and there is no flash tier (flash_path)")};
}

Result<void> KvCache::append(const LayerInput& input) {
  for (uint32_t g = group_of(step_.position); g < groups_end(); ++g)
    HIFC_TRY(open_block(g, input.layer));
  const uint32_t first_page = step_.position / kPageTokens;
  const uint32_t pages = (step_.end() - 1) / kPageTokens + 1 - first_page;
  const uint32_t heads = layout_.kv_heads();
  const auto task = [&](uint32_t index, uint32_t) {
    store_page(input, first_page + index / heads, index % heads);
  };
  if (step_.tokens.size() > kInlineAppendTokens)
    parallel_.run(pages * heads, task);
  else
    for (uint32_t index = 0; index < pages * heads; ++index) task(index, 0);
  const Block& block = sequence_.groups[group_of(step_.position)].blocks[input.layer];
  tiers_.count_write(tiers_.tier_of(block.frame),
                     step_.tokens.size() * 2 * heads * layout_.head_dim() * sizeof(uint16_t));
  return {};
}

void KvCache::store_page(const LayerInput& input, uint32_t page, uint32_t kv_head) {
  const uint32_t origin = page * kPageTokens;
  const uint32_t first = std::max(step_.position, origin);
  const uint32_t last = std::min(step_.end(), origin + kPageTokens);
  const uint32_t page_in_block = page % layout_.pages();
  const Block& block = sequence_.groups[group_of(origin)].blocks[input.layer];
  std::byte* base = tiers_.data(block.frame);
  const uint32_t row = first - step_.position;
  kernels_.store_k(
      layout_.head_dim(), input.k + row * input.k_token_stride + kv_head * input.k_head_stride,
      input.k_token_stride, first - origin, last - first,
      reinterpret_cast<uint16_t*>(base + layout_.k_page_offset(page_in_block, kv_head)));
  kernels_.store_v(
      layout_.head_dim(), input.v + row * input.v_token_stride + kv_head * input.v_head_stride,
      input.v_token_stride, first - origin, last - first,
      reinterpret_cast<uint16_t*>(base + layout_.v_page_offset(page_in_block, kv_head)));
}

Result<void> KvCache::stream(const LayerInput& input) {
  const uint32_t layer = input.layer;
  const uint32_t first_split = this->first_split(layer);
  const uint32_t last_split = (step_.end() - 1) / kSplitTokens + 1;
  std::vector<uint32_t> pending;
  for (uint32_t unit = first_split / splits_per_unit(); unit * splits_per_unit() < last_split;
       ++unit)
    pending.push_back(unit);
  prefetcher_.begin_layer(layer);
  attention_.begin(input, {.kind = step_.kind,
                           .position = step_.position,
                           .tokens = static_cast<uint32_t>(step_.tokens.size()),
                           .first_split = first_split,
                           .last_split = last_split});
  while (!pending.empty()) {
    tiers_.poll();
    prefetcher_.pump();
    HIFC_TRY(check_lost(layer));
    const std::vector<uint32_t> units = take_ready(layer, pending);
    if (units.empty()) {
      HIFC_TRY(wait_for_reads(layer, pending));
      continue;
    }
    HIFC_TRY(verify(layer, units));
    compute(layer, units);
    release(layer, units);
  }
  attention_.finish();
  return {};
}

KvCache::GroupRange KvCache::groups_of(uint32_t layer, uint32_t unit) const {
  return {.first = std::max(placement_.first_visible_group(layer, step_.position),
                            unit * groups_per_unit()),
          .last = std::min(groups_end(), (unit + 1) * groups_per_unit())};
}

template <typename Visit>
void KvCache::for_each_block(uint32_t layer, std::span<const uint32_t> units, Visit visit) {
  for (const uint32_t unit : units) {
    const GroupRange range = groups_of(layer, unit);
    for (uint32_t g = range.first; g < range.last; ++g) visit(g, sequence_.groups[g].blocks[layer]);
  }
}

bool KvCache::ready(uint32_t layer, uint32_t unit) const {
  const GroupRange range = groups_of(layer, unit);
  for (uint32_t g = range.first; g < range.last; ++g) {
    const Block::State state = sequence_.groups[g].blocks[layer].state;
    if (state != Block::State::kResident && state != Block::State::kStaged) return false;
  }
  return true;
}

std::vector<uint32_t> KvCache::take_ready(uint32_t layer, std::vector<uint32_t>& pending) {
  std::vector<uint32_t> taken, rest;
  for (const uint32_t unit : pending) {
    const bool in_order = attention_.any_order() || rest.empty();
    (in_order && ready(layer, unit) ? taken : rest).push_back(unit);
  }
  pending = std::move(rest);
  return taken;
}

// A wave costs a wake-up of the pool, so waits until all pending units are there, or as many as the
// staging frames can hold while others are being read.
bool KvCache::worth_computing(uint32_t layer, std::span<const uint32_t> pending) const {
  if (!ready(layer, pending.front())) return false;
  const uint32_t enough = std::max(1u, placement_.staging_frames() / groups_per_unit() / 2);
  uint32_t count = 1;
  while (count < pending.size() && count < enough && ready(layer, pending[count])) ++count;
  return count == pending.size() || count >= enough;
}

Result<void> KvCache::wait_for_reads(uint32_t layer, std::span<const uint32_t> pending) {
  const uint64_t start_ns = clock_.now_ns();
  const auto stalled_ns = [&] { return limited_stall_ns_ + (clock_.now_ns() - start_ns); };
  auto outcome = check_lost(layer);
  while (outcome && !worth_computing(layer, pending)) {
    const uint64_t left_ns = stall_limit_ns_ - std::min(stall_limit_ns_, stalled_ns());
    if (left_ns == 0) {
      prefetcher_.abandon();
      outcome = failure(Code::kTimeout, "flash was too slow");
      break;
    }
    if (cancelled()) {
      prefetcher_.abandon();
      outcome = failure(Code::kCancelled, "interrupted");
      break;
    }
    const uint32_t completed = tiers_.wait_for(left_ns);
    if (completed == 0 && prefetcher_.pump() == 0 && prefetcher_.in_flight() == 0) {
      if (ready(layer, pending.front())) break;
      // Nothing moves: give frames to reads that were kept for blocks to be filled.
      residency_.expect_open(0);
      if (!writer_.push() && !force_read(layer, pending.front()))
        outcome = std::unexpected(out_of_frames());
    }
    prefetcher_.pump();
    if (outcome) outcome = check_lost(layer);
  }
  limited_stall_ns_ = stalled_ns();
  statistics_.stall_ns += clock_.now_ns() - start_ns;
  return outcome;
}

// The last resort: the unit's missing blocks are read at the cost of what is stored besides them.
bool KvCache::force_read(uint32_t layer, uint32_t unit) {
  const GroupRange range = groups_of(layer, unit);
  uint32_t missing = 0;
  for (uint32_t g = range.first; g < range.last; ++g)
    missing += sequence_.groups[g].blocks[layer].state == Block::State::kAbsent ? 1 : 0;
  residency_.make_room(missing, layer, range.first, range.last);
  prefetcher_.rewind(range.first);
  return prefetcher_.pump() > 0;
}

Result<void> KvCache::check_lost(uint32_t layer) const {
  const uint32_t first = placement_.first_visible_group(layer, step_.position);
  for (uint32_t g = first; g < groups_end(); ++g)
    if (sequence_.groups[g].stage == Group::Stage::kLost)
      return failure(Code::kCorrupt, fmt::format("KV of tokens {}-{} is damaged or unreadable",
                                                 g * block_tokens(), (g + 1) * block_tokens() - 1));
  return {};
}

bool KvCache::verify_block(uint32_t layer, uint32_t index) const {
  const Group& group = sequence_.groups[index];
  const auto bytes = tiers_.span(group.blocks[layer].frame);
  if (!tiers_.store().verify(group.handle, layer, bytes)) return false;
  kv::BlockHeader header = header_;
  header.layer = layer;
  header.tokens.first_position = index * block_tokens();
  header.tokens.token_count = static_cast<uint16_t>(block_tokens());
  return kv::check_header(header, bytes).has_value();
}

Result<void> KvCache::verify(uint32_t layer, std::span<const uint32_t> units) {
  std::vector<uint32_t> groups;
  for_each_block(layer, units, [&](uint32_t g, const Block& block) {
    if (block.state == Block::State::kStaged) groups.push_back(g);
  });
  if (groups.empty()) return {};
  std::vector<uint8_t> good(groups.size());
  parallel_.run(static_cast<uint32_t>(groups.size()),
                [&](uint32_t i, uint32_t) { good[i] = verify_block(layer, groups[i]); });
  for (size_t i = 0; i < groups.size(); ++i) {
    if (good[i] != 0) continue;
    tiers_.store().quarantine(sequence_.groups[groups[i]].handle);
    sequence_.groups[groups[i]].stage = Group::Stage::kLost;
  }
  return check_lost(layer);
}

void KvCache::compute(uint32_t layer, std::span<const uint32_t> units) {
  std::vector<uint32_t> splits;
  const uint32_t last_split = (step_.end() - 1) / kSplitTokens + 1;
  // A unit of several splits may begin before the window.
  for (const uint32_t unit : units)
    for (uint32_t split = std::max(first_split(layer), unit * splits_per_unit());
         split < std::min(last_split, (unit + 1) * splits_per_unit()); ++split)
      splits.push_back(split);
  const uint32_t first_group = placement_.first_visible_group(layer, step_.position);
  attention_.compute(splits, [&](uint32_t split, uint32_t kv_head) {
    kernels::SplitPages pages;
    for (uint32_t i = 0; i < kernels::kSplitPages; ++i) {
      const uint32_t page = split * kernels::kSplitPages + i;
      const uint32_t group = page / layout_.pages();
      if (group < first_group || group >= groups_end()) continue;
      const std::byte* base = tiers_.data(sequence_.groups[group].blocks[layer].frame);
      const uint32_t in_block = page % layout_.pages();
      pages.k[i].data = base + layout_.k_page_offset(in_block, kv_head);
      pages.v[i].data = base + layout_.v_page_offset(in_block, kv_head);
    }
    return pages;
  });
}

void KvCache::release(uint32_t layer, std::span<const uint32_t> units) {
  for_each_block(layer, units, [&](uint32_t g, const Block& block) {
    const bool cold = block.state == Block::State::kStaged;
    tiers_.count_hit(cold ? tier::Tier::kCold : tiers_.tier_of(block.frame), layout_.block_bytes());
    residency_.used(g, layer);
  });
}

void KvCache::end_step() {
  if (!step_.recompute)
    sequence_.tokens.insert(sequence_.tokens.end(), step_.tokens.begin(), step_.tokens.end());
  else
    drop_read_ahead();
  for (uint32_t g = group_of(step_.position); g < groups_end(); ++g)
    if (step_.end() >= (g + 1) * block_tokens()) writer_.add(g);
  writer_.pump();
}

void KvCache::lose(uint32_t index) {
  Group& group = sequence_.groups[index];
  residency_.drop_group(group);
  group.handle = {};
}

// Steps elsewhere than where the last one ended do not use it all, and would never free the rest.
void KvCache::drop_read_ahead() {
  prefetcher_.drain();
  residency_.drop_staged();
}

void KvCache::abort_step() {
  drop_read_ahead();
  residency_.expect_open(0);
  if (step_.recompute) {
    const uint32_t group = group_of(step_.position);
    lose(group);
    sequence_.groups[group].stage = Group::Stage::kLost;
  } else {
    while (sequence_.groups.size() * block_tokens() >= length() + block_tokens()) {
      residency_.drop_group(sequence_.groups.back());
      sequence_.groups.pop_back();
    }
  }
  drop_lost();
}

// What else is in memory of lost groups: nothing would evict it.
void KvCache::drop_lost() {
  for (uint32_t g = 0; g < sequence_.groups.size(); ++g)
    if (sequence_.groups[g].stage == Group::Stage::kLost) lose(g);
}

std::optional<uint32_t> KvCache::first_lost_group() const {
  for (uint32_t g = 0; g < sequence_.groups.size(); ++g)
    if (sequence_.groups[g].stage == Group::Stage::kLost) return g;
  return std::nullopt;
}

Result<void> KvCache::flush() {
  return writer_.flush();
}

CacheStatistics KvCache::statistics() const {
  CacheStatistics statistics = statistics_;
  statistics.prefetch = prefetcher_.statistics();
  statistics.kv_bytes = uint64_t{length()} * options_.shape.layers * 2 * layout_.kv_heads() *
                        layout_.head_dim() * sizeof(uint16_t);
  return statistics;
}

}  // namespace hifc::cache
