// Exact attention over encoded K/V pages, for prefill and decode alike.
//
// The unit is a split: kSplitTokens tokens on the absolute position grid (4 pages of 64). For each
// split and query row the kernel gives a partial softmax (max, sum, weighted V); partials are
// merged strictly in split order. Every step of one row (dot products channel by channel, sums
// token by token, merges split by split) is computed in an order fixed by positions alone, so a
// row's result is bit-identical however many rows, threads or calls share the work and wherever the
// pages lie. That is the ground of determinism L1 and L2 (ARCHITECTURE.md). A second, faster
// algorithm for prompts has the same property, but other bits than the first one.
//
// Thread-safe: no state of their own; each call writes only the memory it is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "kv/layout.h"

namespace hifc::kernels {

inline constexpr uint32_t kSplitTokens = 256;
inline constexpr uint32_t kSplitPages = kSplitTokens / kv::kPageTokens;

struct HeadParameters {
  uint32_t head_dim = 0;  // multiple of 16, at most kv::kHeadDimMax
  float scale = 1.0f;     // applied to q.k
  float softcap = 0.0f;   // 0: none; else s = softcap * tanh(s / softcap) after scaling
  // Query heads that share the KV head. Kernels may choose by it how to compute, never by how many
  // rows a call has.
  uint32_t group_size = 1;
};

struct Page {
  const std::byte* data = nullptr;  // F16 bits, or encoded as kernels/codec.h says
  kv::Codec codec = kv::Codec::kF16;
};

// The pages of one KV head in one split, each of any codec. A page no row sees may be null. Tokens
// beyond a row's range inside a page must be finite (zero is fine): they are multiplied by zero.
struct SplitPages {
  std::array<Page, kSplitPages> k = {};  // each [head_dim][64 tokens]
  std::array<Page, kSplitPages> v = {};  // each [64 tokens][head_dim]
  // Where the first page is the sequence's first one: its first kSinkTokens tokens, exact, F16 bits
  // [kSinkTokens][head_dim]; they take the place of what an encoded page says of them. Else null.
  const uint16_t* sink_k = nullptr;
  const uint16_t* sink_v = nullptr;
};

// Query rows: any mix of tokens and of the query heads that share the KV head.
struct QueryRows {
  uint32_t count = 0;
  const float* q = nullptr;         // [count][head_dim]
  const uint32_t* begin = nullptr;  // [count] visible tokens of this split are [begin, end);
  const uint32_t* end = nullptr;    // [count] begin >= end: the row sees nothing here
};

// Softmax state of rows. A row that has seen nothing, and only such a row, has sum = 0; it also has
// max = -infinity and o = 0.
struct Partials {
  float* max = nullptr;  // [count]
  float* sum = nullptr;  // [count]
  float* o = nullptr;    // [count][head_dim], not yet divided by sum
  // [count][kSplitPages], or null: what each page has of `sum`. Only attend_split writes it.
  float* page_sum = nullptr;
};

// kAmx: AVX-512, and AMX tiles of BF16 for encoded pages and for prompts (Sapphire Rapids and
// later).
enum class Isa : uint8_t { kPortable, kAvx2, kAvx512, kAmx };

// One instruction set's kernels.
struct Kernels {
  Isa isa = Isa::kPortable;
  uint32_t tile_rows = 0;  // rows of a large step that use caches best, together

  // Bytes of scratch (64-byte aligned) that attend_split needs for up to `rows` rows.
  size_t (*scratch_bytes)(const HeadParameters&, uint32_t rows) = nullptr;

  // Partials of all rows over one split; overwrites `out`. Few rows (decode): pages are converted
  // in registers. Many rows (prefill): each page is decoded once into scratch. Where out.o is null,
  // weights alone are computed and no page of V is looked at.
  void (*attend_split)(const HeadParameters&, const SplitPages&, const QueryRows&,
                       std::byte* scratch, const Partials& out) = nullptr;

  // From this many query heads a KV head on, attend_split multiplies pages of 4, 3 and 2 bits on
  // tiles.
  uint32_t tile_group = UINT32_MAX;

  // The same for prompts, whose steps have many rows, with scratch of its own size. Where
  // `prompts_differ`, its bits are not those of attend_split, and infinite inputs give NaN (in
  // attend_split those of encoded pages do): a token is computed with one of them throughout.
  bool prompts_differ = false;
  size_t (*prompt_scratch_bytes)(const HeadParameters&, uint32_t rows) = nullptr;
  void (*attend_split_prompt)(const HeadParameters&, const SplitPages&, const QueryRows&,
                              std::byte* scratch, const Partials& out) = nullptr;

  // into := into merged with the next split's partials.
  void (*merge)(uint32_t head_dim, uint32_t rows, const Partials& into,
                const Partials& next) = nullptr;

  // out[row * out_stride + d] = o / sum; zero for a row that saw nothing. Never writes -0.
  void (*finish)(uint32_t head_dim, uint32_t rows, const Partials& state, float* out,
                 size_t out_stride) = nullptr;

  // Writes `count` tokens' K vectors of one head into a K page from token `first` on, transposing:
  // rows[t * row_stride + d] -> page[d * 64 + first + t]. F16 bits, first + count <= 64.
  void (*store_k)(uint32_t head_dim, const uint16_t* rows, size_t row_stride, uint32_t first,
                  uint32_t count, uint16_t* page) = nullptr;
  // The same for V: rows[t * row_stride + d] -> page[(first + t) * head_dim + d].
  void (*store_v)(uint32_t head_dim, const uint16_t* rows, size_t row_stride, uint32_t first,
                  uint32_t count, uint16_t* page) = nullptr;
};

// The kernels of one instruction set; kUnsupported where the CPU or the build lacks it.
Result<const Kernels*> kernels_for(Isa isa);

enum class Rounding : uint8_t {
  kFastest,  // prompts and generated tokens may round differently
  kOne,      // a token's bits do not depend on which of the two it is
};

// The best of this CPU, or what HIFC_FORCE_ISA (portable, avx2, avx512, amx) asks for; kInvalid for
// any other value of it, kUnsupported where the CPU lacks what it names. For kOne AVX-512 takes
// the place of AMX.
Result<const Kernels*> select_kernels(Rounding rounding = Rounding::kFastest);

std::string_view to_string(Isa isa);

}  // namespace hifc::kernels
