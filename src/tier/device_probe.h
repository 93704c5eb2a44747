// Measures a DeviceProfile: reads of several sizes, at random, with a full queue, past the page
// cache; in a fraction of a second.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "io/ring.h"
#include "tier/device_profile.h"

namespace hifc::tier {

struct ProbeOptions {
  uint32_t depth = 16;  // reads in flight
  // Of measuring, once what is to be read is there. A device for which it is too short gets the
  // time that each size needs once.
  uint64_t budget_ns = 300'000'000;
  uint64_t deadline_ns = 2'000'000'000;         // kTimeout when no read completes for so long
  uint64_t scratch_bytes = 64u << 20;           // what is written to be read
  uint64_t free_space_floor_bytes = 64u << 20;  // stays free on the file system
  uint64_t seed = 1;                            // of the places that are read
};

// Writes a file without a name in `directory`, which is gone when the process ends, however it
// ends, and reads from it. Nothing of anybody else may be in flight on the ring. kFull where there
// is no room for the file, kUnsupported where the file system answers from memory, since O_DIRECT
// does not work there.
Result<DeviceProfile> probe_device(const std::string& directory, io::Ring& ring, const Clock& clock,
                                   const ProbeOptions& options = {});

// Reads from a file that holds at least `scratch_bytes`, all of them written.
Result<DeviceProfile> probe_file(std::shared_ptr<const io::File> file, io::Ring& ring,
                                 const Clock& clock, const ProbeOptions& options = {});

}  // namespace hifc::tier
