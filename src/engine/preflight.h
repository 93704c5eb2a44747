// What must be known of a GGUF file before libllama loads it, so that a file that HiFC cannot run
// is refused in one sentence.
#pragma once

#include <string>

#include "base/result.h"
#include "kv/key.h"

namespace hifc::engine {

struct Preflight {
  std::string architecture;
  kv::Fingerprint fingerprint = {};  // of the metadata, the tensor table and the file's size
};

// kNotFound, kInvalid or kUnsupported with one sentence.
Result<Preflight> inspect(const std::string& path);

}  // namespace hifc::engine
