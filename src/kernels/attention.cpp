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
#include "kernels/generic/softmax-inl.h"
#include "kernels/generic/split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

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
          .attend_split = attend_split<Units::kVectors>,
          .tile_group = UINT32_MAX,
          .prompts_differ = false,
          .prompt_scratch_bytes = scratch_bytes,
          .attend_split_prompt = attend_split<Units::kVectors>,
          .merge = merge,
          .finish = finish,
          .store_k = store_k,
          .store_v = store_v};
}

const Kernels* kernels(Isa isa) {
  static const Kernels table = table_for(isa);
  return &table;
}

#if HIFC_AMX
// Packing K and V costs as much as computing 96 rows on them.
const Kernels* amx_kernels() {
  static const Kernels table = [] {
    Kernels amx = table_for(Isa::kAmx);
    amx.tile_rows = 384;
    amx.scratch_bytes = amx::codes_scratch_bytes;
    amx.attend_split = amx::attend_split_with_codes;
    amx.tile_group = amx::kTileGroup;
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
