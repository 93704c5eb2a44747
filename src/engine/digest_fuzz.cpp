// Feeds the decoders of the engine's records (digests of model files, measured speeds) what they
// might find in a store.
//
// Strategy: an input is arbitrary bytes of any length, or a record as it is encoded with some of
// its bytes replaced.
// Invariants: what decodes as a digest encodes to the same bytes again; a speed is a number that
// can be divided by, or 0.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/digest.h"
#include "engine/resume.h"

namespace {

using hifc::engine::CachedDigest;

void expect(bool condition) {
  if (!condition) std::abort();
}

CachedDigest digest_from(FuzzedDataProvider& data) {
  CachedDigest digest = {.file = {.device = data.ConsumeIntegral<uint64_t>(),
                                  .inode = data.ConsumeIntegral<uint64_t>(),
                                  .size_bytes = data.ConsumeIntegral<uint64_t>(),
                                  .mtime_ns = data.ConsumeIntegral<int64_t>(),
                                  .ctime_ns = data.ConsumeIntegral<int64_t>()},
                         .hashed_at_ns = data.ConsumeIntegral<int64_t>()};
  data.ConsumeData(digest.digest.data(), digest.digest.size());
  return digest;
}

std::vector<std::byte> record_from(FuzzedDataProvider& data) {
  if (data.ConsumeBool()) {
    const size_t length = data.ConsumeIntegralInRange<size_t>(0, 2 * hifc::engine::kRecordBytes);
    auto record = data.ConsumeRemainingBytes<std::byte>();
    record.resize(length);
    return record;
  }
  const auto encoded = data.ConsumeBool()
                           ? hifc::engine::encode(digest_from(data))
                           : hifc::engine::encode_speed(data.ConsumeFloatingPoint<double>());
  std::vector<std::byte> record(encoded.begin(), encoded.end());
  const size_t at = data.ConsumeIntegralInRange<size_t>(0, 127);
  const auto replaced = data.ConsumeRemainingBytes<std::byte>();
  std::copy_n(replaced.begin(), std::min(replaced.size(), record.size() - at), record.begin() + at);
  return record;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  const std::vector<std::byte> record = record_from(data);
  if (const auto digest = hifc::engine::decode_digest(record)) {
    expect(std::ranges::equal(hifc::engine::encode(*digest), record));
    expect(digest == hifc::engine::decode_digest(record));
    (void)hifc::engine::trustworthy(*digest, digest->file);
  }
  const double speed = hifc::engine::decode_speed(record);
  expect(speed >= 0 && std::isfinite(speed));
  return 0;
}
