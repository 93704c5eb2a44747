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
  cursor_ = {};
}

void Prefetcher::count_wanted() {
  if (!tiers_.has_cold()) return;
  for (uint32_t g = placement_.first_visible_group(layer_, position_); g < groups_end_; ++g) {
    const Block& block = sequence_.groups[g].blocks[layer_];
    if (!selected(layer_, g)) continue;
    const bool staged = block.state == Block::State::kStaged;
    statistics_.blocks_on_time += staged ? 1 : 0;
    statistics_.blocks_wanted +=
        staged || block.state == Block::State::kLoading || fetchable(layer_, g) ? 1 : 0;
  }
}

bool Prefetcher::selected(uint32_t layer, uint32_t group) const {
  if (selector_ == nullptr || !selector_->applies_to(layer)) return true;
  const uint32_t pages = layout_.exact.pages();
  for (uint32_t page = group * pages; page < (group + 1) * pages; ++page)
    if (selector_->reads(layer, page)) return true;
  return false;
}

bool Prefetcher::fetchable(uint32_t layer, uint32_t group) const {
  const Group& candidate = sequence_.groups[group];
  return selected(layer, group) && candidate.stage == Group::Stage::kStored &&
         candidate.blocks[layer].state == Block::State::kAbsent;
}

std::vector<uint32_t> Prefetcher::run_at(uint32_t layer, uint32_t group) const {
  std::vector<uint32_t> run = {group};
  const auto longest =
      std::max<uint64_t>(1, options_.run_bytes_max / layout_.sealed[layer].block_bytes());
  while (run.size() < longest) {
    const uint32_t next = run.back() + 1;
    if (next >= groups_end_ || !fetchable(layer, next)) break;
    if (!sequence_.groups[next].handle.follows(sequence_.groups[next - 1].handle)) break;
    run.push_back(next);
  }
  return run;
}

bool Prefetcher::issue_at(uint32_t layer, uint32_t group) {
  std::vector<uint32_t> run = run_at(layer, group);
  size_t staged = 0;
  while (staged < run.size() && residency_.stage(run[staged], layer)) ++staged;
  if (staged == 0) return false;
  run.resize(staged);
  return submit(layer, std::move(run));
}

bool Prefetcher::submit(uint32_t layer, std::vector<uint32_t> run) {
  std::vector<tier::Tiers::FrameRead> reads;
  uint64_t bytes = 0;
  for (const uint32_t g : run) {
    const tier::FrameId frame = sequence_.groups[g].blocks[layer].frame;
    reads.push_back({.handle = &sequence_.groups[g].handle, .frame = frame});
    bytes += tiers_.span(frame).size();
  }
  ++in_flight_;
  const TraceAsync span(trace_, kTraceRead, {layer, run.front(), run.size(), bytes});
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
  for (const uint32_t g : run) give_up(layer, g);
  if (accepted.error().code == Code::kBusy) return false;
  lose(layer, run, accepted.error());
  return true;
}

void Prefetcher::finish(uint32_t layer, const std::vector<uint32_t>& run,
                        const Result<void>& outcome) {
  if (outcome) {
    statistics_.blocks_fetched += run.size();
    for (const uint32_t g : run) sequence_.groups[g].blocks[layer].state = Block::State::kStaged;
    return;
  }
  ++statistics_.read_errors;
  // The device may still write to the frames of a late read.
  const bool late = outcome.error().code == Code::kTimeout;
  if (run.size() > 1 && !late) {
    // One bad block must not cost its neighbours: each is read alone.
    for (const uint32_t g : run) submit(layer, {g});
    return;
  }
  for (const uint32_t g : run) give_up(layer, g);
  lose(layer, run, outcome.error());
}

void Prefetcher::give_up(uint32_t layer, uint32_t group) {
  Block& block = sequence_.groups[group].blocks[layer];
  block.state = Block::State::kStaged;
  residency_.drop(block);
}

void Prefetcher::lose(uint32_t layer, const std::vector<uint32_t>& run, const Error& error) {
  for (const uint32_t g : run) {
    // One line a group: its other layers fail in the same way.
    if (sequence_.groups[g].stage != Group::Stage::kLost)
      log_warn("reading layer {} of group {} failed: {}", layer, g, error.message());
    sequence_.groups[g].stage = Group::Stage::kLost;
    // Computed again, it is to be written again and not found where it cannot be read.
    if (error.code != Code::kTimeout) tiers_.store().quarantine(sequence_.groups[g].handle);
  }
}

uint32_t Prefetcher::pump() {
  if (!tiers_.has_cold()) return 0;
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
      if (!fetchable(layer, cursor_.group)) continue;
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
    if (fetchable(layer_, group) && residency_.stage(group, layer_) && submit(layer_, {group}))
      ++issued;
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
