#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/batch.h"
#include "engine/device_record.h"
#include "engine/graph.h"
#include "engine/identity.h"
#include "engine/policy.h"
#include "llama.h"

namespace hifc::engine {
namespace {

constexpr TraceKind kTracePrompt{.track = "engine",
                                 .category = "step",
                                 .name = "prompt step",
                                 .arguments = {"position", "tokens"}};
constexpr TraceKind kTraceGeneration{.track = "engine",
                                     .category = "step",
                                     .name = "generation step",
                                     .arguments = {"position", "tokens"}};
constexpr TraceKind kTraceRecomputation{.track = "engine",
                                        .category = "step",
                                        .name = "recomputation step",
                                        .arguments = {"position", "tokens"}};
// Projections, feed-forward and the rest of the graph before a layer's attention; the one before
// "layer n" of n layers is what follows the last attention, with the output.
constexpr TraceKind kTraceModel{
    .track = "engine", .category = "model", .name = "model", .arguments = {"before_layer"}};
constexpr TraceKind kTraceResume{
    .track = "engine", .category = "step", .name = "resume", .arguments = {"prompt_tokens"}};

io::RingOptions ring_options(const Config& config) {
  using Backend = io::RingOptions::Backend;
  io::RingOptions options;
  options.backend = config.io_backend == IoBackend::kUring     ? Backend::kUring
                    : config.io_backend == IoBackend::kThreads ? Backend::kThreads
                                                               : Backend::kAutomatic;
  options.depth = 2 * kReadsPerWorker * config.prefetch_workers;
  options.workers = config.prefetch_workers;
  return options;
}

cache::SparseOptions sparse_options(const Config& config) {
  return {.enabled = config.attention == AttentionMode::kSparse,
          .mass = config.mass,
          .page_budget = config.page_budget,
          .bound = config.mass_bound,
          .predictor = config.predictor,
          .on_miss = config.on_miss,
          .miss_deadline_ns = uint64_t{config.miss_deadline} * 1'000'000};
}

}  // namespace

struct Engine::Batch : TokenBatch {
  using TokenBatch::TokenBatch;
};

Engine::Engine(const Model& model, ThreadPool& pool, EngineOptions options, kv::CodecPolicy codecs,
               Budget budget)
    : model_(model),
      pool_(pool),
      options_(std::move(options)),
      codecs_(std::move(codecs)),
      budget_(std::move(budget)),
      clock_(options_.clock != nullptr ? *options_.clock : system_clock_) {}

Engine::~Engine() {
  cache_.reset();
  if (context_ != nullptr) llama_free(context_);
}

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, ThreadPool& pool,
                                               EngineOptions options) {
  kv::CodecPolicy codecs;
  if (options.codecs) {
    codecs = *options.codecs;
  } else {
    HIFC_ASSIGN(codecs, resolve_policy(options.config.policy, model));
  }
  // Chunks decide what is sealed when, and a resumed prefix is sealed already.
  if (options.config.deterministic && kv::lossy(codecs))
    return failure(Code::kInvalid, fmt::format("deterministic needs policy f16, but it is '{}'",
                                               options.config.policy));
  if (options.config.deterministic && options.config.attention != AttentionMode::kExact)
    return failure(Code::kInvalid, "deterministic needs attention exact, but it is 'sparse'");
  if (options.config.deterministic && model.rounding() != kernels::Rounding::kOne)
    return failure(Code::kInvalid, "deterministic needs a model that was loaded for it");
  HIFC_ASSIGN(Budget budget,
              plan_budget(options.config, model.shape(), codecs, model.context_tokens()));
  std::unique_ptr<Engine> engine(
      new Engine(model, pool, std::move(options), std::move(codecs), std::move(budget)));
  HIFC_TRY(engine->create_tiers());
  const std::jthread memory = engine->populate_memory();
  HIFC_TRY(engine->create_cache());
  HIFC_TRY(engine->create_context(engine->budget_.ubatch_tokens));
  return engine;
}

// Beside what creating the rest takes; nobody waits for memory after that.
std::jthread Engine::populate_memory() const {
  const uint32_t tokens = budget_.layout.block_tokens();
  const uint64_t groups = (options_.expected_tokens + tokens - 1) / tokens;
  try {
    return std::jthread(
        [&tiers = *tiers_, bytes = groups * budget_.group_bytes] { tiers.populate(bytes); });
  } catch (const std::system_error& error) {
    log_debug("no thread to populate memory: {}", error.what());
    return {};
  }
}

Result<void> Engine::create_tiers() {
  tier::TiersOptions tiers{.block_bytes = budget_.layout.block_bytes_max(),
                           .blocks_per_group = model_.shape().layers,
                           .hot_bytes = budget_.hot_bytes,
                           .warm_bytes = budget_.warm_bytes,
                           .exact_bytes = cache::KvCache::exact_bytes(
                               budget_.layout, budget_.ubatch_tokens, budget_.flash),
                           .flash = std::nullopt,
                           .ring = ring_options(options_.config)};
  if (budget_.flash)
    tiers.flash = flash::StoreOptions{
        .directory = budget_.flash_path,
        .capacity_bytes = budget_.flash_bytes,
        .direct = options_.config.direct_io,
        .temporary = options_.temporary_flash,
        .free_space_floor_bytes = options_.config.flash_free_space,
        .deadline_ns = uint64_t{options_.config.flash_deadline} * 1'000'000'000};
  if (options_.ring != nullptr) {
    HIFC_ASSIGN(tiers_, tier::Tiers::create(tiers, *options_.ring));
  } else {
    HIFC_ASSIGN(tiers_, tier::Tiers::create(tiers));
  }
  return {};
}

// By its costs reads of parts of blocks are planned, which exact attention has none of.
tier::DeviceProfile Engine::measured_device(uint32_t reads_in_flight) {
  if (options_.config.attention != AttentionMode::kSparse || !tiers_->has_cold()) return {};
  const auto profile =
      device_profile(*tiers_, budget_.flash_path, clock_, {.depth = reads_in_flight});
  if (profile) return *profile;
  log_debug("the flash device's costs are unknown: {}", profile.error().message());
  return {};
}

Result<void> Engine::create_cache() {
  HIFC_ASSIGN(const kernels::Kernels* kernels,
              kernels::select_kernels(rounding_of(options_.config)));
  HIFC_ASSIGN(fingerprint_, resolve_fingerprint(model_, *kernels, *tiers_, pool_,
                                                {.tenant = options_.config.tenant,
                                                 .codecs = codecs_,
                                                 .temporary = options_.temporary_flash,
                                                 .cancelled = options_.cancelled}));
  if (const auto record = read_record(*tiers_, speed_key(fingerprint_, pool_.threads())))
    compute_speed_ = decode_speed(*record);
  const uint32_t reads_in_flight = kReadsPerWorker * options_.config.prefetch_workers;
  const cache::PrefetchOptions prefetch{.window_layers = options_.config.prefetch_window,
                                        .reads_in_flight = reads_in_flight,
                                        .device = measured_device(reads_in_flight)};
  HIFC_ASSIGN(cache_, cache::KvCache::create({.shape = model_.shape(),
                                              .block_tokens = budget_.layout.block_tokens(),
                                              .codecs = codecs_,
                                              .fingerprint = fingerprint_,
                                              .prefetch = prefetch,
                                              .sparse = sparse_options(options_.config),
                                              .layer_observer = options_.layer_observer,
                                              .cancelled = options_.cancelled,
                                              .trace = options_.trace},
                                             *tiers_, *kernels, pool_, clock_));
  return {};
}

Result<void> Engine::create_context(uint32_t ubatch) {
  llama_context_params params = llama_context_default_params();
  // llama keeps one chunk's K and V, HiFC the rest.
  params.n_ctx = params.n_batch = params.n_ubatch = ubatch;
  params.n_outputs_max = std::min(options_.outputs_max, ubatch);
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(pool_.threads());
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = GGML_TYPE_F16;
  params.kv_unified = true;
  params.swa_full = false;
  params.cb_eval = &Engine::on_node;
  params.cb_eval_user_data = this;
  if (context_ != nullptr) llama_free(context_);
  context_ = llama_init_from_model(model_.handle(), params);
  if (context_ == nullptr)
    return failure(Code::kInternal,
                   fmt::format("libllama cannot make a context: {}", last_llama_error()));
  llama_attach_threadpool(context_, pool_.handle(), pool_.handle());
  batch_ = std::make_unique<Batch>(ubatch);
  ubatch_ = ubatch;
  return {};
}

uint32_t Engine::resume(std::span<const int32_t> prompt) {
  resume_ = {};
  if (!options_.config.resume || !tiers_->has_cold() || length() > 0) return 0;
  const TraceScope scope(options_.trace, kTraceResume, {prompt.size()});
  resume_ = engine::resume(*cache_, prompt, clock_,
                           {.compute_speed = compute_speed_, .cancelled = options_.cancelled});
  resuming_ = length() > 0;
  if (resuming_) cache_->limit_stall(patience_ns(length(), {.compute = compute_speed_}));
  resume_stall_ns_ = cache_->statistics().stall_ns;
  resume_recomputed_ = statistics_.recomputed_groups;
  return length();
}

// After the first step on a stored prefix. True when flash was too slow for it: what is not in
// memory has been cut off, to be computed.
bool Engine::falls_back(const Result<void>& outcome) {
  if (!std::exchange(resuming_, false)) return false;
  cache_->limit_stall(UINT64_MAX);
  resume_.load_ns += cache_->statistics().stall_ns - resume_stall_ns_;
  const uint64_t recomputed =
      (statistics_.recomputed_groups - resume_recomputed_) * budget_.layout.block_tokens();
  resume_.reused_tokens -=
      static_cast<uint32_t>(std::min<uint64_t>(resume_.reused_tokens, recomputed));
  if (outcome || outcome.error().code != Code::kTimeout) return false;
  resume_.reused_tokens = cache_->keep_memory();
  resume_.decision = ResumeDecision::kTooSlow;
  log_info("flash is too slow: {} tokens that it has are computed instead",
           resume_.stored_tokens - resume_.reused_tokens);
  return true;
}

Result<void> Engine::prefill(std::span<const int32_t> tokens,
                             const std::function<void(uint32_t)>& progress) {
  const uint32_t begin = length();
  // With those before, which may have to be computed after all.
  std::vector<int32_t> all(cache_->tokens().begin(), cache_->tokens().end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  uint32_t computed = 0;
  uint64_t compute_ns = 0;
  while (length() < all.size()) {
    const uint32_t at = length();
    const auto count = std::min(ubatch_ - at % ubatch_, static_cast<uint32_t>(all.size()) - at);
    const bool last = at + count == all.size();
    const uint64_t start_ns = clock_.now_ns(), stalled_ns = cache_->statistics().stall_ns;
    const auto outcome = step(std::span(all).subspan(at, count),
                              last ? Outputs::kLast : Outputs::kNone, cache::StepKind::kPrompt);
    if (falls_back(outcome)) continue;
    HIFC_TRY(outcome);
    const uint64_t chunk_ns = clock_.now_ns() - start_ns;
    const uint64_t stall_ns = cache_->statistics().stall_ns - stalled_ns;
    computed += count;
    compute_ns += chunk_ns - std::min(chunk_ns, stall_ns);
    if (progress && length() > begin) progress(length() - begin);
    if (!last) HIFC_TRY(maybe_grow(chunk_ns, stall_ns));
  }
  record_speed(computed, compute_ns);
  return {};
}

// For later decisions whether to load or to compute.
void Engine::record_speed(uint32_t tokens, uint64_t compute_ns) {
  constexpr uint32_t kTokensMin = 256;
  if (!tiers_->has_cold() || tokens < kTokensMin || compute_ns == 0) return;
  const double measured = tokens * 1e9 / static_cast<double>(compute_ns);
  if (!worth_recording(compute_speed_, measured)) return;
  compute_speed_ = measured;
  const auto written =
      write_record(*tiers_, speed_key(fingerprint_, pool_.threads()), encode_speed(measured));
  if (!written) log_debug("the computing speed is not kept: {}", written.error().message());
}

Result<void> Engine::maybe_grow(uint64_t chunk_ns, uint64_t stall_ns) {
  // Under lossy codecs chunks decide what is sealed when: time must not change them.
  if (options_.config.ubatch != 0 || options_.config.deterministic || kv::lossy(codecs_)) return {};
  const uint32_t next = next_ubatch({.ubatch_tokens = ubatch_,
                                     .length = length(),
                                     .chunk_ns = chunk_ns,
                                     .stall_ns = stall_ns,
                                     .memory_bytes = tiers_->memory_bytes()},
                                    budget_.layout);
  if (next == ubatch_) return {};
  log_info("prefill waits for flash: chunks grow from {} to {} tokens", ubatch_, next);
  return create_context(next);
}

Result<void> Engine::step(std::span<const int32_t> tokens, Outputs outputs, cache::StepKind kind) {
  HIFC_CHECK(!tokens.empty());
  HIFC_CHECK(tokens.size() <= ubatch_);
  HIFC_CHECK(outputs != Outputs::kAll || tokens.size() <= options_.outputs_max);
  if (length() + tokens.size() > budget_.context_tokens)
    return failure(Code::kInvalid, fmt::format("{} tokens are more than the context of {}",
                                               length() + tokens.size(), budget_.context_tokens));
  // Every recovery computes one group; more of them than this and the device is beyond use.
  const uint32_t recoveries_max = 16 + 3 * (length() / budget_.layout.block_tokens());
  for (uint32_t recoveries = 0; recoveries <= recoveries_max; ++recoveries) {
    auto outcome = recover();
    if (outcome) outcome = compute(length(), tokens, outputs, kind);
    if (outcome || outcome.error().code != Code::kCorrupt) return outcome;
  }
  return failure(Code::kCorrupt,
                 fmt::format("flash at '{}' keeps returning damaged data", budget_.flash_path));
}

// Computes the lost groups again, earliest first: a group's KV depends on those before it.
Result<void> Engine::recover() {
  if (const auto group = cache_->first_lost_group()) {
    HIFC_TRY(recompute(*group));
    ++statistics_.recomputed_groups;
    if (cache_->first_lost_group()) return failure(Code::kCorrupt, "another group is lost");
  }
  return {};
}

Result<void> Engine::recompute(uint32_t group) {
  const uint32_t block_tokens = budget_.layout.block_tokens();
  const uint32_t begin = group * block_tokens, end = begin + block_tokens;
  log_warn("KV of tokens {}-{} was damaged or unreadable on flash and is computed again", begin,
           end - 1);
  const std::vector<int32_t> tokens(cache_->tokens().begin() + begin,
                                    cache_->tokens().begin() + end);
  for (uint32_t at = begin; at < end;) {
    const uint32_t count = std::min(ubatch_ - at % ubatch_, end - at);
    HIFC_TRY(compute(at, std::span(tokens).subspan(at - begin, count), Outputs::kNone,
                     cache::StepKind::kPrompt));
    at += count;
  }
  return {};
}

Result<void> Engine::compute(uint32_t position, std::span<const int32_t> tokens, Outputs outputs,
                             cache::StepKind kind) {
  const TraceKind& traced = position < length()                    ? kTraceRecomputation
                            : kind == cache::StepKind::kGeneration ? kTraceGeneration
                                                                   : kTracePrompt;
  const TraceScope scope(options_.trace, traced, {position, tokens.size()});
  const uint32_t output_rows = batch_->fill(position, tokens, outputs);
  cache_->begin_step(position, tokens, kind);
  AttentionObserver* const observer = options_.observer;
  if (observer != nullptr) observer->begin_step(position, tokens, kind);
  step_outcome_ = {};
  pending_ = nullptr;
  const uint64_t start_ns = clock_.now_ns();
  model_span_.emplace(options_.trace, kTraceModel, TraceValues{});
  // Cells from 0, positions from anywhere: llama's cache holds just this chunk.
  llama_memory_clear(llama_get_memory(context_), /*data=*/false);
  const int status = llama_decode(context_, batch_->get());
  model_span_.reset();
  if (step_outcome_ && status != 0)
    step_outcome_ = failure(Code::kInternal, fmt::format("libllama cannot decode (status {}): {}",
                                                         status, last_llama_error()));
  if (!step_outcome_) {
    cache_->abort_step();
    if (observer != nullptr) observer->abort_step();
    return std::exchange(step_outcome_, {});
  }
  cache_->end_step();
  if (observer != nullptr) observer->end_step();
  ++statistics_.steps;
  statistics_.step_ns += clock_.now_ns() - start_ns;
  output_rows_ = output_rows;
  hash_logits(output_rows_);
  return {};
}

std::span<const float> Engine::logits(uint32_t row) const {
  HIFC_CHECK(row < output_rows_);
  const auto index = static_cast<int32_t>(row) - static_cast<int32_t>(output_rows_);
  return {llama_get_logits_ith(context_, index), model_.vocabulary_size()};
}

void Engine::hash_logits(uint32_t rows) {
  for (uint32_t row = 0; row < rows; ++row)
    statistics_.logits_hash = hash64(std::as_bytes(logits(row)), statistics_.logits_hash);
}

bool Engine::on_node(ggml_tensor* node, bool ask, void* self) {
  auto& engine = *static_cast<Engine*>(self);
  return ask ? engine.take_over(node) : engine.attend(node);
}

bool Engine::take_over(ggml_tensor* node) {
  if (node->op != GGML_OP_FLASH_ATTN_EXT) return false;
  // llama skips a node without an operation and still computes its inputs.
  node->op = GGML_OP_NONE;
  pending_ = node;
  return true;
}

bool Engine::attend(ggml_tensor* node) {
  if (node != pending_) return true;
  pending_ = nullptr;
  node->op = GGML_OP_FLASH_ATTN_EXT;
  if (!step_outcome_) return false;  // ggml leaves the split, but goes on with the next one
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
  const auto layer = cache_layer(k, "cache_k_l");
  HIFC_CHECK(layer.has_value());
  HIFC_CHECK(q->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32);
  HIFC_CHECK(k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16);
  const FlashAttentionParameters parameters = attention_parameters(node);
  const cache::LayerInput input{
      .layer = *layer,
      .q = static_cast<const float*>(q->data),
      .q_token_stride = q->nb[1] / sizeof(float),
      .q_head_stride = q->nb[2] / sizeof(float),
      .k = static_cast<const uint16_t*>(k->data),
      .k_token_stride = k->nb[1] / sizeof(uint16_t),
      .k_head_stride = k->nb[2] / sizeof(uint16_t),
      .v = static_cast<const uint16_t*>(v->data),
      .v_token_stride = v->nb[1] / sizeof(uint16_t),
      .v_head_stride = v->nb[2] / sizeof(uint16_t),
      .out = static_cast<float*>(node->data),
      .scale = parameters.scale,
      .softcap = parameters.softcap,
  };
  model_span_.reset();
  step_outcome_ = cache_->attend(input);
  if (step_outcome_ && options_.observer != nullptr)
    step_outcome_ = options_.observer->attended(input);
  model_span_.emplace(options_.trace, kTraceModel, TraceValues{*layer + 1});
  return step_outcome_.has_value();
}

}  // namespace hifc::engine
