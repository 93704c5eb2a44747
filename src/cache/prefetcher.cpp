#include "cache/prefetcher.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "cache/trace_kinds.h"

namespace hifc::cache {

Prefetcher::Prefetcher(PrefetchOptions options, tier::Tiers& tiers, const kv::GroupLayout& layout,
                       Sequence& sequence, Residency& residency, const Placement& placement,
                       Trace* trace)
    : options_(options),
      tiers_(tiers),
      layout_(layout),
      sequence_(sequence),
      residency_(residency),
      placement_(placement),
      trace_(trace) {}

void Prefetcher::begin_step(uint32_t position, uint32_t position_end, uint32_t groups_end) {
  position_ = position;
  position_end_ = position_end;
  groups_end_ = groups_end;
}

void Prefetcher::begin_layer(uint32_t layer) {
  layer_ = layer;
  layer_done_ = false;
  cursor_ = {};
}

void Prefetcher::end_layer() {
  layer_done_ = true;
  if (cursor_.ahead == 0) cursor_ = {.ahead = 1, .group = 0};
}

void Prefetcher::count_wanted() {
  if (!tiers_.has_cold()) return;
  for (uint32_t g = placement_.first_visible_group(layer_, position_); g < groups_end_; ++g) {
    const Block& block = sequence_.groups[g].blocks[layer_];
    if (wanted(layer_, g) == 0) continue;
    const bool on_time = block.state == Block::State::kStaged && ready(layer_, g);
    const bool late = block.state == Block::State::kLoading || missing(layer_, g) != 0;
    statistics_.blocks_on_time += on_time ? 1 : 0;
    statistics_.blocks_wanted += on_time || late ? 1 : 0;
  }
}

HeadSet Prefetcher::wanted(uint32_t layer, uint32_t group) const {
  if (selector_ == nullptr || !selector_->applies_to(layer)) return kAllHeads;
  const uint32_t pages = layout_.exact.pages();
  HeadSet heads = 0;
  for (uint32_t page = group * pages; page < (group + 1) * pages; ++page)
    heads |= selector_->reads(layer, page);
  if (heads == 0) return 0;
  // The first tokens' exact K and V belong to no head, and what stays in memory is whole.
  return group == 0 || placement_.wanted(group, layer) ? kAllHeads : heads;
}

bool Prefetcher::in_memory(uint32_t layer, uint32_t group, HeadSet heads) const {
  const Block& block = sequence_.groups[group].blocks[layer];
  if (block.state == Block::State::kResident) return true;
  if (block.state != Block::State::kStaged) return false;
  return heads == kAllHeads ? is_every_head(block.heads, layout_.exact.kv_heads())
                            : (heads & ~block.heads) == 0;
}

HeadSet Prefetcher::missing(uint32_t layer, uint32_t group) const {
  const Group& owner = sequence_.groups[group];
  const Block& block = owner.blocks[layer];
  if (owner.stage != Group::Stage::kStored) return 0;
  if (block.state != Block::State::kAbsent && block.state != Block::State::kStaged) return 0;
  const HeadSet heads = wanted(layer, group);
  return in_memory(layer, group, heads) ? 0 : heads & ~block.heads;
}

bool Prefetcher::absent_and_stored(uint32_t layer, uint32_t group) const {
  const Group& owner = sequence_.groups[group];
  return owner.stage == Group::Stage::kStored && owner.blocks[layer].state == Block::State::kAbsent;
}

WantedBlock Prefetcher::wanted_block(uint32_t layer, uint32_t group, HeadSet heads) const {
  const kv::BlockLayout& layout = layout_.sealed[layer];
  const uint64_t bytes = layout.bytes_of(group);
  return {
      .group = group,
      .bytes = bytes,
      .extents = extents_of(heads, layout, bytes, sequence_.groups[group].handle.chunk_bytes())};
}

// The block, and those after it as far as the bytes between what is wanted are worth reading.
std::vector<WantedBlock> Prefetcher::chain_at(uint32_t layer, uint32_t group) const {
  std::vector<WantedBlock> chain = {wanted_block(layer, group, missing(layer, group))};
  uint64_t bytes = chain.front().bytes;
  uint64_t gap = bytes - chain.front().extents.back().end;
  size_t count = 1;  // up to the last one that is wanted
  for (uint32_t g = group + 1; g < groups_end_ && gap <= gap_bytes_max(); ++g) {
    const HeadSet heads = missing(layer, g);
    if (heads == 0 && !absent_and_stored(layer, g)) break;
    if (!sequence_.groups[g].handle.follows(sequence_.groups[g - 1].handle)) break;
    WantedBlock next = wanted_block(layer, g, heads);
    bytes += next.bytes;
    if (bytes > options_.run_bytes_max) break;
    gap += next.extents.empty() ? next.bytes : next.extents.front().begin;
    if (gap > gap_bytes_max()) break;
    if (!next.extents.empty()) gap = next.bytes - next.extents.back().end;
    const bool wanted = !next.extents.empty();
    chain.push_back(std::move(next));
    if (wanted) count = chain.size();
  }
  chain.resize(count);
  return chain;
}

// Frames for the blocks of the chain, which ends at the last wanted one that gets its own.
bool Prefetcher::stage(uint32_t layer, std::vector<WantedBlock>& chain) {
  size_t staged = 0, count = 0;
  for (; staged < chain.size(); ++staged) {
    Block& block = sequence_.groups[chain[staged].group].blocks[layer];
    if (block.state == Block::State::kStaged)
      block.state = Block::State::kLoading;
    else if (!residency_.stage(chain[staged].group, layer))
      break;
    if (!chain[staged].extents.empty()) count = staged + 1;
  }
  for (; staged > count; --staged) settle(layer, chain[staged - 1].group);
  chain.resize(count);
  return count > 0;
}

bool Prefetcher::issue_at(uint32_t layer, uint32_t group) {
  return issue(layer, chain_at(layer, group));
}

bool Prefetcher::issue(uint32_t layer, std::vector<WantedBlock> chain) {
  if (!stage(layer, chain)) return false;
  bool accepted = true;
  for (const ReadRun& run : plan_reads(
           chain, {.gap_bytes_max = gap_bytes_max(), .run_bytes_max = options_.run_bytes_max})) {
    accepted = submit(layer, run);
    if (!accepted) break;
  }
  for (const WantedBlock& each : chain) {
    const Block& block = sequence_.groups[each.group].blocks[layer];
    if (block.state == Block::State::kLoading && block.reads == 0) settle(layer, each.group);
  }
  return accepted;
}

bool Prefetcher::submit(uint32_t layer, const ReadRun& run) {
  std::vector<tier::Tiers::FrameRead> reads;
  uint64_t bytes = 0;
  for (const BlockPart& part : run) {
    Group& group = sequence_.groups[part.group];
    ++group.blocks[layer].reads;
    reads.push_back({.handle = &group.handle,
                     .frame = group.blocks[layer].frame,
                     .offset_bytes = part.extent.begin,
                     .size_bytes = part.extent.size()});
    bytes += part.extent.size();
  }
  ++in_flight_;
  const TraceAsync span(trace_, kTraceRead, {layer, run.front().group, run.size(), bytes});
  const auto done = [this, layer, run, span, current = epoch_,
                     epoch = *epoch_](Result<void> outcome) {
    span.end(outcome ? TraceEnd::kDone : TraceEnd::kFailed);
    if (*current != epoch) return;
    --in_flight_;
    finish(layer, run, outcome);
  };
  auto accepted = tiers_.load(layer, reads, done);
  if (accepted) return true;
  span.cancel();
  --in_flight_;
  for (const BlockPart& part : run) --sequence_.groups[part.group].blocks[layer].reads;
  if (accepted.error().code == Code::kBusy) return false;
  lose(layer, run, accepted.error());
  return true;
}

void Prefetcher::finish(uint32_t layer, const ReadRun& run, const Result<void>& outcome) {
  if (!outcome) {
    ++statistics_.read_errors;
    // The device may still write to the frames of a late read.
    const bool late = outcome.error().code == Code::kTimeout;
    // One bad block must not cost its neighbours: each is read alone.
    if (run.size() > 1 && !late)
      for (const BlockPart& part : run) submit(layer, {part});
    else
      lose(layer, run, outcome.error());
  }
  for (const BlockPart& part : run) {
    const kv::BlockLayout& layout = layout_.sealed[layer];
    Block& block = sequence_.groups[part.group].blocks[layer];
    if (outcome) block.heads |= heads_within(part.extent, layout, layout.bytes_of(part.group));
    if (--block.reads == 0) settle(layer, part.group);
  }
}

void Prefetcher::settle(uint32_t layer, uint32_t group) {
  Block& block = sequence_.groups[group].blocks[layer];
  const bool lost = sequence_.groups[group].stage == Group::Stage::kLost;
  statistics_.blocks_fetched += block.heads != 0 && !lost ? 1 : 0;
  block.state = Block::State::kStaged;
  block.verified = false;
  if (block.heads == 0 || lost) residency_.drop(block);
  // More of it may be wanted by now.
  const bool passed = cursor_.ahead > 0 || cursor_.group > group;
  if (layer == layer_ && !layer_done_ && passed && missing(layer, group) != 0) rewind(group);
}

void Prefetcher::lose(uint32_t layer, const ReadRun& run, const Error& error) {
  for (const BlockPart& part : run) {
    Group& group = sequence_.groups[part.group];
    // One line a group: its other layers fail in the same way.
    if (group.stage != Group::Stage::kLost)
      log_warn("reading layer {} of group {} failed: {}", layer, part.group, error.message());
    group.stage = Group::Stage::kLost;
    // Computed again, it is to be written again and not found where it cannot be read.
    if (error.code != Code::kTimeout) tiers_.store().quarantine(group.handle);
  }
}

uint32_t Prefetcher::pump() {
  if (!tiers_.has_cold()) return 0;
  const io::Ring::Batch batch(*tiers_.ring());
  const auto layers =
      static_cast<uint32_t>(sequence_.groups.empty() ? 0 : sequence_.groups.front().blocks.size());
  if (layers == 0) return 0;
  const uint32_t ahead_max = std::min(options_.window_layers, layers - 1);
  uint32_t issued = 0;
  for (; cursor_.ahead <= ahead_max; ++cursor_.ahead, cursor_.group = 0) {
    const uint32_t layer = (layer_ + cursor_.ahead) % layers;
    // What only this step's window shows would never be used by the next one, nor freed.
    const uint32_t position = layer_ + cursor_.ahead < layers ? position_ : position_end_;
    cursor_.group = std::max(cursor_.group, placement_.first_visible_group(layer, position));
    for (; cursor_.group < groups_end_; ++cursor_.group) {
      if (missing(layer, cursor_.group) == 0) continue;
      if (in_flight_ >= options_.reads_in_flight) return issued;
      if (!issue_at(layer, cursor_.group)) return issued;
      ++issued;
    }
  }
  return issued;
}

uint32_t Prefetcher::fetch(std::span<const uint32_t> groups) {
  uint32_t issued = 0;
  for (const uint32_t group : groups)
    if (const HeadSet heads = missing(layer_, group); heads != 0)
      issued += issue(layer_, {wanted_block(layer_, group, heads)}) ? 1 : 0;
  return issued;
}

void Prefetcher::abandon() {
  ++*epoch_;
  in_flight_ = 0;
  for (Group& group : sequence_.groups)
    for (Block& block : group.blocks) {
      if (block.state != Block::State::kLoading) continue;
      block.state = Block::State::kStaged;
      residency_.drop(block);
    }
}

void Prefetcher::drain() {
  while (in_flight_ > 0) tiers_.wait();
}

}  // namespace hifc::cache
