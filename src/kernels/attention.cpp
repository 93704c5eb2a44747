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
  float* decoded;  // one page as floats; many rows only
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

// A page that is needed next; each row tile prefetches its share of it while it computes, so that
// memory is busy all the time.
struct NextPage {
  const uint16_t* page = nullptr;
  size_t bytes = 0;

  template <class T>
  void share_out(const RowTile& tile, size_t width, Product<T>& product) const {
    const size_t tile_columns = width * tile.tiles;
    product.ahead_bytes = (bytes + tile_columns - 1) / tile_columns;
    product.ahead = reinterpret_cast<const char*>(page) + product.ahead_bytes * width * tile.index;
  }
};

// Dot products of all rows with the page's tokens.
template <class T>
void score_page(const Split& split, uint32_t page, const T* k, const NextPage& next) {
  const size_t head_dim = split.head.head_dim;
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    Product<T> product{.a = split.rows.q + tile.first * head_dim,
                       .a_stride = head_dim,
                       .b = k,
                       .b_stride = kv::kPageTokens,
                       .depth = head_dim,
                       .out = split.scores + tile.first * kSplitTokens + page * kv::kPageTokens,
                       .out_stride = kSplitTokens,
                       .start = Start::kFromZero};
    next.share_out(tile, kv::kPageTokens, product);
    multiply(product, tile.count, kv::kPageTokens);
  });
}

// Columns of a V page: 64 tokens, `stride` values apart.
template <class T>
struct Columns {
  const T* v = nullptr;
  size_t stride = 0;
  size_t first = 0;
  size_t width = 0;
};

// Adds the weighted columns to `out`.
template <class T>
void add_columns(const Split& split, uint32_t page, const Columns<T>& columns,
                 const NextPage& next) {
  const size_t head_dim = split.head.head_dim;
  for_tiles(split.rows, page, [&](const RowTile& tile) HWY_ATTR {
    const uint32_t token = page * kv::kPageTokens + tile.range.begin;
    Product<T> product{.a = split.scores + tile.first * kSplitTokens + token,
                       .a_stride = kSplitTokens,
                       .b = columns.v + tile.range.begin * columns.stride,
                       .b_stride = columns.stride,
                       .depth = tile.range.end - tile.range.begin,
                       .out = split.out.o + tile.first * head_dim + columns.first,
                       .out_stride = head_dim,
                       .start = Start::kFromOut};
    next.share_out(tile, columns.width, product);
    multiply(product, tile.count, columns.width);
  });
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

// The page that is read after the i-th seen K page, or V page.
inline NextPage next_page(const Split& split, const SeenPages& seen, uint32_t i, bool v) {
  const size_t bytes = split.head.head_dim * kv::kPageTokens * sizeof(uint16_t);
  const bool last = i + 1 == seen.count;
  if (v) return last ? NextPage{} : NextPage{split.pages.v[seen.index[i + 1]], bytes};
  return {last ? split.pages.v[seen.index[0]] : split.pages.k[seen.index[i + 1]], bytes};
}

inline void attend_few_rows(const Split& split, const SeenPages& seen) {
  const size_t head_dim = split.head.head_dim;
  for (uint32_t i = 0; i < seen.count; ++i)
    score_page(split, seen.index[i], split.pages.k[seen.index[i]],
               next_page(split, seen, i, false));
  softmax_rows(split);
  for (uint32_t i = 0; i < seen.count; ++i)
    add_columns(split, seen.index[i],
                Columns<uint16_t>{split.pages.v[seen.index[i]], head_dim, 0, head_dim},
                next_page(split, seen, i, true));
}

inline void attend_many_rows(const Split& split, const SeenPages& seen) {
  const size_t head_dim = split.head.head_dim;
  const float* decoded = split.decoded;
  for (uint32_t i = 0; i < seen.count; ++i) {
    decode_row(split.pages.k[seen.index[i]], head_dim * kv::kPageTokens, split.decoded);
    score_page(split, seen.index[i], decoded, next_page(split, seen, i, false));
  }
  softmax_rows(split);
  for (uint32_t i = 0; i < seen.count; ++i) {
    decode_panels(split.pages.v[seen.index[i]], kv::kPageTokens, head_dim, split.decoded);
    NextPage next = next_page(split, seen, i, true);
    for (size_t column = 0; column < head_dim; column += kPanelColumns) {
      add_columns(split, seen.index[i],
                  Columns<float>{decoded + column * kv::kPageTokens, kPanelColumns, column,
                                 std::min(kPanelColumns, head_dim - column)},
                  next);
      next = {};
    }
  }
}

size_t scratch_bytes(const HeadParameters& head, uint32_t rows) {
  const size_t scores = size_t{rows} * kSplitTokens;
  const size_t panels = (head.head_dim + kPanelColumns - 1) / kPanelColumns;
  const size_t decoded = rows < kDecodeOnceRows ? 0 : panels * kPanelColumns * kv::kPageTokens;
  return (scores + decoded) * sizeof(float);
}

void attend_split(const HeadParameters& head, const SplitPages& pages, const QueryRows& rows,
                  std::byte* scratch, const Partials& out) {
  HIFC_DCHECK(head.head_dim % 16 == 0 && head.head_dim <= 512);
  std::fill_n(out.o, size_t{rows.count} * head.head_dim, 0.0f);
  float* scores = reinterpret_cast<float*>(scratch);
  const Split split{head, pages, rows, scores, scores + size_t{rows.count} * kSplitTokens, out};
  const SeenPages seen(rows);
  rows.count < kDecodeOnceRows ? attend_few_rows(split, seen) : attend_many_rows(split, seen);
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
