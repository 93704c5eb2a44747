#include "cache/placement.h"

#include <algorithm>

#include "base/check.h"

namespace hifc::cache {

Placement::Placement(const kv::ModelShape& shape, uint32_t block_tokens)
    : shape_(shape), block_tokens_(block_tokens) {
  HIFC_CHECK(shape.window.size() == shape.layers);
  for (uint32_t window : shape.window) {
    full_rank_.push_back(full_layers_);
    full_layers_ += window == 0 ? 1 : 0;
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

void Placement::plan(const PlacementInput& input) {
  length_ = input.length;
  const uint32_t groups = (length_ + block_tokens_ - 1) / block_tokens_;
  const auto spare = [&](uint32_t staging) {
    const uint32_t reserved = input.open_frames + staging;
    return input.frames > reserved ? input.frames - reserved : 0;
  };
  uint32_t window_need = 0;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer)
    if (shape_.window[layer] != 0) window_need += window_blocks(layer, groups);
  const uint32_t need = window_need + groups * full_layers_;
  // Where every block of every group has a frame there is nothing to evict; with windows, the
  // blocks that left the window go, and only the groups being filled come on top of what is needed.
  if (need + input.open_frames <= input.frames || groups * shape_.layers <= input.frames) {
    pinned_groups_ = groups, pinned_remainder_ = 0, window_pinned_ = true, staging_frames_ = 0;
    return;
  }
  const uint32_t cold = need - std::min(need, spare(input.staging_min));
  const uint32_t cold_per_layer = (cold + shape_.layers - 1) / shape_.layers;
  // More staging than a quarter of the memory would read ahead what could have stayed.
  const uint32_t ahead = std::min(cold_per_layer * (input.prefetch_layers + 1), input.frames / 4);
  staging_frames_ = std::max(input.staging_min, ahead);
  uint32_t capacity = spare(staging_frames_);
  window_pinned_ = window_need <= capacity;
  if (window_pinned_) capacity -= window_need;
  if (!window_pinned_) capacity = 0;
  pinned_groups_ = full_layers_ == 0 ? 0 : capacity / full_layers_;
  pinned_remainder_ = full_layers_ == 0 ? 0 : capacity % full_layers_;
}

bool Placement::wanted(uint32_t group, uint32_t layer) const {
  if (shape_.window[layer] != 0)
    return window_pinned_ && length_ > 0 && group >= first_visible_group(layer, length_ - 1);
  return group < pinned_groups_ + (full_rank_[layer] < pinned_remainder_ ? 1 : 0);
}

}  // namespace hifc::cache
