// Whether the memory of this machine holds what a command keeps side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "kv/codec.h"
#include "kv/shape.h"

namespace hifc::apps {

// Bytes that can be had without swapping; empty where the system does not tell.
std::optional<uint64_t> available_memory();

// kInvalid where K and V of so many tokens, held under each of `policies` side by side and in F32
// and twice in F16 by llama.cpp, are more than `available` bytes.
Result<void> check_memory(const kv::ModelShape& shape, std::span<const kv::CodecPolicy> policies,
                          uint32_t tokens, std::optional<uint64_t> available = available_memory());

}  // namespace hifc::apps
