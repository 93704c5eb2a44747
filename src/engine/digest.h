// Content digests of model files, and how long one may be believed without reading the file again.
//
// The functions keep no state; the cache of digests is the caller's. Believing a cached one costs a
// stat. What that cannot notice: a change through a memory mapping that the system has not written
// back yet, and one made past the file system or with the system's clock set back on purpose.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/parallel.h"
#include "base/result.h"
#include "kv/key.h"

namespace hifc::engine {

// Differs between two files, and before and after a change of one.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t mtime_ns = 0;  // of the system's real-time clock
  int64_t ctime_ns = 0;

  bool operator==(const FileIdentity&) const = default;
};

struct CachedDigest {
  FileIdentity file;
  int64_t hashed_at_ns = 0;  // when hashing began, by the same clock
  kv::Fingerprint digest = {};

  bool operator==(const CachedDigest&) const = default;
};

struct DigestOptions {
  // On the calling thread; begins again where the file changed and is read once more.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress = {};
  const std::atomic<bool>* cancelled = nullptr;  // kCancelled soon after it is true
};

// kNotFound or kIo with the path; kInvalid for what is not a regular file.
Result<FileIdentity> identify_file(const std::string& path);

// Reads the whole file, 1 MiB at a time on each thread: BLAKE2b-256 over the digests of pieces of
// 16 MiB and the length. Fails as identify_file() does, and with kBusy when the file changes again
// and again while it is read.
Result<CachedDigest> digest_file(const std::string& path, Parallel& parallel,
                                 const DigestOptions& options = {});

// Of a model in several files; of one file, its own.
kv::Fingerprint combine_digests(std::span<const kv::Fingerprint> files);

// Whether `cached` is still the digest of the file that is `now`. Not if the file had just been
// changed when it was read: one more change within the clock's granularity would have left equal
// times.
bool trustworthy(const CachedDigest& cached, const FileIdentity& now);

// A record for a store: its key, and its bytes (versioned, zero-padded).
inline constexpr size_t kDigestRecordBytes = 4096;
kv::GroupKey digest_record_key(const FileIdentity& file);
std::array<std::byte, kDigestRecordBytes> encode(const CachedDigest& cached);
// Empty unless `record` is what encode() wrote, whatever its bytes and its length.
std::optional<CachedDigest> decode_digest(std::span<const std::byte> record);

}  // namespace hifc::engine
