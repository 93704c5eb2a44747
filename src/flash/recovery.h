// What a directory holds when a store opens it.
//
// Each segment is read on its own: its header, then the checkpoint at its end, then, from where
// that one ends, the batches written since, whose payload is verified: after a power failure some
// of it may be missing. What is damaged is left out and counted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flash/directory.h"
#include "flash/segment.h"
#include "io/ring.h"

namespace hifc::flash {

struct RecoveryOptions {
  bool direct = true;
  uint64_t deadline_ns = 0;
};

struct Recovery {
  // With `entries` filled in, free ones too (damaged headers, files never written).
  std::vector<std::unique_ptr<Segment>> segments;
  uint64_t untouchable_bytes = 0;       // in files of ours that cannot be read
  std::vector<std::string> unreadable;  // their paths and why
  std::vector<std::string> foreign;     // files of others
  uint64_t damaged_headers = 0;
  uint64_t outdated = 0;        // segments of an older layout version, to be written anew
  uint64_t damaged_values = 0;  // of batches written after the last checkpoint
};

// kUnsupported, with nothing changed, when a newer HiFC wrote one of the segments. Writes
// nothing but the headers of unfinished segments, as they are.
Result<Recovery> recover(Directory& directory, io::Ring& ring, const RecoveryOptions& options);

}  // namespace hifc::flash
