// Finds a model's attention structure by running two tokens through a throw-away context and
// looking at every graph node, instead of guessing it from metadata.
#pragma once

#include <string>

#include "base/result.h"
#include "kv/shape.h"

struct llama_model;

namespace hifc::engine {

// The model's shape, with the window of each sliding-window layer. kUnsupported, with the reason,
// when some node reads the KV cache in a way the engine does not take over.
Result<kv::ModelShape> probe_shape(llama_model* model);

}  // namespace hifc::engine
