#include "flash/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace hifc::flash {
namespace {

constexpr std::string_view kLockName = "hifc.lock";
constexpr std::string_view kSegmentPrefix = "hifc-";
constexpr std::string_view kSegmentSuffix = ".seg";
constexpr size_t kSegmentDigits = 8;

std::optional<uint32_t> segment_id(std::string_view name) {
  if (!name.starts_with(kSegmentPrefix) || !name.ends_with(kSegmentSuffix)) return std::nullopt;
  name.remove_prefix(kSegmentPrefix.size());
  name.remove_suffix(kSegmentSuffix.size());
  uint32_t id = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
  if (name.size() != kSegmentDigits || error != std::errc{} || end != name.data() + name.size())
    return std::nullopt;
  return id;
}

// Absolute, so that files are found at the end wherever the process has gone; without a final
// slash, which would make the directory its own parent.
std::string absolute(const std::string& path) {
  std::error_code error;
  std::filesystem::path result = std::filesystem::absolute(path, error).lexically_normal();
  if (result.filename().empty()) result = result.parent_path();
  return error ? path : result.string();
}

}  // namespace

Result<std::unique_ptr<Directory>> Directory::open(const std::string& path, io::FileSystem& files,
                                                   Missing missing) {
  if (path.empty()) return failure(Code::kInvalid, "the flash directory has an empty name");
  std::unique_ptr<Directory> directory(new Directory(absolute(path), files));
  if (missing == Missing::kCreate) {
    const auto created = files.create_directory(directory->path_);
    if (!created)
      return failure(created.error().code,
                     fmt::format("cannot create the flash directory {}", directory->path_),
                     created.error().system_errno);
    directory->created_ = *created;
  } else {
    HIFC_TRY(files.list(directory->path_));
  }
  HIFC_ASSIGN(directory->lock_, files.lock(fmt::format("{}/{}", directory->path_, kLockName)));
  return directory;
}

Directory::~Directory() {
  lock_.reset();
  // Fails, rightly, when there are files.
  if (created_) (void)files_.remove_directory(path_);
}

Result<Directory::Listing> Directory::list() const {
  HIFC_ASSIGN(const std::vector<io::DirectoryEntry> entries, files_.list(path_));
  Listing listing;
  for (const io::DirectoryEntry& entry : entries) {
    const auto id = segment_id(entry.name);
    if (entry.regular && id)
      listing.segments.push_back({*id, entry.size_bytes});
    else if (entry.name != kLockName)
      listing.foreign.push_back(entry.name);
  }
  std::ranges::sort(listing.segments, {}, &SegmentFile::id);
  std::ranges::sort(listing.foreign);
  return listing;
}

uint64_t Directory::segments_bytes(const std::string& path, io::FileSystem& files) {
  const auto entries = files.list(path);
  if (!entries) return 0;
  uint64_t bytes = 0;
  for (const io::DirectoryEntry& entry : *entries)
    if (entry.regular && segment_id(entry.name)) bytes += entry.size_bytes;
  return bytes;
}

Result<io::File> Directory::create_segment(uint32_t id, uint64_t size_bytes, bool direct) {
  auto file = files_.create(segment_path(id), size_bytes, direct);
  if (!file) return file;
  if (auto synced = sync(); !synced) {
    (void)remove_segment(id);
    return std::unexpected(std::move(synced).error());
  }
  return file;
}

Result<io::File> Directory::open_segment(uint32_t id, io::File::Options options) {
  return files_.open(segment_path(id), options);
}

Result<void> Directory::remove_segment(uint32_t id) {
  return files_.remove(segment_path(id));
}

std::string Directory::segment_path(uint32_t id) const {
  return fmt::format("{}/{}", path_, segment_name(id));
}

std::string Directory::segment_name(uint32_t id) {
  return fmt::format("{}{:0{}}{}", kSegmentPrefix, id, kSegmentDigits, kSegmentSuffix);
}

}  // namespace hifc::flash
