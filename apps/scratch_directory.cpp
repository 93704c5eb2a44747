#include "apps/scratch_directory.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace hifc::apps {

Result<ScratchDirectory> ScratchDirectory::create(const std::string& parent) {
  std::error_code error;
  ScratchDirectory directory;
  if (std::filesystem::create_directories(parent, error)) directory.created_parent_ = parent;
  if (error) return failure(Code::kIo, fmt::format("cannot create {}", parent), error.value());
  std::string path = parent + "/hifc-bench-XXXXXX";
  if (mkdtemp(path.data()) == nullptr)
    return failure(Code::kIo, fmt::format("cannot create a directory in {}", parent), errno);
  directory.path_ = std::move(path);
  return directory;
}

ScratchDirectory::ScratchDirectory(ScratchDirectory&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      created_parent_(std::exchange(other.created_parent_, {})) {}

ScratchDirectory& ScratchDirectory::operator=(ScratchDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(created_parent_, other.created_parent_);
  return *this;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (!created_parent_.empty()) std::filesystem::remove(created_parent_, ignored);
}

Result<uint64_t> free_bytes(const std::string& path) {
  std::error_code error;
  const auto space = std::filesystem::space(path, error);
  if (error)
    return failure(Code::kIo, fmt::format("cannot ask for the room in {}", path), error.value());
  return space.available;
}

}  // namespace hifc::apps
