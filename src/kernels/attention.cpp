// Attention over splits, and the choice of instruction set. The first part of this file is compiled
// once per Highway target (portable, AVX2, AVX-512), the HWY_ONCE part once.
#include "kernels/attention.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "fmt/format.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Three targets are enough, AMX being a variant of the last: the baseline, AVX2 and AVX3 (AVX-512
// F, BW, CD, DQ, VL). Bits 0..7 are the targets above AVX3 in this and newer Highway releases.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | 0xFF)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/generic/amx_attention-inl.h"
#include "kernels/generic/blocks-inl.h"
#include "kernels/generic/encoded-inl.h"
#include "kernels/generic/pages-inl.h"
#include "kernels/generic/product-inl.h"
#include "kernels/generic/rows-inl.h"
#include "kernels/generic/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// From this many rows on, decoding a page once is cheaper than converting it in each row tile
// (measured: 24 rows are 8 % slower when decoded, 48 are 5 % faster; AVX2 breaks even at 48).
inline constexpr uint32_t kDecodeOnceRows = kVectorRegisters == 32 ? 32 : 48;

struct Split {
  const HeadParameters& head;
  const SplitPages& pages;
  const QueryRows& rows;
  float* scores;   // [rows][kSplitTokens]
  float* decoded;  // a block: [kBlockRows][kBlockColumns]
  const Partials& out;
};

struct RowTile {
  uint32_t index = 0, tiles = 0;
  uint32_t first = 0;
  uint32_t count = 0;
  Range range;  // tokens of the page, from its first one on, that any of the rows sees, rounded
                // outward to kDepthStep
};

// Calls visit(tile) for every tile of rows that sees tokens of `page`. Tiles are of even size: 8
// rows make 4 + 4, not 6 + 2.
template <class Visit>
HWY_INLINE void for_tiles(const QueryRows& rows, uint32_t page, const Visit& visit) {
  const uint32_t tiles = (rows.count + kMaxTileRows - 1) / kMaxTileRows;
  for (uint32_t i = 0; i < tiles; ++i) {
    RowTile tile;
    tile.index = i;
    tile.tiles = tiles;
    tile.first = rows.count * i / tiles;
    tile.count = rows.count * (i + 1) / tiles - tile.first;
    tile.range = page_range(rows, tile.first, tile.count, page);
    if (!tile.range.empty()) visit(tile);
  }
}

// Each row tile prefetches its share of the page that is needed next while it computes, so that
// memory is busy all the time.
template <class T>
void share_out(const NextPage& next, const RowTile& tile, size_t width, Product<T>& product) {
  const size_t tile_columns = width * tile.tiles;
  product.ahead_bytes = (next.bytes + tile_columns - 1) / tile_columns;
  product.ahead =
      reinterpret_cast<const char*>(next.data) + product.ahead_bytes * width * tile.index;
}

// What a row tile multiplies with some channels of a page, and where the sums go.
struct Operand {
  const float* a = nullptr;
  size_t a_stride = 0;
  Range depth;
  float* out = nullptr;
  size_t out_stride = 0;
  size_t width = 0;
  Start start = Start::kFromZero;
};

template <Side kSide>
Operand operand_of(const Split& split, const RowTile& tile, uint32_t page, const Block& block) {
  const size_t head_dim = split.head.head_dim;
  float* scores = split.scores + tile.first * kSplitTokens + page * kv::kPageTokens;
  if constexpr (kSide == Side::kK)
    return {.a = split.rows.q + tile.first * head_dim + block.first_channel,
            .a_stride = head_dim,
            .depth = {0, block.channels},
            .out = scores,
            .out_stride = kSplitTokens,
            .width = kv::kPageTokens,
            .start = block.first_channel == 0 ? Start::kFromZero : Start::kFromOut};
  return {.a = scores,
          .a_stride = kSplitTokens,
          .depth = tile.range,
          .out = split.out.o + tile.first * head_dim + block.first_channel,
          .out_stride = head_dim,
          .width = block.channels,
          .start = Start::kFromOut};
}

template <class T>
Product<T> product_of(const Operand& operand, const T* b, size_t b_stride) {
  return {.a = operand.a + operand.depth.begin,
          .a_stride = operand.a_stride,
          .b = b + operand.depth.begin * b_stride,
          .b_stride = b_stride,
          .depth = operand.depth.end - operand.depth.begin,
          .out = operand.out,
          .out_stride = operand.out_stride,
          .start = operand.start};
}

// Rows times some channels of a page of numbers.
template <Side kSide, class T>
void multiply_numbers(const Split& split, uint32_t page, const Block& block, const T* numbers,
                      size_t stride, const NextPage& next) {
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    const Operand operand = operand_of<kSide>(split, tile, page, block);
    Product<T> product = product_of(operand, numbers, stride);
    share_out(next, tile, operand.width, product);
    multiply(product, tile.count, operand.width);
  });
}

// The same with the codes of an encoded page. Which way they are converted does not show: a code is
// the same float both ways.
template <Side kSide>
void multiply_codes(const Split& split, uint32_t page, const Block& block, const NextPage& next) {
  const EncodedRows rows =
      encoded_rows<kSide>(page_of<kSide>(split.pages, page), split.head, block);
  const BlockParameters parameters(rows);
  const bool in_registers = split.rows.count <= kRowsInRegisters && rows.width == kBlockColumns;
  if (!in_registers) decode_codes(rows, split.decoded, kBlockColumns);
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    Operand operand = operand_of<kSide>(split, tile, page, block);
    const ScaledRows scaled(operand.a, operand.a_stride, tile.count, rows.count, parameters);
    operand.a = scaled.a;
    operand.a_stride = kBlockRows;
    const auto multiply_with = [&](const auto* codes, size_t stride) HWY_ATTR {
      auto product = product_of(operand, codes, stride);
      product.base = scaled.base;
      share_out(next, tile, operand.width, product);
      multiply(product, tile.count, operand.width);
    };
    if (!in_registers) return multiply_with(split.decoded, kBlockColumns);
    if constexpr (kRowsInRegisters > 0)
      with_bits(rows.codec, [&](auto bits) HWY_ATTR {
        multiply_with(reinterpret_cast<const Codes<bits>*>(rows.codes), 1);
      });
  });
}

// Rows times a whole page, K or V.
template <Side kSide>
void multiply_page(const Split& split, uint32_t index, const NextPage& next) {
  const uint32_t head_dim = split.head.head_dim;
  const Page& page = page_of<kSide>(split.pages, index);
  const bool halves = page.codec == kv::Codec::kF16;
  if (halves && split.rows.count < kDecodeOnceRows)
    return multiply_numbers<kSide>(split, index, {.channels = head_dim},
                                   reinterpret_cast<const uint16_t*>(page.data),
                                   page_format<kSide>(page, split.head).columns, next);
  const bool codes = !halves && sinks_of<kSide>(split.pages, index) == nullptr;
  for (uint32_t first = 0; first < head_dim; first += kBlockRows) {
    const uint32_t channels = std::min<uint32_t>(kBlockRows, head_dim - first);
    const Block block{.first_channel = first, .channels = channels};
    const NextPage part = next.part(first, channels, head_dim);
    if (codes) {
      multiply_codes<kSide>(split, index, block, part);
      continue;
    }
    decode_block<kSide>(split.pages, index, split.head, block, split.decoded);
    multiply_numbers<kSide>(split, index, block, static_cast<const float*>(split.decoded),
                            kBlockColumns, part);
  }
}

// Two loops, so that the latency of one row's maximum is hidden behind other rows.
inline void softmax_rows(const Split& split) {
  const QueryRows& rows = split.rows;
  for (uint32_t row = 0; row < rows.count; ++row)
    split.out.max[row] =
        score_row(split.scores + row * kSplitTokens, row_range(rows, row), split.head);
  for (uint32_t row = 0; row < rows.count; ++row)
    split.out.sum[row] =
        weigh_row(split.scores + row * kSplitTokens, row_range(rows, row), split.out.max[row]);
}

size_t scratch_bytes(const HeadParameters&, uint32_t rows) {
  return (size_t{rows} * kSplitTokens + kBlockRows * kBlockColumns) * sizeof(float);
}

void attend_split(const HeadParameters& head, const SplitPages& pages, const QueryRows& rows,
                  std::byte* scratch, const Partials& out) {
  HIFC_DCHECK(head.head_dim % 16 == 0 && head.head_dim <= 512);
  std::fill_n(out.o, size_t{rows.count} * head.head_dim, 0.0f);
  float* decoded = reinterpret_cast<float*>(scratch);
  const Split split{head, pages, rows, decoded + kBlockRows * kBlockColumns, decoded, out};
  const SeenPages seen(rows);
  for (uint32_t i = 0; i < seen.count; ++i)
    multiply_page<Side::kK>(split, seen.index[i], after<Side::kK>(pages, head, seen, i));
  softmax_rows(split);
  for (uint32_t i = 0; i < seen.count; ++i)
    multiply_page<Side::kV>(split, seen.index[i], after<Side::kV>(pages, head, seen, i));
}

void merge_row(uint32_t head_dim, float into_scale, float* into, float next_scale,
               const float* next) {
  const FloatTag d;
  const FloatVector a = hn::Set(d, into_scale), b = hn::Set(d, next_scale);
  for (size_t i = 0; i < head_dim; i += hn::Lanes(d)) {
    const FloatVector scaled = hn::Mul(hn::LoadU(d, next + i), b);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, into + i), a, scaled), d, into + i);
  }
}

// Only a row that has seen nothing has sum = 0: the token of the maximum weighs 1. (A row of NaN
// may have any maximum.)
void merge(uint32_t head_dim, uint32_t rows, const Partials& into, const Partials& next) {
  for (uint32_t row = 0; row < rows; ++row) {
    float* into_o = into.o + size_t{row} * head_dim;
    const float* next_o = next.o + size_t{row} * head_dim;
    if (next.sum[row] == 0.0f) continue;
    if (into.sum[row] == 0.0f) {
      into.max[row] = next.max[row];
      into.sum[row] = next.sum[row];
      std::copy_n(next_o, head_dim, into_o);
      continue;
    }
    const float max = std::max(into.max[row], next.max[row]);
    const float into_scale = exp_of_nonpositive(into.max[row] - max);
    const float next_scale = exp_of_nonpositive(next.max[row] - max);
    into.max[row] = max;
    into.sum[row] = into.sum[row] * into_scale + next.sum[row] * next_scale;
    merge_row(head_dim, into_scale, into_o, next_scale, next_o);
  }
}

void finish(uint32_t head_dim, uint32_t rows, const Partials& state, float* out,
            size_t out_stride) {
  const FloatTag d;
  for (uint32_t row = 0; row < rows; ++row) {
    const FloatVector sum = hn::Set(d, state.sum[row] == 0.0f ? 1.0f : state.sum[row]);
    for (size_t i = 0; i < head_dim; i += hn::Lanes(d)) {
      const FloatVector o = hn::Div(hn::LoadU(d, state.o + size_t{row} * head_dim + i), sum);
      // -0 + 0 is +0: whether a skipped page would have turned a -0 into +0 must not show.
      hn::StoreU(hn::Add(o, hn::Zero(d)), d, out + row * out_stride + i);
    }
  }
}

// Decoding a page costs about 1/24 of computing 96 rows on it, and the rows' scores of one split
// (96 KiB) stay in the second-level cache.
Kernels table_for(Isa isa) {
  return {.isa = isa,
          .tile_rows = 96,
          .scratch_bytes = scratch_bytes,
          .attend_split = attend_split,
          .prompts_differ = false,
          .prompt_scratch_bytes = scratch_bytes,
          .attend_split_prompt = attend_split,
          .merge = merge,
          .finish = finish,
          .store_k = store_k,
          .store_v = store_v};
}

const Kernels* kernels(Isa isa) {
  static const Kernels table = table_for(isa);
  return &table;
}

#if HWY_TARGET == HWY_AVX3 && defined(__x86_64__)
// Packing K and V costs as much as computing 96 rows on them.
const Kernels* amx_kernels() {
  static const Kernels table = [] {
    Kernels amx = table_for(Isa::kAmx);
    amx.tile_rows = 384;
    amx.prompts_differ = true;
    amx.prompt_scratch_bytes = amx::SplitAttention::scratch_bytes;
    amx.attend_split_prompt = amx::attend_split;
    return amx;
  }();
  return &table;
}
#endif

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hifc::kernels {

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAmx: return "amx";
  }
  return "unknown";
}

#if HWY_TARGETS & HWY_AVX3 && defined(__x86_64__)
// Whether the CPU has tiles of BF16, and the system lends them.
static bool amx_usable() {
  static const bool usable = [] {
    constexpr uint32_t kBf16 = 1u << 22, kTiles = 1u << 24;
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
    if ((edx & kBf16) == 0 || (edx & kTiles) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return usable;
}
#endif

Result<const Kernels*> kernels_for(Isa isa) {
  [[maybe_unused]] const int64_t cpu = hwy::SupportedTargets();
  if (isa == Isa::kPortable) return HWY_STATIC_DISPATCH(kernels)(isa);
#if HWY_TARGETS & HWY_AVX2
  if (isa == Isa::kAvx2 && (cpu & HWY_AVX2) != 0) return N_AVX2::kernels(isa);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (isa == Isa::kAvx512 && (cpu & HWY_AVX3) != 0) return N_AVX3::kernels(isa);
#ifdef __x86_64__
  if (isa == Isa::kAmx && (cpu & HWY_AVX3) != 0 && amx_usable()) return N_AVX3::amx_kernels();
#endif
#endif
  return failure(Code::kUnsupported,
                 fmt::format("this CPU or build has no {} kernels", to_string(isa)));
}

static Result<const Kernels*> best_kernels() {
  constexpr std::array kBestFirst = {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kPortable};
  const char* forced = std::getenv("HIFC_FORCE_ISA");
  if (forced != nullptr && *forced != '\0') {
    for (const Isa isa : kBestFirst)
      if (to_string(isa) == forced) return kernels_for(isa);
    return failure(
        Code::kInvalid,
        fmt::format("HIFC_FORCE_ISA is '{}'; it may be portable, avx2, avx512 or amx", forced));
  }
  for (const Isa isa : kBestFirst)
    if (auto kernels = kernels_for(isa)) return kernels;
  return kernels_for(Isa::kPortable);
}

Result<const Kernels*> select_kernels(Rounding rounding) {
  HIFC_ASSIGN(const Kernels* const best, best_kernels());
  const bool two = best->prompts_differ && rounding == Rounding::kOne;
  return two ? kernels_for(Isa::kAvx512) : best;
}

}  // namespace hifc::kernels
#endif  // HWY_ONCE
