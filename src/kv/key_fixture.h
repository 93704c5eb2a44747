// What the tests of keys share.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string>

#include "kv/key.h"

namespace hifc::kv {

inline std::string hex(const std::array<std::byte, 32>& bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// first, first + 1, ...
inline Fingerprint counting(size_t first = 0) {
  Fingerprint fingerprint;
  for (size_t i = 0; i < fingerprint.size(); ++i)
    fingerprint[i] = static_cast<std::byte>(first + i);
  return fingerprint;
}

}  // namespace hifc::kv
