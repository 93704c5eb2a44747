// The writing of policy_file.h, which knows no YAML.
#include "base/policy_file.h"

#include "base/replacement_file.h"

namespace hifc {
namespace {

constexpr std::string_view kWhat = "policy file";

}  // namespace

Result<void> check_policy_output(const std::string& path) {
  HIFC_TRY(ReplacementFile::create(path, kWhat));
  return {};
}

Result<void> write_policy_file(const std::string& path, const PolicyFile& file,
                               std::string_view comment) {
  HIFC_ASSIGN(ReplacementFile replacement, ReplacementFile::create(path, kWhat));
  HIFC_TRY(replacement.write(print_policy_file(file, comment)));
  return replacement.commit();
}

}  // namespace hifc
