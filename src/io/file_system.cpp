#include "io/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace hifc::io {
namespace {

std::unexpected<Error> refused(std::string_view verb, const std::string& path, int system_errno) {
  const Code code = system_errno == ENOENT                             ? Code::kNotFound
                    : system_errno == ENOSPC || system_errno == EDQUOT ? Code::kFull
                                                                       : Code::kIo;
  return failure(code, fmt::format("cannot {} {}", verb, path), system_errno);
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// Without a final slash, which would make the directory its own parent.
std::filesystem::path parent_of(const std::string& path) {
  std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  if (whole.filename().empty()) whole = whole.parent_path();
  return whole.parent_path().empty() ? "." : whole.parent_path();
}

// Whether the file that `descriptor` has open is still the one under `path`.
bool same_file(int descriptor, const std::string& path) {
  struct stat opened = {}, named = {};
  return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

class SystemLock final : public FileLock {
 public:
  SystemLock(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~SystemLock() override {
    // Removed while still locked: whoever waits for this file finds that it is no longer the one.
    unlink(path_.c_str());
  }

 private:
  Descriptor descriptor_;
  std::string path_;
};

class SystemFiles final : public FileSystem {
 public:
  Result<bool> create_directory(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  Result<File> open(const std::string& path, File::Options options) override;
  Result<File> create(const std::string& path, uint64_t size_bytes, bool direct) override;
  Result<void> remove(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<uint64_t> free_bytes(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;
};

Result<bool> SystemFiles::create_directory(const std::string& path) {
  constexpr mode_t kOwnerOnly = 0700;
  int reason = mkdir(path.c_str(), kOwnerOnly) == 0 ? 0 : errno;
  if (reason == ENOENT && !path.empty()) {
    HIFC_TRY(create_directory(parent_of(path)));
    reason = mkdir(path.c_str(), kOwnerOnly) == 0 ? 0 : errno;
  }
  if (reason == EEXIST) {
    std::error_code unreadable;
    if (!std::filesystem::is_directory(path, unreadable)) reason = ENOTDIR;
    if (reason == EEXIST) return false;
  }
  if (reason != 0) return refused("create the directory", path, reason);
  HIFC_TRY(sync_directory(parent_of(path)));
  return true;
}

Result<void> SystemFiles::remove_directory(const std::string& path) {
  if (rmdir(path.c_str()) != 0) return refused("remove the directory", path, errno);
  return {};
}

Result<std::vector<DirectoryEntry>> SystemFiles::list(const std::string& path) {
  std::vector<DirectoryEntry> entries;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    struct stat status = {};
    // A file may be removed while we list.
    if (lstat(entry->path().c_str(), &status) != 0 && errno == ENOENT) continue;
    const bool regular = S_ISREG(status.st_mode);
    entries.push_back({.name = entry->path().filename(),
                       .regular = regular,
                       .size_bytes = regular ? static_cast<uint64_t>(status.st_size) : 0});
  }
  if (error) return refused("list", path, error.value());
  return entries;
}

Result<File> SystemFiles::open(const std::string& path, File::Options options) {
  return File::open(path, options);
}

// Created without O_DIRECT: a file system that refuses the flag may leave the file behind.
Result<File> SystemFiles::create(const std::string& path, uint64_t size_bytes, bool direct) {
  const Descriptor created(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (created.get() < 0) return refused("create", path, errno);
  if (ftruncate(created.get(), static_cast<off_t>(size_bytes)) != 0) {
    const int reason = errno;
    unlink(path.c_str());
    return refused(fmt::format("reserve {} bytes for", size_bytes), path, reason);
  }
  auto file = File::open(path, {.mode = File::Mode::kReadWrite, .direct = direct});
  if (!file) unlink(path.c_str());
  return file;
}

Result<void> SystemFiles::remove(const std::string& path) {
  if (unlink(path.c_str()) != 0) return refused("remove", path, errno);
  return {};
}

Result<void> SystemFiles::sync_directory(const std::string& path) {
  const Descriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return refused("open the directory", path, errno);
  // Some file systems cannot sync a directory and say EINVAL.
  if (fsync(directory.get()) != 0 && errno != EINVAL)
    return refused("sync the directory", path, errno);
  return {};
}

Result<uint64_t> SystemFiles::free_bytes(const std::string& path) {
  struct statvfs status = {};
  if (statvfs(path.c_str(), &status) != 0) return refused("read the free space of", path, errno);
  return uint64_t{status.f_bavail} * status.f_frsize;
}

// Ours are empty: nothing that somebody else has written is removed when the lock is given up.
Result<void> check_ours(int descriptor, const std::string& path) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) return refused("look at", path, errno);
  return status.st_size == 0 ? Result<void>() : not_a_lock(path);
}

// Null when the former owner removed the file between our opening and our locking it.
Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return refused("open the lock file", path, errno);
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return refused("lock", path, errno);
    return failure(Code::kBusy, fmt::format("the flash directory {} is in use by another process",
                                            parent_of(path).string()));
  }
  if (!same_file(file.get(), path)) return nullptr;
  HIFC_TRY(check_ours(file.get(), path));
  return std::make_unique<SystemLock>(file.release(), path);
}

Result<std::unique_ptr<FileLock>> SystemFiles::lock(const std::string& path) {
  while (true) {
    HIFC_ASSIGN(std::unique_ptr<FileLock> lock, try_lock(path));
    if (lock != nullptr) return lock;
  }
}

}  // namespace

std::unexpected<Error> not_a_lock(const std::string& path) {
  return failure(
      Code::kInvalid,
      fmt::format("{} is not HiFC's, for it is not empty; move it away or choose another "
                  "directory",
                  path));
}

FileSystem& system_files() {
  static SystemFiles files;
  return files;
}

}  // namespace hifc::io
