// What the blocks of a stored group look like: their lengths and headers.
#pragma once

#include <cstdint>

#include "flash/store.h"
#include "kv/layout.h"

namespace hifc::cache {

struct GroupFormat {
  kv::GroupLayout layout;
  kv::BlockHeader base;  // of every block, but for its layer, codecs and tokens

  uint32_t block_tokens() const { return layout.block_tokens(); }

  kv::BlockHeader sealed_header(uint32_t group, uint32_t layer) const {
    kv::BlockHeader header = exact_header(group, layer, block_tokens());
    header.k_codec = static_cast<uint8_t>(layout.sealed[layer].codecs().k);
    header.v_codec = static_cast<uint8_t>(layout.sealed[layer].codecs().v);
    return header;
  }
  // Of a parked tail of `tokens`.
  kv::BlockHeader exact_header(uint32_t group, uint32_t layer, uint32_t tokens) const {
    kv::BlockHeader header = base;
    header.layer = layer;
    header.tokens.first_position = group * block_tokens();
    header.tokens.token_count = static_cast<uint16_t>(tokens);
    return header;
  }

  bool fits_sealed(const flash::Handle& handle, uint32_t group) const {
    return fits(handle, [&](uint32_t layer) { return layout.sealed[layer].bytes_of(group); });
  }
  bool fits_exact(const flash::Handle& handle) const {
    return fits(handle, [&](uint32_t) { return layout.exact.block_bytes(); });
  }

 private:
  template <typename Bytes>
  bool fits(const flash::Handle& handle, Bytes bytes) const {
    if (!handle || handle.lanes() != layout.layers()) return false;
    for (uint32_t layer = 0; layer < layout.layers(); ++layer)
      if (handle.lane_bytes(layer) != bytes(layer)) return false;
    return true;
  }
};

}  // namespace hifc::cache
