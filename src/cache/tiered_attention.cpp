#include "cache/tiered_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace hifc::cache {
namespace {

using kernels::kSplitPages;
using kernels::kSplitTokens;

// Up to here every split keeps partials of its own, which makes (split, KV head) the unit of work:
// enough of them for all threads even with one query token.
constexpr uint32_t kFewRows = 48;
constexpr size_t kScratchAlignment = 64;

size_t kernel_bytes(const kernels::Kernels& kernels, uint32_t head_dim, uint32_t rows) {
  const kernels::HeadParameters head{.head_dim = head_dim};
  return std::max(kernels.scratch_bytes(head, rows), kernels.prompt_scratch_bytes(head, rows));
}

}  // namespace

// One thread's memory, cut from scratch_[thread].
struct TieredAttention::Scratch {
  std::byte* kernel;
  uint32_t* begin;  // [rows]
  uint32_t* end;    // [rows]
  kernels::Partials partials;
};

TieredAttention::TieredAttention(const kernels::Kernels& kernels, const kv::ModelShape& shape,
                                 Parallel& parallel)
    : kernels_(kernels),
      codecs_(**kernels::codecs_for(kernels.isa)),
      shape_(shape),
      parallel_(parallel),
      group_size_(shape.query_heads / shape.kv_heads) {
  HIFC_CHECK(shape.query_heads % shape.kv_heads == 0);
  const size_t rows = scratch_rows();
  const size_t bytes = kernel_bytes(kernels_, shape.head_dim, scratch_rows()) +
                       rows * (2 * sizeof(uint32_t) + (shape.head_dim + 2) * sizeof(float)) +
                       4 * kScratchAlignment;
  scratch_.assign(parallel.threads(), std::vector<std::byte>(bytes));
}

TieredAttention::Scratch TieredAttention::scratch(uint32_t thread) {
  void* memory = scratch_[thread].data();
  size_t room = scratch_[thread].size();
  const auto take = [&](size_t bytes) {
    void* taken = std::align(kScratchAlignment, bytes, memory, room);
    HIFC_CHECK(taken != nullptr);
    memory = static_cast<std::byte*>(taken) + bytes;
    room -= bytes;
    return taken;
  };
  Scratch scratch;
  const size_t rows = scratch_rows();
  scratch.kernel =
      static_cast<std::byte*>(take(kernel_bytes(kernels_, shape_.head_dim, scratch_rows())));
  scratch.begin = static_cast<uint32_t*>(take(2 * rows * sizeof(uint32_t)));
  scratch.end = scratch.begin + rows;
  scratch.partials.o = static_cast<float*>(take(rows * (shape_.head_dim + 2) * sizeof(float)));
  scratch.partials.max = scratch.partials.o + rows * shape_.head_dim;
  scratch.partials.sum = scratch.partials.max + rows;
  return scratch;
}

kernels::Partials TieredAttention::state(uint32_t kv_head, uint32_t row) {
  float* base = state_.data() + size_t{kv_head} * rows_ * (shape_.head_dim + 2);
  return {.max = base + row,
          .sum = base + rows_ + row,
          .o = base + 2 * size_t{rows_} + size_t{row} * shape_.head_dim};
}

kernels::Partials TieredAttention::split_partials(uint32_t split, uint32_t kv_head) {
  const size_t index = size_t{split - first_split_} * shape_.kv_heads + kv_head;
  float* base = partials_.data() + index * rows_ * (shape_.head_dim + 2 + kSplitPages);
  float* page_sum = base + 2 * size_t{rows_};
  return {.max = base,
          .sum = base + rows_,
          .o = weights_only_ ? nullptr : page_sum + size_t{rows_} * kSplitPages,
          .page_sum = page_weights_ != nullptr ? page_sum : nullptr};
}

uint32_t TieredAttention::scratch_rows() const {
  return std::max(kFewRows, tile_rows());
}

uint32_t TieredAttention::last_split(uint32_t kv_head) const {
  if (gathered_ == nullptr) return last_split_;
  return (gathered_[kv_head] + kSplitTokens - 1) / kSplitTokens;
}

uint32_t TieredAttention::tiles() const {
  return (rows_ + tile_rows() - 1) / tile_rows();
}

void TieredAttention::begin(const LayerInput& input, const Span& span) {
  input_ = input;
  head_ = {.head_dim = shape_.head_dim,
           .scale = input.scale,
           .softcap = input.softcap,
           .group_size = group_size_};
  kind_ = span.kind;
  layer_codecs_ = span.codecs;
  position_ = span.position, tokens_ = span.tokens, rows_ = span.tokens * group_size_;
  window_ = shape_.window[input.layer];
  first_split_ = span.first_split, last_split_ = span.last_split;
  few_ = rows_ <= kFewRows;
  page_weights_ = span.page_weights, weights_only_ = span.weights_only, gathered_ = span.gathered;
  HIFC_CHECK(few_ || (page_weights_ == nullptr && !weights_only_ && gathered_ == nullptr));
  // Kernels for prompts do not tell them.
  HIFC_CHECK(page_weights_ == nullptr || weights_only_ || kind_ == StepKind::kGeneration);
  if (page_weights_ != nullptr) {
    const uint32_t pages = (last_split_ - first_split_) * kSplitPages;
    page_weights_->rows = rows_, page_weights_->pages = pages;
    page_weights_->max.resize(size_t{shape_.kv_heads} * rows_);
    page_weights_->weight.resize(page_weights_->max.size() * pages);
  }
  fresh_ = true;
  q_.resize(size_t{shape_.kv_heads} * rows_ * shape_.head_dim);
  state_.resize(size_t{shape_.kv_heads} * rows_ * (shape_.head_dim + 2));
  if (few_) {
    partials_.resize(size_t{last_split_ - first_split_} * shape_.kv_heads * rows_ *
                     (shape_.head_dim + 2 + kSplitPages));
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) pack_rows(h, 0, rows_);
    return;
  }
  parallel_.run(shape_.kv_heads * tiles(), [&](uint32_t task, uint32_t) {
    const uint32_t first = task / shape_.kv_heads * tile_rows();
    pack_rows(task % shape_.kv_heads, first, std::min(tile_rows(), rows_ - first));
  });
}

void TieredAttention::pack_rows(uint32_t kv_head, uint32_t first, uint32_t count) {
  for (uint32_t row = first; row < first + count; ++row) {
    const float* source = input_.q + row / group_size_ * input_.q_token_stride +
                          (kv_head * group_size_ + row % group_size_) * input_.q_head_stride;
    float* target = q_.data() + (size_t{kv_head} * rows_ + row) * shape_.head_dim;
    std::memcpy(target, source, shape_.head_dim * sizeof(float));
  }
  // Rotating both keeps their dot products.
  if (kv::rotates(layer_codecs_.k))
    codecs_.rotate(shape_.head_dim, count,
                   q_.data() + (size_t{kv_head} * rows_ + first) * shape_.head_dim);
}

void TieredAttention::row_ranges(uint32_t split, uint32_t first, uint32_t count, uint32_t* begin,
                                 uint32_t* end) const {
  const uint32_t origin = split * kSplitTokens;
  const auto within = [&](uint32_t at) {
    return std::clamp(at, origin, origin + kSplitTokens) - origin;
  };
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t after = position_ + (first + i) / group_size_ + 1;
    begin[i] = within(window_ != 0 && after > window_ ? after - window_ : 0);
    end[i] = within(after);
  }
}

void TieredAttention::few_ranges(uint32_t split, uint32_t kv_head, uint32_t* begin,
                                 uint32_t* end) const {
  if (gathered_ == nullptr) return row_ranges(split, 0, rows_, begin, end);
  const uint32_t tokens = gathered_[kv_head], before = split * kSplitTokens;
  std::fill_n(begin, rows_, 0u);
  std::fill_n(end, rows_, std::min(tokens - std::min(tokens, before), kSplitTokens));
}

bool TieredAttention::split_visible(uint32_t split, uint32_t first, uint32_t count) const {
  const uint32_t origin = split * kSplitTokens;
  const uint32_t first_after = position_ + first / group_size_ + 1;
  const uint32_t last_after = position_ + (first + count - 1) / group_size_ + 1;
  const uint32_t oldest = window_ != 0 && first_after > window_ ? first_after - window_ : 0;
  return origin < last_after && oldest < origin + kSplitTokens;
}

void TieredAttention::compute(std::span<const uint32_t> splits, PageSource pages) {
  if (!few_) return compute_many(splits, pages);
  parts_.clear();
  for (const uint32_t split : splits)
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) parts_.push_back({.split = split, .kv_head = h});
  compute(parts_, pages);
}

void TieredAttention::attend(const kernels::SplitPages& pages, const kernels::QueryRows& rows,
                             const Scratch& scratch, const kernels::Partials& out) const {
  const bool prompt = kind_ == StepKind::kPrompt && !weights_only_;
  const auto kernel = prompt ? kernels_.attend_split_prompt : kernels_.attend_split;
  kernel(head_, pages, rows, scratch.kernel, out);
}

void TieredAttention::compute(std::span<const Part> parts, PageSource pages) {
  HIFC_CHECK(few_);
  const auto task = [&](uint32_t index, uint32_t thread) {
    const auto [split, h] = parts[index];
    Scratch scratch = this->scratch(thread);
    few_ranges(split, h, scratch.begin, scratch.end);
    const kernels::QueryRows rows{.count = rows_,
                                  .q = q_.data() + size_t{h} * rows_ * shape_.head_dim,
                                  .begin = scratch.begin,
                                  .end = scratch.end};
    attend(pages(split, h), rows, scratch, split_partials(split, h));
  };
  const auto count = static_cast<uint32_t>(parts.size());
  // Waking the pool costs more than one split of few rows.
  if (count > shape_.kv_heads) return parallel_.run(count, task);
  for (uint32_t index = 0; index < count; ++index) task(index, 0);
}

void TieredAttention::compute_many(std::span<const uint32_t> splits, PageSource pages) {
  const uint32_t kv_heads = shape_.kv_heads;
  parallel_.run(kv_heads * tiles(), [&](uint32_t task, uint32_t thread) {
    // The last tile sees the most tokens: it goes first, so that no thread ends alone with it.
    const uint32_t tile = tiles() - 1 - task / kv_heads, h = task % kv_heads;
    const uint32_t first = tile * tile_rows(), count = std::min(tile_rows(), rows_ - first);
    Scratch scratch = this->scratch(thread);
    const kernels::Partials into = state(h, first);
    bool empty = fresh_;
    for (const uint32_t split : splits) {
      if (!split_visible(split, first, count)) continue;
      row_ranges(split, first, count, scratch.begin, scratch.end);
      const kernels::QueryRows rows{.count = count,
                                    .q = q_.data() + (size_t{h} * rows_ + first) * shape_.head_dim,
                                    .begin = scratch.begin,
                                    .end = scratch.end};
      attend(pages(split, h), rows, scratch, empty ? into : scratch.partials);
      if (!empty) kernels_.merge(shape_.head_dim, count, into, scratch.partials);
      empty = false;
    }
    if (!empty) return;
    std::fill_n(into.max, count, -std::numeric_limits<float>::infinity());
    std::fill_n(into.sum, count, 0.0f);
    std::fill_n(into.o, size_t{count} * shape_.head_dim, 0.0f);
  });
  fresh_ = false;
}

// Before partials are merged into each other's places.
void TieredAttention::weigh_pages(uint32_t kv_head) {
  for (uint32_t row = 0; row < rows_; ++row) {
    float max = -std::numeric_limits<float>::infinity();
    const uint32_t last_split = this->last_split(kv_head);
    for (uint32_t split = first_split_; split < last_split; ++split)
      max = std::max(max, split_partials(split, kv_head).max[row]);
    const size_t index = size_t{kv_head} * rows_ + row;
    page_weights_->max[index] = max;
    float* weight = page_weights_->weight.data() + index * page_weights_->pages;
    std::fill_n(weight, page_weights_->pages, 0.0f);
    for (uint32_t split = first_split_; split < last_split; ++split, weight += kSplitPages) {
      const kernels::Partials partials = split_partials(split, kv_head);
      const float scale = partials.sum[row] == 0 ? 0 : std::exp(partials.max[row] - max);
      for (uint32_t page = 0; page < kSplitPages; ++page)
        weight[page] = partials.page_sum[row * kSplitPages + page] * scale;
    }
  }
}

void TieredAttention::merge_few(uint32_t kv_head) {
  const kernels::Partials into = split_partials(first_split_, kv_head);
  for (uint32_t split = first_split_ + 1; split < last_split(kv_head); ++split)
    kernels_.merge(shape_.head_dim, rows_, into, split_partials(split, kv_head));
}

void TieredAttention::write_out(uint32_t kv_head, uint32_t first, uint32_t count) {
  for (uint32_t token = first; token < first + count; ++token) {
    const uint32_t row = token * group_size_;
    kernels::Partials from = state(kv_head, row);
    if (few_) {
      from = split_partials(first_split_, kv_head);
      from = {.max = from.max + row,
              .sum = from.sum + row,
              .o = from.o + size_t{row} * shape_.head_dim};
    }
    float* out =
        input_.out + (size_t{token} * shape_.query_heads + kv_head * group_size_) * shape_.head_dim;
    kernels_.finish(shape_.head_dim, group_size_, from, out, shape_.head_dim);
    // The rotation is its own inverse.
    if (kv::rotates(layer_codecs_.v)) codecs_.rotate(shape_.head_dim, group_size_, out);
  }
}

void TieredAttention::finish() {
  const uint32_t kv_heads = shape_.kv_heads;
  if (few_) {
    const auto task = [&](uint32_t h, uint32_t) {
      if (page_weights_ != nullptr) weigh_pages(h);
      if (weights_only_) return;
      merge_few(h);
      write_out(h, 0, tokens_);
    };
    // Short contexts merge in less time than the pool takes to wake.
    if (uint64_t{last_split_ - first_split_} * rows_ * shape_.head_dim >= 32768)
      return parallel_.run(kv_heads, task);
    for (uint32_t h = 0; h < kv_heads; ++h) task(h, 0);
    return;
  }
  constexpr uint32_t kTokens = 32;
  parallel_.run((tokens_ + kTokens - 1) / kTokens, [&](uint32_t task, uint32_t) {
    const uint32_t first = task * kTokens;
    for (uint32_t h = 0; h < kv_heads; ++h) write_out(h, first, std::min(kTokens, tokens_ - first));
  });
}

}  // namespace hifc::cache
