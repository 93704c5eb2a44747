#include "cache/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/log.h"
#include "base/units.h"
#include "cache/trace_kinds.h"

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
uint64_t staging_min_bytes(const kv::GroupLayout& layout) {
  return uint64_t{2} * std::max(1u, kSplitTokens / layout.block_tokens()) *
         layout.sealed_block_bytes_max();
}

// Tokens before `position` that are not sealed yet when a step begins there; multiples of a page.
uint32_t first_exact(uint32_t position) {
  return position < kExactTokens ? 0 : (position - kExactTokens) / kPageTokens * kPageTokens;
}

// Of steps that begin anywhere on the grid of `ubatch`.
struct GroupsOfStep {
  uint32_t filled = 0;  // that a step touches
  uint32_t open = 0;    // and those before it that are not sealed when it begins
  uint32_t sealed = 0;  // that it seals in part or to the end
};

GroupsOfStep most_groups(const kv::GroupLayout& layout, uint32_t ubatch) {
  const uint32_t block = layout.block_tokens();
  GroupsOfStep most;
  for (uint32_t at = 0; at < block; at += std::gcd(ubatch, block)) {
    const uint32_t position = at + (kExactTokens / block + 2) * block + ubatch / block * block;
    const uint32_t last = (position + ubatch - 1) / block;
    const uint32_t sealed_from = first_exact(position - ubatch), sealed_to = first_exact(position);
    most.filled = std::max(most.filled, last - position / block + 1);
    most.open = std::max(most.open, last - sealed_to / block + 1);
    if (sealed_to > sealed_from)
      most.sealed = std::max(most.sealed, (sealed_to - 1) / block - sealed_from / block + 1);
  }
  return most;
}

// Of a group, in the layers whose tokens are written where they stay.
uint64_t unsealed_layers_bytes(const kv::GroupLayout& layout) {
  uint64_t bytes = 0;
  for (const kv::BlockLayout& sealed : layout.sealed)
    if (!sealed.lossy()) bytes += sealed.block_bytes();
  return bytes;
}

// Blocks of several lengths leave pieces between them, and each of two tiers may have a rest.
uint64_t slack_bytes(const kv::GroupLayout& layout) {
  if (!layout.lossy()) return 0;
  const auto length = [](const kv::BlockLayout& sealed) { return sealed.block_bytes(); };
  const bool one_length = std::ranges::adjacent_find(layout.sealed, std::ranges::not_equal_to(),
                                                     length) == layout.sealed.end();
  return 2 * layout.block_bytes_max() + (one_length ? 0 : layout.sealed_bytes());
}

}  // namespace

uint64_t KvCache::exact_bytes(const kv::GroupLayout& layout, uint32_t ubatch, bool cold_tier) {
  const auto lossy = std::ranges::count_if(layout.sealed, &kv::BlockLayout::lossy);
  // One more for a group that is lost and computed again.
  const uint64_t groups = most_groups(layout, ubatch).open + (cold_tier ? 1 : 0);
  return groups * static_cast<uint64_t>(lossy) * layout.exact.block_bytes();
}

uint64_t KvCache::bytes_min(const kv::GroupLayout& layout) {
  return bytes_for_ubatch(layout, kPageTokens);
}

uint64_t KvCache::bytes_for_ubatch(const kv::GroupLayout& layout, uint32_t ubatch) {
  const GroupsOfStep groups = most_groups(layout, ubatch);
  // Two: a group being written or computed again, beside the one being filled.
  const uint32_t filled = std::max(groups.filled + (layout.lossy() ? groups.open : 0), 2u);
  const uint64_t being_sealed = layout.lossy() ? layout.sealed_bytes(groups.sealed + 2) : 0;
  return exact_bytes(layout, ubatch, /*cold_tier=*/true) + filled * unsealed_layers_bytes(layout) +
         being_sealed + staging_min_bytes(layout) + slack_bytes(layout);
}

uint64_t KvCache::bytes_for_all(const kv::GroupLayout& layout, uint32_t tokens, uint32_t ubatch) {
  return layout.sealed_bytes(layout.groups_of(tokens)) +
         exact_bytes(layout, ubatch, /*cold_tier=*/false) + slack_bytes(layout);
}

Result<std::unique_ptr<KvCache>> KvCache::create(CacheOptions options, tier::Tiers& tiers,
                                                 const kernels::Kernels& kernels,
                                                 Parallel& parallel, const Clock& clock) {
  const uint32_t tokens = options.block_tokens;
  if (tokens != 64 && tokens != 128 && (tokens == 0 || tokens % kSplitTokens != 0))
    return failure(Code::kInvalid, fmt::format("block_tokens {} is not 64, 128 or a multiple of {}",
                                               tokens, kSplitTokens));
  HIFC_ASSIGN(kv::GroupLayout layout, kv::GroupLayout::make(options.shape, tokens, options.codecs));
  HIFC_CHECK(tiers.blocks_per_group() == layout.layers());
  const uint64_t least = bytes_min(layout);
  if (tiers.has_cold() && tiers.memory_bytes() < least)
    return failure(Code::kInvalid,
                   fmt::format("hot_cache_size + warm_cache_size hold {} bytes, but the minimum "
                               "for this model is {}",
                               tiers.memory_bytes(), least));
  return std::unique_ptr<KvCache>(
      new KvCache(std::move(options), std::move(layout), tiers, kernels, parallel, clock));
}

KvCache::KvCache(CacheOptions options, kv::GroupLayout layout, tier::Tiers& tiers,
                 const kernels::Kernels& kernels, Parallel& parallel, const Clock& clock)
    : options_(std::move(options)),
      format_{.layout = std::move(layout), .base = header_for(options_)},
      tiers_(tiers),
      kernels_(kernels),
      codecs_(**kernels::codecs_for(kernels.isa)),
      parallel_(parallel),
      clock_(clock),
      placement_(options_.shape, format_.layout),
      residency_(tiers_, format_.layout, sequence_, placement_),
      prefetcher_(options_.prefetch, tiers_, format_.layout, sequence_, residency_, placement_,
                  options_.trace),
      writer_(tiers_, sequence_, residency_, format_, options_.trace),
      attention_(kernels, options_.shape, parallel) {
  if (!options_.sparse.enabled) return;
  selector_.emplace(options_.shape, options_.sparse, codecs_);
}

KvCache::~KvCache() {
  truncate(0);
}

uint32_t KvCache::groups_per_unit() const {
  return std::max(1u, kSplitTokens / block_tokens());
}

uint32_t KvCache::splits_per_unit() const {
  return std::max(1u, block_tokens() / kSplitTokens);
}

uint32_t KvCache::first_token(uint32_t layer) const {
  const uint32_t window = options_.shape.window[layer];
  const bool all = window == 0 || step_.position < window;
  return all ? 0 : step_.position + 1 - window;
}

uint32_t KvCache::first_split(uint32_t layer) const {
  return first_token(layer) / kSplitTokens;
}

void KvCache::begin_step(uint32_t position, std::span<const int32_t> tokens, StepKind kind) {
  HIFC_CHECK(!tokens.empty());
  const TraceScope scope(options_.trace, kTracePlan);
  step_ = {.position = position, .tokens = {tokens.begin(), tokens.end()}, .kind = kind};
  step_.recompute = position < length();
  if (step_.recompute) {
    drop_read_ahead();
    drop_lost();
    Group& group = sequence_.groups[group_of(position)];
    HIFC_CHECK(group_of(position) == group_of(step_.end() - 1));
    if (group.stage == Group::Stage::kLost) {
      ++statistics_.lost_groups;
      make_room_for_recomputing(group_of(position));
    }
    group.stage = Group::Stage::kOpen;
  } else {
    HIFC_CHECK(position == length());
    HIFC_CHECK(!first_lost_group());
    while (sequence_.groups.size() < groups_end())
      sequence_.groups.emplace_back().blocks.resize(options_.shape.layers);
  }
  plan_sealing();
  plan();
  prefetcher_.begin_step(position, step_.end(), groups_end());
  begin_sparse_step();
}

// There is exact memory for one group that is computed again. Of others that were and wait to be
// sealed, later ones take their turn once more, and earlier ones are sealed before their time.
void KvCache::make_room_for_recomputing(uint32_t group) {
  const auto lossy = std::ranges::count_if(layout().sealed, &kv::BlockLayout::lossy);
  const uint64_t need = static_cast<uint64_t>(lossy) * layout().exact.block_bytes();
  const uint32_t sealed_by_now = first_exact(length()) / block_tokens();
  for (uint32_t g = group + 1; g < sealed_by_now; ++g) {
    if (tiers_.free_bytes(tier::Part::kExact) >= need) return;
    if (sequence_.groups[g].stage != Group::Stage::kOpen) continue;
    lose(g);
  }
  step_.seals_all_before = tiers_.free_bytes(tier::Part::kExact) < need;
}

void KvCache::plan_sealing() {
  if (!layout().lossy()) return;
  const uint32_t exact_from = step_.seals_all_before ? step_.position : first_exact(step_.position);
  for (uint32_t g = 0; g * block_tokens() < exact_from; ++g)
    if (sequence_.groups[g].stage == Group::Stage::kOpen)
      step_.sealing.push_back(
          {.group = g,
           .pages = std::min(layout().exact.pages(),
                             exact_from / kPageTokens - g * layout().exact.pages())});
}

// What the step takes of the part for sealed blocks.
uint64_t KvCache::bytes_to_open() const {
  uint64_t bytes = 0;
  for (uint32_t g = group_of(step_.position); g < groups_end(); ++g)
    for (uint32_t layer = 0; layer < layout().layers(); ++layer)
      if (!layout().sealed[layer].lossy() &&
          sequence_.groups[g].blocks[layer].state == Block::State::kAbsent)
        bytes += layout().exact.block_bytes();
  for (const Sealing& sealing : step_.sealing)
    for (uint32_t layer = 0; layer < layout().layers(); ++layer)
      if (sequence_.groups[sealing.group].blocks[layer].frame == tier::kNoFrame)
        bytes += layout().sealed[layer].bytes_of(sealing.group);
  return bytes;
}

void KvCache::plan() {
  residency_.expect_open(bytes_to_open());
  const bool lossy = layout().lossy();
  const uint32_t first_open = lossy ? first_exact(step_.position) : step_.position;
  const uint32_t open_groups = groups_end() - group_of(first_open);
  const uint64_t memory = tiers_.memory_bytes(tier::Part::kSealed);
  uint64_t open_bytes = open_groups * unsealed_layers_bytes(layout()) + slack_bytes(layout());
  if (lossy) open_bytes += (step_.sealing.size() + 1) * layout().sealed_bytes();
  // With room to spare, a group being written does not hold up the next one being filled.
  const uint64_t written_bytes = lossy ? layout().sealed_bytes() : layout().exact_bytes();
  if (memory >= 4 * (open_bytes + written_bytes)) open_bytes += written_bytes;
  const uint32_t length = std::max(this->length(), step_.end());
  placement_.plan(
      {.memory_bytes = memory,
       .open_bytes = open_bytes,
       .staging_min_bytes = staging_min_bytes(layout()),
       .all_bytes = layout().sealed_bytes(layout().groups_of(length)) + slack_bytes(layout()),
       .prefetch_layers = options_.prefetch.window_layers,
       .length = length});
  residency_.trim();
}

Result<void> KvCache::attend(const LayerInput& input) {
  if (cancelled()) return failure(Code::kCancelled, "interrupted");
  const TraceScope scope(options_.trace, kTraceLayer, {input.layer});
  auto outcome = append(input);
  if (outcome) {
    if (options_.layer_observer != nullptr)
      options_.layer_observer->attending(input.layer, step_.end() - first_token(input.layer));
    residency_.set_running(input.layer);
    outcome = sparse(input.layer) ? stream_selected(input) : stream(input);
    residency_.set_running(Residency::kNoLayer);
    // What the layer's blocks leave free is read into while the model computes what lies between
    // two layers' attention.
    prefetcher_.end_layer();
    const bool last = input.layer + 1 == layout().layers();
    if (outcome && !(step_.recompute && last)) advance_reads(input.layer);
  }
  return outcome;
}

Result<void> KvCache::take_frame(uint32_t layer, FunctionRef<bool()> take) {
  const uint64_t start_ns = clock_.now_ns();
  while (!take()) {
    // Frames come back as writes and reads complete.
    if (tiers_.wait() == 0 && !writer_.push()) return std::unexpected(out_of_frames());
  }
  count_stall(kTraceStallFrames, layer, start_ns);
  return {};
}

// The trace's stalls add up to the statistics' because both are of the same two looks at the clock.
void KvCache::count_stall(const TraceKind& kind, uint32_t layer, uint64_t start_ns) {
  const uint64_t end_ns = clock_.now_ns();
  statistics_.stall_ns += end_ns - start_ns;
  if (options_.trace != nullptr) options_.trace->add(kind, start_ns, end_ns, {layer});
}

Result<void> KvCache::open_block(uint32_t group, uint32_t layer) {
  if (sequence_.groups[group].blocks[layer].state == Block::State::kResident) return {};
  return take_frame(layer, [&] { return residency_.open(group, layer); });
}

Error KvCache::out_of_frames() const {
  if (writer_.error()) return *writer_.error();
  if (tiers_.condemned_frames() > 0)
    return {.code = Code::kTimeout, .context = "the flash device does not answer"};
  return {.code = Code::kFull,
          .context = fmt::format("{} tokens of KV do not fit in hot_cache_size + warm_cache_size "
                                 "({}){}",
                                 step_.end(), format_size(tiers_.memory_bytes()),
                                 tiers_.has_cold() ? " while flash takes none of it"
                                                   : " and there is no flash tier (flash_path)")};
}

Result<void> KvCache::append(const LayerInput& input) {
  const TraceScope scope(options_.trace, kTraceAppend, {input.layer});
  for (const Sealing& sealing : step_.sealing) HIFC_TRY(seal(input.layer, sealing));
  for (uint32_t g = group_of(step_.position); g < groups_end(); ++g)
    HIFC_TRY(open_block(g, input.layer));
  const uint32_t first_page = step_.position / kPageTokens;
  const uint32_t pages = (step_.end() - 1) / kPageTokens + 1 - first_page;
  const uint32_t heads = layout().exact.kv_heads();
  const auto task = [&](uint32_t index, uint32_t) {
    store_page(input, first_page + index / heads, index % heads);
  };
  if (step_.tokens.size() > kInlineAppendTokens)
    parallel_.run(pages * heads, task);
  else
    for (uint32_t index = 0; index < pages * heads; ++index) task(index, 0);
  const Block& block = sequence_.groups[group_of(step_.position)].blocks[input.layer];
  tiers_.count_write(
      tiers_.tier_of(block.open_frame()),
      step_.tokens.size() * 2 * heads * layout().exact.head_dim() * sizeof(uint16_t));
  return {};
}

void KvCache::store_page(const LayerInput& input, uint32_t page, uint32_t kv_head) {
  const uint32_t origin = page * kPageTokens;
  const uint32_t first = std::max(step_.position, origin);
  const uint32_t last = std::min(step_.end(), origin + kPageTokens);
  const kv::BlockLayout& exact = layout().exact;
  const kv::LayerCodecs codecs = layout().sealed[input.layer].codecs();
  const Block& block = sequence_.groups[group_of(origin)].blocks[input.layer];
  std::byte* base = tiers_.data(block.open_frame());
  const uint32_t page_in_block = page % exact.pages(), head_dim = exact.head_dim();
  auto* k_page = reinterpret_cast<uint16_t*>(base + exact.k_page_offset(page_in_block, kv_head));
  auto* v_page = reinterpret_cast<uint16_t*>(base + exact.v_page_offset(page_in_block, kv_head));
  const uint32_t row = first - step_.position, count = last - first;
  const uint16_t* k = input.k + row * input.k_token_stride + kv_head * input.k_head_stride;
  const uint16_t* v = input.v + row * input.v_token_stride + kv_head * input.v_head_stride;
  size_t k_stride = input.k_token_stride, v_stride = input.v_token_stride;
  uint16_t rotated[kPageTokens * kv::kHeadDimMax];
  const auto rotate = [&](const uint16_t*& from, size_t& stride) {
    codecs_.rotate_f16(head_dim, count, from, stride, rotated);
    from = rotated, stride = head_dim;
  };
  if (kv::rotates(codecs.k)) rotate(k, k_stride);
  kernels_.store_k(head_dim, k, k_stride, first - origin, count, k_page);
  if (kv::rotates(codecs.v)) rotate(v, v_stride);
  kernels_.store_v(head_dim, v, v_stride, first - origin, count, v_page);
}

Result<void> KvCache::stream(const LayerInput& input) {
  const uint32_t layer = input.layer;
  const uint32_t first_split = this->first_split(layer);
  const uint32_t last_split = (step_.end() - 1) / kSplitTokens + 1;
  std::vector<uint32_t> pending;
  for (uint32_t unit = first_split / splits_per_unit(); unit * splits_per_unit() < last_split;
       ++unit)
    pending.push_back(unit);
  if (sparse_step_ && selector_->applies_to(layer)) selector_->read_everything(layer);
  prefetcher_.begin_layer(layer);
  prefetcher_.count_wanted();
  const bool observed = options_.layer_observer != nullptr && step_.tokens.size() == 1 &&
                        step_.kind == StepKind::kGeneration &&
                        options_.layer_observer->wants_weights();
  attention_.begin(input, {.kind = step_.kind,
                           .position = step_.position,
                           .tokens = static_cast<uint32_t>(step_.tokens.size()),
                           .first_split = first_split,
                           .last_split = last_split,
                           .codecs = layout().sealed[layer].codecs(),
                           .page_weights = observed ? &exact_weights_ : nullptr});
  while (!pending.empty()) {
    advance_reads(layer);
    HIFC_TRY(check_lost(layer));
    const std::vector<uint32_t> units = take_ready(layer, pending);
    if (units.empty()) {
      const auto first = groups_of(layer, pending.front());
      HIFC_TRY(wait_for_reads(
          layer, {.enough = [&] { return worth_computing(layer, pending); }, .first = first}));
      continue;
    }
    const std::vector<uint32_t> groups = groups_of(layer, units);
    HIFC_TRY(verify(layer, groups));
    compute(layer, units);
    if (selector_) sketch_pages(layer, groups);
    release(layer, groups);
  }
  const TraceScope scope(options_.trace, kTraceMerge, {layer});
  attention_.finish();
  if (observed)
    options_.layer_observer->weighed(layer, first_split * kernels::kSplitPages, exact_weights_);
  return {};
}

void KvCache::advance_reads(uint32_t layer) {
  const TraceScope scope(options_.trace, kTraceSubmit, {layer});
  tiers_.poll();
  prefetcher_.pump();
}

std::vector<uint32_t> KvCache::groups_of(uint32_t layer, uint32_t unit) const {
  const uint32_t first =
      std::max(placement_.first_visible_group(layer, step_.position), unit * groups_per_unit());
  std::vector<uint32_t> groups;
  for (uint32_t g = first; g < std::min(groups_end(), (unit + 1) * groups_per_unit()); ++g)
    groups.push_back(g);
  return groups;
}

std::vector<uint32_t> KvCache::groups_of(uint32_t layer, std::span<const uint32_t> units) const {
  std::vector<uint32_t> groups;
  for (const uint32_t unit : units)
    std::ranges::copy(groups_of(layer, unit), std::back_inserter(groups));
  return groups;
}

bool KvCache::ready(uint32_t layer, std::span<const uint32_t> groups) const {
  return std::ranges::all_of(groups, [&](uint32_t g) { return prefetcher_.ready(layer, g); });
}

bool KvCache::ready(uint32_t layer, uint32_t unit) const {
  return ready(layer, groups_of(layer, unit));
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
  const uint64_t unit_bytes = groups_per_unit() * layout().sealed[layer].block_bytes();
  const auto enough =
      static_cast<uint32_t>(std::max<uint64_t>(1, placement_.staging_bytes() / unit_bytes / 2));
  uint32_t count = 1;
  while (count < pending.size() && count < enough && ready(layer, pending[count])) ++count;
  return count == pending.size() || count >= enough;
}

Result<void> KvCache::wait_for_reads(uint32_t layer, const Awaited& awaited) {
  const uint64_t start_ns = clock_.now_ns();
  const auto stalled_ns = [&] { return limited_stall_ns_ + (clock_.now_ns() - start_ns); };
  auto outcome = check_lost(layer);
  while (outcome && !awaited.enough()) {
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
    const uint32_t completed = tiers_.wait_for(std::min(left_ns, awaited.patience_ns));
    if (clock_.now_ns() - start_ns >= awaited.patience_ns) break;
    if (completed == 0 && prefetcher_.pump() == 0 && prefetcher_.in_flight() == 0) {
      if (ready(layer, awaited.first)) break;
      // Nothing moves: give frames to reads that were kept for blocks to be filled.
      residency_.expect_open(0);
      if (!writer_.push() && !force_read(layer, awaited.first))
        outcome = std::unexpected(out_of_frames());
    }
    prefetcher_.pump();
    if (outcome) outcome = check_lost(layer);
  }
  limited_stall_ns_ = stalled_ns();
  count_stall(kTraceStallReads, layer, start_ns);
  return outcome;
}

// The last resort: missing blocks are read at the cost of what is stored besides them.
bool KvCache::force_read(uint32_t layer, std::span<const uint32_t> groups) {
  residency_.make_room(layer, groups);
  prefetcher_.rewind(groups.front());
  return prefetcher_.fetch(groups) > 0;
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
  const Block& block = group.blocks[layer];
  const auto bytes = tiers_.span(block.frame);
  flash::Store& store = tiers_.store();
  const auto extents =
      extents_of(block.heads, layout().sealed[layer], bytes.size(), group.handle.chunk_bytes());
  const bool good = std::ranges::all_of(extents, [&](const Extent& extent) {
    return store.verify(group.handle, {layer, extent.begin, extent.size()},
                        bytes.subspan(extent.begin, extent.size()));
  });
  if (!good || block.heads != kAllHeads) return good;
  return kv::check_header(format_.sealed_header(index, layer), bytes).has_value();
}

Result<void> KvCache::verify(uint32_t layer, std::span<const uint32_t> of) {
  std::vector<uint32_t> groups;
  std::ranges::copy_if(of, std::back_inserter(groups), [&](uint32_t g) {
    const Block& block = sequence_.groups[g].blocks[layer];
    return block.state == Block::State::kStaged && !block.verified;
  });
  if (groups.empty()) return {};
  const TraceScope scope(options_.trace, kTraceVerify, {layer, groups.size()});
  std::vector<uint8_t> good(groups.size());
  parallel_.run(static_cast<uint32_t>(groups.size()),
                [&](uint32_t i, uint32_t) { good[i] = verify_block(layer, groups[i]); });
  for (size_t i = 0; i < groups.size(); ++i) {
    sequence_.groups[groups[i]].blocks[layer].verified = good[i] != 0;
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
  const TraceScope scope(options_.trace, kTraceAttention, {layer, splits.size()});
  attention_.compute(splits, [&](uint32_t split, uint32_t kv_head) {
    kernels::SplitPages pages;
    for (uint32_t i = 0; i < kernels::kSplitPages; ++i) {
      const uint32_t page = split * kernels::kSplitPages + i;
      const uint32_t group = page / layout().exact.pages();
      if (group >= first_group && group < groups_end()) add_page(layer, page, kv_head, i, pages);
    }
    return pages;
  });
}

void KvCache::add_page(uint32_t layer, uint32_t page, uint32_t kv_head, uint32_t slot,
                       kernels::SplitPages& pages) const {
  const uint32_t group = page / layout().exact.pages(), in_block = page % layout().exact.pages();
  const Block& block = sequence_.groups[group].blocks[layer];
  const bool is_exact = block.is_exact(in_block);
  const kv::BlockLayout& form = is_exact ? layout().exact : layout().sealed[layer];
  const std::byte* base = tiers_.data(is_exact ? block.exact : block.frame);
  pages.k[slot] = {base + form.k_page_offset(in_block, kv_head), form.codecs().k};
  pages.v[slot] = {base + form.v_page_offset(in_block, kv_head), form.codecs().v};
  if (page > 0 || !form.lossy()) return;
  pages.sink_k = reinterpret_cast<const uint16_t*>(base + form.k_sink_offset(kv_head));
  pages.sink_v = reinterpret_cast<const uint16_t*>(base + form.v_sink_offset(kv_head));
}

void KvCache::release(uint32_t layer, std::span<const uint32_t> groups) {
  for (const uint32_t g : groups) {
    const Block& block = sequence_.groups[g].blocks[layer];
    const bool cold = block.state == Block::State::kStaged;
    const tier::FrameId frame = block.open_frame();
    tiers_.count_hit(cold ? tier::Tier::kCold : tiers_.tier_of(frame), tiers_.span(frame).size());
    residency_.used(g, layer);
  }
}

void KvCache::end_step() {
  const TraceScope scope(options_.trace, kTraceEndStep);
  if (!step_.recompute)
    sequence_.tokens.insert(sequence_.tokens.end(), step_.tokens.begin(), step_.tokens.end());
  else
    drop_read_ahead();
  if (selector_) selector_->end_step();
  for (const Sealing& sealing : step_.sealing)
    if (sealing.pages == layout().exact.pages()) writer_.add(sealing.group);
  if (!layout().lossy())
    for (uint32_t g = group_of(step_.position); (g + 1) * block_tokens() <= step_.end(); ++g)
      writer_.add(g);
  writer_.pump();
}

void KvCache::lose(uint32_t index) {
  Group& group = sequence_.groups[index];
  residency_.drop_group(group);
  group.handle = {};
  group.stage = Group::Stage::kLost;
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
  } else {
    drop_groups_from(layout().groups_of(length()));
  }
  drop_lost();
}

void KvCache::drop_groups_from(uint32_t first) {
  while (sequence_.groups.size() > first) {
    residency_.drop_group(sequence_.groups.back());
    sequence_.groups.pop_back();
  }
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
  if (selector_) statistics.sparse = selector_->statistics;
  const uint32_t exact = layout().lossy() ? length() - first_exact(length()) : 0;
  statistics.kv_bytes =
      static_cast<uint64_t>((length() - exact) * layout().token_bytes() +
                            exact * layout().layers() * layout().exact.token_bytes());
  return statistics;
}

}  // namespace hifc::cache
