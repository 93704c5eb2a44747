// Reads a segment file from its beginning to its end, waiting for each read: for opening a store
// and for checking one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "flash/format.h"
#include "io/memory.h"
#include "io/ring.h"

namespace hifc::flash {

// Submits the request and drives the ring until it is done. `memory` is kept until then even where
// the deadline passes first (kTimeout).
Result<void> transfer_now(io::Ring& ring, io::Request request, uint64_t deadline_ns,
                          std::shared_ptr<io::AlignedMemory> memory);

// Keeps a file, or what holds one, until the process ends and where it is: a request that did not
// finish in time still points to it. One thread at a time.
void keep_open(std::shared_ptr<const void> file);

class SegmentReader {
 public:
  struct Options {
    const io::File* file = nullptr;
    uint64_t size_bytes = 0;  // of the file
    uint64_t deadline_ns = 0;
  };
  SegmentReader(Options options, io::Ring& ring) : options_(options), ring_(ring) {}

  // `length` bytes at `offset`, both multiples of kPageBytes; valid until the next call. Reading on
  // from one call to the next costs one read in several MiB; elsewhere no more is read than that.
  // kCorrupt beyond the file's end.
  Result<std::span<const std::byte>> bytes(uint64_t offset, uint64_t length);

  // A read has passed its deadline: what looked like damage since then need not be any.
  bool timed_out() const { return timed_out_; }

  // kUnsupported or kCorrupt as decode_segment_header().
  Result<SegmentHeader> header();
  // Whose file it is, where header() says kCorrupt.
  enum class Origin : uint8_t {
    kForeign,
    kEmpty,      // ours by its name, without a byte
    kUnwritten,  // created, and nothing else
    kOutdated,   // a segment of an older layout version
    kDamaged,    // a segment of ours
  };
  Origin origin();
  // The checkpoint at the end of the file, if there is an intact one.
  std::optional<Checkpoint> checkpoint(const SegmentContext& segment);

  // A batch whose header is intact, at or after `offset` and before `end`; nothing when there is
  // none. Pages that are not part of one are skipped; those that cannot be read too.
  struct Found {
    uint64_t offset_bytes = 0;
    BatchContents contents;
  };
  std::optional<Found> next_batch(const SegmentContext& segment, uint64_t offset, uint64_t end);

  // Whether no batch of this segment can have been where none was found: everything could be read,
  // and the first page is not the beginning of a damaged one.
  bool surely_without(const SegmentContext& segment);

  // Calls `damaged` for each chunk of the batch that is not what was put, or cannot be read.
  using Damaged = std::function<void(size_t value, uint32_t lane)>;
  void verify(const Found& batch, const Damaged& damaged);

 private:
  Result<std::span<const std::byte>> beginning();

  Options options_;
  io::Ring& ring_;
  std::shared_ptr<io::AlignedMemory> window_;
  uint64_t window_begin_ = 0;
  uint64_t window_bytes_ = 0;
  bool timed_out_ = false;
  bool missed_ = false;  // some bytes could not be read
};

}  // namespace hifc::flash
