// Reads blocks from flash in the order attention will ask for them: the running layer first, then
// the layers after it, into the next step's first layers, as far as prefetch_window and the free
// frames allow. In exact mode the order is known, so nothing is read in vain. In sparse mode only
// those KV heads' parts of a block are read that select its pages (read_plan.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/trace.h"
#include "cache/page_selector.h"
#include "cache/read_plan.h"
#include "cache/residency.h"
#include "cache/sequence.h"
#include "tier/device_profile.h"
#include "tier/tiers.h"

namespace hifc::cache {

struct PrefetchOptions {
  uint32_t window_layers = 2;  // how many layers beyond the running one are read ahead
  uint32_t reads_in_flight = 8;
  uint64_t run_bytes_max = 1u << 20;  // neighbouring blocks are read together up to this
  tier::DeviceProfile device = {};    // what reads cost; of sparse attention's alone
};

struct PrefetchStatistics {
  uint64_t blocks_wanted = 0;   // cold blocks that attention needed
  uint64_t blocks_on_time = 0;  // of those, already read when their layer began
  uint64_t blocks_fetched = 0;
  uint64_t read_errors = 0;
};

class Prefetcher {
 public:
  Prefetcher(PrefetchOptions options, tier::Tiers& tiers, const kv::GroupLayout& layout,
             Sequence& sequence, Residency& residency, const Placement& placement, Trace* trace);
  ~Prefetcher() { ++*epoch_; }

  // The step reads groups [0, groups_end) of each layer for queries at [position, position_end);
  // the next one is expected to go on from there.
  void begin_step(uint32_t position, uint32_t position_end, uint32_t groups_end);
  // From now on only what it reads is read, in layers it applies to; null: all. It must outlive its
  // use.
  void select_by(const PageSelector* selector) { selector_ = selector; }
  // `layer` is about to be computed: it comes before everything read ahead.
  void begin_layer(uint32_t layer);
  // It has been: nothing more is read for it in this step.
  void end_layer();
  // Counts what the running layer wants and what of it has come.
  void count_wanted();

  // What of a block the layer will attend to; 0: nothing.
  HeadSet wanted(uint32_t layer, uint32_t group) const;
  // Whether that is in memory.
  bool ready(uint32_t layer, uint32_t group) const {
    return in_memory(layer, group, wanted(layer, group));
  }

  // Goes back to `group` of the running layer: blocks may have been evicted behind the read-ahead.
  void rewind(uint32_t group) { cursor_ = {.ahead = 0, .group = group}; }

  // Issues reads while there is room for them. Returns how many it issued.
  uint32_t pump();

  // Reads these groups (ascending) of the running layer before anything else, as far as there are
  // frames. Returns how many it issued.
  uint32_t fetch(std::span<const uint32_t> groups);

  uint32_t in_flight() const { return in_flight_; }
  // Waits until no read is in flight.
  void drain();
  // Gives up all reads in flight without waiting for them; their blocks are absent.
  void abandon();

  const PrefetchStatistics& statistics() const { return statistics_; }

 private:
  struct Cursor {
    uint32_t ahead = 0;  // layers beyond the running one
    uint32_t group = 0;
  };
  bool in_memory(uint32_t layer, uint32_t group, HeadSet heads) const;
  // What is to be read of a block now.
  HeadSet missing(uint32_t layer, uint32_t group) const;
  bool absent_and_stored(uint32_t layer, uint32_t group) const;
  WantedBlock wanted_block(uint32_t layer, uint32_t group, HeadSet heads) const;
  uint64_t gap_bytes_max() const {
    return static_cast<uint64_t>(options_.device.break_even_bytes());
  }
  std::vector<WantedBlock> chain_at(uint32_t layer, uint32_t group) const;
  bool stage(uint32_t layer, std::vector<WantedBlock>& chain);
  // False when there is no frame for the group, or the ring is full.
  bool issue_at(uint32_t layer, uint32_t group);
  bool issue(uint32_t layer, std::vector<WantedBlock> chain);
  bool submit(uint32_t layer, const ReadRun& run);
  void finish(uint32_t layer, const ReadRun& run, const Result<void>& outcome);
  // After the last of a block's reads.
  void settle(uint32_t layer, uint32_t group);
  void lose(uint32_t layer, const ReadRun& run, const Error& error);

  PrefetchOptions options_;
  tier::Tiers& tiers_;
  const kv::GroupLayout& layout_;
  Sequence& sequence_;
  Residency& residency_;
  const Placement& placement_;
  Trace* trace_;
  PrefetchStatistics statistics_;
  const PageSelector* selector_ = nullptr;
  uint32_t in_flight_ = 0;
  // Reads of an earlier epoch were given up; they may end later than this object.
  std::shared_ptr<uint64_t> epoch_ = std::make_shared<uint64_t>(0);
  uint32_t position_ = 0;
  uint32_t position_end_ = 0;
  uint32_t groups_end_ = 0;
  uint32_t layer_ = 0;
  bool layer_done_ = false;
  Cursor cursor_;
};

}  // namespace hifc::cache
