// Stock llama.cpp with its own KV cache in memory: what HiFC's output and speed are compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/model.h"
#include "engine/thread_pool.h"

struct llama_context;

namespace hifc::engine {

enum class ReferenceMode : uint8_t {
  kF32,                // F32 cache, flash attention off: the yardstick for quality
  kF16,                // F16 cache, flash attention off
  kF16FlashAttention,  // F16 cache, flash attention on
};
std::string_view to_string(ReferenceMode mode);

struct ReferenceOptions {
  ReferenceMode mode = ReferenceMode::kF32;
  uint32_t context_tokens = 0;
  uint32_t ubatch_tokens = 512;
  uint32_t outputs_max = 1;
};

// Thread-compatible; shares the pool with engines, one running at a time.
class Reference {
 public:
  static Result<std::unique_ptr<Reference>> create(const Model& model, ThreadPool& pool,
                                                   const ReferenceOptions& options);
  ~Reference();

  // Bytes of the cache that such a reference takes.
  static uint64_t kv_bytes(const kv::ModelShape& shape, const ReferenceOptions& options);

  // Appends tokens (at most ubatch_tokens) with logits of all of them or of the last one.
  Result<void> step(std::span<const int32_t> tokens, bool all_outputs);
  // Appends any number of tokens, in chunks; logits of the last one.
  Result<void> prefill(std::span<const int32_t> tokens);
  std::span<const float> logits(uint32_t row = 0) const;

  uint32_t length() const { return length_; }
  // Forgets tokens from `length` on.
  void truncate(uint32_t length);

  // llama.cpp's own file of the KV of all tokens so far, and back from it into an empty cache.
  Result<void> save_state(const std::string& path);
  Result<void> load_state(const std::string& path);

 private:
  struct Batch;
  explicit Reference(const Model& model);

  const Model& model_;
  ReferenceOptions options_;
  llama_context* context_ = nullptr;
  std::unique_ptr<Batch> batch_;
  uint32_t length_ = 0;
  uint32_t output_rows_ = 0;
};

}  // namespace hifc::engine
