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
#include "kernels/generic/encoded-inl.h"
#include "kernels/generic/pages-inl.h"
#include "kernels/generic/quantize-inl.h"
#include "kernels/generic/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

static_assert(std::endian::native == std::endian::little);

// A page that is being encoded, and the rows of the current batch.
struct EncodeRows {
  const PageFormat& format;
  const uint16_t* page;
  std::byte* encoded;
  size_t first, count;
};

// The groups `g` of some rows.
template <size_t kBits, size_t kWidth, class Operations>
void encode_groups(const EncodeRows& rows, size_t g) {
  const PageOffsets offsets(rows.format);
  const size_t columns = rows.format.columns;
  encode_batch<kBits, kWidth, Operations>(
      {.values = rows.page + rows.first * columns + g * kGroupColumns,
       .stride = columns,
       .count = rows.count},
      {.scales = rows.encoded + offsets.scale(rows.first, g),
       .mins = rows.encoded + offsets.min(rows.first, g),
       .codes = rows.encoded + offsets.codes(rows.first, g)});
}

template <size_t kBits, class Operations>
void encode_columns(const EncodeRows& rows) {
  const PageOffsets offsets(rows.format);
  for (size_t g = 0; g * kGroupColumns < rows.format.columns; ++g)
    with_width(offsets.width(g),
               [&](auto width) HWY_ATTR { encode_groups<kBits, width, Operations>(rows, g); });
}

template <class Operations>
void encode(const PageFormat& format, const uint16_t* page, std::byte* encoded) {
  if (format.codec == kv::Codec::kF16) {
    std::memcpy(encoded, page, page_bytes(format));
    return;
  }
  HIFC_DCHECK(format.columns % kUnitColumns == 0 && format.columns <= kv::kHeadDimMax);
  with_bits(format.codec, [&](auto bits) HWY_ATTR {
    for (size_t row = 0; row < format.rows; row += kBatchGroups)
      encode_columns<bits, Operations>(
          {format, page, encoded, row, std::min(kBatchGroups, format.rows - row)});
  });
}

void decode(const PageFormat& format, RowRange rows, const std::byte* encoded, float* out) {
  HIFC_DCHECK(format.columns % kUnitColumns == 0 && format.columns <= kv::kHeadDimMax);
  HIFC_DCHECK(rows.count <= format.rows && rows.first <= format.rows - rows.count);
  if (rows.count == 0) return;  // `out` may be null
  for (size_t g = 0; g * kGroupColumns < format.columns; ++g)
    decode_rows({format, encoded, rows, g}, out + g * kGroupColumns, format.columns);
}

void decode_f16(const PageFormat& format, const std::byte* encoded, uint16_t* page) {
  if (format.codec == kv::Codec::kF16) {
    std::memcpy(page, encoded, page_bytes(format));
    return;
  }
  HIFC_DCHECK(format.columns % kUnitColumns == 0 && format.columns <= kv::kHeadDimMax);
  for (size_t g = 0; g * kGroupColumns < format.columns; ++g)
    decode_halves({format, encoded, {0, format.rows}, g}, page + g * kGroupColumns, format.columns);
}

void rotate(uint32_t head_dim, uint32_t count, float* vectors) {
  HIFC_DCHECK(head_dim % 16 == 0 && head_dim <= kv::kHeadDimMax);
  for (uint32_t i = 0; i < count; ++i) transform_vector(head_dim, vectors + size_t{i} * head_dim);
}

void rotate_f16(uint32_t head_dim, uint32_t count, const uint16_t* from, size_t from_stride,
                uint16_t* to) {
  HIFC_DCHECK(head_dim % 16 == 0 && head_dim <= kv::kHeadDimMax);
  alignas(64) float vector[kv::kHeadDimMax];
  for (uint32_t i = 0; i < count; ++i, from += from_stride, to += head_dim) {
    decode_row(from, head_dim, vector);
    transform_vector(head_dim, vector);
    for (size_t d = 0; d < head_dim; d += kFloatLanes)
      store_halves(load_floats(vector + d), to + d);
  }
}

template <class Operations>
const Codecs* codecs(Isa isa, std::string_view name) {
  static const Codecs table{.isa = isa,
                            .name = name,
                            .encode = encode<Operations>,
                            .decode = decode,
                            .decode_f16 = decode_f16,
                            .rotate = rotate,
                            .rotate_f16 = rotate_f16};
  return &table;
}

const Codecs* any_codecs(Isa isa) {
  return codecs<AnyOperations>(isa, to_string(isa));
}

#if HWY_TARGET == HWY_AVX3
// Null where this CPU lacks an extension.
const Codecs* vbmi_codecs() {
  if (!__builtin_cpu_supports("avx512vbmi")) return nullptr;
  return codecs<VbmiOperations>(Isa::kAvx512, "avx512-vbmi");
}
const Codecs* fp16_codecs() {
  if (!__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512fp16"))
    return nullptr;
  return codecs<Fp16Operations>(Isa::kAvx512, "avx512-vbmi-fp16");
}
#endif

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hifc::kernels {

std::vector<const Codecs*> runnable_codecs() {
  [[maybe_unused]] const int64_t cpu = hwy::SupportedTargets();
  std::vector<const Codecs*> all = {HWY_STATIC_DISPATCH(any_codecs)(Isa::kPortable)};
#if HWY_TARGETS & HWY_AVX2
  if ((cpu & HWY_AVX2) != 0) all.push_back(N_AVX2::any_codecs(Isa::kAvx2));
#endif
#if HWY_TARGETS & HWY_AVX3
  if ((cpu & HWY_AVX3) != 0)
    all.insert(all.end(),
               {N_AVX3::any_codecs(Isa::kAvx512), N_AVX3::vbmi_codecs(), N_AVX3::fp16_codecs()});
#endif
  std::erase(all, nullptr);
  return all;
}

Result<const Codecs*> codecs_for(Isa isa) {
  const Isa vectors = isa == Isa::kAmx ? Isa::kAvx512 : isa;
  const auto all = runnable_codecs();
  const auto last = std::ranges::find(all.rbegin(), all.rend(), vectors, &Codecs::isa);
  if (last != all.rend()) return *last;
  return failure(Code::kUnsupported,
                 fmt::format("this CPU or build has no {} codecs", to_string(isa)));
}

}  // namespace hifc::kernels
#endif  // HWY_ONCE
