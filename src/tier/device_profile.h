// What a read of the flash device costs, as measured: the price by which a read planner chooses
// between a page, a merged range and a whole block, and replacement between items.
//
// Pure data; device_probe.h measures it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace hifc::tier {

// Reads of one size with a full queue: the time they took together, divided by their number.
struct ReadSample {
  uint64_t bytes = 0;  // of one read
  double seconds = 0;  // for each read
};

struct DeviceProfile {
  // With `depth` reads in flight each one more takes fixed_s + bytes * s_per_byte.
  double fixed_s = 0;
  double s_per_byte = 0;
  double latency_s = 0;  // of one page, with nothing else in flight
  uint32_t depth = 0;

  bool known() const { return s_per_byte > 0; }
  double read_seconds(uint64_t bytes) const {
    return fixed_s + static_cast<double>(bytes) * s_per_byte;
  }
  // Bytes that take as long as a read costs besides its bytes: gaps shorter than this are cheaper
  // read through than left out.
  double break_even_bytes() const { return s_per_byte > 0 ? fixed_s / s_per_byte : 0; }

  bool operator==(const DeviceProfile&) const = default;
};

// The line through the samples that is wrong by the least share of each, so that small reads count
// as much as large ones; neither of its parts is negative. Empty where fewer than two sizes were
// measured or a sample has no bytes or no time.
struct ReadCosts {
  double fixed_s = 0;
  double s_per_byte = 0;
};
std::optional<ReadCosts> fit_reads(std::span<const ReadSample> samples);

// A record for a store: versioned, checksummed, zero-padded.
inline constexpr size_t kDeviceRecordBytes = 4096;
std::array<std::byte, kDeviceRecordBytes> encode(const DeviceProfile& profile);
// Empty unless `record` is what encode() wrote of a profile that can have been measured, whatever
// its bytes and its length.
std::optional<DeviceProfile> decode_device_profile(std::span<const std::byte> record);

}  // namespace hifc::tier
