// A request on its way through a backend: what is left of it and how it ended. Internal to io and
// to the simulated ring of the tests.
#pragma once

#include <cstdint>
#include <span>

#include "io/ring.h"

namespace hifc::io {

// The rules that every backend enforces at submission: kInvalid names the one that is broken.
Result<void> validate(const Request& request);

class Transfer {
 public:
  // Joins vectors that are neighbours in memory: fewer segments for the kernel, and a run that
  // fills consecutive frames becomes one vector, which registered buffers need.
  explicit Transfer(Request request);

  Operation operation() const { return request_.operation; }
  const File& file() const { return *request_.file; }

  // What is left to transfer.
  uint64_t offset_bytes() const { return request_.offset_bytes + done_bytes_; }
  std::span<const iovec> vectors() const { return std::span(request_.vectors).subspan(first_); }

  // Takes in the kernel's answer for what was left: bytes moved, or a negative errno. True when the
  // request is over; false when the rest is to be submitted (a short transfer, EAGAIN, EINTR).
  bool advance(int64_t answer);

  // Ends the request with `error`, whatever is left of it.
  void fail(Error error) { outcome_ = std::unexpected(std::move(error)); }

  // Counts the request and runs its completion. Once, on the ring's own thread.
  void complete(RingStatistics& statistics);

 private:
  bool advance_bytes(uint64_t bytes);
  void skip_vectors(uint64_t bytes);
  Error error(int system_errno, std::string_view what) const;

  Request request_;
  size_t first_ = 0;  // vectors before it are transferred
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
  Result<void> outcome_;
};

// Issues what is left of the transfer with a blocking system call; gives advance()'s argument.
int64_t transfer_blocking(const Transfer& transfer);

}  // namespace hifc::io
