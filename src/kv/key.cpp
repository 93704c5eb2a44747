#include "kv/key.h"

#include <sodium.h>

#include <cstring>

#include "base/check.h"
#include "kv/layout.h"

namespace hifc::kv {
namespace {

std::array<std::byte, 32> hash(std::span<const std::byte> bytes, std::span<const std::byte> key) {
  std::array<std::byte, 32> out;
  const int status =
      crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                         reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                         reinterpret_cast<const unsigned char*>(key.data()), key.size());
  HIFC_CHECK(status == 0);
  return out;
}

}  // namespace

GroupKey root_key(const Fingerprint& model, uint32_t block_tokens) {
  struct {
    char domain[8] = {'h', 'i', 'f', 'c', '-', 'k', 'v', '1'};
    uint32_t layout_version = kLayoutVersion;
    uint32_t block_tokens = 0;
  } context;
  static_assert(sizeof context == 16, "hashed as bytes: no padding");
  context.block_tokens = block_tokens;
  return hash(std::as_bytes(std::span(&context, 1)), model);
}

GroupKey next_key(const GroupKey& previous, std::span<const int32_t> tokens) {
  return hash(std::as_bytes(tokens), previous);
}

Fingerprint digest(std::span<const std::byte> bytes) {
  return hash(bytes, {});
}

}  // namespace hifc::kv
