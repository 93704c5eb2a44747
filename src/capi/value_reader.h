// Reads values and ranges of them from a flash store: any offset and any memory, verified.
//
// A range is read in pieces of whole chunks, straight into its target where that is aligned, else
// into memory of this class and copied. Of all requests together at most a given number of pieces
// are in flight.
//
// Thread-compatible; everything runs on the thread of the store, completions inside its poll().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "flash/store.h"
#include "io/memory.h"

namespace hifc::capi {

struct ReadResult {
  bool found = false;
  uint64_t value_bytes = 0;  // the size of the value, whether or not the target has room for it
};

struct ReadRequest {
  enum class Extent : uint8_t {
    kWhole,  // the value, if the target has room for it
    kRange,  // exactly as many bytes as the target has, if the value has them
  };

  flash::Key key = {};
  Extent extent = Extent::kWhole;
  uint64_t offset_bytes = 0;  // kRange
  std::span<std::byte> target;

  // Of a value that was found, what there is to copy; nothing where target or range do not fit.
  std::optional<uint64_t> bytes_to_read(uint64_t value_bytes) const;

  // Set when the request is finished. Damaged values are not found; the target of one, and of a
  // read that failed, holds zeros.
  Result<ReadResult> result;
};

class ValueReader {
 public:
  using Done = std::move_only_function<void()>;

  ValueReader(flash::Store& store, uint32_t in_flight_max)
      : store_(store), in_flight_max_(in_flight_max) {}

  // The request and its target must live until `done` runs.
  void add(ReadRequest& request, Done done);
  // Starts what there is room for.
  void advance();

  // While held, requests that have not been started wait; those that have go on.
  void hold() { held_ = true; }
  void resume() { held_ = false; }
  // Whether requests have been started and not finished: they pin segments of the store.
  bool pins_segments() const { return started_ > 0; }
  bool idle() const { return started_ == 0 && waiting_.empty(); }

 private:
  struct Job;
  struct Piece;

  bool start_job();
  bool start_piece();
  void pinned(const std::shared_ptr<Job>& job, flash::Handle handle);
  void split(const std::shared_ptr<Job>& job);
  void split_lane(const std::shared_ptr<Job>& job, uint32_t lane, uint64_t begin,
                  std::span<std::byte> target);
  void finish(Piece& piece);
  void finish(Job& job);

  flash::Store& store_;
  const uint32_t in_flight_max_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::deque<std::shared_ptr<Piece>> pieces_;  // to be read
  uint32_t in_flight_ = 0;                     // pins and pieces
  uint64_t started_ = 0;                       // jobs
  bool held_ = false;
};

}  // namespace hifc::capi
