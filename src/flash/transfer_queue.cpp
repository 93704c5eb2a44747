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
constexpr uint32_t kWritesBesideReadsMax = 4;
// Where nothing is read, as much as covers the time until this thread looks again: with 16 MiB a
// drive of 2.5 GB/s ran dry at times. A quarter of the ring stays free for reads that come.
constexpr uint64_t kWriteBytesMax = 64u << 20;

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
  if (transfer.operation == io::Operation::kSync)
    requests.push_back({.operation = transfer.operation, .file = transfer.file});
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
  if (device_hangs()) return failure(Code::kTimeout, "the flash device does not answer");
  if (waiting >= (read ? kWaitingReadsMax : kWaitingWritesMax))
    return failure(Code::kBusy, fmt::format("{} {} wait for the flash device", waiting,
                                            read ? "reads" : "writes"));
  if (in_flight() == 0 && ring_.in_flight() >= ring_.depth())
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
  job->released = std::move(transfer.released);
  for (io::Request& request : requests) target.waiting.push_back({std::move(request), job});
  pump();
}

void TransferQueue::pump() {
  while (ring_.in_flight() < ring_.depth() && !device_hangs()) {
    if (!reads_.waiting.empty())
      submit(reads_);
    else if (!writes_.waiting.empty() && may_write())
      submit(writes_);
    else
      return;
  }
}

bool TransferQueue::may_write() const {
  if (writes_.in_flight < kWritesBesideReadsMax) return true;
  return reads_.in_flight == 0 && writes_.in_flight < ring_.depth() - ring_.depth() / 4 &&
         writes_.in_flight_bytes < kWriteBytesMax;
}

void TransferQueue::submit(Direction& direction) {
  Waiting next = std::move(direction.waiting.front());
  direction.waiting.pop_front();
  ++direction.in_flight;
  const uint64_t bytes = size_bytes(next.request.vectors);
  if (next.request.operation == io::Operation::kSync)
    ++syncs_;
  else
    ++direction.counts.requests;
  direction.counts.bytes += bytes;
  direction.in_flight_bytes += bytes;
  const uint64_t deadline = deadline_ns_ == 0 ? UINT64_MAX : clock_.now_ns() + deadline_ns_;
  const auto flight = flights_.insert(
      flights_.end(),
      {.deadline_ns = deadline, .bytes = bytes, .late = false, .job = std::move(next.job)});
  next.request.done = [this, &direction, flight](Result<void> result) {
    finish(direction, flight, std::move(result));
  };
  const Result<void> accepted = ring_.submit(std::move(next.request));
  HIFC_CHECK(accepted.has_value());  // it has room and the request is aligned
}

void TransferQueue::finish(Direction& direction, std::list<Flight>::iterator flight,
                           Result<void> result) {
  const std::shared_ptr<Job> job = std::move(flight->job);
  if (flight->late) --late_;
  direction.in_flight_bytes -= flight->bytes;
  flights_.erase(flight);
  --direction.in_flight;
  if (!result && job->outcome) job->outcome = std::move(result);
  // Before `done`, which may fill the ring: while something waits, something of ours is in flight.
  pump();
  finish_request(*job);
}

void TransferQueue::finish_request(Job& job) {
  if (--job.requests_left > 0) return;
  answer(job, std::move(job.outcome));
  if (job.released) job.released();
}

void TransferQueue::answer(Job& job, Result<void> outcome) {
  if (!std::exchange(job.answered, true)) job.done(std::move(outcome));
}

uint32_t TransferQueue::expire() {
  if (flights_.empty() || flights_.front().deadline_ns == UINT64_MAX) return 0;
  const uint64_t now_ns = clock_.now_ns();
  // Callbacks may change the list: the jobs first.
  std::vector<std::shared_ptr<Job>> jobs;
  for (Flight& flight : flights_) {
    if (flight.deadline_ns > now_ns) break;
    if (std::exchange(flight.late, true)) continue;
    ++late_;
    if (!flight.job->answered) jobs.push_back(flight.job);
  }
  for (const std::shared_ptr<Job>& job : jobs) {
    if (!job->answered) ++timeouts_;
    answer(*job, failure(Code::kTimeout, "the flash device did not answer in time"));
  }
  auto failed = static_cast<uint32_t>(jobs.size());
  if (device_hangs()) failed += fail_waiting(reads_) + fail_waiting(writes_);
  return failed;
}

uint32_t TransferQueue::fail_waiting(Direction& direction) {
  uint32_t failed = 0;
  for (; !direction.waiting.empty(); ++failed) {
    const std::shared_ptr<Job> job = std::move(direction.waiting.front().job);
    direction.waiting.pop_front();
    if (job->outcome) job->outcome = failure(Code::kTimeout, "the flash device does not answer");
    if (!job->answered) {
      ++timeouts_;
      answer(*job, job->outcome);
    }
    finish_request(*job);
  }
  return failed;
}

uint32_t TransferQueue::poll() {
  const uint32_t completed = ring_.poll();
  return completed + expire();
}

// What is late already has no deadline any more.
uint64_t TransferQueue::until_deadline_ns() const {
  for (const Flight& flight : flights_) {
    if (flight.late || flight.deadline_ns == UINT64_MAX) continue;
    const uint64_t now_ns = clock_.now_ns();
    return flight.deadline_ns > now_ns ? flight.deadline_ns - now_ns : 1;
  }
  return io::Ring::kForever;
}

uint32_t TransferQueue::wait_for(uint64_t timeout_ns) {
  const uint32_t completed = poll();
  if (completed > 0 || ring_.in_flight() == 0) return completed;
  return ring_.wait_for(std::min(timeout_ns, until_deadline_ns())) + expire();
}

uint32_t TransferQueue::wait() {
  uint32_t completed = poll();
  while (completed == 0 && ring_.in_flight() > 0) {
    const uint64_t timeout_ns = until_deadline_ns();
    if (timeout_ns == io::Ring::kForever && only_late() && late_ > 0) return 0;
    completed = ring_.wait_for(timeout_ns) + expire();
  }
  return completed;
}

}  // namespace hifc::flash
