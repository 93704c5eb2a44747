// KvCache: from exact pages to sealed ones, and back where a sequence is cut off among them.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/kv_cache.h"
#include "cache/trace_kinds.h"

namespace hifc::cache {
namespace {

using kv::kPageTokens;
using kv::kSinkTokens;

// The sinks' place in a page of K taken by the token after them: their outliers would coarsen the
// codes of all others.
std::vector<uint16_t> without_sinks(const uint16_t* k_page, uint32_t head_dim) {
  std::vector<uint16_t> page(k_page, k_page + size_t{head_dim} * kPageTokens);
  for (uint32_t d = 0; d < head_dim; ++d) {
    uint16_t* channel = page.data() + size_t{d} * kPageTokens;
    std::fill_n(channel, kSinkTokens, channel[kSinkTokens]);
  }
  return page;
}

void copy_sinks(const uint16_t* k_page, const uint16_t* v_page, uint32_t head_dim, uint16_t* k,
                uint16_t* v) {
  for (uint32_t t = 0; t < kSinkTokens; ++t)
    for (uint32_t d = 0; d < head_dim; ++d) k[t * head_dim + d] = k_page[d * kPageTokens + t];
  std::memcpy(v, v_page, size_t{kSinkTokens} * head_dim * sizeof(uint16_t));
}

void paste_sinks(const uint16_t* k, const uint16_t* v, uint32_t head_dim, uint16_t* k_page,
                 uint16_t* v_page) {
  for (uint32_t t = 0; t < kSinkTokens; ++t)
    for (uint32_t d = 0; d < head_dim; ++d) k_page[d * kPageTokens + t] = k[t * head_dim + d];
  std::memcpy(v_page, v, size_t{kSinkTokens} * head_dim * sizeof(uint16_t));
}

// One head's page of a block in both forms.
struct PagePlaces {
  PagePlaces(const kv::BlockLayout& exact, std::byte* exact_block, const kv::BlockLayout& form,
             std::byte* block, uint32_t page, uint32_t kv_head)
      : k(reinterpret_cast<uint16_t*>(exact_block + exact.k_page_offset(page, kv_head))),
        v(reinterpret_cast<uint16_t*>(exact_block + exact.v_page_offset(page, kv_head))),
        sealed_k(block + form.k_page_offset(page, kv_head)),
        sealed_v(block + form.v_page_offset(page, kv_head)),
        sink_k(reinterpret_cast<uint16_t*>(block + form.k_sink_offset(kv_head))),
        sink_v(reinterpret_cast<uint16_t*>(block + form.v_sink_offset(kv_head))) {}

  uint16_t *k, *v;
  std::byte *sealed_k, *sealed_v;
  uint16_t *sink_k, *sink_v;  // of the sequence's first page
};

}  // namespace

Result<void> KvCache::seal(uint32_t layer, const Sealing& sealing) {
  Block& block = sequence_.groups[sealing.group].blocks[layer];
  if (!layout().sealed[layer].lossy() || block.sealed_pages >= sealing.pages) return {};
  const TraceScope scope(options_.trace, kTraceSeal, {layer, sealing.group, sealing.pages});
  HIFC_TRY(take_frame(layer, [&] { return residency_.open_sealed(sealing.group, layer); }));
  const uint32_t heads = layout().exact.kv_heads(), first = block.sealed_pages;
  parallel_.run((sealing.pages - first) * heads, [&](uint32_t index, uint32_t) {
    seal_page(layer, sealing.group, first + index / heads, index % heads);
  });
  block.sealed_pages = sealing.pages;
  if (block.sealed_pages == layout().exact.pages()) residency_.close_exact(block);
  return {};
}

void KvCache::seal_page(uint32_t layer, uint32_t group, uint32_t page, uint32_t kv_head) {
  const Block& block = sequence_.groups[group].blocks[layer];
  const kv::BlockLayout& form = layout().sealed[layer];
  const PagePlaces places(layout().exact, tiers_.data(block.exact), form, tiers_.data(block.frame),
                          page, kv_head);
  codecs_.encode(form.v_format(), places.v, places.sealed_v);
  if (group > 0 || page > 0) return codecs_.encode(form.k_format(), places.k, places.sealed_k);
  const uint32_t head_dim = form.head_dim();
  copy_sinks(places.k, places.v, head_dim, places.sink_k, places.sink_v);
  const bool k_lossy = form.codecs().k != kv::Codec::kF16;
  codecs_.encode(form.k_format(), k_lossy ? without_sinks(places.k, head_dim).data() : places.k,
                 places.sealed_k);
}

// Back to F16, from `first_page` on; what is encoded again later may differ in its last bits.
void KvCache::restore_pages(uint32_t layer, uint32_t group, const Block& block,
                            uint32_t first_page) const {
  const kv::BlockLayout& form = layout().sealed[layer];
  for (uint32_t page = first_page; page < block.sealed_pages; ++page)
    for (uint32_t head = 0; head < form.kv_heads(); ++head) {
      const PagePlaces places(layout().exact, tiers_.data(block.exact), form,
                              tiers_.data(block.frame), page, head);
      codecs_.decode_f16(form.k_format(), places.sealed_k, places.k);
      codecs_.decode_f16(form.v_format(), places.sealed_v, places.v);
      if (group == 0 && page == 0)
        paste_sinks(places.sink_k, places.sink_v, form.head_dim(), places.k, places.v);
    }
}

// Makes a block take tokens from page `pages` on.
bool KvCache::reopen_block(uint32_t layer, uint32_t group, Block& block, uint32_t pages) {
  if (!layout().sealed[layer].lossy() || block.sealed_pages <= pages) return true;
  if (block.exact == tier::kNoFrame && !residency_.open_exact(block)) return false;
  restore_pages(layer, group, block, pages);
  block.sealed_pages = pages;
  return true;
}

// Before their time: nothing will be appended soon.
Result<void> KvCache::seal_complete() {
  if (!layout().lossy()) return {};
  for (uint32_t g = 0; (g + 1) * block_tokens() <= length(); ++g) {
    if (sequence_.groups[g].stage != Group::Stage::kOpen) continue;
    for (uint32_t layer = 0; layer < layout().layers(); ++layer)
      HIFC_TRY(seal(layer, {.group = g, .pages = layout().exact.pages()}));
    writer_.add(g);
  }
  return {};
}

// What a parked tail has of sealed pages.
void KvCache::restore_last_group() {
  if (sequence_.groups.empty()) return;
  const auto index = static_cast<uint32_t>(sequence_.groups.size() - 1);
  Group& group = sequence_.groups.back();
  if (group.stage != Group::Stage::kOpen) return;
  for (uint32_t layer = 0; layer < layout().layers(); ++layer)
    if (group.blocks[layer].exact != tier::kNoFrame)
      restore_pages(layer, index, group.blocks[layer], 0);
}

}  // namespace hifc::cache
