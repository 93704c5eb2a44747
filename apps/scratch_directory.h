// A directory for files that a benchmark makes and nobody wants to keep.
#pragma once

#include <string>

#include "base/result.h"

namespace hifc::apps {

// `PARENT/hifc-bench-XXXXXX`, removed with all that is in it on destruction; so is the parent if it
// was missing and nothing else is in it then.
class ScratchDirectory {
 public:
  static Result<ScratchDirectory> create(const std::string& parent);
  ScratchDirectory() = default;
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&& other) noexcept;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string created_parent_;
};

// Bytes that this user may still write to the file system of `path`.
Result<uint64_t> free_bytes(const std::string& path);

}  // namespace hifc::apps
