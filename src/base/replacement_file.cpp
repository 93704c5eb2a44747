#include "base/replacement_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/text.h"

namespace hifc {
namespace {

// Names are taken by other threads of ours, and by what a process of the same number left behind
// when it was killed.
constexpr int kNamesMost = 1000;

}  // namespace

ReplacementFile::ReplacementFile(std::string path, std::string_view what)
    : path_(std::move(path)), what_(what) {}

ReplacementFile::ReplacementFile(ReplacementFile&& other) noexcept
    : path_(std::move(other.path_)),
      what_(std::move(other.what_)),
      name_(std::exchange(other.name_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

ReplacementFile::~ReplacementFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!name_.empty()) ::unlink(name_.c_str());
}

std::unexpected<Error> ReplacementFile::refused(int reason) const {
  return failure(Code::kIo, fmt::format("cannot write the {} {}", what_, quote(path_)), reason);
}

Result<ReplacementFile> ReplacementFile::create(std::string path, std::string_view what) {
  ReplacementFile file(std::move(path), what);
  struct stat status = {};
  if (lstat(file.path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    return failure(Code::kInvalid,
                   fmt::format("{} is not a file; accepted is the path of a {} to write",
                               quote(file.path_), what));
  HIFC_TRY(file.open());
  return file;
}

Result<void> ReplacementFile::open() {
  for (int i = 0; i < kNamesMost; ++i) {
    std::string name = fmt::format("{}.{}.{}", path_, ::getpid(), i);
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ >= 0) {
      name_ = std::move(name);
      return {};
    }
    if (errno != EEXIST) return refused(errno);
  }
  return refused(EEXIST);
}

Result<void> ReplacementFile::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refused(errno);
    text.remove_prefix(static_cast<size_t>(count));
  }
  return {};
}

// Synced first: otherwise a crash could leave the new name with none of its content.
Result<void> ReplacementFile::commit() {
  if (::fsync(descriptor_) != 0) return refused(errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) return refused(errno);
  if (std::rename(name_.c_str(), path_.c_str()) != 0) return refused(errno);
  name_.clear();
  return {};
}

}  // namespace hifc
