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

#include "base/function_ref.h"
#include "kv/layout.h"
#include "kv/shape.h"

namespace hifc::cache {

struct PlacementInput {
  uint64_t memory_bytes = 0;
  uint64_t open_bytes = 0;         // kept for groups being filled or written
  uint64_t staging_min_bytes = 0;  // without which streaming cannot go on
  uint64_t all_bytes = 0;          // of every block of every group
  uint32_t prefetch_layers = 1;
  uint32_t length = 0;  // tokens once the step is done
};

class Placement {
 public:
  Placement(const kv::ModelShape& shape, const kv::GroupLayout& layout);

  void plan(const PlacementInput& input);

  // Pins other blocks of the full-attention layers than the earliest ones, in as many bytes: those
  // of the first and the newest groups, and then those that are worth most (what keeping them
  // saves, for each byte), in whatever layer.
  using Worth = FunctionRef<double(uint32_t group, uint32_t layer)>;
  void pin_hottest(uint32_t groups, Worth worth);
  void pin_earliest() { hottest_.clear(); }

  // Whether the block should stay in memory once its group is on flash.
  bool wanted(uint32_t group, uint32_t layer) const;

  // Kept free for blocks read ahead; 0 when everything is wanted.
  uint64_t staging_bytes() const { return staging_bytes_; }

  // First group that a query at `position` sees in `layer`.
  uint32_t first_visible_group(uint32_t layer, uint32_t position) const;

 private:
  uint32_t window_blocks(uint32_t layer, uint32_t groups) const;
  uint64_t layer_bytes(uint32_t layer) const { return block_bytes_[layer]; }
  uint32_t layers_within(uint64_t bytes) const;
  uint32_t pinned_groups(uint32_t layer) const {
    return pinned_groups_ + (full_rank_[layer] < pinned_remainder_ ? 1 : 0);
  }

  kv::ModelShape shape_;
  uint32_t block_tokens_;
  uint64_t block_bytes_max_;
  std::vector<uint64_t> block_bytes_;  // [layer]
  std::vector<uint32_t> full_rank_;    // [layer] index among the full-attention layers
  uint64_t full_bytes_ = 0;            // of a group in the full-attention layers
  uint32_t length_ = 0;
  uint32_t pinned_groups_ = 0;                 // in every full-attention layer
  uint32_t pinned_remainder_ = 0;              // the first so many full layers hold one group more
  std::vector<std::vector<uint8_t>> hottest_;  // [layer][group]; empty: the earliest are pinned
  bool window_pinned_ = true;
  uint64_t staging_bytes_ = 0;
};

}  // namespace hifc::cache
