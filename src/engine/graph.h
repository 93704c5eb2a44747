// Reading llama's compute graph: the attention nodes and what they carry.
#pragma once

#include <cstring>
#include <optional>
#include <string_view>

#include "ggml.h"

namespace hifc::engine {

inline const ggml_tensor* root_of(const ggml_tensor* tensor) {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  return tensor;
}

// The layer a cache tensor ("cache_k_l<N>", "cache_v_l<N>") belongs to.
inline std::optional<uint32_t> cache_layer(const ggml_tensor* tensor, std::string_view prefix) {
  const std::string_view name = root_of(tensor)->name;
  if (!name.starts_with(prefix)) return std::nullopt;
  uint32_t layer = 0;
  for (const char c : name.substr(prefix.size())) {
    if (c < '0' || c > '9') return std::nullopt;
    layer = layer * 10 + static_cast<uint32_t>(c - '0');
  }
  return layer;
}

struct FlashAttentionParameters {
  float scale = 0, max_bias = 0, softcap = 0;
};

inline FlashAttentionParameters attention_parameters(const ggml_tensor* node) {
  FlashAttentionParameters parameters;
  std::memcpy(&parameters, node->op_params, sizeof parameters);
  return parameters;
}

}  // namespace hifc::engine
