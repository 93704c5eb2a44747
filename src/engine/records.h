// Small records beside the stored KV: digests of model files, measured speeds. A record is a value
// of kRecordBytes under kv::record_key(). One that is absent, damaged or late is simply not there.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/key.h"
#include "tier/tiers.h"

namespace hifc::engine {

inline constexpr size_t kRecordBytes = 4096;

// Waits for the device.
std::optional<std::vector<std::byte>> read_record(tier::Tiers& tiers, const kv::GroupKey& key);

// Waits until it is on the device; it replaces an earlier one. `record` has kRecordBytes.
Result<void> write_record(tier::Tiers& tiers, const kv::GroupKey& key,
                          std::span<const std::byte> record);

}  // namespace hifc::engine
