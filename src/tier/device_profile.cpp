#include "tier/device_profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/hash.h"

namespace hifc::tier {
namespace {

struct Record {
  std::array<char, 8> magic = {'H', 'I', 'F', 'C', 'D', 'E', 'V', '\0'};
  uint32_t version = 1;
  uint32_t depth = 0;
  double fixed_s = 0, s_per_byte = 0, latency_s = 0;
  uint64_t checksum = 0;  // of the record with this field 0
};
static_assert(sizeof(Record) == 48);
static_assert(offsetof(Record, checksum) == 40);
static_assert(std::endian::native == std::endian::little);

std::array<std::byte, kDeviceRecordBytes> sealed(Record record) {
  std::array<std::byte, kDeviceRecordBytes> bytes = {};
  record.checksum = 0;
  std::memcpy(bytes.data(), &record, sizeof(record));
  record.checksum = hash64(bytes);
  std::memcpy(bytes.data(), &record, sizeof(record));
  return bytes;
}

bool plausible(const DeviceProfile& profile) {
  const auto time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0; };
  return time(profile.fixed_s) && time(profile.s_per_byte) && time(profile.latency_s) &&
         profile.depth > 0 && profile.fixed_s + profile.s_per_byte > 0;
}

bool fits(std::span<const ReadSample> samples) {
  const auto usable = [](const ReadSample& sample) {
    return sample.bytes > 0 && std::isfinite(sample.seconds) && sample.seconds > 0;
  };
  const auto differs = [&](const ReadSample& sample) {
    return sample.bytes != samples.front().bytes;
  };
  return std::ranges::all_of(samples, usable) && std::ranges::any_of(samples, differs);
}

}  // namespace

// Least squares of (fixed + bytes * s_per_byte) / seconds - 1. Where the unbounded optimum has a
// negative part, the bounded one has that part 0, since the error is convex.
std::optional<ReadCosts> fit_reads(std::span<const ReadSample> samples) {
  if (!fits(samples)) return std::nullopt;
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const ReadSample& sample : samples) {
    const double u = 1 / sample.seconds, v = static_cast<double>(sample.bytes) / sample.seconds;
    uu += u * u, uv += u * v, vv += v * v, u1 += u, v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  const double fixed_s = (u1 * vv - v1 * uv) / determinant;
  const double s_per_byte = (v1 * uu - u1 * uv) / determinant;
  if (fixed_s < 0) return ReadCosts{.fixed_s = 0, .s_per_byte = v1 / vv};
  if (s_per_byte < 0) return ReadCosts{.fixed_s = u1 / uu, .s_per_byte = 0};
  return ReadCosts{.fixed_s = fixed_s, .s_per_byte = s_per_byte};
}

std::array<std::byte, kDeviceRecordBytes> encode(const DeviceProfile& profile) {
  return sealed({.depth = profile.depth,
                 .fixed_s = profile.fixed_s,
                 .s_per_byte = profile.s_per_byte,
                 .latency_s = profile.latency_s});
}

std::optional<DeviceProfile> decode_device_profile(std::span<const std::byte> record) {
  if (record.size() != kDeviceRecordBytes) return std::nullopt;
  Record found;
  std::memcpy(&found, record.data(), sizeof(found));
  const DeviceProfile profile{.fixed_s = found.fixed_s,
                              .s_per_byte = found.s_per_byte,
                              .latency_s = found.latency_s,
                              .depth = found.depth};
  if (!plausible(profile) || !std::ranges::equal(encode(profile), record)) return std::nullopt;
  return profile;
}

}  // namespace hifc::tier
