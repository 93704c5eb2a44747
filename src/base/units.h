// Byte sizes as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hifc {

// Parses "4096", "64GB", "64 GB" or "1.5GiB": a whole number of bytes, or a number with up to six
// decimals and a unit. kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB powers of 1024; a
// fraction of a byte is dropped. kInvalid names `name`, the text and what is accepted.
Result<uint64_t> parse_size(std::string_view text, std::string_view name);

// "512 B", "16.0 MiB", "1.5 TiB": powers of 1024, one decimal.
std::string format_size(uint64_t size_bytes);

}  // namespace hifc
