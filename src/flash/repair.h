// Changes to a store's directory without opening a store there: what is damaged goes, or the oldest
// segments do. Files that are not ours stay as they are.
//
// Each step is harmless on its own: a crash or an interruption between two leaves what a crash of a
// store may leave, and the next call goes on from there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flash/inspection.h"

namespace hifc::flash {

enum class Execution : uint8_t { kDryRun, kApply };

struct RemovedSegment {
  std::string file;
  uint64_t size_bytes = 0;
  // Current ones that went with it; nothing where its header is damaged, since the header has what
  // the records behind it are verified with.
  std::optional<uint64_t> values;
};

struct Repair {
  Inspection found;  // before
  std::vector<RemovedSegment> removed;
  std::vector<std::string> restored;    // files whose length was wrong
  std::vector<std::string> rewritten;   // files that got a new checkpoint
  std::vector<std::string> unrepaired;  // files and why
};

// Afterwards inspect() finds nothing damaged, and a store finds every value that was intact, but
// for files in `unrepaired`: those that the system does not let us read. Damaged values are left
// out of their segment's checkpoint; an older intact value under the same key is then found, unless
// the damaged one had been removed. A segment goes where its header is damaged, or where it was cut
// off and nothing intact is left. Reads with Depth::kPayload, whatever the options say.
Result<Repair> repair(Directory& directory, io::Ring& ring, InspectionOptions options,
                      Execution execution);

struct Trim {
  Inspection found;  // before
  std::vector<RemovedSegment> removed;
  uint64_t size_bytes_after = 0;
};

// Removes segments, in the order in which a store would retire them, until those left have at most
// `target_bytes`: more are left only where the system does not let us read them.
Result<Trim> trim(Directory& directory, io::Ring& ring, uint64_t target_bytes,
                  InspectionOptions options, Execution execution);

}  // namespace hifc::flash
