// What is in a store's directory, and what of it is damaged, without opening a store there. Reads
// only.
//
// Segments are read as recovery.h does, but nothing is left out: each entry of a checkpoint and of
// the batches found behind it is looked at, whether a store would still find its value or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "flash/directory.h"
#include "flash/format.h"
#include "io/ring.h"

namespace hifc::flash {

enum class Depth : uint8_t {
  kRecords,  // headers and checkpoints
  kPayload,  // also every chunk of every value
};

struct InspectionOptions {
  Depth depth = Depth::kRecords;
  bool direct = true;
  uint64_t deadline_ns = 10'000'000'000;
  const std::atomic<bool>* cancelled = nullptr;  // kCancelled soon after it becomes true
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
};

// Whether a value is the newest under its key.
enum class Fate : uint8_t { kCurrent, kReplaced, kRemoved };

struct DamagedValue {
  Key key = {};
  Fate fate = Fate::kCurrent;
  std::string file;
  uint64_t offset_bytes = 0;    // of its first damaged lane; of its batch where `lanes` is empty
  std::vector<uint32_t> lanes;  // empty: its batch header is damaged, so none can be verified
  std::string problem;
};

struct DamagedRecord {
  enum class Part : uint8_t { kFile, kSegmentHeader, kCheckpoint, kBatchHeader };
  Part part = Part::kFile;
  std::string file;
  uint64_t offset_bytes = 0;
  std::string problem;
};

struct InspectedEntry {
  CheckpointEntry entry = {};
  // The rest is of values.
  uint64_t size_bytes = 0;  // as put; 0 where the batch header is damaged
  Fate fate = Fate::kCurrent;
  bool damaged = false;
};

struct InspectedSegment {
  enum class State : uint8_t {
    kFree,        // never written
    kOpen,        // may get more batches; what is behind its checkpoint is scanned when opening
    kSealed,      // full
    kDamaged,     // ours, but its header is not readable: nothing in it can be found
    kUnreadable,  // the device or the file's mode says no; a store leaves it alone
  };

  uint32_t id = 0;   // of the file's name
  std::string file;  // its name in the directory
  uint64_t size_bytes = 0;
  State state = State::kFree;
  SegmentContext context;  // number 0: none
  uint64_t overwrites = 0;
  uint64_t covered_bytes = 0;  // by its checkpoint; 0: it has none
  uint64_t tail_bytes = 0;     // where the batches end
  std::vector<InspectedEntry> entries;
  bool supersedes = false;  // as Segment::supersedes

  bool whole() const { return context.number == 0 || size_bytes == context.size_bytes; }
  uint64_t values(Fate fate) const;
  uint64_t value_bytes() const;  // of current values
  uint64_t removals() const;
  uint64_t damaged_values() const;
  uint64_t scanned_bytes() const;  // of batches behind the checkpoint
};

struct Inspection {
  std::string path;
  std::vector<InspectedSegment> segments;  // oldest first; before them those without a number
  std::vector<std::string> foreign;        // names of files that are not ours
  std::vector<DamagedRecord> damaged_records;
  std::vector<DamagedValue> damaged_values;  // in the order of the log

  bool intact() const { return damaged_records.empty() && damaged_values.empty(); }
  bool damaged(const InspectedSegment& segment) const;
  uint64_t size_bytes() const;  // of all segments
};

// kUnsupported when a newer HiFC wrote one of the segments, kTimeout when the device does not
// answer.
Result<Inspection> inspect(Directory& directory, io::Ring& ring, const InspectionOptions& options);

std::string_view to_string(Fate fate);
std::string_view to_string(DamagedRecord::Part part);
std::string_view to_string(InspectedSegment::State state);

}  // namespace hifc::flash
