// The writing of policy_file.h, which knows no YAML.
#include "base/policy_file.h"

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

std::unexpected<Error> refused(const std::string& path, int reason) {
  return failure(Code::kIo, fmt::format("cannot write the policy file {}", quote(path)), reason);
}

// Renaming onto a device or a symbolic link would replace it.
Result<void> refuse_other_than_file(const std::string& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return {};
  return failure(
      Code::kInvalid,
      fmt::format("{} is not a file; accepted is the path of a policy file to write", quote(path)));
}

// A new file beside `path` that takes its place, or disappears again.
class Replacement {
 public:
  explicit Replacement(std::string path) : path_(std::move(path)) {}
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  // Each returns 0 or an errno.
  int create();
  int write(std::string_view text);
  int commit();

 private:
  std::string path_;
  std::string name_;  // empty while there is no such file
  int descriptor_ = -1;
};

// Names are taken by other threads of ours, and by what a process of the same number left behind
// when it was killed.
constexpr int kNamesMost = 1000;

int Replacement::create() {
  for (int i = 0; i < kNamesMost; ++i) {
    std::string name = fmt::format("{}.{}.{}", path_, ::getpid(), i);
    descriptor_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ >= 0) {
      name_ = std::move(name);
      return 0;
    }
    if (errno != EEXIST) return errno;
  }
  return EEXIST;
}

int Replacement::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    text.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

// Synced first: otherwise a crash could leave the new name with none of its content.
int Replacement::commit() {
  if (::fsync(descriptor_) != 0) return errno;
  if (::close(std::exchange(descriptor_, -1)) != 0) return errno;
  if (std::rename(name_.c_str(), path_.c_str()) != 0) return errno;
  name_.clear();
  return 0;
}

}  // namespace

Result<void> check_policy_output(const std::string& path) {
  HIFC_TRY(refuse_other_than_file(path));
  Replacement replacement(path);
  if (const int reason = replacement.create(); reason != 0) return refused(path, reason);
  return {};
}

Result<void> write_policy_file(const std::string& path, const PolicyFile& file,
                               std::string_view comment) {
  HIFC_TRY(refuse_other_than_file(path));
  const std::string text = print_policy_file(file, comment);
  Replacement replacement(path);
  if (const int reason = replacement.create(); reason != 0) return refused(path, reason);
  if (const int reason = replacement.write(text); reason != 0) return refused(path, reason);
  if (const int reason = replacement.commit(); reason != 0) return refused(path, reason);
  return {};
}

}  // namespace hifc
