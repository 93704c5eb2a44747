// Which tokens of a step give logits.
#pragma once

#include <cstdint>

namespace hifc::engine {

enum class Outputs : uint8_t { kNone, kLast, kAll };

}  // namespace hifc::engine
