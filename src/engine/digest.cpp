#include "engine/digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace hifc::engine {
namespace {

constexpr uint64_t kPieceBytes = 16 << 20;
// Stays in a core's second-level cache between being read and being hashed.
constexpr uint64_t kReadBytes = 1 << 20;
// A file that is still being copied changes all the time; one that was touched once does not again.
constexpr int kAttempts = 2;
// As git takes it for its index: file systems with whole seconds are in use.
constexpr int64_t kSettledNs = 2'000'000'000;

struct Record {
  std::array<char, 8> magic = {'H', 'I', 'F', 'C', 'D', 'I', 'G', '\0'};
  uint32_t version = 1;
  uint32_t reserved = 0;
  uint64_t device = 0, inode = 0, size_bytes = 0;
  int64_t mtime_ns = 0, ctime_ns = 0, hashed_at_ns = 0;
  kv::Fingerprint digest = {};
};
static_assert(sizeof(Record) == 96);

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int value() const { return value_; }

 private:
  int value_;
};

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int64_t now_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now);
}

std::unexpected<Error> unreadable(const std::string& path, int number) {
  const Code code = number == ENOENT ? Code::kNotFound : Code::kIo;
  return failure(code, fmt::format("'{}' cannot be read", path), number);
}

Result<FileIdentity> identity_of(const struct stat& status, const std::string& path) {
  if (!S_ISREG(status.st_mode))
    return failure(Code::kInvalid, fmt::format("'{}' is not a regular file", path));
  return FileIdentity{.device = status.st_dev,
                      .inode = status.st_ino,
                      .size_bytes = static_cast<uint64_t>(status.st_size),
                      .mtime_ns = nanoseconds(status.st_mtim),
                      .ctime_ns = nanoseconds(status.st_ctim)};
}

class FileDigest {
 public:
  FileDigest(int file, const std::string& path, Parallel& parallel, const DigestOptions& options)
      : file_(file),
        path_(path),
        parallel_(parallel),
        options_(options),
        buffers_(parallel.threads()) {}

  // Empty when the file changed meanwhile.
  Result<std::optional<CachedDigest>> attempt() {
    const int64_t begin_ns = now_ns();
    HIFC_ASSIGN(const FileIdentity before, identify());
    HIFC_ASSIGN(const bool complete, read_pieces(before.size_bytes));
    HIFC_ASSIGN(const FileIdentity after, identify());
    if (!complete || before != after) return std::nullopt;
    return CachedDigest{.file = before, .hashed_at_ns = begin_ns, .digest = root(before)};
  }

 private:
  Result<FileIdentity> identify() const {
    struct stat status = {};
    if (::fstat(file_, &status) != 0) return unreadable(path_, errno);
    return identity_of(status, path_);
  }

  // False when the file has become shorter. In rounds, so that progress and errors come in between.
  Result<bool> read_pieces(uint64_t size_bytes) {
    const uint64_t count = (size_bytes + kPieceBytes - 1) / kPieceBytes;
    const uint64_t round = uint64_t{parallel_.threads()} * 2;
    pieces_.assign(count, std::optional<kv::Fingerprint>());
    for (uint64_t first = 0; first < count; first += round) {
      const uint64_t end = std::min(count, first + round);
      HIFC_TRY(read_round(first, end, size_bytes));
      for (uint64_t piece = first; piece < end; ++piece)
        if (!pieces_[piece]) return false;
      if (options_.progress) options_.progress(std::min(end * kPieceBytes, size_bytes), size_bytes);
    }
    return true;
  }

  Result<void> read_round(uint64_t first, uint64_t end, uint64_t size_bytes) {
    std::vector<Result<void>> outcomes(end - first);
    parallel_.run(static_cast<uint32_t>(end - first), [&](uint32_t index, uint32_t thread) {
      outcomes[index] = read_piece(first + index, size_bytes, buffers_[thread]);
    });
    for (const Result<void>& outcome : outcomes) HIFC_TRY(outcome);
    return {};
  }

  Result<void> read_piece(uint64_t piece, uint64_t size_bytes, std::vector<std::byte>& buffer) {
    buffer.resize(kReadBytes);
    const uint64_t end = std::min(size_bytes, (piece + 1) * kPieceBytes);
    kv::DigestStream stream;
    for (uint64_t offset = piece * kPieceBytes; offset < end;) {
      if (options_.cancelled != nullptr && *options_.cancelled)
        return failure(Code::kCancelled, fmt::format("reading '{}' was cancelled", path_));
      const size_t wanted = std::min(kReadBytes, end - offset);
      const ssize_t got = ::pread(file_, buffer.data(), wanted, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unreadable(path_, errno);
      if (got == 0) return {};
      stream.update(std::span(buffer).first(static_cast<size_t>(got)));
      offset += static_cast<uint64_t>(got);
    }
    pieces_[piece] = stream.finish();
    return {};
  }

  kv::Fingerprint root(const FileIdentity& file) const {
    std::vector<std::byte> bytes(sizeof file.size_bytes);
    std::memcpy(bytes.data(), &file.size_bytes, sizeof file.size_bytes);
    for (const auto& piece : pieces_) bytes.insert(bytes.end(), piece->begin(), piece->end());
    return kv::keyed_digest("hifc/file", bytes);
  }

  const int file_;
  const std::string& path_;
  Parallel& parallel_;
  const DigestOptions& options_;
  std::vector<std::vector<std::byte>> buffers_;         // [threads]
  std::vector<std::optional<kv::Fingerprint>> pieces_;  // empty: not read to its end
};

}  // namespace

Result<FileIdentity> identify_file(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return unreadable(path, errno);
  return identity_of(status, path);
}

Result<CachedDigest> digest_file(const std::string& path, Parallel& parallel,
                                 const DigestOptions& options) {
  const Descriptor file(path);
  if (file.value() < 0) return unreadable(path, errno);
  FileDigest digest(file.value(), path, parallel, options);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    HIFC_ASSIGN(const std::optional<CachedDigest> done, digest.attempt());
    if (done) return *done;
  }
  return failure(Code::kBusy, fmt::format("'{}' changes while it is read", path));
}

kv::Fingerprint combine_digests(std::span<const kv::Fingerprint> files) {
  if (files.size() == 1) return files[0];
  return kv::keyed_digest("hifc/files", std::as_bytes(files));
}

bool trustworthy(const CachedDigest& cached, const FileIdentity& now) {
  int64_t settled_ns = 0;
  if (__builtin_sub_overflow(cached.hashed_at_ns, cached.file.ctime_ns, &settled_ns)) return false;
  return cached.file == now && settled_ns > kSettledNs;
}

kv::GroupKey digest_record_key(const FileIdentity& file) {
  const std::array<uint64_t, 5> name = {file.device, file.inode, file.size_bytes,
                                        static_cast<uint64_t>(file.mtime_ns),
                                        static_cast<uint64_t>(file.ctime_ns)};
  return kv::record_key("file-digest", std::as_bytes(std::span(name)));
}

std::array<std::byte, kDigestRecordBytes> encode(const CachedDigest& cached) {
  const Record record = {.device = cached.file.device,
                         .inode = cached.file.inode,
                         .size_bytes = cached.file.size_bytes,
                         .mtime_ns = cached.file.mtime_ns,
                         .ctime_ns = cached.file.ctime_ns,
                         .hashed_at_ns = cached.hashed_at_ns,
                         .digest = cached.digest};
  std::array<std::byte, kDigestRecordBytes> bytes = {};
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

std::optional<CachedDigest> decode_digest(std::span<const std::byte> bytes) {
  if (bytes.size() != kDigestRecordBytes) return std::nullopt;
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  const CachedDigest cached = {.file = {.device = record.device,
                                        .inode = record.inode,
                                        .size_bytes = record.size_bytes,
                                        .mtime_ns = record.mtime_ns,
                                        .ctime_ns = record.ctime_ns},
                               .hashed_at_ns = record.hashed_at_ns,
                               .digest = record.digest};
  // Covers the magic, the version and the padding.
  if (!std::ranges::equal(bytes, encode(cached))) return std::nullopt;
  return cached;
}

}  // namespace hifc::engine
