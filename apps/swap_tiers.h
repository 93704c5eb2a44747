// HiFC's own way in `hifc bench swap`: groups in the flash store, read into frames of the tiers,
// layer by layer, many reads at a time, and every checksum verified before a block counts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "apps/swap_plan.h"
#include "apps/swap_workload.h"
#include "base/clock.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "tier/tiers.h"

namespace hifc::apps {

class SwapTiers {
 public:
  struct Options {
    std::string directory;
    uint64_t memory_bytes = 0;  // for groups that stay
    uint32_t depth = 0;         // reads in flight
  };
  struct Reading {
    uint64_t bytes = 0;
    double seconds = 0;                  // of waiting, over all accesses
    std::vector<double> access_ms = {};  // of each access that had to read
  };
  // kCompare: with what was put too, which takes time.
  enum class Check : uint8_t { kChecksums, kCompare };

  // Puts all groups of the workload, which must outlive this object. `written` hears of the groups
  // so far.
  static Result<std::unique_ptr<SwapTiers>> create(const SwapWorkload& workload, Options options,
                                                   FunctionRef<void(uint32_t groups)> written);
  // Room that its store may take on flash.
  static uint64_t flash_bytes(const SwapWorkload& workload);

  // From an empty memory.
  Result<Reading> replay(const SwapPlan& plan, Check check);

  tier::Tiers& tiers() { return *tiers_; }

 private:
  struct Place {
    uint32_t group = 0, layer = 0;
  };

  SwapTiers(const SwapWorkload& workload, Options options);
  Result<void> open();
  Result<void> put_all(FunctionRef<void(uint32_t groups)> written);
  Result<void> put(uint32_t first, uint32_t count);
  Result<tier::FrameId> frame_to_fill();

  Result<void> read(const SwapStep& step, Check check);
  void start_reads(const SwapStep& step);
  bool start_run(const SwapStep& step);
  size_t run_length(const SwapStep& step) const;
  void verify_one(Check check);
  void release(uint32_t group);
  void release_all();
  void keep(Result<void> result);  // the first error

  uint32_t layers() const { return workload_.options().layers; }
  uint64_t block_bytes() const { return workload_.options().block_bytes; }
  tier::FrameId& frame(Place place) { return frames_[place.group * layers() + place.layer]; }

  const SwapWorkload& workload_;
  const Options options_;
  SystemClock clock_;
  std::unique_ptr<tier::Tiers> tiers_;
  std::vector<flash::Handle> handles_;  // [group]; go before the tiers
  std::vector<tier::FrameId> frames_;   // [group][layer]
  std::vector<bool> kept_;              // [group] whether its blocks stay once they are verified
  std::vector<std::byte> expected_;
  struct Cursor {
    uint32_t layer = 0;
    size_t index = 0;  // of step.read
  } cursor_;
  std::deque<Place> arrived_;  // not yet verified
  uint32_t in_flight_ = 0;
  Result<void> outcome_;
};

}  // namespace hifc::apps
