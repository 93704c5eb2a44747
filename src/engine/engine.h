// Inference with libllama while HiFC keeps the KV cache: llama's attention nodes are taken over in
// its graph-evaluation callback and computed over the tiers. libllama itself holds only the KV of
// the chunk being computed.
//
// Thread-compatible: one thread drives an engine; cancel() alone may be called from any thread or
// signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/result.h"
#include "base/trace.h"
#include "cache/kv_cache.h"
#include "engine/budget.h"
#include "engine/model.h"
#include "engine/outputs.h"
#include "engine/recovery.h"
#include "engine/resume.h"
#include "engine/thread_pool.h"
#include "tier/tiers.h"

struct ggml_tensor;
struct llama_context;

namespace hifc::engine {

struct EngineOptions {
  Config config;
  // Instead of what config.policy says: of each layer.
  std::optional<kv::CodecPolicy> codecs = {};
  uint32_t outputs_max = 1;      // rows of logits one step may ask for
  io::Ring* ring = nullptr;      // instead of one of the engine's own (fault injection)
  const Clock* clock = nullptr;  // instead of the system's, for what depends on measured speeds
  bool temporary_flash = false;  // what is stored goes with the engine
  // Tokens that will surely be held; their memory is taken while the engine is made. 0: unknown.
  uint64_t expected_tokens = 0;
  AttentionObserver* observer = nullptr;           // outlives the engine
  cache::LayerObserver* layer_observer = nullptr;  // too
  const std::atomic<bool>* cancelled = nullptr;    // stop as soon as possible once true
  Trace* trace = nullptr;  // outlives the engine; its clock is `clock`, or the system's
};

struct EngineStatistics {
  uint64_t steps = 0;
  uint64_t step_ns = 0;  // in llama_decode, attention included
  uint64_t recomputed_groups = 0;
  uint64_t logits_hash = 0;  // over all rows computed, in order
};

class Engine {
 public:
  // `model` and `pool` must outlive the engine; engines may share both, one running at a time.
  static Result<std::unique_ptr<Engine>> create(const Model& model, ThreadPool& pool,
                                                EngineOptions options);
  ~Engine();

  // Lets an empty engine begin with what flash has of the prompt, unless computing it is faster or
  // Config::resume is off. Returns the number of tokens that prefill() can leave out, which is less
  // than the prompt's.
  uint32_t resume(std::span<const int32_t> prompt);
  // reused_tokens is final after prefill().
  const ResumeReport& resume_report() const { return resume_; }

  // Appends the prompt's tokens in chunks on the absolute grid; logits of the last one follow from
  // logits(). `progress` gets the number of tokens done. Where a stored prefix comes too slowly, it
  // is computed too.
  Result<void> prefill(std::span<const int32_t> tokens,
                       const std::function<void(uint32_t done)>& progress = {});

  // Appends at most ubatch_tokens() tokens as one step; of a prompt they are computed faster.
  Result<void> step(std::span<const int32_t> tokens, Outputs outputs, cache::StepKind kind);

  // Logits of output row `row` of the latest step: [vocabulary]; valid until the next step.
  std::span<const float> logits(uint32_t row = 0) const;

  uint32_t length() const { return cache_->length(); }
  uint32_t ubatch_tokens() const { return ubatch_; }
  // See KvCache; returns the new length.
  uint32_t truncate(uint32_t length) { return cache_->truncate(length); }
  Result<void> flush() { return cache_->flush(); }
  // Leaves everything on flash, durably, for a later resume().
  Result<void> save() { return cache_->save(); }

  const Config& config() const { return options_.config; }
  const Budget& budget() const { return budget_; }
  const Model& model() const { return model_; }
  const kv::CodecPolicy& codecs() const { return codecs_; }  // [layer]
  cache::CacheStatistics cache_statistics() const { return cache_->statistics(); }
  const cache::SkippedMass* skipped() const { return cache_->skipped(); }
  const EngineStatistics& statistics() const { return statistics_; }
  tier::Tiers& tiers() { return *tiers_; }

 private:
  Engine(const Model& model, ThreadPool& pool, EngineOptions options, kv::CodecPolicy codecs,
         Budget budget);
  Result<void> create_tiers();
  std::jthread populate_memory() const;
  tier::DeviceProfile measured_device(uint32_t reads_in_flight);
  Result<void> create_cache();
  Result<void> create_context(uint32_t ubatch);
  Result<void> recover();
  Result<void> recompute(uint32_t group);
  Result<void> compute(uint32_t position, std::span<const int32_t> tokens, Outputs outputs,
                       cache::StepKind kind);
  bool falls_back(const Result<void>& outcome);
  void record_speed(uint32_t tokens, uint64_t compute_ns);
  Result<void> maybe_grow(uint64_t chunk_ns, uint64_t stall_ns);
  void hash_logits(uint32_t rows);

  static bool on_node(ggml_tensor* node, bool ask, void* self);
  bool take_over(ggml_tensor* node);
  bool attend(ggml_tensor* node);

  const Model& model_;
  ThreadPool& pool_;
  EngineOptions options_;
  kv::CodecPolicy codecs_;
  Budget budget_;
  SystemClock system_clock_;
  const Clock& clock_;
  std::unique_ptr<tier::Tiers> tiers_;
  std::unique_ptr<cache::KvCache> cache_;
  llama_context* context_ = nullptr;
  struct Batch;
  std::unique_ptr<Batch> batch_;
  uint32_t ubatch_ = 0;
  uint32_t output_rows_ = 0;
  kv::Fingerprint fingerprint_ = {};
  ResumeReport resume_;
  bool resuming_ = false;                                 // until the first step after resume()
  double compute_speed_ = 0;                              // as recorded; tokens a second
  uint64_t resume_stall_ns_ = 0, resume_recomputed_ = 0;  // when resume() was done
  ggml_tensor* pending_ = nullptr;  // the attention node taken over and not yet computed
  Result<void> step_outcome_;
  std::optional<TraceScope> model_span_;  // what llama computes between two attentions
  EngineStatistics statistics_;
};

}  // namespace hifc::engine
