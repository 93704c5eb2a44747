// A stand-in for systems that keep the KV in host memory and bring a layer's to the device when its
// attention begins: the same bytes are copied between two buffers, one of which stands for the host
// and one for the device, while nothing else runs. It flatters such systems: beside the memory of
// their device a bus is far slower than a copy is here beside this memory, and all of their tokens
// count as encoded, the newest too.
//
// Attention itself computes over what the engine holds, which stands for what lies on the device.
//
// Thread-compatible; as a LayerObserver it uses the cache's threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/parallel.h"
#include "base/result.h"
#include "cache/kv_cache.h"
#include "io/memory.h"
#include "kv/layout.h"

namespace hifc::apps {

class HostOffload final : public cache::LayerObserver {
 public:
  // For sequences of up to `tokens` tokens, encoded as in `layout`. `parallel` must outlive it.
  // kFull where there is no memory for the buffers.
  static Result<std::unique_ptr<HostOffload>> create(const kv::GroupLayout& layout, uint32_t tokens,
                                                     Parallel& parallel);

  // As many bytes as those tokens have in the layer. The step's own would go the other way, which
  // is as far.
  void attending(uint32_t layer, uint32_t tokens) override;

  uint64_t host_bytes() const { return host_.size_bytes(); }      // all KV
  uint64_t device_bytes() const { return device_.size_bytes(); }  // the largest layer's
  uint64_t copied_bytes() const { return copied_bytes_; }
  uint64_t copying_ns() const { return copying_ns_; }

 private:
  HostOffload(const kv::GroupLayout& layout, uint32_t tokens, Parallel& parallel);
  Result<void> allocate();
  uint64_t bytes_of(uint32_t layer, uint32_t tokens) const;

  uint32_t tokens_max_;
  std::vector<double> token_bytes_;  // [layer]
  std::vector<uint64_t> offsets_;    // [layer] in the host's buffer
  Parallel& parallel_;
  SystemClock clock_;
  io::AlignedMemory host_, device_;
  uint64_t copied_bytes_ = 0, copying_ns_ = 0;
};

}  // namespace hifc::apps
