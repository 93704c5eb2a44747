#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "io/ring.h"

namespace hifc::io {
namespace {

int flags_of(File::Mode mode) {
  switch (mode) {
    case File::Mode::kReadOnly: return O_RDONLY | O_CLOEXEC;
    case File::Mode::kReadWrite: return O_RDWR | O_CLOEXEC;
    case File::Mode::kCreate: return O_RDWR | O_CREAT | O_CLOEXEC;
  }
  return O_RDONLY | O_CLOEXEC;
}

// Some file systems take O_DIRECT in open() and refuse it in the first transfer, or want more than
// kAlignment: one read of one page finds out.
bool direct_reads_work(int descriptor) {
  void* page = std::aligned_alloc(kAlignment, kAlignment);
  if (page == nullptr) return false;
  const ssize_t bytes = pread(descriptor, page, kAlignment, 0);
  const bool refused = bytes < 0 && errno == EINVAL;
  std::free(page);
  return !refused;
}

}  // namespace

Result<File> File::open(const std::string& path, Options options) {
  const int flags = flags_of(options.mode);
  constexpr mode_t kOwnerOnly = 0600;
  if (options.direct) {
    const int descriptor = ::open(path.c_str(), flags | O_DIRECT, kOwnerOnly);
    if (descriptor >= 0 && direct_reads_work(descriptor)) return File(descriptor, true, path);
    if (descriptor >= 0) ::close(descriptor);
    if (descriptor < 0 && errno != EINVAL && errno != EOPNOTSUPP)
      return failure(errno == ENOENT ? Code::kNotFound : Code::kIo,
                     fmt::format("cannot open {}", path), errno);
  }
  const int descriptor = ::open(path.c_str(), flags, kOwnerOnly);
  if (descriptor < 0)
    return failure(errno == ENOENT ? Code::kNotFound : Code::kIo,
                   fmt::format("cannot open {}", path), errno);
  return File(descriptor, false, path);
}

// Not every file system knows O_TMPFILE; without it a name is there for a moment.
Result<File> File::create_unnamed(const std::string& directory) {
  int descriptor = ::open(directory.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = directory + "/hifc-unnamed-XXXXXX";
    descriptor = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor >= 0) unlink(name.c_str());
  }
  if (descriptor < 0)
    return failure(Code::kIo, fmt::format("cannot create a file in {}", directory), errno);
  const int flags = fcntl(descriptor, F_GETFL);
  const bool direct =
      fcntl(descriptor, F_SETFL, flags | O_DIRECT) == 0 && direct_reads_work(descriptor);
  if (!direct) fcntl(descriptor, F_SETFL, flags);
  return File(descriptor, direct, fmt::format("a file without a name in {}", directory));
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(direct_, other.direct_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<uint64_t> File::size_bytes() const {
  struct stat status = {};
  if (fstat(descriptor_, &status) != 0)
    return failure(Code::kIo, fmt::format("cannot read the size of {}", path_), errno);
  return static_cast<uint64_t>(status.st_size);
}

Result<void> File::truncate(uint64_t size_bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(size_bytes)) != 0)
    return failure(errno == ENOSPC ? Code::kFull : Code::kIo,
                   fmt::format("cannot resize {} to {} bytes", path_, size_bytes), errno);
  return {};
}

}  // namespace hifc::io
