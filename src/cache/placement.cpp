#include "cache/placement.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.h"

namespace hifc::cache {
namespace {

// Of those that are in use whatever their heat: every step attends to the newest pages.
constexpr uint32_t kNewestGroups = 2;

}  // namespace

Placement::Placement(const kv::ModelShape& shape, const kv::GroupLayout& layout)
    : shape_(shape),
      block_tokens_(layout.block_tokens()),
      block_bytes_max_(layout.sealed_block_bytes_max()) {
  HIFC_CHECK(shape.window.size() == shape.layers);
  HIFC_CHECK(layout.layers() == shape.layers);
  uint32_t full_layers = 0;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const bool full = shape.window[layer] == 0;
    block_bytes_.push_back(layout.sealed[layer].block_bytes());
    full_rank_.push_back(full_layers);
    full_layers += full ? 1 : 0;
    full_bytes_ += full ? block_bytes_.back() : 0;
  }
}

uint32_t Placement::first_visible_group(uint32_t layer, uint32_t position) const {
  const uint32_t window = shape_.window[layer];
  if (window == 0 || position < window) return 0;
  return (position + 1 - window) / block_tokens_;
}

uint32_t Placement::window_blocks(uint32_t layer, uint32_t groups) const {
  if (length_ == 0) return 0;
  return groups - std::min(groups, first_visible_group(layer, length_ - 1));
}

// How many of the full-attention layers, from the first one on, have a block each in so many bytes.
uint32_t Placement::layers_within(uint64_t bytes) const {
  uint32_t count = 0;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    if (shape_.window[layer] != 0) continue;
    if (layer_bytes(layer) > bytes) break;
    bytes -= layer_bytes(layer);
    ++count;
  }
  return count;
}

void Placement::plan(const PlacementInput& input) {
  length_ = input.length;
  const uint32_t groups = (length_ + block_tokens_ - 1) / block_tokens_;
  const auto spare = [&](uint64_t staging) {
    const uint64_t reserved = input.open_bytes + staging;
    return input.memory_bytes > reserved ? input.memory_bytes - reserved : 0;
  };
  uint64_t window_need = 0;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer)
    if (shape_.window[layer] != 0) window_need += window_blocks(layer, groups) * layer_bytes(layer);
  const uint64_t need = window_need + groups * full_bytes_;
  // Where every block of every group has a frame there is nothing to evict; with windows, the
  // blocks that left the window go, and only the groups being filled come on top of what is needed.
  if (need + input.open_bytes <= input.memory_bytes || input.all_bytes <= input.memory_bytes) {
    pinned_groups_ = groups, pinned_remainder_ = 0, window_pinned_ = true, staging_bytes_ = 0;
    return;
  }
  const uint64_t block = block_bytes_max_;
  const uint64_t cold = need - std::min(need, spare(input.staging_min_bytes));
  const uint64_t cold_per_layer = (cold / shape_.layers + block - 1) / block * block;
  // More staging than a quarter of the memory would read ahead what could have stayed.
  const uint64_t most = input.memory_bytes / 4 / block * block;
  const uint64_t ahead = std::min(cold_per_layer * (input.prefetch_layers + 1), most);
  staging_bytes_ = std::max(input.staging_min_bytes, ahead);
  uint64_t capacity = spare(staging_bytes_);
  window_pinned_ = window_need <= capacity;
  capacity = window_pinned_ ? capacity - window_need : 0;
  pinned_groups_ = full_bytes_ == 0 ? 0 : static_cast<uint32_t>(capacity / full_bytes_);
  pinned_remainder_ = full_bytes_ == 0 ? 0 : layers_within(capacity % full_bytes_);
}

bool Placement::wanted(uint32_t group, uint32_t layer) const {
  if (shape_.window[layer] != 0)
    return window_pinned_ && length_ > 0 && group >= first_visible_group(layer, length_ - 1);
  if (hottest_.empty()) return group < pinned_groups(layer);
  return group >= hottest_[layer].size() || hottest_[layer][group] != 0;
}

void Placement::pin_hottest(uint32_t groups, Worth worth) {
  hottest_.assign(shape_.layers, std::vector<uint8_t>(groups));
  std::vector<std::tuple<double, uint32_t, uint32_t>> order;  // -worth, group, layer
  uint64_t room = 0;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    if (shape_.window[layer] != 0) continue;
    room += std::min(groups, pinned_groups(layer)) * layer_bytes(layer);
    for (uint32_t group = 0; group < groups; ++group) {
      const bool always = group == 0 || group + kNewestGroups >= groups;
      order.emplace_back(always ? -std::numeric_limits<double>::infinity() : -worth(group, layer),
                         group, layer);
    }
  }
  std::ranges::sort(order);
  for (const auto& [_, group, layer] : order) {
    if (layer_bytes(layer) > room) continue;
    room -= layer_bytes(layer);
    hottest_[layer][group] = 1;
  }
}

}  // namespace hifc::cache
