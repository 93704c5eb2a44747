// Assertions for defects of ours; never for bytes that come from flash, a file or a user.
#pragma once

namespace hifc {

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace hifc

// Stays on in release builds.
#define HIFC_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::hifc::check_failed(#condition, __FILE__, __LINE__))

// For inner loops: debug builds only.
#ifdef NDEBUG
#define HIFC_DCHECK(condition) static_cast<void>(sizeof((condition) ? 1 : 0))
#else
#define HIFC_DCHECK(condition) HIFC_CHECK(condition)
#endif
