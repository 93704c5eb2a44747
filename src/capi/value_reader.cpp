#include "capi/value_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"

namespace hifc::capi {
namespace {

// Large enough for the drive's full speed, small enough that the memory for unaligned targets
// stays small: one piece for each request in flight.
constexpr uint64_t kPieceBytes = 1u << 20;

// Below this, one read with a copy is cheaper than up to three without.
constexpr uint64_t kDirectBytesMin = 64u << 10;

constexpr uint64_t round_down(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}
constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return round_down(value + multiple - 1, multiple);
}

}  // namespace

std::optional<uint64_t> ReadRequest::bytes_to_read(uint64_t value_bytes) const {
  const uint64_t room = target.size();
  if (extent == Extent::kWhole)
    return value_bytes <= room ? std::optional(value_bytes) : std::nullopt;
  const bool inside = offset_bytes <= value_bytes && room <= value_bytes - offset_bytes;
  return inside ? std::optional(room) : std::nullopt;
}

// A request and how far it is.
struct ValueReader::Job {
  ReadRequest* request = nullptr;
  Done done;
  flash::Handle handle;
  std::span<std::byte> target;  // the bytes that are read
  uint64_t pieces_left = 0;
  bool damaged = false;
  std::optional<Error> error;  // the first
};

struct ValueReader::Piece {
  std::shared_ptr<Job> job;
  flash::Range range;           // whole chunks
  uint64_t skip_bytes = 0;      // what of the range comes before the target's bytes
  std::span<std::byte> target;  // the whole range where it is read directly
  bool direct = false;
  io::AlignedMemory copy;  // where it is not
  Result<void> outcome;

  std::byte* memory() const { return direct ? target.data() : copy.data(); }
};

void ValueReader::add(ReadRequest& request, Done done) {
  auto job = std::make_shared<Job>();
  job->request = &request;
  job->done = std::move(done);
  waiting_.push_back(std::move(job));
}

void ValueReader::advance() {
  while (in_flight_ < in_flight_max_) {
    if (!pieces_.empty()) {
      if (!start_piece()) return;
    } else if (!waiting_.empty() && !held_) {
      if (!start_job()) return;
    } else {
      return;
    }
  }
}

// False when the store is busy.
bool ValueReader::start_job() {
  const std::shared_ptr<Job> job = waiting_.front();
  ++started_;
  ++in_flight_;
  const Result<void> accepted = store_.pin(job->request->key, [this, job](flash::Handle handle) {
    --in_flight_;
    pinned(job, std::move(handle));
  });
  if (accepted) {
    waiting_.pop_front();
    return true;
  }
  --in_flight_;
  if (accepted.error().code == Code::kBusy) {
    --started_;
    return false;
  }
  waiting_.pop_front();
  job->error = accepted.error();
  finish(*job);
  return true;
}

void ValueReader::pinned(const std::shared_ptr<Job>& job, flash::Handle handle) {
  ReadRequest& request = *job->request;
  request.result = ReadResult{};
  if (!handle) return finish(*job);
  request.result = ReadResult{.found = true, .value_bytes = handle.size_bytes()};
  job->target = request.target.first(request.bytes_to_read(handle.size_bytes()).value_or(0));
  job->handle = std::move(handle);
  if (job->target.empty()) return finish(*job);
  split(job);
}

// Lanes follow each other in the value.
void ValueReader::split(const std::shared_ptr<Job>& job) {
  const ReadRequest& request = *job->request;
  uint64_t begin = request.extent == ReadRequest::Extent::kRange ? request.offset_bytes : 0;
  std::span<std::byte> target = job->target;
  for (uint32_t lane = 0; !target.empty(); ++lane) {
    const uint64_t skipped = std::min(begin, job->handle.lane_bytes(lane));
    const uint64_t bytes =
        std::min<uint64_t>(target.size(), job->handle.lane_bytes(lane) - skipped);
    if (bytes > 0) split_lane(job, lane, skipped, target.first(bytes));
    target = target.subspan(bytes);
    begin -= skipped;
  }
}

// `begin`: offset within the lane of what goes to `target`.
void ValueReader::split_lane(const std::shared_ptr<Job>& job, uint32_t lane, uint64_t begin,
                             std::span<std::byte> target) {
  const uint64_t chunk = job->handle.chunk_bytes();
  const uint64_t lane_bytes = job->handle.lane_bytes(lane);
  const uint64_t step = std::max(chunk, round_down(kPieceBytes, chunk));
  const uint64_t end = begin + target.size();
  // Whole chunks that can be read where they belong; what comes before and after is copied.
  const uint64_t body_begin = round_up(begin, chunk);
  const uint64_t body_end = end == lane_bytes ? end : round_down(end, chunk);
  const bool direct = body_end >= body_begin + kDirectBytesMin &&
                      io::is_aligned(target.data() + (body_begin - begin));
  for (uint64_t from = begin; from < end;) {
    const bool in_body = direct && from >= body_begin && from < body_end;
    uint64_t limit = in_body ? body_end : end;
    if (direct && from < body_begin) limit = body_begin;
    const uint64_t range_begin = round_down(from, chunk);
    const uint64_t to = std::min(limit, range_begin + step);
    const uint64_t range_end = std::min(round_up(to, chunk), lane_bytes);
    auto piece = std::make_shared<Piece>();
    piece->job = job;
    piece->range = {
        .lane = lane, .offset_bytes = range_begin, .size_bytes = range_end - range_begin};
    piece->skip_bytes = from - range_begin;
    piece->target = target.subspan(from - begin, to - from);
    piece->direct = in_body;
    pieces_.push_back(std::move(piece));
    ++job->pieces_left;
    from = to;
  }
}

// False when the store is busy.
bool ValueReader::start_piece() {
  const std::shared_ptr<Piece> piece = pieces_.front();
  Result<void> accepted;
  if (!piece->direct && piece->copy.data() == nullptr) {
    auto memory = io::AlignedMemory::allocate(piece->range.size_bytes);
    if (memory)
      piece->copy = std::move(*memory);
    else
      accepted = std::unexpected(std::move(memory).error());
  }
  // After a timeout the device still has the memory: ours lives on with the piece, the caller's
  // must not be given back.
  ++in_flight_;
  if (accepted)
    accepted = store_.read(
        piece->job->handle, piece->range, piece->memory(),
        [this, piece](Result<void> outcome) {
          piece->outcome = std::move(outcome);
          if (!piece->direct) finish(*piece);
        },
        [this, piece] {
          if (piece->direct) finish(*piece);
        });
  if (!accepted && accepted.error().code == Code::kBusy) {
    --in_flight_;
    return false;
  }
  pieces_.pop_front();
  if (accepted) return true;
  piece->outcome = std::move(accepted);
  finish(*piece);
  return true;
}

void ValueReader::finish(Piece& piece) {
  --in_flight_;
  Job& job = *piece.job;
  if (!piece.outcome) {
    if (!job.error) job.error = piece.outcome.error();
  } else if (!store_.verify(job.handle, piece.range, {piece.memory(), piece.range.size_bytes})) {
    job.damaged = true;
  } else if (!piece.direct) {
    std::memcpy(piece.target.data(), piece.copy.data() + piece.skip_bytes, piece.target.size());
  }
  HIFC_CHECK(job.pieces_left > 0);
  if (--job.pieces_left == 0) finish(job);
}

void ValueReader::finish(Job& job) {
  --started_;
  ReadRequest& request = *job.request;
  if (job.damaged) {
    store_.quarantine(job.handle);
    request.result = ReadResult{};
  }
  if (job.error) request.result = std::unexpected(*job.error);
  // Bytes that are not known to be right never reach the caller.
  if (job.damaged || job.error) std::ranges::fill(job.target, std::byte{0});
  job.handle = {};
  job.request = nullptr;  // may be gone as soon as `done` has run
  job.done();
}

}  // namespace hifc::capi
