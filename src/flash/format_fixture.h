// What tests do to the structures on flash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "flash/format.h"

namespace hifc::flash {

// Makes the beginning of a segment file say that it has this layout, with an intact tag.
inline void set_layout_version(std::span<std::byte> file, uint32_t version) {
  std::memcpy(file.data() + offsetof(LayoutTag, version), &version, sizeof version);
  const auto sum = static_cast<uint32_t>(checksum(file.first(offsetof(LayoutTag, checksum))));
  std::memcpy(file.data() + offsetof(LayoutTag, checksum), &sum, sizeof sum);
}

}  // namespace hifc::flash
