// Reading and writing pages of F16: widening to floats, and storing new tokens (K transposed).
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_PAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_PAGES_INL_H_
#undef HIFC_KERNELS_GENERIC_PAGES_INL_H_
#else
#define HIFC_KERNELS_GENERIC_PAGES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/generic/product-inl.h"
#include "kv/layout.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

HWY_INLINE void decode_row(const uint16_t* from, size_t count, float* to) {
  const FloatTag d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) hn::StoreU(load_floats(from + i), d, to + i);
}

#if HWY_TARGET == HWY_SCALAR
inline constexpr uint32_t kTransposeTokens = 1;

HWY_INLINE void transpose_block(const uint16_t* from, size_t, uint16_t* to, size_t to_stride) {
  for (size_t i = 0; i < 8; ++i) to[i * to_stride] = from[i];
}
#else
inline constexpr uint32_t kTransposeTokens = 8;

// Transposes 8 x 8 values: column i of `from`'s rows becomes row i of `to`. Three rounds of
// interleaving row j with row j + 4 rotate the index bits of rows into those of columns.
HWY_INLINE void transpose_block(const uint16_t* from, size_t from_stride, uint16_t* to,
                                size_t to_stride) {
  const hn::FixedTag<uint16_t, 8> d;
  hn::Vec<decltype(d)> rows[8], mixed[8];
  for (size_t i = 0; i < 8; ++i) rows[i] = hn::LoadU(d, from + i * from_stride);
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      mixed[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + 4]);
      mixed[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + 4]);
    }
    for (size_t i = 0; i < 8; ++i) rows[i] = mixed[i];
  }
  for (size_t i = 0; i < 8; ++i) hn::StoreU(rows[i], d, to + i * to_stride);
}
#endif

inline void store_k(uint32_t head_dim, const uint16_t* rows, size_t row_stride, uint32_t first,
                    uint32_t count, uint16_t* page) {
  // Whole blocks of 8 channels; the last tokens one by one.
  const uint32_t blocked = count / kTransposeTokens * kTransposeTokens;
  for (uint32_t d = 0; d < head_dim; d += 8)
    for (uint32_t t = 0; t < blocked; t += kTransposeTokens)
      transpose_block(rows + t * row_stride + d, row_stride, page + d * kv::kPageTokens + first + t,
                      kv::kPageTokens);
  for (uint32_t d = 0; d < head_dim; ++d)
    for (uint32_t t = blocked; t < count; ++t)
      page[d * kv::kPageTokens + first + t] = rows[t * row_stride + d];
}

inline void store_v(uint32_t head_dim, const uint16_t* rows, size_t row_stride, uint32_t first,
                    uint32_t count, uint16_t* page) {
  for (uint32_t t = 0; t < count; ++t)
    std::memcpy(page + size_t{first + t} * head_dim, rows + t * row_stride,
                head_dim * sizeof(uint16_t));
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_PAGES_INL_H_
