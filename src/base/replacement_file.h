// A file written beside another that takes its place at once: at any moment the path has its former
// content or all of the new. Without commit() it disappears again.
//
// Regular files only: renaming onto a device or a symbolic link would replace it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace hifc {

class ReplacementFile {
 public:
  // `what` names the file in failures: "trace file". kInvalid where `path` is something else than a
  // file, kIo for what the system refuses. Mode 0644, as the umask allows.
  static Result<ReplacementFile> create(std::string path, std::string_view what);
  ReplacementFile(ReplacementFile&& other) noexcept;
  ReplacementFile& operator=(ReplacementFile&&) = delete;
  ~ReplacementFile();

  Result<void> write(std::string_view text);
  Result<void> commit();

 private:
  ReplacementFile(std::string path, std::string_view what);
  Result<void> open();
  std::unexpected<Error> refused(int reason) const;

  std::string path_;
  std::string what_;
  std::string name_;  // empty while there is no such file
  int descriptor_ = -1;
};

}  // namespace hifc
