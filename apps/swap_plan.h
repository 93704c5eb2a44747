// What a replacement policy makes of a workload: which groups each access finds in memory, which it
// reads, and which of those stay. Policies are pure, so plans are made before anything is timed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "apps/swap_workload.h"
#include "cache/replacement.h"
#include "tier/device_profile.h"

namespace hifc::apps {

// One access.
struct SwapStep {
  std::vector<uint32_t> evicted;  // in memory so far; they go before anything is read
  std::vector<uint32_t> read;     // groups that are not in memory
  std::vector<bool> kept;         // [read] whether it stays when the access is over
};

struct SwapPlan {
  std::vector<SwapStep> steps;        // [access of the trace]
  std::array<uint64_t, 2> hits = {};  // [SwapPhase] groups found in memory
  std::array<uint64_t, 2> uses = {};  // [SwapPhase] groups wanted
  uint64_t groups_read = 0;

  double hit_rate() const;
  double hit_rate(SwapPhase phase) const;
};

SwapPlan make_plan(const SwapWorkload& workload, cache::ReplacementPolicy policy,
                   uint64_t memory_bytes, const tier::DeviceProfile& device);

}  // namespace hifc::apps
