// Large transfers over a ring: split into requests, queued when the ring is full, reads first.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "io/ring.h"

namespace hifc::flash {

class TransferQueue {
 public:
  using Done = std::move_only_function<void(Result<void>)>;

  struct Transfer {
    io::Operation operation = io::Operation::kRead;
    const io::File* file = nullptr;
    uint64_t offset_bytes = 0;
    std::vector<iovec> vectors;  // any number, of any length
    Done done;                   // runs once, when all of it is transferred or has failed
  };

  struct Counts {
    uint64_t requests = 0, bytes = 0;  // issued
  };

  explicit TransferQueue(io::Ring& ring) : ring_(ring) {}

  // kBusy when too much of this kind is waiting, or when others fill the ring and nothing of ours
  // is in flight: then no completion would ever submit what waits here.
  Result<void> admit(io::Operation operation) const;
  // admit() must have agreed.
  void start(Transfer transfer);
  // Waits until nothing is in flight or waiting.
  void drain();

  const Counts& reads() const { return reads_.counts; }
  const Counts& writes() const { return writes_.counts; }

 private:
  struct Job {
    uint32_t requests_left = 0;
    Result<void> outcome;  // the first error
    Done done;
  };
  struct Direction {
    std::deque<io::Request> waiting;
    uint32_t in_flight = 0;
    Counts counts;
  };

  Direction& direction(io::Operation operation);
  void pump();
  void submit(Direction& direction);
  void finish(Direction& direction, Job& job, Result<void> result);

  io::Ring& ring_;
  Direction reads_;
  Direction writes_;
};

}  // namespace hifc::flash
