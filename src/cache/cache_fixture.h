// What the cache's tests share: random K, V and Q fixed by (layer, position), a cache over tiers in
// a directory of its own, and the engine's loop of steps and recoveries without an engine.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/kv_cache.h"
#include "testing/temp_directory.h"
#include "testing/thread_parallel.h"

namespace hifc::cache {

inline uint16_t to_half(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
inline double from_half(uint16_t bits) {
  return static_cast<double>(std::bit_cast<_Float16>(bits));
}

// Everything attention is asked with, for every layer and position.
struct Inputs {
  Inputs(kv::ModelShape model_shape, uint32_t token_count, uint64_t seed, float cap = 0.0f)
      : shape(std::move(model_shape)), length(token_count), softcap(cap) {
    std::mt19937_64 random(seed);
    // 16 bits of a cheap generator: 32k different values in [-2, 2) are as good as any here.
    const auto next = [&] { return static_cast<float>(random() >> 48) / 16384.0f - 2.0f; };
    q.resize(size_t{shape.layers} * length * shape.query_heads * shape.head_dim);
    k.resize(size_t{shape.layers} * length * shape.kv_heads * shape.head_dim);
    v.resize(k.size());
    for (float& value : q) value = next();
    for (uint16_t& value : k) value = to_half(next());
    for (uint16_t& value : v) value = to_half(next());
    for (uint32_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(random() % 50000));
  }

  size_t q_row() const { return size_t{shape.query_heads} * shape.head_dim; }
  size_t kv_row() const { return size_t{shape.kv_heads} * shape.head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.head_dim)); }
  size_t out_offset(uint32_t layer, uint32_t position) const {
    return (size_t{layer} * length + position) * q_row();
  }

  LayerInput at(uint32_t layer, uint32_t position, float* out) const {
    const size_t row = size_t{layer} * length + position;
    return {.layer = layer,
            .q = q.data() + row * q_row(),
            .q_token_stride = q_row(),
            .q_head_stride = shape.head_dim,
            .k = k.data() + row * kv_row(),
            .k_token_stride = kv_row(),
            .k_head_stride = shape.head_dim,
            .v = v.data() + row * kv_row(),
            .v_token_stride = kv_row(),
            .v_head_stride = shape.head_dim,
            .out = out,
            .scale = scale(),
            .softcap = softcap};
  }

  kv::ModelShape shape;
  uint32_t length;
  float softcap;
  std::vector<float> q;     // [layer][position][query_heads][head_dim]
  std::vector<uint16_t> k;  // [layer][position][kv_heads][head_dim]
  std::vector<uint16_t> v;
  std::vector<int32_t> tokens;  // [position]
};

using Outputs = std::vector<float>;  // [layer][position][query_heads][head_dim]

struct CacheSetup {
  uint32_t block_tokens = 256;
  kv::CodecPolicy codecs = {};
  uint32_t chunk = 256;     // the most tokens of a step
  uint32_t hot_frames = 0;  // exact blocks, as the next
  uint32_t warm_frames = 0;
  bool flash = false;
  uint64_t flash_bytes = 64u << 20;
  std::string directory = {};  // of the store; empty: the session's own
  uint64_t deadline_ns = 10'000'000'000;
  const Clock* clock = nullptr;  // null: the system's
  std::byte fingerprint{7};
  io::RingOptions ring = {};
  io::Ring* own_ring = nullptr;  // instead of `ring`
  uint32_t threads = 1;
  PrefetchOptions prefetch = {};
  SparseOptions sparse = {};
  const std::atomic<bool>* cancelled = nullptr;
  uint32_t generated_from = 0;  // position of the first token that is not of a prompt
  Trace* trace = nullptr;
  LayerObserver* layer_observer = nullptr;
};

inline uint32_t frames_of(uint64_t bytes, const kv::GroupLayout& layout) {
  const uint64_t frame = layout.block_bytes_max();
  return static_cast<uint32_t>((bytes + frame - 1) / frame);
}

// Room for everything, in chunks between multiples of `chunk`.
inline CacheSetup in_memory(const kv::ModelShape& shape, uint32_t tokens,
                            uint32_t block_tokens = 256, const kv::CodecPolicy& codecs = {},
                            uint32_t chunk = 256) {
  const auto layout = kv::GroupLayout::make(shape, block_tokens, codecs).value();
  return {.block_tokens = block_tokens,
          .codecs = codecs,
          .chunk = chunk,
          .warm_frames = frames_of(KvCache::bytes_for_all(layout, tokens, chunk), layout)};
}

// As little memory as chunks of `chunk` tokens can run in.
inline CacheSetup minimum(const kv::ModelShape& shape, uint32_t block_tokens, uint32_t chunk,
                          const kv::CodecPolicy& codecs = {}) {
  const auto layout = kv::GroupLayout::make(shape, block_tokens, codecs).value();
  const uint64_t bytes =
      std::max(KvCache::bytes_min(layout), KvCache::bytes_for_ubatch(layout, chunk));
  return {.block_tokens = block_tokens,
          .codecs = codecs,
          .chunk = chunk,
          .warm_frames = frames_of(bytes, layout),
          .flash = true};
}

// A cache, and the outputs of everything it has attended to.
class Session {
 public:
  Session(const Inputs& inputs, CacheSetup setup)
      : inputs_(inputs), setup_(setup), parallel_(setup.threads) {
    outputs.resize(inputs.q.size());
  }

  Result<void> open() {
    HIFC_ASSIGN(layout_, kv::GroupLayout::make(inputs_.shape, setup_.block_tokens, setup_.codecs));
    const size_t frame = layout_.block_bytes_max();
    tier::TiersOptions options{
        .block_bytes = frame,
        .blocks_per_group = inputs_.shape.layers,
        .hot_bytes = setup_.hot_frames * frame,
        .warm_bytes = setup_.warm_frames * frame,
        .exact_bytes = KvCache::exact_bytes(layout_, setup_.chunk, setup_.flash),
        .flash = {},
        .ring = setup_.ring};
    if (setup_.flash)
      options.flash = flash::StoreOptions{.directory = store_path().string(),
                                          .capacity_bytes = setup_.flash_bytes,
                                          .deadline_ns = setup_.deadline_ns,
                                          .clock = setup_.clock};
    HIFC_ASSIGN(tiers, setup_.own_ring != nullptr ? tier::Tiers::create(options, *setup_.own_ring)
                                                  : tier::Tiers::create(options));
    HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
    HIFC_ASSIGN(cache, KvCache::create({.shape = inputs_.shape,
                                        .block_tokens = setup_.block_tokens,
                                        .codecs = setup_.codecs,
                                        .fingerprint = {setup_.fingerprint},
                                        .prefetch = setup_.prefetch,
                                        .sparse = setup_.sparse,
                                        .layer_observer = setup_.layer_observer,
                                        .cancelled = setup_.cancelled,
                                        .trace = setup_.trace},
                                       *tiers, *kernels, parallel_, clock()));
    return {};
  }

  const Clock& clock() const { return setup_.clock != nullptr ? *setup_.clock : system_clock_; }

  // Begins with what flash has of the first `count` tokens; how many that is.
  uint32_t resume(uint32_t count, uint64_t patience_ns = 10'000'000'000) {
    const auto tokens = std::span(inputs_.tokens).first(count);
    const Patience patience{.clock = &clock(), .until_ns = clock().now_ns() + patience_ns};
    StoredPrefix prefix = cache->find_stored(tokens, patience);
    KvCache::Loaded loaded;
    if (prefix.tail) {
      if (auto tail = cache->load(prefix, prefix.groups(), patience))
        loaded.tail.emplace(std::move(*tail));
      else
        prefix.tail.reset();
    }
    cache->adopt(tokens, std::move(prefix), std::move(loaded));
    return cache->length();
  }

  // One step of the protocol, aborted if it fails.
  Result<void> step(uint32_t position, uint32_t count) {
    const StepKind kind =
        position < setup_.generated_from ? StepKind::kPrompt : StepKind::kGeneration;
    cache->begin_step(position, std::span(inputs_.tokens).subspan(position, count), kind);
    for (uint32_t layer = 0; layer < inputs_.shape.layers; ++layer) {
      float* out = outputs.data() + inputs_.out_offset(layer, position);
      if (auto outcome = cache->attend(inputs_.at(layer, position, out)); !outcome) {
        cache->abort_step();
        return outcome;
      }
    }
    cache->end_step();
    return {};
  }

  // Computes a lost group again, in chunks on the absolute grid as the engine does.
  Result<void> recompute(uint32_t group, uint32_t chunk) {
    const uint32_t end = (group + 1) * setup_.block_tokens;
    for (uint32_t at = group * setup_.block_tokens; at < end;) {
      const uint32_t count = std::min(chunk - at % chunk, end - at);
      HIFC_TRY(step(at, count));
      at += count;
      ++recomputed_steps;
    }
    return {};
  }

  // The next tokens up to `until`, whatever is lost on the way.
  Result<void> advance(uint32_t until, uint32_t chunk, uint32_t recoveries_max = 200) {
    while (cache->length() < until) {
      auto outcome =
          next(std::min(chunk - cache->length() % chunk, until - cache->length()), chunk);
      if (outcome) continue;
      if (outcome.error().code != Code::kCorrupt || recoveries_max-- == 0) return outcome;
    }
    return {};
  }

  // Flips one byte of the block in every segment file that carries it; true if any does.
  bool damage(uint32_t group, uint32_t layer, size_t offset_in_block) {
    return for_each_copy(group, layer, [&](std::fstream& file, uint64_t at) {
             file.seekg(static_cast<std::streamoff>(at + offset_in_block));
             const int byte = file.get();
             file.seekp(static_cast<std::streamoff>(at + offset_in_block));
             file.put(static_cast<char>(byte ^ 0x10));
           }) > 0;
  }

  // Cuts the segment file off in the middle of the block.
  bool cut_off(uint32_t group, uint32_t layer) {
    uint64_t end = 0;
    std::filesystem::path cut;
    for (const auto& path : segments()) {
      for_each_copy(path, group, layer, [&](std::fstream&, uint64_t at) {
        end = at + layout_.sealed[layer].block_bytes() / 2;
        cut = path;
      });
    }
    if (cut.empty()) return false;
    std::filesystem::resize_file(cut, end);
    return true;
  }

  double cold_share() const {
    uint64_t hits = 0;
    for (const auto tier : {tier::Tier::kHot, tier::Tier::kWarm, tier::Tier::kCold})
      hits += tiers->counters(tier).hits;
    return static_cast<double>(tiers->counters(tier::Tier::kCold).hits) / static_cast<double>(hits);
  }

  const kv::GroupLayout& layout() const { return layout_; }
  bool idle() const { return tiers->free_bytes() == tiers->memory_bytes(); }

  Outputs outputs;
  uint64_t recomputed_steps = 0;

 private:
  Result<void> next(uint32_t count, uint32_t chunk) {
    // Not token by token: every step of a recomputation reads everything before it again.
    while (const auto group = cache->first_lost_group())
      HIFC_TRY(recompute(*group, std::max(chunk, 64u)));
    return step(cache->length(), count);
  }

  std::filesystem::path store_path() const {
    return setup_.directory.empty() ? directory_.path() / "store"
                                    : std::filesystem::path(setup_.directory);
  }
  std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(store_path()))
      if (entry.path().extension() == ".seg") paths.push_back(entry.path());
    return paths;
  }

  // Blocks are found by their headers, as a person with a hex editor would.
  template <typename Visit>
  uint32_t for_each_copy(const std::filesystem::path& path, uint32_t group, uint32_t layer,
                         Visit visit) {
    uint32_t found = 0;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const uint64_t size = std::filesystem::file_size(path);
    const uint32_t position = group * setup_.block_tokens;
    for (uint64_t at = 0; at + kv::kHeaderBytes <= size; at += kv::kHeaderBytes) {
      kv::BlockHeader header;
      file.seekg(static_cast<std::streamoff>(at));
      file.read(reinterpret_cast<char*>(&header), sizeof header);
      if (header.magic != kv::BlockHeader{}.magic || header.layer != layer ||
          header.tokens.first_position != position)
        continue;
      visit(file, at);
      ++found;
    }
    return found;
  }
  template <typename Visit>
  uint32_t for_each_copy(uint32_t group, uint32_t layer, Visit visit) {
    uint32_t found = 0;
    for (const auto& path : segments()) found += for_each_copy(path, group, layer, visit);
    return found;
  }

  const Inputs& inputs_;
  CacheSetup setup_;
  testing::TempDirectory directory_;
  kv::GroupLayout layout_;
  testing::ThreadParallel parallel_;
  SystemClock system_clock_;

 public:  // last, so that they go before what they use
  std::unique_ptr<tier::Tiers> tiers;
  std::unique_ptr<KvCache> cache;
};

// Bits, not values; the message says where.
inline ::testing::AssertionResult same_bits(const Inputs& inputs, const Outputs& expected,
                                            const Outputs& got, uint32_t tokens) {
  for (uint32_t layer = 0; layer < inputs.shape.layers; ++layer)
    for (uint32_t position = 0; position < tokens; ++position) {
      const size_t at = inputs.out_offset(layer, position);
      if (std::memcmp(&expected[at], &got[at], inputs.q_row() * sizeof(float)) != 0)
        return ::testing::AssertionFailure() << "layer " << layer << " position " << position
                                             << ": " << expected[at] << " became " << got[at];
    }
  return ::testing::AssertionSuccess();
}

// The outputs of the same inputs with all KV in memory.
inline Outputs undamaged(const Inputs& inputs, uint32_t generated_from = 0) {
  CacheSetup setup = in_memory(inputs.shape, inputs.length);
  setup.generated_from = generated_from;
  Session session(inputs, setup);
  EXPECT_TRUE(session.open());
  EXPECT_TRUE(session.advance(inputs.length, 256));
  return std::move(session.outputs);
}

}  // namespace hifc::cache
