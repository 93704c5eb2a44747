#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hifc {

uint64_t hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace hifc
