// The walk over a page's groups, and the choice of instruction set. The first part of this file is
// compiled once per Highway target (portable, AVX2, AVX-512), the HWY_ONCE part once.
#include "kernels/codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "fmt/format.h"

// The same targets as in attention.cpp.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | 0xFF)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/codec.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/generic/planes-inl.h"
#include "kernels/generic/quantize-inl.h"
#include "kernels/generic/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

static_assert(std::endian::native == std::endian::little);

// The offsets within an encoded page; the group `g` of a row has the columns from 64 * g on.
struct PageOffsets {
  PageOffsets(const PageFormat& format, uint32_t bits)
      : row_parameters((format.columns + kGroupColumns - 1) / kGroupColumns * kParameterBytes),
        row_codes(size_t{format.columns} * bits / 8),
        group_codes(size_t{kGroupColumns} * bits / 8),
        codes_begin(format.rows * row_parameters) {}
  size_t parameters(size_t row, size_t g) const {
    return row * row_parameters + g * kParameterBytes;
  }
  size_t codes(size_t row, size_t g) const {
    return codes_begin + row * row_codes + g * group_codes;
  }
  size_t row_parameters, row_codes, group_codes, codes_begin;
};

// A page that is being encoded, and the rows of the current batch.
struct EncodeRows {
  const PageFormat& format;
  const uint16_t* page;
  std::byte* encoded;
  size_t first, count;
};

// The groups `g` of some rows.
template <uint32_t kBits, uint32_t kWidth>
void encode_groups(const EncodeRows& rows, size_t g) {
  const PageOffsets offsets(rows.format, kBits);
  const size_t columns = rows.format.columns;
  encode_batch<kBits, kWidth>({.values = rows.page + rows.first * columns + g * kGroupColumns,
                               .stride = columns,
                               .count = rows.count},
                              {.parameters = rows.encoded + offsets.parameters(rows.first, g),
                               .parameters_stride = offsets.row_parameters,
                               .codes = rows.encoded + offsets.codes(rows.first, g),
                               .codes_stride = offsets.row_codes});
}

template <uint32_t kBits, uint32_t kWidth>
void decode_groups(const PageFormat& format, RowRange rows, size_t g, const std::byte* encoded,
                   float* out) {
  const PageOffsets offsets(format, kBits);
  for (size_t i = 0; i < rows.count; ++i) {
    const size_t row = rows.first + i;
    decode_group<kBits, kWidth>(encoded + offsets.parameters(row, g),
                                encoded + offsets.codes(row, g),
                                out + i * format.columns + g * kGroupColumns);
  }
}

template <uint32_t kBits>
void encode_columns(const EncodeRows& rows) {
  const size_t full = rows.format.columns / kGroupColumns;
  for (size_t g = 0; g < full; ++g) encode_groups<kBits, kGroupColumns>(rows, g);
  switch (rows.format.columns % kGroupColumns) {
    case 16: return encode_groups<kBits, 16>(rows, full);
    case 32: return encode_groups<kBits, 32>(rows, full);
    case 48: return encode_groups<kBits, 48>(rows, full);
  }
}

template <uint32_t kBits>
void encode_page(const PageFormat& format, const uint16_t* page, std::byte* encoded) {
  for (size_t row = 0; row < format.rows; row += kBatchGroups)
    encode_columns<kBits>({format, page, encoded, row, std::min(kBatchGroups, format.rows - row)});
}

template <uint32_t kBits>
void decode_columns(const PageFormat& format, RowRange rows, const std::byte* encoded, float* out) {
  const size_t full = format.columns / kGroupColumns;
  for (size_t g = 0; g < full; ++g)
    decode_groups<kBits, kGroupColumns>(format, rows, g, encoded, out);
  switch (format.columns % kGroupColumns) {
    case 16: return decode_groups<kBits, 16>(format, rows, full, encoded, out);
    case 32: return decode_groups<kBits, 32>(format, rows, full, encoded, out);
    case 48: return decode_groups<kBits, 48>(format, rows, full, encoded, out);
  }
}

void encode(const PageFormat& format, const uint16_t* page, std::byte* encoded) {
  HIFC_DCHECK(format.columns % kUnitColumns == 0 && format.columns <= 512);
  switch (format.codec) {
    case kv::Codec::kI8: return encode_page<8>(format, page, encoded);
    case kv::Codec::kI4: return encode_page<4>(format, page, encoded);
    case kv::Codec::kI3: return encode_page<3>(format, page, encoded);
    case kv::Codec::kI2: return encode_page<2>(format, page, encoded);
    case kv::Codec::kF16: break;
  }
  HIFC_CHECK(format.codec != kv::Codec::kF16);
}

void decode(const PageFormat& format, RowRange rows, const std::byte* encoded, float* out) {
  HIFC_DCHECK(format.columns % kUnitColumns == 0 && format.columns <= 512);
  HIFC_DCHECK(rows.count <= format.rows && rows.first <= format.rows - rows.count);
  switch (format.codec) {
    case kv::Codec::kI8: return decode_columns<8>(format, rows, encoded, out);
    case kv::Codec::kI4: return decode_columns<4>(format, rows, encoded, out);
    case kv::Codec::kI3: return decode_columns<3>(format, rows, encoded, out);
    case kv::Codec::kI2: return decode_columns<2>(format, rows, encoded, out);
    case kv::Codec::kF16: break;
  }
  HIFC_CHECK(format.codec != kv::Codec::kF16);
}

void rotate(uint32_t head_dim, uint32_t count, float* vectors) {
  HIFC_DCHECK(head_dim % 16 == 0 && head_dim <= 512);
  for (uint32_t i = 0; i < count; ++i) transform_vector(head_dim, vectors + size_t{i} * head_dim);
}

const Codecs* codecs(Isa isa) {
  static const Codecs table{.isa = isa, .encode = encode, .decode = decode, .rotate = rotate};
  return &table;
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hifc::kernels {

uint32_t code_bits(kv::Codec codec) {
  switch (codec) {
    case kv::Codec::kF16: return 16;
    case kv::Codec::kI8: return 8;
    case kv::Codec::kI4: return 4;
    case kv::Codec::kI3: return 3;
    case kv::Codec::kI2: return 2;
  }
  HIFC_CHECK(codec == kv::Codec::kF16);
  return 0;
}

size_t page_bytes(const PageFormat& format) {
  const size_t row_codes = size_t{format.columns} * code_bits(format.codec) / 8;
  if (format.codec == kv::Codec::kF16) return format.rows * row_codes;
  const size_t groups = (format.columns + kGroupColumns - 1) / kGroupColumns;
  return format.rows * (groups * 2 * sizeof(uint16_t) + row_codes);
}

Result<const Codecs*> codecs_for(Isa isa) {
  [[maybe_unused]] const int64_t cpu = hwy::SupportedTargets();
  if (isa == Isa::kPortable) return HWY_STATIC_DISPATCH(codecs)(isa);
#if HWY_TARGETS & HWY_AVX2
  if (isa == Isa::kAvx2 && (cpu & HWY_AVX2) != 0) return N_AVX2::codecs(isa);
#endif
#if HWY_TARGETS & HWY_AVX3
  const bool vectors_of_512 = isa == Isa::kAvx512 || isa == Isa::kAmx;
  if (vectors_of_512 && (cpu & HWY_AVX3) != 0) return N_AVX3::codecs(Isa::kAvx512);
#endif
  return failure(Code::kUnsupported,
                 fmt::format("this CPU or build has no {} codecs", to_string(isa)));
}

}  // namespace hifc::kernels
#endif  // HWY_ONCE
