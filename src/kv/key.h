// Content keys of groups: a keyed BLAKE2b-256 chain (libsodium) over the model's fingerprint and
// every token of the prefix, so that equal keys mean equal KV bytes. A fast non-cryptographic hash
// would let one tenant craft a prompt that collides with another's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hifc::kv {

using Fingerprint = std::array<std::byte, 32>;
using GroupKey = std::array<std::byte, 32>;

// Key of the first group's predecessor: the model and everything else that changes the bytes.
GroupKey root_key(const Fingerprint& model, uint32_t block_tokens);

// Key of the group that holds `tokens` after the prefix that `previous` stands for.
GroupKey next_key(const GroupKey& previous, std::span<const int32_t> tokens);

// BLAKE2b-256 of arbitrary bytes, for fingerprints.
Fingerprint digest(std::span<const std::byte> bytes);

}  // namespace hifc::kv
