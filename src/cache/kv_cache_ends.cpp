// KvCache: where a sequence begins and where it ends. Stored prefixes, saving, truncation.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/kv_cache.h"
#include "cache/trace_kinds.h"

namespace hifc::cache {

Result<void> KvCache::save() {
  const TraceScope scope(options_.trace, kTraceSave);
  const auto sealed = seal_complete();
  const auto written = writer_.flush();
  restore_last_group();
  const auto parked = sealed ? writer_.park() : sealed;
  const auto durable = tiers_.sync();
  HIFC_TRY(sealed);
  HIFC_TRY(written);
  HIFC_TRY(parked);
  return durable;
}

StoredPrefix KvCache::find_stored(std::span<const int32_t> tokens, const Patience& patience) {
  return find_stored_prefix(tiers_, format_, tokens, patience);
}

Result<LoadedGroup> KvCache::load(const StoredPrefix& prefix, uint32_t index,
                                  const Patience& patience) {
  const TraceScope scope(options_.trace, kTraceLoad, {index});
  const bool tail = index == prefix.groups();
  const bool sealed = !tail || prefix.tail->stored_tokens == block_tokens();
  const auto header_of = [&](uint32_t layer) {
    return sealed ? format_.sealed_header(index, layer)
                  : format_.exact_header(index, layer, prefix.tail->stored_tokens);
  };
  const auto part_of = [&](uint32_t layer) {
    return sealed || !layout().sealed[layer].lossy() ? tier::Part::kSealed : tier::Part::kExact;
  };
  const auto span_of = [&](uint32_t layer) {
    return TraceAsync(options_.trace, kTraceRead,
                      {layer, index, 1, prefix.handle(index).lane_bytes(layer)});
  };
  HIFC_ASSIGN(LoadedGroup group,
              LoadedGroup::load(tiers_, prefix.handle(index), header_of, part_of, span_of,
                                options_.prefetch.reads_in_flight, parallel_, patience));
  for (uint32_t layer = 0; layer < layout().layers(); ++layer) {
    Block& block = group.blocks()[layer];
    if (sealed)
      block.sealed_pages = layout().exact.pages();
    else if (layout().sealed[layer].lossy())
      std::swap(block.frame, block.exact);
    if (tail && !reopen_block(layer, index, block, prefix.tail->valid_tokens / kv::kPageTokens))
      return failure(Code::kFull, "no memory for a group that is stored");
  }
  return group;
}

uint64_t KvCache::bytes_to_read(const StoredPrefix& prefix) const {
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < options_.shape.layers; ++layer) {
    const uint32_t first = placement_.first_visible_group(layer, prefix.tokens(block_tokens()));
    for (uint32_t g = first; g < prefix.groups(); ++g) bytes += prefix.handles[g].lane_bytes(layer);
    if (prefix.tail) bytes += prefix.tail->handle.lane_bytes(layer);  // which is loaded whole
  }
  return bytes;
}

void KvCache::adopt(std::span<const int32_t> tokens, StoredPrefix prefix, Loaded loaded) {
  HIFC_CHECK(length() == 0);
  HIFC_CHECK(sequence_.groups.empty());
  HIFC_CHECK(prefix.tail.has_value() == loaded.tail.has_value());
  for (uint32_t g = 0; g < prefix.groups(); ++g) {
    Group& group = sequence_.groups.emplace_back();
    group.stage = Group::Stage::kStored;
    group.key = prefix.keys[g];
    group.handle = std::move(prefix.handles[g]);
    group.blocks.resize(options_.shape.layers);
  }
  if (loaded.first && prefix.groups() > 0) sequence_.groups.front().blocks = loaded.first->take();
  if (loaded.tail) sequence_.groups.emplace_back().blocks = loaded.tail->take();
  const auto taken = tokens.first(prefix.tokens(block_tokens()));
  sequence_.tokens.assign(taken.begin(), taken.end());
}

bool KvCache::in_memory(const Group& group) const {
  return group.stage != Group::Stage::kLost &&
         std::ranges::all_of(group.blocks, [](const Block& block) {
           return block.state == Block::State::kResident;
         });
}

// Makes a group that is wholly in memory one that takes tokens after `tokens`; true if it is.
bool KvCache::reopen(uint32_t index, uint32_t tokens) {
  Group& group = sequence_.groups[index];
  if (!in_memory(group)) return false;
  // Else its own blocks might be evicted for the frames it takes.
  group.stage = Group::Stage::kOpen;
  for (uint32_t layer = 0; layer < layout().layers(); ++layer)
    if (!reopen_block(layer, index, group.blocks[layer], tokens / kv::kPageTokens)) return false;
  group.handle = {};
  return true;
}

uint32_t KvCache::truncate(uint32_t length) {
  prefetcher_.drain();
  while (writer_.in_flight() > 0) tiers_.wait();
  length = std::min(length, this->length());
  const uint32_t group = group_of(length);
  writer_.forget_from(group);
  residency_.drop_staged();
  drop_groups_from(group + 1);
  const uint32_t tokens = length % block_tokens();
  if (tokens != 0 && !reopen(group, tokens)) length = group * block_tokens();
  drop_groups_from(layout().groups_of(length));
  if (selector_) selector_->truncate(length / kv::kPageTokens);
  sequence_.tokens.resize(length);
  return length;
}

uint32_t KvCache::keep_memory() {
  drop_read_ahead();
  uint32_t groups = 0;
  while (groups < sequence_.groups.size() && in_memory(sequence_.groups[groups])) ++groups;
  return truncate(groups * block_tokens());
}

}  // namespace hifc::cache
