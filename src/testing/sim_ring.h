// SimRing: a Ring that misbehaves on purpose, the same way for the same seed.
//
// Data lives in real files; requests are held back and executed one by one inside poll() and
// wait(), in an order and with the faults that the plan draws from its seed. Nothing runs on
// another thread and nothing depends on the clock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "io/ring.h"

namespace hifc::testing {

enum class Fault : uint8_t {
  kNone,
  kIoError,    // EIO; nothing is transferred (reads, writes, syncs)
  kNoSpace,    // ENOSPC; the first half of the pages is written (writes)
  kShortRead,  // the first half of the pages arrives, then the file ends (reads)
  kBitFlip,    // success, with one bit of the memory flipped (reads)
  kTornWrite,  // success, but only the first half of the pages is on the device (writes)
};

struct FaultPlan {
  uint64_t seed = 1;

  // Chance of each fault per request of the kind it applies to; drawn in this order.
  double read_error = 0, write_error = 0, sync_error = 0;
  double no_space = 0, short_read = 0, bit_flip = 0, torn_write = 0;

  // Every request is held back for 0 to this many polls, so that later ones overtake it.
  // 0: in order, all in the next poll.
  uint32_t delay_polls_max = 0;

  // Asked first for each request when it executes; Fault::kNone leaves it to the chances above. A
  // fault that does not apply to the operation is ignored.
  std::function<Fault(const io::Request&)> choose = {};
};

class SimRing final : public io::Ring {
 public:
  explicit SimRing(FaultPlan plan, uint32_t depth = 32);
  ~SimRing() override;

  // The faults from now on; the random sequence goes on.
  void set_plan(FaultPlan plan);
  // How often a fault of this kind has been injected.
  uint64_t injected(Fault fault) const { return injected_[static_cast<size_t>(fault)]; }

  std::string_view name() const override { return "simulated"; }
  bool register_memory(std::span<std::byte>) override { return true; }
  Result<void> submit(io::Request request) override;
  uint32_t in_flight() const override { return static_cast<uint32_t>(held_.size()); }
  uint32_t depth() const override { return depth_; }
  uint32_t poll() override;
  uint32_t wait() override;
  const io::RingStatistics& statistics() const override { return statistics_; }

 private:
  struct Held {
    io::Request request;
    uint64_t due_poll = 0;
  };

  bool happens(double chance);
  Fault choose_fault(const io::Request& request);
  void execute(io::Request request);

  FaultPlan plan_;
  std::mt19937_64 random_;
  uint32_t depth_;
  uint64_t polls_ = 0;
  std::vector<Held> held_;
  std::array<uint64_t, 6> injected_ = {};
  io::RingStatistics statistics_;
};

}  // namespace hifc::testing
