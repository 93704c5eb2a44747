#include "base/result.h"

#include <system_error>

namespace hifc {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalid: return "invalid";
    case Code::kUnsupported: return "unsupported";
    case Code::kNotFound: return "not found";
    case Code::kIo: return "io";
    case Code::kFull: return "full";
    case Code::kBusy: return "busy";
    case Code::kCorrupt: return "corrupt";
    case Code::kCancelled: return "cancelled";
    case Code::kTimeout: return "timeout";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

std::string Error::message() const {
  if (system_errno == 0) return context;
  return context + ": " + std::generic_category().message(system_errno);
}

}  // namespace hifc
