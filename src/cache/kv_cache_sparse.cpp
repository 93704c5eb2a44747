// KvCache: a step of one token that attends to selected pages.
//
//   1. weights of the first and the newest pages, exactly, and of all others from their sketches
//   2. the selection (page_selector.h); what it wants and prediction has not read ahead is read now
//   3. attention over it, in waves, as blocks arrive
//   4. what its pages weighed goes into the predictions for the next step
#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "base/check.h"
#include "cache/kv_cache.h"
#include "cache/trace_kinds.h"

namespace hifc::cache {
namespace {

using kernels::kSplitPages;
using kernels::kSplitTokens;
using kv::kPageTokens;

// Contexts up to here are attended to as a whole: selecting costs more than it saves.
constexpr uint32_t kPagesMin = 8;
// Pinned pages follow the text in steps of so many tokens, and in shorter ones as long as little is
// known of what is hot.
constexpr uint32_t kPinInterval = 32;
bool pins_due(uint32_t sparse_steps) {
  return sparse_steps < kPinInterval ? std::has_single_bit(sparse_steps)
                                     : sparse_steps % kPinInterval == 0;
}

uint32_t splits_of(uint32_t tokens) {
  return (tokens + kSplitTokens - 1) / kSplitTokens;
}

// [kv_head][row] length of a query times the scale of scores.
std::vector<float> norms_of(const LayerInput& input, const kv::ModelShape& shape) {
  std::vector<float> norms;
  for (uint32_t head = 0; head < shape.query_heads; ++head) {
    double sum = 0;
    const float* q = input.q + head * input.q_head_stride;
    for (uint32_t d = 0; d < shape.head_dim; ++d) sum += double{q[d]} * double{q[d]};
    norms.push_back(static_cast<float>(std::sqrt(sum)) * input.scale);
  }
  return norms;
}

}  // namespace

void KvCache::begin_sparse_step() {
  if (!selector_) return;
  const bool one_token = step_.tokens.size() == 1 && step_.kind == StepKind::kGeneration;
  sparse_step_ = one_token && !step_.recompute && pages_end() > kPagesMin;
  if (step_.recompute) selector_->forget(step_.position / kPageTokens, pages_end());
  prefetcher_.select_by(sparse_step_ ? &*selector_ : nullptr);
  if (!sparse_step_) {
    placement_.pin_earliest();
    sparse_steps_ = 0;
  } else if (pins_due(sparse_steps_++)) {
    pin_hot_pages();
  }
}

// What a block costs when it is not in memory: a read as often as one of its pages is selected.
void KvCache::pin_hot_pages() {
  const uint32_t pages = layout().exact.pages();
  placement_.pin_hottest(groups_end(), [&](uint32_t group, uint32_t layer) {
    float heat = 0;
    for (uint32_t page = group * pages; page < (group + 1) * pages; ++page)
      heat = std::max(heat, selector_->heat(layer, page));
    const tier::DeviceProfile& device = options_.prefetch.device;
    const uint64_t bytes = layout().sealed[layer].block_bytes();
    const double cost =
        device.known() ? device.read_seconds(bytes) / static_cast<double>(bytes) : 1.0;
    return heat * cost;
  });
  residency_.trim();
}

bool KvCache::sparse(uint32_t layer) const {
  return sparse_step_ && selector_->applies_to(layer) && selector_->knows(layer, pages_end());
}

std::vector<uint32_t> KvCache::groups_of_pages(std::span<const uint32_t> pages) const {
  std::vector<uint32_t> groups;
  for (const uint32_t page : pages) {
    const uint32_t group = page / layout().exact.pages();
    if (groups.empty() || groups.back() != group) groups.push_back(group);
  }
  return groups;
}

uint32_t KvCache::gathered_tokens(std::span<const uint32_t> pages) const {
  if (pages.empty()) return 0;
  const bool newest = pages.back() + 1 == pages_end();
  const auto before = static_cast<uint32_t>(pages.size() - 1) * kPageTokens;
  return before + (newest ? step_.end() - pages.back() * kPageTokens : kPageTokens);
}

kernels::SplitPages KvCache::gathered_pages(uint32_t layer, std::span<const uint32_t> pages,
                                            uint32_t split, uint32_t kv_head) const {
  kernels::SplitPages gathered;
  for (uint32_t slot = 0; slot < kSplitPages; ++slot)
    if (const uint32_t i = split * kSplitPages + slot; i < pages.size())
      add_page(layer, pages[i], kv_head, slot, gathered);
  return gathered;
}

// Blocks of some groups into memory, verified.
Result<void> KvCache::bring(uint32_t layer, std::span<const uint32_t> groups,
                            uint64_t patience_ns) {
  advance_reads(layer);
  HIFC_TRY(check_lost(layer));
  if (!ready(layer, groups))
    HIFC_TRY(wait_for_reads(layer, {.enough = [&] { return ready(layer, groups); },
                                    .first = groups,
                                    .patience_ns = patience_ns}));
  return verify(layer, groups);
}

// Weights of the pages that are always attended to, and estimates of the others'.
void KvCache::weigh(const LayerInput& input) {
  const uint32_t layer = input.layer, heads = options_.shape.kv_heads;
  const PageList &always = selector_->always(), &sketched = selector_->sketched();
  const auto run = [&](const PageList& pages, kv::LayerCodecs codecs, auto source,
                       PageWeights& weights) {
    const std::vector<uint32_t> tokens(heads, gathered_tokens(pages));
    const uint32_t splits = splits_of(tokens.front());
    attention_.begin(input, {.kind = step_.kind,
                             .position = step_.position,
                             .tokens = 1,
                             .last_split = splits,
                             .codecs = codecs,
                             .page_weights = &weights,
                             .weights_only = true,
                             .gathered = tokens.data()});
    std::vector<uint32_t> all(splits);
    for (uint32_t split = 0; split < splits; ++split) all[split] = split;
    attention_.compute(all, source);
    attention_.finish();
  };
  run(
      always, layout().sealed[layer].codecs(),
      [&](uint32_t split, uint32_t h) { return gathered_pages(layer, always, split, h); },
      exact_weights_);
  run(
      sketched, {.k = PageSketches::kCodec},
      [&](uint32_t split, uint32_t h) {
        kernels::SplitPages pages;
        for (uint32_t slot = 0; slot < kSplitPages; ++slot)
          if (const uint32_t i = split * kSplitPages + slot; i < sketched.size())
            pages.k[slot] = selector_->sketches().at(layer, sketched[i], h);
        return pages;
      },
      sketch_weights_);
}

Result<void> KvCache::stream_selected(const LayerInput& input) {
  const uint32_t layer = input.layer;
  selector_->begin_layer(layer, pages_end());
  prefetcher_.begin_layer(layer);
  const std::vector<uint32_t> always = groups_of_pages(selector_->always());
  HIFC_TRY(bring(layer, always));
  sketch_pages(layer, always);
  select(input);
  if (selector_->options().on_miss == OnMiss::kSkip) HIFC_TRY(skip_missing(layer));
  HIFC_TRY(attend_to_selection(input));
  const TraceScope scope(options_.trace, kTraceObserve, {layer});
  if (options_.layer_observer != nullptr)
    for (uint32_t h = 0; h < options_.shape.kv_heads; ++h)
      options_.layer_observer->selected(layer, h, selector_->selected(h));
  selector_->observe(exact_weights_);
  drop_unselected(layer);
  return {};
}

void KvCache::select(const LayerInput& input) {
  const TraceScope scope(options_.trace, kTraceSelect, {input.layer});
  weigh(input);
  selector_->select({.exact = &exact_weights_,
                     .sketched = &sketch_weights_,
                     .norms = norms_of(input, options_.shape)});
  prefetcher_.rewind(0);
  prefetcher_.count_wanted();
}

// Waits until the deadline; what has not come by then is left out.
Result<void> KvCache::skip_missing(uint32_t layer) {
  HIFC_TRY(
      bring(layer, groups_of_pages(selector_->selected()), selector_->options().miss_deadline_ns));
  selector_->keep_only([&](uint32_t page) {
    const uint32_t group = page / layout().exact.pages();
    return ready(layer, std::span(&group, 1));
  });
  return {};
}

std::vector<KvCache::GatheredPart> KvCache::gathered_parts() const {
  std::vector<GatheredPart> parts;
  for (uint32_t h = 0; h < options_.shape.kv_heads; ++h) {
    const PageList& pages = selector_->selected(h);
    for (uint32_t first = 0; first < pages.size(); first += kSplitPages) {
      const size_t count = std::min<size_t>(kSplitPages, pages.size() - first);
      parts.push_back({.part = {.split = first / kSplitPages, .kv_head = h},
                       .groups = groups_of_pages(std::span(pages).subspan(first, count))});
    }
  }
  // Those that need the latest groups last, as they are read.
  std::ranges::sort(parts, {}, [](const GatheredPart& part) {
    return std::tuple(part.groups.back(), part.part.kv_head, part.part.split);
  });
  return parts;
}

Result<void> KvCache::attend_to_selection(const LayerInput& input) {
  const uint32_t layer = input.layer;
  std::vector<uint32_t> tokens;
  for (uint32_t h = 0; h < options_.shape.kv_heads; ++h)
    tokens.push_back(gathered_tokens(selector_->selected(h)));
  attention_.begin(input, {.kind = step_.kind,
                           .position = step_.position,
                           .tokens = 1,
                           .last_split = splits_of(*std::ranges::max_element(tokens)),
                           .codecs = layout().sealed[layer].codecs(),
                           .page_weights = &exact_weights_,
                           .gathered = tokens.data()});
  std::vector<GatheredPart> pending = gathered_parts();
  std::vector<uint32_t> unreleased = groups_of_pages(selector_->selected());
  while (!pending.empty()) {
    advance_reads(layer);
    HIFC_TRY(check_lost(layer));
    const std::vector<GatheredPart> wave = take_ready(layer, pending);
    if (wave.empty()) {
      HIFC_TRY(wait_for_parts(layer, pending));
      continue;
    }
    HIFC_TRY(compute(layer, wave));
    release_done(layer, pending, unreleased);
  }
  const TraceScope scope(options_.trace, kTraceMerge, {layer});
  attention_.finish();
  return {};
}

std::vector<KvCache::GatheredPart> KvCache::take_ready(uint32_t layer,
                                                       std::vector<GatheredPart>& pending) const {
  std::vector<GatheredPart> taken, rest;
  for (GatheredPart& part : pending)
    (ready(layer, part.groups) ? taken : rest).push_back(std::move(part));
  pending = std::move(rest);
  return taken;
}

// For all of them, or where there are no frames for that, for the first.
Result<void> KvCache::wait_for_parts(uint32_t layer, std::span<const GatheredPart> pending) {
  const auto is_ready = [&](const GatheredPart& part) { return ready(layer, part.groups); };
  const auto enough = [&] {
    if (prefetcher_.in_flight() == 0 && is_ready(pending.front())) return true;
    return std::ranges::all_of(pending, is_ready);
  };
  return wait_for_reads(layer, {.enough = enough, .first = pending.front().groups});
}

Result<void> KvCache::compute(uint32_t layer, std::span<const GatheredPart> wave) {
  std::vector<uint32_t> groups;
  std::vector<TieredAttention::Part> parts;
  for (const GatheredPart& part : wave) {
    parts.push_back(part.part);
    groups.insert(groups.end(), part.groups.begin(), part.groups.end());
  }
  std::ranges::sort(groups);
  groups.erase(std::ranges::unique(groups).begin(), groups.end());
  HIFC_TRY(verify(layer, groups));
  const TraceScope scope(options_.trace, kTraceAttention, {layer, parts.size()});
  attention_.compute(parts, [&](uint32_t split, uint32_t h) {
    return gathered_pages(layer, selector_->selected(h), split, h);
  });
  return {};
}

void KvCache::release_done(uint32_t layer, std::span<const GatheredPart> pending,
                           std::vector<uint32_t>& unreleased) {
  std::vector<uint32_t> done, rest;
  for (const uint32_t g : unreleased) {
    const bool needed = std::ranges::any_of(pending, [&](const GatheredPart& part) {
      return std::ranges::binary_search(part.groups, g);
    });
    (needed ? rest : done).push_back(g);
  }
  release(layer, done);
  unreleased = std::move(rest);
}

// What has been read for this layer and was not wanted after all.
void KvCache::drop_unselected(uint32_t layer) {
  for (uint32_t g = 0; g < groups_end(); ++g)
    if (sequence_.groups[g].blocks[layer].state == Block::State::kStaged) residency_.used(g, layer);
}

void KvCache::sketch_pages(uint32_t layer, std::span<const uint32_t> groups) {
  if (!selector_->applies_to(layer)) return;
  PageSketches& sketches = selector_->sketches();
  PageList fresh;
  for (const uint32_t group : groups)
    for (uint32_t i = 0; i < layout().exact.pages(); ++i) {
      const uint32_t page = group * layout().exact.pages() + i;
      const bool whole = (page + 1) * kPageTokens <= step_.end();
      if (page > 0 && whole && !sketches.has(layer, page)) fresh.push_back(page);
    }
  if (fresh.empty()) return;
  const TraceScope scope(options_.trace, kTraceSketch, {layer, fresh.size()});
  sketches.prepare(layer, fresh.back());
  const uint32_t heads = options_.shape.kv_heads;
  const bool rotated = kv::rotates(layout().sealed[layer].codecs().k);
  parallel_.run(static_cast<uint32_t>(fresh.size()) * heads, [&](uint32_t task, uint32_t) {
    const uint32_t page = fresh[task / heads], head = task % heads;
    kernels::SplitPages pages;
    add_page(layer, page, head, 0, pages);
    sketches.set(layer, page, head, pages.k[0], rotated);
  });
  for (const uint32_t page : fresh) sketches.complete(layer, page);
}

}  // namespace hifc::cache
