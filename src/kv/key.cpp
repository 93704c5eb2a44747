#include "kv/key.h"

#include <sodium.h>

#include "base/check.h"
#include "kv/layout.h"

namespace hifc::kv {
namespace {

// BLAKE2b's personalisation: each value makes a function of its own.
using Purpose = std::array<char, crypto_generichash_blake2b_PERSONALBYTES>;
constexpr Purpose kPlain = {};
constexpr Purpose kTail = {'h', 'i', 'f', 'c', '/', 'k', 'v', '/', 't', 'a', 'i', 'l'};
constexpr Purpose kRecord = {'h', 'i', 'f', 'c', '/', 'k', 'v', '/', 'r', 'e', 'c', 'o', 'r', 'd'};

const unsigned char* data_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Chooses BLAKE2b's fastest implementation; without it libsodium uses its portable one.
void initialize() {
  static const bool ready = sodium_init() >= 0;
  HIFC_CHECK(ready);
}

std::array<std::byte, 32> hash(std::span<const std::byte> bytes, std::span<const std::byte> key,
                               const Purpose& purpose = kPlain) {
  initialize();
  std::array<std::byte, 32> out;
  const int status = crypto_generichash_blake2b_salt_personal(
      reinterpret_cast<unsigned char*>(out.data()), out.size(), data_of(bytes), bytes.size(),
      data_of(key), key.size(), nullptr, reinterpret_cast<const unsigned char*>(purpose.data()));
  HIFC_CHECK(status == 0);
  return out;
}

std::span<const std::byte> domain_key(std::string_view domain) {
  HIFC_CHECK(!domain.empty());
  HIFC_CHECK(domain.size() <= crypto_generichash_KEYBYTES_MAX);
  return std::as_bytes(std::span(domain));
}

crypto_generichash_state* state_of(std::array<std::byte, 384>& bytes) {
  static_assert(sizeof(crypto_generichash_state) <= 384);
  static_assert(alignof(crypto_generichash_state) <= 64);
  return reinterpret_cast<crypto_generichash_state*>(bytes.data());
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

GroupKey tail_key(const GroupKey& previous, std::span<const int32_t> tokens) {
  return hash(std::as_bytes(tokens), previous, kTail);
}

GroupKey record_key(std::string_view domain, std::span<const std::byte> name) {
  return hash(name, domain_key(domain), kRecord);
}

Fingerprint digest(std::span<const std::byte> bytes) {
  return hash(bytes, {});
}

Fingerprint keyed_digest(std::string_view domain, std::span<const std::byte> bytes) {
  return hash(bytes, domain_key(domain));
}

DigestStream::DigestStream() {
  initialize();
  HIFC_CHECK(crypto_generichash_init(state_of(state_), nullptr, 0, sizeof(Fingerprint)) == 0);
}

void DigestStream::update(std::span<const std::byte> bytes) {
  HIFC_CHECK(crypto_generichash_update(state_of(state_), data_of(bytes), bytes.size()) == 0);
}

Fingerprint DigestStream::finish() {
  Fingerprint out;
  auto* const target = reinterpret_cast<unsigned char*>(out.data());
  HIFC_CHECK(crypto_generichash_final(state_of(state_), target, out.size()) == 0);
  return out;
}

}  // namespace hifc::kv
