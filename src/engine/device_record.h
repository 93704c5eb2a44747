// What reads of the flash device cost, measured once for each device and kept in the store.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "kv/key.h"
#include "tier/device_probe.h"
#include "tier/device_profile.h"
#include "tier/tiers.h"

namespace hifc::engine {

// Of the file system that `directory` lies on: a store that was moved to another device has no
// record of that one. kIo where the directory cannot be asked.
Result<kv::GroupKey> device_record_key(const std::string& directory);

// The record of the store in `directory`, if it is of as many reads in flight, or what
// tier::probe_device() measures now, which is then recorded. Fails as the probe does. Nothing may
// be in flight.
Result<tier::DeviceProfile> device_profile(tier::Tiers& tiers, const std::string& directory,
                                           const Clock& clock,
                                           const tier::ProbeOptions& options = {});

}  // namespace hifc::engine
