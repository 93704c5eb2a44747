#include "kv/codec.h"

#include <algorithm>

#include "base/check.h"

namespace hifc::kv {

uint32_t code_bits(Codec codec) {
  switch (codec) {
    case Codec::kF16: return 16;
    case Codec::kI8: return 8;
    case Codec::kI4: return 4;
    case Codec::kI3: return 3;
    case Codec::kI2: return 2;
  }
  HIFC_CHECK(codec == Codec::kF16);
  return 0;
}

size_t page_bytes(const PageFormat& format) {
  const size_t row_codes = size_t{format.columns} * code_bits(format.codec) / 8;
  if (format.codec == Codec::kF16) return format.rows * row_codes;
  const size_t groups = (format.columns + kGroupColumns - 1) / kGroupColumns;
  return format.rows * (groups * 2 * sizeof(uint16_t) + row_codes);
}

std::string_view to_string(Codec codec) {
  const auto* const at = std::ranges::find(kCodecs, codec);
  return at == kCodecs.end() ? "unknown" : kCodecNames[static_cast<size_t>(at - kCodecs.begin())];
}

std::optional<Codec> find_codec(std::string_view name) {
  for (const Codec codec : kCodecs)
    if (to_string(codec) == name) return codec;
  return std::nullopt;
}

}  // namespace hifc::kv
