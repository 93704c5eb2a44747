// Everything that decides the bytes of stored KV, and its fingerprint: the root of the key chain
// (key.h). Two runs share stored KV only if every field is equal.
//
// A field that is added, removed or changes its meaning raises kIdentityVersion; the golden value
// in identity_test.cpp changes with it, and earlier stores are misses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/codec.h"
#include "kv/key.h"
#include "kv/layout.h"
#include "kv/shape.h"

namespace hifc::kv {

inline constexpr uint32_t kIdentityVersion = 2;

// Raised when a change of HiFC or of its libllama computes other K or V from the same inputs.
inline constexpr uint32_t kNumericsRevision = 2;

struct Rope {
  std::vector<std::byte> metadata;  // what the model's file says (engine::Preflight::rope)
  // What the run says instead; 0 and "": what the file says.
  std::string scaling;
  double frequency_base = 0;
  double frequency_scale = 0;

  bool operator==(const Rope&) const = default;
};

struct Identity {
  Fingerprint content = {};  // of the model's bytes (engine/digest.h)
  std::string architecture;
  ModelShape shape;
  Rope rope;
  Fingerprint lora = {};  // of the adapter's bytes; zero: none
  double lora_scale = 0;
  std::string tenant;
  CodecPolicy codecs;  // [layer]; none: all F16
  uint32_t layout_version = kLayoutVersion;
  uint32_t numerics_revision = kNumericsRevision;
  // What computes, where implementations round differently: the instruction set, the accelerator.
  std::string arithmetic;
  uint32_t rank = 0;  // of this process among those that share the model's heads or layers
  uint32_t ranks = 1;
};

Fingerprint fingerprint(const Identity& identity);

}  // namespace hifc::kv
