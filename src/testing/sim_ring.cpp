#include "testing/sim_ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace hifc::testing {
namespace {

uint64_t size_bytes(std::span<const iovec> vectors) {
  uint64_t bytes = 0;
  for (const iovec& vector : vectors) bytes += vector.iov_len;
  return bytes;
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
    case Fault::kIoError:
    case Fault::kHang: return true;
    case Fault::kShortRead:
    case Fault::kBitFlip:
    case Fault::kMisdirectedRead: return operation == io::Operation::kRead;
    case Fault::kNoSpace:
    case Fault::kTornWrite:
    case Fault::kLostWrite:
    case Fault::kMisdirectedWrite: return operation == io::Operation::kWrite;
  }
  return false;
}

bool fails(Fault fault) {
  return fault == Fault::kIoError || fault == Fault::kNoSpace || fault == Fault::kShortRead;
}

Error injected_error(const io::Request& request, Fault fault) {
  const int system_errno = fault == Fault::kIoError ? EIO : fault == Fault::kNoSpace ? ENOSPC : 0;
  return {.code = Code::kIo,
          .system_errno = system_errno,
          .context = fmt::format("injected fault at {} of {}", request.offset_bytes,
                                 request.file->path())};
}

}  // namespace

SimRing::SimRing(FaultPlan plan, SimRingOptions options)
    : plan_(std::move(plan)), random_(plan_.seed), options_(options) {
  if (options_.disk != nullptr) options_.disk->attach(*this);
}

SimRing::~SimRing() {
  while (in_flight() > 0) {
    release_hung();
    poll();
  }
  if (options_.disk != nullptr) options_.disk->detach(*this);
}

void SimRing::set_plan(FaultPlan plan) {
  plan_ = std::move(plan);
}

Result<void> SimRing::submit(io::Request request) {
  HIFC_TRY(io::validate(request));
  if (in_flight() == depth())
    return failure(Code::kBusy, fmt::format("{} requests are in flight already", depth()));
  const uint64_t delay =
      plan_.delay_polls_max == 0 ? 0 : random_.below(uint64_t{plan_.delay_polls_max} + 1);
  const uint64_t ticket = options_.disk == nullptr ? 0 : options_.disk->begin(request);
  held_.push_back(
      {.request = std::move(request), .due_poll = polls_ + 1 + delay, .ticket = ticket});
  return {};
}

void SimRing::release_hung() {
  for (Held& held : hung_) {
    held.due_poll = polls_ + 1;
    held.released = true;
    held_.push_back(std::move(held));
  }
  hung_.clear();
}

void SimRing::each_pending_write(FunctionRef<void(const io::Request&)> visit) {
  for (const std::vector<Held>* requests : {&held_, &hung_})
    for (const Held& held : *requests)
      if (held.request.operation == io::Operation::kWrite) visit(held.request);
}

uint32_t SimRing::poll() {
  ++polls_;
  if (options_.clock != nullptr) options_.clock->advance_ns(kPollNs);
  return complete_due();
}

// Completions submit further requests: those are due in a later poll, so that one poll ends.
uint32_t SimRing::complete_due() {
  uint32_t completed = 0;
  while (true) {
    std::vector<size_t> due;
    for (size_t i = 0; i < held_.size(); ++i)
      if (held_[i].due_poll <= polls_) due.push_back(i);
    if (due.empty()) return completed;
    const size_t index = due[plan_.delay_polls_max == 0 ? 0 : random_.below(due.size())];
    Held held = std::move(held_[index]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
    if (execute(std::move(held))) ++completed;
  }
}

uint32_t SimRing::wait_for(uint64_t timeout_ns) {
  uint64_t left_ns = timeout_ns;
  uint32_t completed = 0;
  while (completed == 0 && !held_.empty()) {
    completed = poll();
    if (completed > 0 || timeout_ns == kForever) continue;
    if (left_ns <= kPollNs) return 0;
    left_ns -= kPollNs;
  }
  if (completed > 0 || hung_.empty()) return completed;
  HIFC_CHECK(timeout_ns != kForever);
  if (options_.clock != nullptr) options_.clock->advance_ns(left_ns);
  return 0;
}

Fault SimRing::choose_fault(const Held& held) {
  if (held.released) return Fault::kNone;
  if (plan_.choose) {
    const Fault fault = plan_.choose(held.request);
    if (applies(fault, held.request.operation)) return fault;
  }
  const Fault fault = draw_fault(held.request.operation);
  return fault == Fault::kNone && random_.happens(plan_.hang) ? Fault::kHang : fault;
}

Fault SimRing::draw_fault(io::Operation operation) {
  switch (operation) {
    case io::Operation::kRead:
      if (random_.happens(plan_.read_error)) return Fault::kIoError;
      if (random_.happens(plan_.short_read)) return Fault::kShortRead;
      if (random_.happens(plan_.bit_flip)) return Fault::kBitFlip;
      if (random_.happens(plan_.misdirected_read)) return Fault::kMisdirectedRead;
      return Fault::kNone;
    case io::Operation::kWrite:
      if (random_.happens(plan_.write_error)) return Fault::kIoError;
      if (random_.happens(plan_.no_space)) return Fault::kNoSpace;
      if (random_.happens(plan_.torn_write)) return Fault::kTornWrite;
      if (random_.happens(plan_.lost_write)) return Fault::kLostWrite;
      if (random_.happens(plan_.misdirected_write)) return Fault::kMisdirectedWrite;
      return Fault::kNone;
    case io::Operation::kSync:
      return random_.happens(plan_.sync_error) ? Fault::kIoError : Fault::kNone;
  }
  return Fault::kNone;
}

// The transfer itself, as far as the disk lets it happen.
void SimRing::run(io::Transfer& transfer, uint64_t ticket) {
  const int reason = options_.disk == nullptr ? 0 : options_.disk->prepare(transfer, ticket);
  if (reason != 0) {
    transfer.advance(-reason);
    return;
  }
  while (!transfer.advance(io::transfer_blocking(transfer))) continue;
}

// Moves only the first half of the request's pages; what comes of it does not matter.
void SimRing::run_half(const io::Request& request) {
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
  run(transfer, 0);
}

// Another page of the file to begin at, such that the file does not grow.
void SimRing::misdirect(io::Request& request) {
  const uint64_t file_bytes = request.file->size_bytes().value_or(0);
  const uint64_t bytes = size_bytes(request.vectors);
  if (file_bytes < bytes + io::kAlignment) return;
  const uint64_t places = (file_bytes - bytes) / io::kAlignment + 1;
  const uint64_t right = request.offset_bytes / io::kAlignment;
  const uint64_t wrong =
      right < places ? (right + 1 + random_.below(places - 1)) % places : random_.below(places);
  request.offset_bytes = wrong * io::kAlignment;
}

// What a fault does besides deciding how the request ends.
void SimRing::disturb(Held& held, Fault fault) {
  switch (fault) {
    case Fault::kNoSpace:
    case Fault::kShortRead:
    case Fault::kTornWrite: return run_half(held.request);
    case Fault::kMisdirectedRead:
    case Fault::kMisdirectedWrite: return misdirect(held.request);
    case Fault::kIoError:
      if (held.request.operation == io::Operation::kSync && options_.disk != nullptr)
        options_.disk->sync_failed(*held.request.file, held.ticket);
      return;
    case Fault::kNone:
    case Fault::kBitFlip:
    case Fault::kLostWrite:
    case Fault::kHang: return;
  }
}

bool SimRing::reachable(const io::File& file) const {
  return options_.disk == nullptr || options_.disk->reachable(file);
}

// False when it hangs.
bool SimRing::execute(Held held) {
  // The dead neither choose nor hang.
  const Fault fault = reachable(*held.request.file) ? choose_fault(held) : Fault::kNone;
  ++injected_[static_cast<size_t>(fault)];
  if (fault == Fault::kHang) {
    hung_.push_back(std::move(held));
    return false;
  }
  disturb(held, fault);
  const std::vector<iovec> memory = held.request.vectors;  // a transfer uses up its own
  Error error = injected_error(held.request, fault);

  io::Transfer transfer(std::move(held.request));
  if (fails(fault))
    transfer.fail(std::move(error));
  else if (fault != Fault::kTornWrite && fault != Fault::kLostWrite)  // which claim success
    run(transfer, held.ticket);
  else if (!reachable(transfer.file()))
    transfer.advance(-EIO);  // the power went in the middle of it
  if (fault == Fault::kBitFlip) flip_bit(memory, random_.below(size_bytes(memory) * 8));
  transfer.complete(statistics_);
  return true;
}

}  // namespace hifc::testing
