#include "flash/transfer_queue.h"

#include <fmt/format.h>
#include <limits.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hifc::flash {
namespace {

// Requests of 8 to 16 MiB: above the 4 MiB from which flash writes at full speed, and several of
// them in flight for a batch of the usual 16 MiB and more.
constexpr uint64_t kRequestBytes = 8u << 20;

// A read waits for at most this many writes ahead of it in the device; two keep it busy.
constexpr uint32_t kWritesInFlightMax = 4;

constexpr size_t kWaitingReadsMax = 1024;
constexpr size_t kWaitingWritesMax = 128;

uint64_t size_bytes(const std::vector<iovec>& vectors) {
  uint64_t bytes = 0;
  for (const iovec& vector : vectors) bytes += vector.iov_len;
  return bytes;
}

// Equal parts of kRequestBytes or more, so that no small remainder is left at the end.
uint64_t part_bytes(uint64_t total_bytes) {
  const uint64_t parts = std::max<uint64_t>(1, total_bytes / kRequestBytes);
  const uint64_t bytes = (total_bytes + parts - 1) / parts;
  return (bytes + io::kAlignment - 1) / io::kAlignment * io::kAlignment;
}

// Cuts the transfer's memory into requests of at most `limit_bytes` and IOV_MAX vectors.
std::vector<io::Request> split(const TransferQueue::Transfer& transfer, uint64_t limit_bytes) {
  std::vector<io::Request> requests;
  uint64_t offset = transfer.offset_bytes;
  uint64_t room = 0;
  for (iovec vector : transfer.vectors) {
    while (vector.iov_len > 0) {
      if (room == 0 || requests.back().vectors.size() == IOV_MAX) {
        requests.push_back(
            {.operation = transfer.operation, .file = transfer.file, .offset_bytes = offset});
        room = limit_bytes;
      }
      const size_t part = std::min<uint64_t>(vector.iov_len, room);
      requests.back().vectors.push_back({vector.iov_base, part});
      vector.iov_base = static_cast<std::byte*>(vector.iov_base) + part;
      vector.iov_len -= part;
      offset += part;
      room -= part;
    }
  }
  return requests;
}

}  // namespace

TransferQueue::Direction& TransferQueue::direction(io::Operation operation) {
  return operation == io::Operation::kRead ? reads_ : writes_;
}

Result<void> TransferQueue::admit(io::Operation operation) const {
  const bool read = operation == io::Operation::kRead;
  const size_t waiting = (read ? reads_ : writes_).waiting.size();
  if (waiting >= (read ? kWaitingReadsMax : kWaitingWritesMax))
    return failure(Code::kBusy, fmt::format("{} {} wait for the flash device", waiting,
                                            read ? "reads" : "writes"));
  if (reads_.in_flight + writes_.in_flight == 0 && ring_.in_flight() >= ring_.depth())
    return failure(Code::kBusy, "others have filled the ring of the flash device");
  return {};
}

void TransferQueue::start(Transfer transfer) {
  Direction& target = direction(transfer.operation);
  std::vector<io::Request> requests = split(transfer, part_bytes(size_bytes(transfer.vectors)));
  HIFC_CHECK(!requests.empty());
  auto job = std::make_shared<Job>();
  job->requests_left = static_cast<uint32_t>(requests.size());
  job->done = std::move(transfer.done);
  for (io::Request& request : requests) {
    request.done = [this, &target, job](Result<void> result) {
      finish(target, *job, std::move(result));
    };
    target.waiting.push_back(std::move(request));
  }
  pump();
}

void TransferQueue::pump() {
  while (ring_.in_flight() < ring_.depth()) {
    if (!reads_.waiting.empty())
      submit(reads_);
    else if (!writes_.waiting.empty() && writes_.in_flight < kWritesInFlightMax)
      submit(writes_);
    else
      return;
  }
}

void TransferQueue::submit(Direction& direction) {
  io::Request request = std::move(direction.waiting.front());
  direction.waiting.pop_front();
  ++direction.in_flight;
  ++direction.counts.requests;
  direction.counts.bytes += size_bytes(request.vectors);
  const Result<void> accepted = ring_.submit(std::move(request));
  HIFC_CHECK(accepted.has_value());  // it has room and the request is aligned
}

void TransferQueue::finish(Direction& direction, Job& job, Result<void> result) {
  --direction.in_flight;
  if (!result && job.outcome) job.outcome = std::move(result);
  // Before `done`, which may fill the ring: while something waits, something of ours is in flight.
  pump();
  if (--job.requests_left == 0) job.done(std::move(job.outcome));
}

void TransferQueue::drain() {
  while (reads_.in_flight + writes_.in_flight > 0) {
    const uint32_t completed = ring_.wait();
    HIFC_CHECK(completed > 0);
  }
}

}  // namespace hifc::flash
