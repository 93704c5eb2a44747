// What must be known of a GGUF file before libllama loads it, so that a file that HiFC cannot run
// is refused in one sentence.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/key.h"

namespace hifc::engine {

struct Preflight {
  std::string architecture;
  kv::Fingerprint fingerprint = {};  // of the metadata, the tensor table and the file's size

  // For kv::Identity. The files that libllama will read, in order: `path`, or all parts of a model
  // that is split.
  std::vector<std::string> files;
  // Every metadata key about rotary positions, sorted by name, with its type and value: equal for
  // equal settings whatever else the metadata says and in which order.
  std::vector<std::byte> rope;
};

// kNotFound, kInvalid or kUnsupported with one sentence.
Result<Preflight> inspect(const std::string& path);

}  // namespace hifc::engine
