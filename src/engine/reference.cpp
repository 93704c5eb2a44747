#include "engine/reference.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/batch.h"
#include "llama.h"

namespace hifc::engine {

struct Reference::Batch : TokenBatch {
  using TokenBatch::TokenBatch;
};

std::string_view to_string(ReferenceMode mode) {
  switch (mode) {
    case ReferenceMode::kF32: return "llama.f32";
    case ReferenceMode::kF16: return "llama.f16";
    case ReferenceMode::kF16FlashAttention: return "llama.f16.fa";
  }
  return "unknown";
}

Result<std::unique_ptr<Reference>> Reference::create(const Model& model, ThreadPool& pool,
                                                     const ReferenceOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_tokens;
  params.n_batch = params.n_ubatch = options.ubatch_tokens;
  params.n_outputs_max = options.outputs_max;
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(pool.threads());
  params.type_k = params.type_v =
      options.mode == ReferenceMode::kF32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.flash_attn_type = options.mode == ReferenceMode::kF16FlashAttention
                               ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                               : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  std::unique_ptr<Reference> reference(new Reference(model));
  reference->options_ = options;
  reference->context_ = llama_init_from_model(model.handle(), params);
  if (reference->context_ == nullptr)
    return failure(Code::kInternal, fmt::format("libllama cannot make the {} context: {}",
                                                to_string(options.mode), last_llama_error()));
  llama_attach_threadpool(reference->context_, pool.handle(), pool.handle());
  reference->batch_ = std::make_unique<Batch>(options.ubatch_tokens);
  return reference;
}

uint64_t Reference::kv_bytes(const kv::ModelShape& shape, const ReferenceOptions& options) {
  constexpr uint64_t kPadding = 256;  // libllama rounds the context up to it
  const uint64_t tokens = (options.context_tokens + kPadding - 1) / kPadding * kPadding;
  const uint64_t number_bytes =
      options.mode == ReferenceMode::kF32 ? sizeof(float) : sizeof(uint16_t);
  return tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * number_bytes;
}

Reference::Reference(const Model& model) : model_(model) {}

Reference::~Reference() {
  if (context_ != nullptr) llama_free(context_);
}

Result<void> Reference::step(std::span<const int32_t> tokens, bool all_outputs) {
  HIFC_CHECK(!tokens.empty());
  HIFC_CHECK(tokens.size() <= options_.ubatch_tokens);
  output_rows_ = batch_->fill(length_, tokens, all_outputs ? Outputs::kAll : Outputs::kLast);
  const int status = llama_decode(context_, batch_->get());
  if (status != 0)
    return failure(Code::kInternal, fmt::format("llama.cpp cannot decode (status {}): {}", status,
                                                last_llama_error()));
  length_ += static_cast<uint32_t>(tokens.size());
  return {};
}

Result<void> Reference::prefill(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    const size_t count = std::min<size_t>(tokens.size(), options_.ubatch_tokens);
    HIFC_TRY(step(tokens.first(count), /*all_outputs=*/false));
    tokens = tokens.subspan(count);
  }
  return {};
}

std::span<const float> Reference::logits(uint32_t row) const {
  HIFC_CHECK(row < output_rows_);
  const auto index = static_cast<int32_t>(row) - static_cast<int32_t>(output_rows_);
  return {llama_get_logits_ith(context_, index), model_.vocabulary_size()};
}

void Reference::truncate(uint32_t length) {
  llama_memory_seq_rm(llama_get_memory(context_), 0, static_cast<llama_pos>(length), -1);
  length_ = std::min(length_, length);
}

Result<void> Reference::save_state(const std::string& path) {
  if (llama_state_seq_save_file(context_, path.c_str(), 0, nullptr, 0) > 0) return {};
  return failure(Code::kIo, fmt::format("llama.cpp cannot save its state to {}: {}", path,
                                        last_llama_error()));
}

Result<void> Reference::load_state(const std::string& path) {
  HIFC_CHECK(length_ == 0);
  llama_token tokens = 0;  // none are in the file, but without room for them nothing is loaded
  size_t token_count = 0;
  if (llama_state_seq_load_file(context_, path.c_str(), 0, &tokens, 1, &token_count) == 0)
    return failure(Code::kIo, fmt::format("llama.cpp cannot load its state from {}: {}", path,
                                          last_llama_error()));
  length_ = static_cast<uint32_t>(llama_memory_seq_pos_max(llama_get_memory(context_), 0) + 1);
  return {};
}

}  // namespace hifc::engine
