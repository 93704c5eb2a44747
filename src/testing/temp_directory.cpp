#include "testing/temp_directory.h"

#include <stdlib.h>

#include <system_error>

#include "base/check.h"

namespace hifc::testing {

TempDirectory::TempDirectory() {
  std::string pattern = std::filesystem::temp_directory_path() / "hifc-test-XXXXXX";
  HIFC_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempDirectory::~TempDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace hifc::testing
