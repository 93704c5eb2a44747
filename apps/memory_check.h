// Whether the memory of this machine holds what a command keeps side by side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "kv/codec.h"
#include "kv/shape.h"

namespace hifc::apps {

// Bytes that can be had without swapping, and within a control group's limit; empty where the
// system does not tell.
std::optional<uint64_t> available_memory();

// K and V of `tokens` under each of `policies` side by side, computed in steps of `step_tokens`.
Result<uint64_t> kv_memory(const kv::ModelShape& shape, std::span<const kv::CodecPolicy> policies,
                           uint32_t tokens, uint32_t step_tokens);

// kInvalid where `need` bytes are more than `available`. `what` says whose K and V they are: "4096
// tokens under 3 policies".
Result<void> check_memory(std::string_view what, uint64_t need,
                          std::optional<uint64_t> available = available_memory());

}  // namespace hifc::apps
