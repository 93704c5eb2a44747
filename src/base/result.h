// Result<T>: how every fallible HiFC call reports failure. No exception crosses a module.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace hifc {

enum class Code : uint8_t {
  kInvalid,      // the caller's or the user's value is unusable; `context` names it and what is
                 // accepted
  kUnsupported,  // understood, but not something HiFC can do
  kNotFound,     // a file or key that had to exist does not
  kIo,           // the operating system refused; `system_errno` says why
  kFull,         // a byte budget or the disk has no room
  kBusy,         // somebody else holds it
  kCorrupt,      // bytes failed verification
  kCancelled,    // the user asked to stop
  kTimeout,      // a deadline passed
  kInternal,     // a defect of ours
};

std::string_view to_string(Code code);

struct Error {
  Code code = Code::kInternal;
  int system_errno = 0;
  std::string context;  // one sentence without a full stop, naming the value at fault

  // "context: No such file or directory" where there is an errno, else "context".
  std::string message() const;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> failure(Code code, std::string context, int system_errno = 0) {
  return std::unexpected(Error{code, system_errno, std::move(context)});
}

}  // namespace hifc

#define HIFC_CONCAT_INNER(a, b) a##b
#define HIFC_CONCAT(a, b) HIFC_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Result) from the enclosing function, if there is one.
#define HIFC_TRY(expression)                                      \
  do {                                                            \
    if (auto&& hifc_try_result = (expression); !hifc_try_result)  \
      return std::unexpected(std::move(hifc_try_result).error()); \
  } while (0)

// As HIFC_TRY, and binds the value to `declaration`.
#define HIFC_ASSIGN(declaration, expression)                                        \
  auto HIFC_CONCAT(hifc_assign_, __LINE__) = (expression);                          \
  if (!HIFC_CONCAT(hifc_assign_, __LINE__))                                         \
    return std::unexpected(std::move(HIFC_CONCAT(hifc_assign_, __LINE__)).error()); \
  declaration = std::move(*HIFC_CONCAT(hifc_assign_, __LINE__))
