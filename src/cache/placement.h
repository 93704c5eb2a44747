// Which blocks stay in memory. Exact attention reads every block of a sequence at every step, layer
// after layer: a cyclic scan, in which LRU always drops what is needed soonest and hits nothing.
// A pinned subset hits its share instead. The subset is a function of the group and layer alone:
//   1. blocks inside the window of sliding-window layers (small, read at every step);
//   2. then the earliest groups of the full-attention layers, the same number in every layer (+-1),
//      so that each layer leaves the same amount to be read and reads stay level.
// A pure computation: no state but the plan, no I/O.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/shape.h"

namespace hifc::cache {

struct PlacementInput {
  uint32_t frames = 0;       // memory frames in all
  uint32_t open_frames = 0;  // kept for groups being filled or written
  uint32_t staging_min = 0;  // frames without which streaming cannot go on
  uint32_t prefetch_layers = 1;
  uint32_t length = 0;  // tokens once the step is done
};

class Placement {
 public:
  Placement(const kv::ModelShape& shape, uint32_t block_tokens);

  void plan(const PlacementInput& input);

  // Whether the block should stay in memory once its group is on flash.
  bool wanted(uint32_t group, uint32_t layer) const;

  // Frames kept free for blocks read ahead; 0 when everything is wanted.
  uint32_t staging_frames() const { return staging_frames_; }

  // First group that a query at `position` sees in `layer`.
  uint32_t first_visible_group(uint32_t layer, uint32_t position) const;

 private:
  uint32_t window_blocks(uint32_t layer, uint32_t groups) const;

  kv::ModelShape shape_;
  uint32_t block_tokens_;
  std::vector<uint32_t> full_rank_;  // [layer] index among the full-attention layers
  uint32_t full_layers_ = 0;
  uint32_t length_ = 0;
  uint32_t pinned_groups_ = 0;     // in every full-attention layer
  uint32_t pinned_remainder_ = 0;  // the first so many full layers hold one group more
  bool window_pinned_ = true;
  uint32_t staging_frames_ = 0;
};

}  // namespace hifc::cache
