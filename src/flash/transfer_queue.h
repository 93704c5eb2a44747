// Large transfers over a ring: split into requests, queued when the ring is full, reads first, with
// a deadline for a device that does not answer.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/ring.h"

namespace hifc::flash {

class TransferQueue {
 public:
  using Done = std::move_only_function<void(Result<void>)>;
  using Released = std::move_only_function<void()>;

  struct Transfer {
    io::Operation operation = io::Operation::kRead;
    const io::File* file = nullptr;
    uint64_t offset_bytes = 0;
    std::vector<iovec> vectors;  // any number, of any length; none for kSync
    Done done;                   // runs once, when all of it is transferred or has failed
    // Runs once, after `done`: the device no longer uses memory nor file. Later than `done` only
    // after kTimeout.
    Released released = {};
  };

  struct Counts {
    uint64_t requests = 0, bytes = 0;  // issued
  };

  // `deadline_ns` of one request; 0: none. When one is late everything that waits fails as well,
  // and nothing is admitted until the device has answered.
  TransferQueue(io::Ring& ring, const Clock& clock, uint64_t deadline_ns)
      : ring_(ring), clock_(clock), deadline_ns_(deadline_ns) {}

  // kBusy when too much of this kind is waiting, or when others fill the ring and nothing of ours
  // is in flight: then no completion would ever submit what waits here. kTimeout while the device
  // does not answer.
  Result<void> admit(io::Operation operation) const;
  // admit() need not have agreed: what must follow an earlier transfer is always taken.
  void start(Transfer transfer);

  uint32_t poll();
  // As Store::wait() and wait_for().
  uint32_t wait();
  uint32_t wait_for(uint64_t timeout_ns);
  bool idle() const { return in_flight() == 0; }
  bool device_hangs() const { return late_ > 0; }
  // Nothing but requests that are late is left.
  bool only_late() const { return in_flight() == late_; }

  const Counts& reads() const { return reads_.counts; }
  const Counts& writes() const { return writes_.counts; }
  uint64_t syncs() const { return syncs_; }
  uint64_t timeouts() const { return timeouts_; }

 private:
  struct Job {
    uint32_t requests_left = 0;
    bool answered = false;  // `done` has run
    Result<void> outcome;   // the first error
    Done done;
    Released released;
  };
  struct Waiting {
    io::Request request;
    std::shared_ptr<Job> job;
  };
  struct Direction {
    std::deque<Waiting> waiting;
    uint32_t in_flight = 0;
    uint64_t in_flight_bytes = 0;
    Counts counts;
  };
  struct Flight {
    uint64_t deadline_ns = 0;
    uint64_t bytes = 0;
    bool late = false;
    std::shared_ptr<Job> job;
  };

  uint32_t in_flight() const { return reads_.in_flight + writes_.in_flight; }
  Direction& direction(io::Operation operation);
  void pump();
  bool may_write() const;
  void submit(Direction& direction);
  void finish(Direction& direction, std::list<Flight>::iterator flight, Result<void> result);
  uint32_t expire();
  uint64_t until_deadline_ns() const;
  uint32_t fail_waiting(Direction& direction);
  static void answer(Job& job, Result<void> outcome);
  static void finish_request(Job& job);

  io::Ring& ring_;
  const Clock& clock_;
  const uint64_t deadline_ns_;
  Direction reads_;
  Direction writes_;           // and syncs
  std::list<Flight> flights_;  // in the order of submission
  uint32_t late_ = 0;
  uint64_t syncs_ = 0;
  uint64_t timeouts_ = 0;
};

}  // namespace hifc::flash
