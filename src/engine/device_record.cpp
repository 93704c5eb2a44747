#include "engine/device_record.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <span>

#include "base/log.h"
#include "engine/records.h"

namespace hifc::engine {

static_assert(tier::kDeviceRecordBytes == kRecordBytes);

// The device's number may be another one after a restart, and another device may have it then; the
// file system's identity is most often its own.
Result<kv::GroupKey> device_record_key(const std::string& directory) {
  struct stat status = {};
  struct statvfs system = {};
  if (stat(directory.c_str(), &status) != 0 || statvfs(directory.c_str(), &system) != 0)
    return failure(Code::kIo, fmt::format("cannot ask for the device of {}", directory), errno);
  const std::array<uint64_t, 2> name = {status.st_dev, system.f_fsid};
  return kv::record_key("device-profile", std::as_bytes(std::span(name)));
}

Result<tier::DeviceProfile> device_profile(tier::Tiers& tiers, const std::string& directory,
                                           const Clock& clock, const tier::ProbeOptions& options) {
  HIFC_ASSIGN(const kv::GroupKey key, device_record_key(directory));
  if (const auto record = read_record(tiers, key)) {
    const auto known = tier::decode_device_profile(*record);
    if (known && known->depth == options.depth) return *known;
  }
  HIFC_ASSIGN(const tier::DeviceProfile measured,
              tier::probe_device(directory, *tiers.ring(), clock, options));
  if (const auto written = write_record(tiers, key, tier::encode(measured)); !written)
    log_debug("the device's profile is not recorded: {}", written.error().message());
  return measured;
}

}  // namespace hifc::engine
