#include "cache/page_sketches.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kv/layout.h"

namespace hifc::cache {
namespace {

using kv::kPageTokens;

kv::PageFormat sketch_format(const kv::ModelShape& shape) {
  return {PageSketches::kCodec, shape.head_dim, kPageTokens};
}

using HalfPage = std::array<uint16_t, size_t{kv::kHeadDimMax} * kPageTokens>;

// [from_rows][from_columns] -> [from_columns][from_rows]
void transpose(const uint16_t* from, uint32_t from_rows, uint32_t from_columns, uint16_t* to) {
  for (uint32_t row = 0; row < from_rows; ++row)
    for (uint32_t column = 0; column < from_columns; ++column)
      to[column * from_rows + row] = from[row * from_columns + column];
}

// The largest distance between columns of two pages [rows][kPageTokens].
float largest_distance(const float* a, const float* b, uint32_t rows) {
  std::array<float, kPageTokens> squares = {};
  for (uint32_t row = 0; row < rows; ++row)
    for (uint32_t t = 0; t < kPageTokens; ++t) {
      const float difference = a[row * kPageTokens + t] - b[row * kPageTokens + t];
      squares[t] += difference * difference;
    }
  return std::sqrt(*std::ranges::max_element(squares));
}

}  // namespace

uint64_t PageSketches::bytes(const kv::ModelShape& shape, uint32_t pages) {
  const auto layers = static_cast<uint64_t>(std::ranges::count(shape.window, 0u));
  return layers * pages *
         (shape.kv_heads * (kv::page_bytes(sketch_format(shape)) + sizeof(float)) + 1);
}

PageSketches::PageSketches(const kv::ModelShape& shape, const kernels::Codecs& codecs)
    : shape_(shape), format_(sketch_format(shape)), codecs_(codecs), layers_(shape.layers) {
  static_assert(kv::rotates(kCodec));
}

bool PageSketches::has(uint32_t layer, uint32_t page) const {
  const std::vector<uint8_t>& complete = layers_[layer].complete;
  return page < complete.size() && complete[page] != 0;
}

void PageSketches::prepare(uint32_t layer, uint32_t page) {
  Layer& of = layers_[layer];
  if (page < of.complete.size()) return;
  of.complete.resize(page + 1);
  of.radius.resize(index(page + 1, 0));
  of.pages.resize(index(page + 1, 0) * kv::page_bytes(format_));
}

void PageSketches::complete(uint32_t layer, uint32_t page) {
  layers_[layer].complete[page] = 1;
}

void PageSketches::set(uint32_t layer, uint32_t page, uint32_t kv_head, const kernels::Page& k,
                       bool rotated) {
  const uint32_t head_dim = shape_.head_dim;
  HalfPage decoded, vectors, turned;
  codecs_.decode_f16({k.codec, head_dim, kPageTokens}, k.data, decoded.data());
  if (!rotated) {
    transpose(decoded.data(), head_dim, kPageTokens, vectors.data());
    codecs_.rotate_f16(head_dim, kPageTokens, vectors.data(), head_dim, turned.data());
    transpose(turned.data(), kPageTokens, head_dim, decoded.data());
  }
  Layer& of = layers_[layer];
  std::byte* sketch = of.pages.data() + index(page, kv_head) * kv::page_bytes(format_);
  codecs_.encode(format_, decoded.data(), sketch);
  std::vector<float> exact(size_t{head_dim} * kPageTokens), coarse(exact.size());
  for (size_t i = 0; i < exact.size(); ++i)
    exact[i] = static_cast<float>(std::bit_cast<_Float16>(decoded[i]));
  codecs_.decode(format_, {0, head_dim}, sketch, coarse.data());
  of.radius[index(page, kv_head)] = largest_distance(exact.data(), coarse.data(), head_dim);
}

void PageSketches::forget(uint32_t layer, uint32_t page) {
  if (has(layer, page)) layers_[layer].complete[page] = 0;
}

void PageSketches::truncate(uint32_t pages) {
  for (Layer& layer : layers_)
    if (layer.complete.size() > pages) layer.complete.resize(pages);
}

kernels::Page PageSketches::at(uint32_t layer, uint32_t page, uint32_t kv_head) const {
  HIFC_DCHECK(has(layer, page));
  return {layers_[layer].pages.data() + index(page, kv_head) * kv::page_bytes(format_), kCodec};
}

float PageSketches::radius(uint32_t layer, uint32_t page, uint32_t kv_head) const {
  HIFC_DCHECK(has(layer, page));
  return layers_[layer].radius[index(page, kv_head)];
}

}  // namespace hifc::cache
