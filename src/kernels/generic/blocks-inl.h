// Products of rows with blocks of encoded pages.
//
// A block is a group of 64 columns, or fewer, and up to 64 of its rows: of K some channels and all
// tokens, of V all tokens and some channels. Of a block
//
//   sum over i of a[i] * (min[i] + scale[i] * code[i][c])
//
// the part of `min` is the same for all columns, and `scale` goes to the rows: a[i] * scale[i] is
// what the codes are multiplied with, whether they are converted in registers or once for all rows.
//
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_BLOCKS_INL_H_
#undef HIFC_KERNELS_GENERIC_BLOCKS_INL_H_
#else
#define HIFC_KERNELS_GENERIC_BLOCKS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/codec.h"
#include "kernels/generic/codes-inl.h"
#include "kernels/generic/encoded-inl.h"
#include "kernels/generic/pages-inl.h"
#include "kernels/generic/product-inl.h"
#include "kernels/generic/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

inline constexpr size_t kBlockRows = 64;
inline constexpr size_t kBlockColumns = kGroupColumns;

// Up to this many rows, that is one tile, codes are converted in registers; with 16 registers there
// are none for it.
inline constexpr uint32_t kRowsInRegisters = kVectorRegisters == 32 ? kMaxTileRows : 0;

enum class Side : uint8_t { kK, kV };

// Channels and tokens of a page. Rows of K are channels, with all tokens; those of V are tokens.
struct Block {
  uint32_t first_channel = 0;
  uint32_t channels = 0;
  uint32_t first_token = 0;
  uint32_t tokens = kv::kPageTokens;
};

template <Side kSide>
const Page& page_of(const SplitPages& pages, uint32_t index) {
  return kSide == Side::kK ? pages.k[index] : pages.v[index];
}

template <Side kSide>
PageFormat page_format(const Page& page, const HeadParameters& head) {
  if constexpr (kSide == Side::kK) return {page.codec, head.head_dim, kv::kPageTokens};
  return {page.codec, kv::kPageTokens, head.head_dim};
}

// A page that is needed next, or a part of it.
struct NextPage {
  // The share of channels or tokens [first, first + count) of `all`.
  NextPage part(size_t first, size_t count, size_t all) const {
    return {data + bytes * first / all, bytes * count / all};
  }
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

template <Side kSide>
NextPage next_page(const SplitPages& pages, const HeadParameters& head, uint32_t index) {
  const Page& page = page_of<kSide>(pages, index);
  return {page.data, page_bytes(page_format<kSide>(page, head))};
}

// What is read after the i-th seen page of a side: the next one, V after K.
template <Side kSide>
NextPage after(const SplitPages& pages, const HeadParameters& head, const SeenPages& seen,
               uint32_t i) {
  if (i + 1 < seen.count) return next_page<kSide>(pages, head, seen.index[i + 1]);
  if constexpr (kSide == Side::kV) return {};
  return next_page<Side::kV>(pages, head, seen.index[0]);
}

// The exact tokens of a page; null where it has none, or where all of its tokens are exact.
template <Side kSide>
const uint16_t* sinks_of(const SplitPages& pages, uint32_t index) {
  const bool encoded = page_of<kSide>(pages, index).codec != kv::Codec::kF16;
  if (index != 0 || !encoded) return nullptr;
  return kSide == Side::kK ? pages.sink_k : pages.sink_v;
}

template <Side kSide>
EncodedRows encoded_rows(const Page& page, const HeadParameters& head, const Block& block) {
  const PageFormat format = page_format<kSide>(page, head);
  if constexpr (kSide == Side::kK)
    return {format, page.data, {block.first_channel, block.channels}, 0};
  const RowRange tokens{block.first_token, block.tokens};
  return {format, page.data, tokens, block.first_channel / kGroupColumns};
}

// A block of an F16 page as floats, [row][kBlockColumns].
template <Side kSide>
void widen_block(const uint16_t* page, const HeadParameters& head, const Block& block, float* out) {
  if constexpr (kSide == Side::kK)
    return decode_row(page + block.first_channel * kv::kPageTokens,
                      block.channels * kv::kPageTokens, out);
  const uint16_t* from = page + block.first_token * head.head_dim + block.first_channel;
  for (uint32_t token = 0; token < block.tokens; ++token)
    decode_row(from + token * head.head_dim, block.channels, out + token * kBlockColumns);
}

// Puts the exact tokens of a page in their places.
template <Side kSide>
void patch_sinks(const uint16_t* sinks, const HeadParameters& head, const Block& block,
                 float* out) {
  const uint32_t end = std::min(kv::kSinkTokens, block.first_token + block.tokens);
  for (uint32_t token = block.first_token; token < end; ++token) {
    const uint16_t* from = sinks + token * head.head_dim + block.first_channel;
    if constexpr (kSide == Side::kV) {
      decode_row(from, block.channels, out + (token - block.first_token) * kBlockColumns);
    } else {
      for (uint32_t channel = 0; channel < block.channels; ++channel)
        out[channel * kBlockColumns + token] = float_of_half(from[channel]);
    }
  }
}

// The numbers of a block as floats, [row][kBlockColumns].
template <Side kSide>
void decode_block(const SplitPages& pages, uint32_t index, const HeadParameters& head,
                  const Block& block, float* out) {
  const Page& page = page_of<kSide>(pages, index);
  if (page.codec == kv::Codec::kF16)
    return widen_block<kSide>(reinterpret_cast<const uint16_t*>(page.data), head, block, out);
  decode_rows(encoded_rows<kSide>(page, head, block), out, kBlockColumns);
  const uint16_t* sinks = sinks_of<kSide>(pages, index);
  if (sinks != nullptr) patch_sinks<kSide>(sinks, head, block, out);
}

// Scales and mins of a block's rows, as floats.
struct BlockParameters {
  explicit BlockParameters(const EncodedRows& rows) {
    decode_row(reinterpret_cast<const uint16_t*>(rows.scales), rows.count, scale);
    decode_row(reinterpret_cast<const uint16_t*>(rows.mins), rows.count, min);
  }
  alignas(64) float scale[kBlockRows];
  alignas(64) float min[kBlockRows];
};

// A tile of `a` made fit for the codes of a block: [row][kBlockRows].
struct ScaledRows {
  ScaledRows(const float* from, size_t stride, size_t rows, size_t depth,
             const BlockParameters& block) {
    const FloatTag d;
    for (size_t r = 0; r < rows; ++r, from += stride) {
      FloatVector sum = hn::Zero(d);
      for (size_t i = 0; i < depth; i += kFloatLanes) {
        const FloatVector x = hn::LoadU(d, from + i);
        hn::Store(hn::Mul(x, hn::Load(d, block.scale + i)), d, a + r * kBlockRows + i);
        sum = hn::MulAdd(x, hn::Load(d, block.min + i), sum);
      }
      base[r] = hn::GetLane(hn::SumOfLanes(d, sum));
    }
  }
  alignas(64) float a[kMaxTileRows * kBlockRows];
  float base[kMaxTileRows];
};

// One step of depth, as for numbers: each code is converted once.
template <size_t kRows, size_t kVectors, size_t kBits>
HWY_INLINE void multiply_step(const float* HWY_RESTRICT a, size_t a_stride,
                              const Codes<kBits>* HWY_RESTRICT b,
                              FloatVector (&sums)[kRows][kVectors]) {
  static_assert(kVectors == kGroupVectors);
  const CodeReader<kBits> codes(*b);
  FloatVector column[kVectors];
  HIFC_UNROLL
  for (size_t c = 0; c < kVectors; ++c) column[c] = codes.vector(c);
  HIFC_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    const FloatVector row = hn::Set(FloatTag(), a[r * a_stride]);
    HIFC_UNROLL
    for (size_t c = 0; c < kVectors; ++c) sums[r][c] = hn::MulAdd(row, column[c], sums[r][c]);
  }
}

// `rows` is 1..kRowsInRegisters; `width` that of a block.
template <size_t kBits>
void multiply(const Product<Codes<kBits>>& product, size_t rows, [[maybe_unused]] size_t width) {
  HIFC_DCHECK(width == kBlockColumns);
  static_assert(kRowsInRegisters <= 6);
  switch (rows) {
    case 1: return multiply_tile<1, kGroupVectors>(product, 0);
    case 2: return multiply_tile<2, kGroupVectors>(product, 0);
    case 3: return multiply_tile<3, kGroupVectors>(product, 0);
    case 4: return multiply_tile<4, kGroupVectors>(product, 0);
    case 5: return multiply_tile<5, kGroupVectors>(product, 0);
    default: return multiply_tile<6, kGroupVectors>(product, 0);
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_BLOCKS_INL_H_
