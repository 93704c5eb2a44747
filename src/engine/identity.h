// Under which fingerprint a run stores and finds KV: everything that changes its bytes.
#pragma once

#include <atomic>
#include <string>

#include "base/parallel.h"
#include "base/result.h"
#include "engine/model.h"
#include "kernels/attention.h"
#include "kv/codec.h"
#include "kv/key.h"
#include "tier/tiers.h"

namespace hifc::engine {

struct IdentityOptions {
  std::string tenant;
  kv::CodecPolicy codecs;  // [layer]
  bool temporary = false;  // what is stored goes with this process
  const std::atomic<bool>* cancelled = nullptr;
};

// Where nothing is kept on flash the model's files are not read. Else by the content
// of the files: hashed once, and found in the store as long as they do not change. kBusy when they
// are not those that the model was loaded from, kCancelled, or why they cannot be read.
Result<kv::Fingerprint> resolve_fingerprint(const Model& model, const kernels::Kernels& kernels,
                                            tier::Tiers& tiers, Parallel& parallel,
                                            const IdentityOptions& options);

}  // namespace hifc::engine
