#include "testing/sim_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "io/transfer.h"

namespace hifc::testing {
namespace {

void run(io::Transfer& transfer) {
  while (!transfer.advance(io::transfer_blocking(transfer))) continue;
}

uint64_t size_bytes(std::span<const iovec> vectors) {
  uint64_t bytes = 0;
  for (const iovec& vector : vectors) bytes += vector.iov_len;
  return bytes;
}

// Moves only the first half of the request's pages; what comes of it does not matter.
void run_half(const io::Request& request) {
  io::Request half{
      .operation = request.operation, .file = request.file, .offset_bytes = request.offset_bytes};
  uint64_t left = size_bytes(request.vectors) / 2 / io::kAlignment * io::kAlignment;
  for (iovec vector : request.vectors) {
    vector.iov_len = std::min<uint64_t>(vector.iov_len, left);
    left -= vector.iov_len;
    if (vector.iov_len > 0) half.vectors.push_back(vector);
  }
  if (half.vectors.empty()) return;
  io::Transfer transfer(std::move(half));
  run(transfer);
}

void flip_bit(std::span<const iovec> vectors, uint64_t bit) {
  uint64_t byte = bit / 8;
  for (const iovec& vector : vectors) {
    if (byte < vector.iov_len) {
      static_cast<std::byte*>(vector.iov_base)[byte] ^= std::byte{1} << (bit % 8);
      return;
    }
    byte -= vector.iov_len;
  }
}

bool applies(Fault fault, io::Operation operation) {
  switch (fault) {
    case Fault::kNone: return false;
    case Fault::kIoError: return true;
    case Fault::kShortRead:
    case Fault::kBitFlip: return operation == io::Operation::kRead;
    case Fault::kNoSpace:
    case Fault::kTornWrite: return operation == io::Operation::kWrite;
  }
  return false;
}

Error injected_error(const io::Request& request, Fault fault) {
  const int system_errno = fault == Fault::kIoError ? EIO : fault == Fault::kNoSpace ? ENOSPC : 0;
  return {.code = Code::kIo,
          .system_errno = system_errno,
          .context = fmt::format("injected fault at {} of {}", request.offset_bytes,
                                 request.file->path())};
}

}  // namespace

SimRing::SimRing(FaultPlan plan, uint32_t depth)
    : plan_(std::move(plan)), random_(plan_.seed), depth_(depth) {}

SimRing::~SimRing() {
  while (in_flight() > 0) wait();
}

void SimRing::set_plan(FaultPlan plan) {
  plan_ = std::move(plan);
}

Result<void> SimRing::submit(io::Request request) {
  HIFC_TRY(io::validate(request));
  if (in_flight() == depth_)
    return failure(Code::kBusy, fmt::format("{} requests are in flight already", depth_));
  const uint64_t delay = plan_.delay_polls_max == 0 ? 0 : random_() % (plan_.delay_polls_max + 1);
  held_.push_back({std::move(request), polls_ + 1 + delay});
  return {};
}

// Completions submit further requests: those are due in a later poll, so that one poll ends.
uint32_t SimRing::poll() {
  ++polls_;
  uint32_t completed = 0;
  while (true) {
    std::vector<size_t> due;
    for (size_t i = 0; i < held_.size(); ++i)
      if (held_[i].due_poll <= polls_) due.push_back(i);
    if (due.empty()) return completed;
    const size_t index = due[plan_.delay_polls_max == 0 ? 0 : random_() % due.size()];
    io::Request request = std::move(held_[index].request);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
    execute(std::move(request));
    ++completed;
  }
}

uint32_t SimRing::wait() {
  uint32_t completed = 0;
  while (completed == 0 && in_flight() > 0) completed = poll();
  return completed;
}

bool SimRing::happens(double chance) {
  // The top 53 bits as a fraction: the same on every system, which <random>'s distributions are
  // not.
  return chance > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < chance;
}

Fault SimRing::choose_fault(const io::Request& request) {
  if (plan_.choose) {
    const Fault fault = plan_.choose(request);
    if (applies(fault, request.operation)) return fault;
  }
  switch (request.operation) {
    case io::Operation::kRead:
      if (happens(plan_.read_error)) return Fault::kIoError;
      if (happens(plan_.short_read)) return Fault::kShortRead;
      if (happens(plan_.bit_flip)) return Fault::kBitFlip;
      return Fault::kNone;
    case io::Operation::kWrite:
      if (happens(plan_.write_error)) return Fault::kIoError;
      if (happens(plan_.no_space)) return Fault::kNoSpace;
      if (happens(plan_.torn_write)) return Fault::kTornWrite;
      return Fault::kNone;
    case io::Operation::kSync: return happens(plan_.sync_error) ? Fault::kIoError : Fault::kNone;
  }
  return Fault::kNone;
}

void SimRing::execute(io::Request request) {
  const Fault fault = choose_fault(request);
  ++injected_[static_cast<size_t>(fault)];
  if (fault == Fault::kNoSpace || fault == Fault::kShortRead || fault == Fault::kTornWrite)
    run_half(request);
  const std::vector<iovec> memory = request.vectors;  // a transfer uses up its own
  Error error = injected_error(request, fault);

  io::Transfer transfer(std::move(request));
  if (fault == Fault::kNone || fault == Fault::kBitFlip)
    run(transfer);
  else if (fault != Fault::kTornWrite)  // which claims success
    transfer.fail(std::move(error));
  if (fault == Fault::kBitFlip) flip_bit(memory, random_() % (size_bytes(memory) * 8));
  transfer.complete(statistics_);
}

}  // namespace hifc::testing
