#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace hifc {

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "hifc: internal check failed: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace hifc
