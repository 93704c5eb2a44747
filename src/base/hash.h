// A fast non-cryptographic hash, for checksums and fingerprints of results; never for keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hifc {

// XXH3 64-bit.
uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace hifc
