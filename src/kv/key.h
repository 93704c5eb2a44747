// Content keys of groups: a keyed BLAKE2b-256 chain (libsodium) over the model's fingerprint
// (identity.h) and every token of the prefix, so that equal keys mean equal KV bytes. A fast
// non-cryptographic hash would let one tenant craft a prompt that collides with another's.
//
// The functions are pure and callable from any thread. Their values are stored on flash: the tests
// hold golden ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hifc::kv {

using Fingerprint = std::array<std::byte, 32>;
using GroupKey = std::array<std::byte, 32>;

// Key of the first group's predecessor: the model and everything else that changes the bytes.
GroupKey root_key(const Fingerprint& model, uint32_t block_tokens);

// Key of the group that holds `tokens` after the prefix that `previous` stands for.
GroupKey next_key(const GroupKey& previous, std::span<const int32_t> tokens);

// Key of a last group that is not full. Another function than next_key(), so that whatever the
// tokens are, a tail never has the key of a full group.
GroupKey tail_key(const GroupKey& previous, std::span<const int32_t> tokens);

// Key of a small record that is not KV, among the names of one `domain` ("file-digest"; 1 to 64
// bytes). Another function than those of groups' keys.
GroupKey record_key(std::string_view domain, std::span<const std::byte> name);

// BLAKE2b-256 of arbitrary bytes, for fingerprints.
Fingerprint digest(std::span<const std::byte> bytes);
// The same keyed with `domain` (1 to 64 bytes): each domain has a function of its own.
Fingerprint keyed_digest(std::string_view domain, std::span<const std::byte> bytes);

// digest() of bytes that come piece by piece.
class DigestStream {
 public:
  DigestStream();
  void update(std::span<const std::byte> bytes);
  Fingerprint finish();  // the last call

 private:
  alignas(64) std::array<std::byte, 384> state_;  // libsodium's
};

}  // namespace hifc::kv
