// Attention of one layer over blocks wherever they are, in as many waves as they arrive in.
//
//   begin()            packs the queries
//   compute(splits)    any number of times, as blocks become available
//   finish()           writes the output
//
// Few query rows (decode): waves may bring splits in any order, each split's partials are kept and
// merged in split order at the end. Many rows (prefill): waves must bring splits in ascending order
// and each row tile merges as it goes. Both give a row the same bits. The kernels may have another
// algorithm for prompts than for generated tokens (kernels/attention.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/parallel.h"
#include "kernels/attention.h"
#include "kernels/codec.h"
#include "kv/layout.h"
#include "kv/shape.h"

namespace hifc::cache {

// One layer's tensors of one step. Strides in elements; head_dim elements are contiguous.
struct LayerInput {
  uint32_t layer = 0;
  const float* q = nullptr;  // [tokens][query_heads][head_dim] by strides
  size_t q_token_stride = 0, q_head_stride = 0;
  const uint16_t* k = nullptr;  // [tokens][kv_heads][head_dim] by strides, F16 bits
  size_t k_token_stride = 0, k_head_stride = 0;
  const uint16_t* v = nullptr;
  size_t v_token_stride = 0, v_head_stride = 0;
  float* out = nullptr;  // [tokens][query_heads][head_dim], contiguous
  float scale = 1.0f;
  float softcap = 0.0f;
};

// What each page has of each query row's attention: of a row, in units of exp(max).
struct PageWeights {
  uint32_t rows = 0;  // of a KV head
  uint32_t pages = 0;
  std::vector<float> max;     // [kv_head][row]; -infinity where the row saw nothing
  std::vector<float> weight;  // [kv_head][row][page]

  std::span<const float> of(uint32_t kv_head, uint32_t row) const {
    return std::span(weight).subspan((size_t{kv_head} * rows + row) * pages, pages);
  }
};

// What a step computes. Where the kernels round prompts in their own way, a token's bits depend on
// this, and on nothing else about its step.
enum class StepKind : uint8_t { kGeneration, kPrompt };

class TieredAttention {
 public:
  TieredAttention(const kernels::Kernels& kernels, const kv::ModelShape& shape, Parallel& parallel);

  // Gives the pages of one KV head in one split; called from several threads.
  using PageSource = FunctionRef<kernels::SplitPages(uint32_t split, uint32_t kv_head)>;

  struct Span {
    StepKind kind = StepKind::kGeneration;
    uint32_t position = 0, tokens = 0;  // queries at [position, position + tokens)
    uint32_t first_split = 0, last_split = 0;
    kv::LayerCodecs codecs;  // of the layer: K and V that they rotate are rotated in all pages
    // finish() writes it, pages from the first split's on; of few generated tokens (any_order())
    // alone. Null: not asked for.
    PageWeights* page_weights = nullptr;
    // K alone is looked at, and no output written.
    bool weights_only = false;
    // [kv_head] tokens, or null. Where they are given, splits are not of positions but of so many
    // tokens for a KV head, which all queries see: pages gathered from anywhere.
    const uint32_t* gathered = nullptr;
  };
  // Splits [first, last) will come.
  void begin(const LayerInput& input, const Span& span);
  bool any_order() const { return few_; }
  void compute(std::span<const uint32_t> splits, PageSource pages);
  // One KV head's part of a split; of few rows alone. Each comes once, in any order.
  struct Part {
    uint32_t split = 0, kv_head = 0;
  };
  void compute(std::span<const Part> parts, PageSource pages);
  void finish();

 private:
  struct Scratch;
  void pack_rows(uint32_t kv_head, uint32_t first, uint32_t count);
  void row_ranges(uint32_t split, uint32_t first, uint32_t count, uint32_t* begin,
                  uint32_t* end) const;
  void few_ranges(uint32_t split, uint32_t kv_head, uint32_t* begin, uint32_t* end) const;
  bool split_visible(uint32_t split, uint32_t first, uint32_t count) const;
  void compute_many(std::span<const uint32_t> splits, PageSource pages);
  void weigh_pages(uint32_t kv_head);
  void merge_few(uint32_t kv_head);
  void write_out(uint32_t kv_head, uint32_t first, uint32_t count);
  kernels::Partials state(uint32_t kv_head, uint32_t row);
  kernels::Partials split_partials(uint32_t split, uint32_t kv_head);
  Scratch scratch(uint32_t thread);
  void attend(const kernels::SplitPages& pages, const kernels::QueryRows& rows,
              const Scratch& scratch, const kernels::Partials& out) const;
  uint32_t tiles() const;
  uint32_t last_split(uint32_t kv_head) const;
  uint32_t tile_rows() const { return kernels_.tile_rows; }
  uint32_t scratch_rows() const;  // the most of one kernel call

  const kernels::Kernels& kernels_;
  const kernels::Codecs& codecs_;
  kv::ModelShape shape_;
  Parallel& parallel_;
  uint32_t group_size_;  // query heads per KV head

  LayerInput input_;
  kernels::HeadParameters head_;
  uint32_t position_ = 0, tokens_ = 0, rows_ = 0, window_ = 0;
  uint32_t first_split_ = 0, last_split_ = 0;
  bool few_ = true;
  StepKind kind_ = StepKind::kGeneration;
  kv::LayerCodecs layer_codecs_;
  PageWeights* page_weights_ = nullptr;
  bool weights_only_ = false;
  const uint32_t* gathered_ = nullptr;
  bool fresh_ = true;  // no wave has been merged yet

  std::vector<Part> parts_;
  std::vector<float> q_;      // [kv_head][row][head_dim]; row = token * group_size + query head
  std::vector<float> state_;  // [kv_head]{max[row], sum[row], o[row][head_dim]}
  // Few: [split][kv_head]{max[row], sum[row], page_sum[row][kSplitPages], o[row][head_dim]}
  std::vector<float> partials_;
  std::vector<std::vector<std::byte>> scratch_;  // [thread]
};

}  // namespace hifc::cache
