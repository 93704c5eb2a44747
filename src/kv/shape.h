// What the cache must know about a model.
#pragma once

#include <cstdint>
#include <vector>

namespace hifc::kv {

inline constexpr uint32_t kHeadDimMax = 512;

struct ModelShape {
  uint32_t layers = 0;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;         // divides query_heads; group size = query_heads / kv_heads
  uint32_t head_dim = 0;         // of K and of V; a multiple of 16, at most kHeadDimMax
  std::vector<uint32_t> window;  // [layers]; 0 = all tokens, else the newest `window` tokens
};

}  // namespace hifc::kv
