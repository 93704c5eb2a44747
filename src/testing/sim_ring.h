// SimRing: a Ring that misbehaves on purpose, the same way for the same seed.
//
// Data lives in real files, or in those of a SimDisk; requests are held back and executed one by
// one inside poll() and the waits, in an order and with the faults that the plan draws from its
// seed. Nothing runs on another thread and nothing depends on the machine's clock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "io/ring.h"
#include "io/transfer.h"
#include "testing/sim_clock.h"
#include "testing/sim_disk.h"
#include "testing/sim_random.h"

namespace hifc::testing {

enum class Fault : uint8_t {
  kNone,
  kIoError,    // EIO; nothing is transferred (all); after a sync, see SimFile::fail_sync()
  kNoSpace,    // ENOSPC; the first half of the pages is written (writes)
  kShortRead,  // the first half of the pages arrives, then the file ends (reads)
  kBitFlip,    // success, with one bit of the memory flipped (reads)
  kTornWrite,  // success, but only the first half of the pages is on the device (writes)
  kLostWrite,  // success, with nothing written (writes)
  // Success, with the bytes of another aligned place of the file. Where the transfer is as long as
  // the file there is no other place, and it goes where it should.
  kMisdirectedWrite,
  kMisdirectedRead,
  kHang,  // does not complete before release_hung(), and then as it should (all)
};

struct FaultPlan {
  uint64_t seed = 1;

  // Chance of each fault per request of the kind it applies to; drawn in this order.
  double read_error = 0, write_error = 0, sync_error = 0;
  double no_space = 0, short_read = 0, bit_flip = 0, torn_write = 0;
  double lost_write = 0, misdirected_write = 0, misdirected_read = 0;
  double hang = 0;  // of any kind

  // Every request is held back for 0 to this many polls, so that later ones overtake it.
  // 0: in order, all in the next poll.
  uint32_t delay_polls_max = 0;

  // Asked first for each request when it executes; Fault::kNone leaves it to the chances above. A
  // fault that does not apply to the operation is ignored.
  std::function<Fault(const io::Request&)> choose = {};
};

struct SimRingOptions {
  uint32_t depth = 32;
  SimDisk* disk = nullptr;    // which all files are on; hears of every transfer
  SimClock* clock = nullptr;  // which polls and waits move on
};

class SimRing final : public io::Ring, private SimDisk::Source {
 public:
  static constexpr uint64_t kPollNs = 1000;  // what a poll takes, for the clock and for timeouts

  explicit SimRing(FaultPlan plan, uint32_t depth = 32)
      : SimRing(std::move(plan), SimRingOptions{.depth = depth}) {}
  SimRing(FaultPlan plan, SimRingOptions options);
  ~SimRing() override;

  // The faults from now on; the random sequence goes on.
  void set_plan(FaultPlan plan);
  // How often a fault of this kind has been injected.
  uint64_t injected(Fault fault) const { return injected_[static_cast<size_t>(fault)]; }

  uint32_t hung() const { return static_cast<uint32_t>(hung_.size()); }
  // Lets what hangs complete in the next poll. The destructor does so too.
  void release_hung();

  std::string_view name() const override { return "simulated"; }
  bool register_memory(std::span<std::byte>) override { return true; }
  Result<void> submit(io::Request request) override;
  uint32_t in_flight() const override { return static_cast<uint32_t>(held_.size() + hung_.size()); }
  uint32_t depth() const override { return options_.depth; }
  uint32_t poll() override;
  // Where only hung requests are left, the simulated time passes at once; waiting for them for ever
  // is a defect of the caller.
  uint32_t wait_for(uint64_t timeout_ns) override;
  const io::RingStatistics& statistics() const override { return statistics_; }

 private:
  struct Held {
    io::Request request;
    uint64_t due_poll = 0;
    uint64_t ticket = 0;    // of the disk
    bool released = false;  // hung before: no further faults
  };

  void each_pending_write(FunctionRef<void(const io::Request&)> visit) override;
  uint32_t complete_due();
  Fault choose_fault(const Held& held);
  Fault draw_fault(io::Operation operation);
  bool reachable(const io::File& file) const;
  bool execute(Held held);
  void disturb(Held& held, Fault fault);
  void run(io::Transfer& transfer, uint64_t ticket);
  void run_half(const io::Request& request);
  void misdirect(io::Request& request);

  FaultPlan plan_;
  SimRandom random_;
  SimRingOptions options_;
  uint64_t polls_ = 0;
  std::vector<Held> held_;
  std::vector<Held> hung_;
  std::array<uint64_t, 10> injected_ = {};  // [Fault]
  io::RingStatistics statistics_;
};

}  // namespace hifc::testing
