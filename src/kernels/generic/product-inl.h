// The inner loop of attention: register-blocked matrix products, written once for every ISA.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_PRODUCT_INL_H_
#undef HIFC_KERNELS_GENERIC_PRODUCT_INL_H_
#else
#define HIFC_KERNELS_GENERIC_PRODUCT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;

inline constexpr uint32_t kMaxTileRows = 6;
inline constexpr size_t kMaxTileVectors = 8;
inline constexpr size_t kVectorRegisters = HWY_TARGET <= HWY_AVX3 ? 32 : 16;

inline constexpr uint32_t kDepthStep = 4;  // steps per round of the loop, to amortise its overhead

// The loops over a tile have to vanish before the compiler decides which arrays live in registers.
// Clang unrolls them in time by itself, GCC only when told to (else AVX-512 prefill is nearly three
// times slower).
#undef HIFC_UNROLL
#if defined(__clang__)
#define HIFC_UNROLL
#else
#define HIFC_UNROLL _Pragma("GCC unroll 8")
#endif

// Whether this target's kernels include those on AMX tiles.
#undef HIFC_AMX
#if HWY_TARGET == HWY_AVX3 && defined(__x86_64__)
#define HIFC_AMX 1
#else
#define HIFC_AMX 0
#endif

enum class Start : uint8_t { kFromZero, kFromOut };

// out[r][c] = start + base[r] + a[r][0] * b[0][c] + a[r][1] * b[1][c] + ..., fused step by step in
// this very order. T is float, or what is converted to floats in registers: uint16_t for F16 bits,
// Codes of a row of 64 columns. Meanwhile memory that is needed later is prefetched from `ahead`
// on, `ahead_bytes` for each column of `out`.
template <class T>
struct Product {
  const float* a = nullptr;
  size_t a_stride = 0;
  const T* b = nullptr;
  size_t b_stride = 0;
  size_t depth = 0;  // a multiple of kDepthStep
  float* out = nullptr;
  size_t out_stride = 0;
  Start start = Start::kFromZero;
  const float* base = nullptr;  // null: nothing is added
  const char* ahead = nullptr;
  size_t ahead_bytes = 0;
};

HWY_INLINE FloatVector load_floats(const float* from) {
  return hn::LoadU(FloatTag(), from);
}

HWY_INLINE FloatVector load_floats(const uint16_t* from) {
  const hn::Rebind<uint16_t, FloatTag> bits;
  const hn::Rebind<hwy::float16_t, FloatTag> half;
  const FloatVector x = hn::PromoteTo(FloatTag(), hn::BitCast(half, hn::LoadU(bits, from)));
#if HWY_TARGET > HWY_AVX2
  // Highway's own conversion takes infinity and NaN for numbers.
  const hn::RebindToUnsigned<FloatTag> words;
  const auto exponent = hn::Set(words, 0x7c00);
  const auto all = hn::And(hn::PromoteTo(words, hn::LoadU(bits, from)), exponent);
  const auto special =
      hn::And(hn::VecFromMask(words, hn::Eq(all, exponent)), hn::Set(words, 0x7f800000));
  return hn::BitCast(FloatTag(), hn::Or(hn::BitCast(words, x), special));
#else
  return x;
#endif
}

// Vectors per tile row: as many accumulators as leave registers for `b` and the broadcasts of `a`.
constexpr size_t max_tile_vectors(size_t rows) {
  if (kVectorRegisters == 32) return rows <= 3 ? 8 : 4;
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

// One step of depth for the whole tile. The smaller side of the tile stays in registers.
template <size_t kRows, size_t kVectors, class T>
HWY_INLINE void multiply_step(const float* HWY_RESTRICT a, size_t a_stride, const T* HWY_RESTRICT b,
                              FloatVector (&sums)[kRows][kVectors]) {
  const FloatTag d;
  if constexpr (kRows < kVectors) {
    FloatVector row[kRows];
    HIFC_UNROLL
    for (size_t r = 0; r < kRows; ++r) row[r] = hn::Set(d, a[r * a_stride]);
    HIFC_UNROLL
    for (size_t c = 0; c < kVectors; ++c) {
      const FloatVector column = load_floats(b + c * hn::Lanes(d));
      HIFC_UNROLL
      for (size_t r = 0; r < kRows; ++r) sums[r][c] = hn::MulAdd(row[r], column, sums[r][c]);
    }
  } else {
    FloatVector column[kVectors];
    HIFC_UNROLL
    for (size_t c = 0; c < kVectors; ++c) column[c] = load_floats(b + c * hn::Lanes(d));
    HIFC_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const FloatVector row = hn::Set(d, a[r * a_stride]);
      HIFC_UNROLL
      for (size_t c = 0; c < kVectors; ++c) sums[r][c] = hn::MulAdd(row, column[c], sums[r][c]);
    }
  }
}

// Into the second-level cache, from where the loads are fast enough: up to 15 % faster for 4
// and 8 rows of F16 pages, mostly 3 to 10 %, than prefetching into the first, where the page in use
// has its place.
HWY_INLINE void prefetch(const char* from, size_t bytes) {
  for (size_t offset = 0; offset < bytes; offset += 64) __builtin_prefetch(from + offset, 0, 2);
}

// Compilers like to hoist the loads of later steps, for which there are no registers left: with 16
// of them, all sums would be spilled and prefill would take about twice as long.
HWY_INLINE void keep_step_order() {
  asm volatile("" ::: "memory");
}

template <class T>
HWY_INLINE FloatVector first_sum(const Product<T>& product, size_t row, const float* out) {
  const FloatTag d;
  const FloatVector start = product.start == Start::kFromZero ? hn::Zero(d) : hn::LoadU(d, out);
  return product.base == nullptr ? start : hn::Add(start, hn::Set(d, product.base[row]));
}

// The tile of `out` whose first column is `column`.
template <size_t kRows, size_t kVectors, class T>
HWY_NOINLINE void multiply_tile(const Product<T>& product, size_t column) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t out_stride = product.out_stride;
  float* out = product.out + column;
  FloatVector sums[kRows][kVectors];
  HIFC_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    HIFC_UNROLL
    for (size_t c = 0; c < kVectors; ++c)
      sums[r][c] = first_sum(product, r, out + r * out_stride + c * lanes);
  }

  const float* a = product.a;
  const T* b = product.b + column;
  const size_t a_stride = product.a_stride, b_stride = product.b_stride;
  const size_t rounds = product.depth / kDepthStep;
  const char* ahead = product.ahead + product.ahead_bytes * column;
  const size_t ahead_step = product.ahead_bytes * kVectors * lanes / rounds;
  for (size_t round = 0; round < rounds; ++round) {
    prefetch(ahead, ahead_step);
    HIFC_UNROLL
    for (size_t step = 0; step < kDepthStep; ++step) {
      multiply_step<kRows, kVectors>(a + step, a_stride, b + step * b_stride, sums);
      keep_step_order();
    }
    a += kDepthStep;
    b += kDepthStep * b_stride;
    ahead += ahead_step;
  }

  HIFC_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    HIFC_UNROLL
    for (size_t c = 0; c < kVectors; ++c)
      hn::StoreU(sums[r][c], d, out + r * out_stride + c * lanes);
  }
}

// Covers columns [column, width) with tiles of kVectors, then of half as many, and so on.
template <size_t kRows, size_t kVectors, class T>
HWY_INLINE void multiply_columns(const Product<T>& product, size_t column, size_t width) {
  if constexpr (kVectors <= max_tile_vectors(kRows)) {
    const size_t step = kVectors * hn::Lanes(FloatTag());
    for (; column + step <= width; column += step) multiply_tile<kRows, kVectors>(product, column);
  }
  if constexpr (kVectors > 1) multiply_columns<kRows, kVectors / 2>(product, column, width);
}

// `rows` is 1..kMaxTileRows; `width` columns, a multiple of 16.
template <class T>
void multiply(const Product<T>& product, size_t rows, size_t width) {
  switch (rows) {
    case 1: return multiply_columns<1, kMaxTileVectors>(product, 0, width);
    case 2: return multiply_columns<2, kMaxTileVectors>(product, 0, width);
    case 3: return multiply_columns<3, kMaxTileVectors>(product, 0, width);
    case 4: return multiply_columns<4, kMaxTileVectors>(product, 0, width);
    case 5: return multiply_columns<5, kMaxTileVectors>(product, 0, width);
    default: return multiply_columns<6, kMaxTileVectors>(product, 0, width);
  }
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_PRODUCT_INL_H_
