#include "flash/directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "flash/format.h"

namespace hifc::flash {
namespace {

constexpr std::string_view kLockName = "hifc.lock";
constexpr std::string_view kSegmentPrefix = "hifc-";
constexpr std::string_view kSegmentSuffix = ".seg";
constexpr size_t kSegmentDigits = 8;

bool is_segment_name(std::string_view name) {
  if (!name.starts_with(kSegmentPrefix) || !name.ends_with(kSegmentSuffix)) return false;
  name.remove_prefix(kSegmentPrefix.size());
  name.remove_suffix(kSegmentSuffix.size());
  return name.size() == kSegmentDigits &&
         std::ranges::all_of(name, [](char digit) { return digit >= '0' && digit <= '9'; });
}

struct Listing {
  std::vector<std::string> segments;  // regular files with a segment's name
  std::vector<std::string> foreign;
};

Result<Listing> list(const std::string& path) {
  Listing listing;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    std::error_code unreadable;
    const bool regular =
        entry->symlink_status(unreadable).type() == std::filesystem::file_type::regular;
    if (regular && is_segment_name(name))
      listing.segments.push_back(entry->path());
    else if (name != kLockName)
      listing.foreign.push_back(name);
  }
  if (error) return failure(Code::kIo, fmt::format("cannot list {}", path), error.value());
  return listing;
}

// Absolute, so that files are found at the end wherever the process has gone; without a final
// slash, which would make the directory its own parent.
std::string absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path result = std::filesystem::absolute(path, error).lexically_normal();
  if (result.filename().empty()) result = result.parent_path();
  return error ? path : result.string();
}

// Whether the file that `descriptor` has open is still the one under `path`.
bool same_file(int descriptor, const std::string& path) {
  struct stat opened = {}, named = {};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

Result<std::unique_ptr<Directory>> Directory::open(const std::string& path) {
  if (path.empty()) return failure(Code::kInvalid, "the flash directory has an empty name");
  std::unique_ptr<Directory> directory(new Directory(absolute(path)));
  HIFC_TRY(directory->create());
  HIFC_TRY(directory->lock());
  HIFC_TRY(directory->refuse_newer_segments());
  HIFC_TRY(directory->remove_leftovers());
  return directory;
}

Directory::~Directory() {
  if (lock_descriptor_ >= 0) {
    // Removed while still locked: whoever waits for this file finds that it is no longer the one.
    unlink(lock_path().c_str());
    ::close(lock_descriptor_);
  }
  if (created_) rmdir(path_.c_str());  // fails, rightly, when there are files of others
}

Result<void> Directory::create() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  std::filesystem::create_directories(parent, error);  // a failure shows in mkdir
  if (mkdir(path_.c_str(), 0700) == 0)
    created_ = true;
  else if (errno != EEXIST)
    return failure(Code::kIo, fmt::format("cannot create the flash directory {}", path_), errno);
  if (!std::filesystem::is_directory(path_, error))
    return failure(Code::kIo, fmt::format("cannot use {} as the flash directory", path_), ENOTDIR);
  return {};
}

Result<void> Directory::lock() {
  while (true) {
    HIFC_ASSIGN(const bool locked, try_lock());
    if (locked) return {};
  }
}

// False when the former owner removed the file between our opening and our locking it.
Result<bool> Directory::try_lock() {
  const std::string path = lock_path();
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0)
    return failure(Code::kIo, fmt::format("cannot open the lock file {}", path), errno);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(descriptor);
    if (reason == EWOULDBLOCK)
      return failure(Code::kBusy, fmt::format("the flash directory {} is in use by another "
                                              "process",
                                              path_));
    return failure(Code::kIo, fmt::format("cannot lock {}", path), reason);
  }
  if (!same_file(descriptor, path)) {
    ::close(descriptor);
    return false;
  }
  lock_descriptor_ = descriptor;
  return true;
}

Result<void> Directory::refuse_newer_segments() const {
  HIFC_ASSIGN(const Listing listing, list(path_));
  for (const std::string& path : listing.segments) {
    HIFC_ASSIGN(const io::File file,
                io::File::open(path, {.mode = io::File::Mode::kReadOnly, .direct = false}));
    std::array<std::byte, sizeof(LayoutTag)> bytes = {};
    if (pread(file.descriptor(), bytes.data(), bytes.size(), 0) != sizeof(LayoutTag)) continue;
    if (const auto version = newer_version(bytes))
      return failure(Code::kUnsupported,
                     fmt::format("{} was written by a newer HiFC (layout version {}, this one "
                                 "knows up to {}); use that one or another directory",
                                 path, *version, kLayoutVersion));
  }
  return {};
}

// Recovery is not here yet: what an earlier process stored cannot be found any more.
Result<void> Directory::remove_leftovers() {
  HIFC_ASSIGN(const Listing listing, list(path_));
  for (const std::string& path : listing.segments)
    if (unlink(path.c_str()) != 0)
      return failure(Code::kIo, fmt::format("cannot remove {}", path), errno);
  if (!listing.foreign.empty())
    log_warn("{} holds {} files that are not HiFC's, such as {}; they are left alone", path_,
             listing.foreign.size(), listing.foreign.front());
  // Our lock file has no content, so that it counts nothing against the capacity.
  if (ftruncate(lock_descriptor_, 0) != 0)
    return failure(Code::kIo, fmt::format("cannot write {}", lock_path()), errno);
  return {};
}

Result<io::File> Directory::create_segment(uint32_t id, uint64_t size_bytes, bool direct) {
  auto file = io::File::open(segment_path(id), {.mode = io::File::Mode::kCreate, .direct = direct});
  if (!file) return file;
  if (auto resized = file->truncate(size_bytes); !resized) {
    remove_segment(id);
    return std::unexpected(std::move(resized).error());
  }
  return file;
}

void Directory::remove_segment(uint32_t id) {
  unlink(segment_path(id).c_str());
}

bool Directory::occupied(uint32_t id) const {
  struct stat status = {};
  return lstat(segment_path(id).c_str(), &status) == 0;
}

Result<uint64_t> Directory::free_bytes() const {
  struct statvfs status = {};
  if (statvfs(path_.c_str(), &status) != 0)
    return failure(Code::kIo, fmt::format("cannot read the free space of {}", path_), errno);
  return uint64_t{status.f_bavail} * status.f_frsize;
}

std::string Directory::segment_path(uint32_t id) const {
  return fmt::format("{}/{}{:0{}}{}", path_, kSegmentPrefix, id, kSegmentDigits, kSegmentSuffix);
}

std::string Directory::lock_path() const {
  return fmt::format("{}/{}", path_, kLockName);
}

}  // namespace hifc::flash
