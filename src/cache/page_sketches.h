// K of every whole page in few bits, always in memory: what sparse attention tells from which pages
// a query attends to, without reading them.
//
// A sketch is K rotated and encoded (kernels/codec.h). Scores of its tokens are those of K within
//   scale * |q| * radius,   radius = the largest distance of a token's K from its sketch,
// by the inequality of Cauchy and Schwarz, so that an estimate of a page's weight is also a bound
// of it: weight <= estimate * exp(scale * |q| * radius).
//
// Thread-compatible; set() of different KV heads may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec.h"
#include "kv/shape.h"

namespace hifc::cache {

class PageSketches {
 public:
  // 2 bits (2.5 with scales) are 8 % of K and V in F16.
  static constexpr kv::Codec kCodec = kv::Codec::kI2;
  // Of memory for so many pages of every layer without a window.
  static uint64_t bytes(const kv::ModelShape& shape, uint32_t pages);

  PageSketches(const kv::ModelShape& shape, const kernels::Codecs& codecs);

  bool has(uint32_t layer, uint32_t page) const;
  // The sketch of one KV head's K. `rotated`: that K is already, as in every page of a layer whose
  // codec rotates, also while it is exact.
  void set(uint32_t layer, uint32_t page, uint32_t kv_head, const kernels::Page& k, bool rotated);
  // Memory for pages up to `page`, before set(); and after it for all KV heads.
  void prepare(uint32_t layer, uint32_t page);
  void complete(uint32_t layer, uint32_t page);
  void forget(uint32_t layer, uint32_t page);
  // Forgets pages from `pages` on.
  void truncate(uint32_t pages);

  kernels::Page at(uint32_t layer, uint32_t page, uint32_t kv_head) const;
  float radius(uint32_t layer, uint32_t page, uint32_t kv_head) const;

 private:
  struct Layer {
    std::vector<std::byte> pages;   // [page][kv_head]
    std::vector<float> radius;      // [page][kv_head]
    std::vector<uint8_t> complete;  // [page]
  };
  size_t index(uint32_t page, uint32_t kv_head) const {
    return size_t{page} * shape_.kv_heads + kv_head;
  }

  kv::ModelShape shape_;
  kv::PageFormat format_;
  const kernels::Codecs& codecs_;
  std::vector<Layer> layers_;
};

}  // namespace hifc::cache
