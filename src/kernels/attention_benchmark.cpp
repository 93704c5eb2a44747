// How close attention comes to what the machine can do. Each iteration times a plain loop (reading
// memory, or fused multiply-adds in registers) and then the kernel; `ratio` compares the two, so it
// holds on a shared machine whose absolute speed varies. Encoded pages are compared with F16 pages
// instead, token by token, as `speedup`; their GB/s are those of the F16 pages they stand for.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hifc::kernels {
namespace {

// CPU time of this thread: what others do on the machine costs bandwidth, but not time slices.
double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// In huge pages where the system grants them, as the memory of blocks is.
template <class T>
struct AlignedArray {
  static constexpr size_t kHugePage = 2u << 20;
  explicit AlignedArray(size_t count, T value) {
    const size_t bytes = count * sizeof(T), unit = bytes < kHugePage ? 4096 : kHugePage;
    const size_t rounded = (bytes + unit - 1) / unit * unit;
    data = static_cast<T*>(std::aligned_alloc(unit, rounded));
    if (unit == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
    std::fill_n(data, count, value);
  }
  AlignedArray(const AlignedArray&) = delete;
  AlignedArray& operator=(const AlignedArray&) = delete;
  ~AlignedArray() { std::free(data); }
  T* data = nullptr;
};

uint64_t read_all(const std::byte* data, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) sum += words[i];
  return sum;
}

// Floating-point operations per second of fused multiply-adds on registers.
using FmaLoop = float (*)(size_t rounds);
constexpr size_t kFmaSums = 12;

// As in cache/tiered_attention.cpp.
constexpr uint32_t kFewRows = 48;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float fma_avx512(size_t rounds) {
  __m512 sums[kFmaSums];
  float start = 0;
  for (__m512& sum : sums) sum = _mm512_set1_ps(start += 1.0f);
  const __m512 x = _mm512_set1_ps(0.5f);
  for (size_t i = 0; i < rounds; ++i)
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, x, x);
  __m512 all = sums[0];
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  return _mm512_cvtss_f32(all);
}

__attribute__((target("avx2,fma"))) float fma_avx2(size_t rounds) {
  __m256 sums[kFmaSums];
  float start = 0;
  for (__m256& sum : sums) sum = _mm256_set1_ps(start += 1.0f);
  const __m256 x = _mm256_set1_ps(0.5f);
  for (size_t i = 0; i < rounds; ++i)
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, x, x);
  __m256 all = sums[0];
  for (const __m256& sum : sums) all = _mm256_add_ps(all, sum);
  return _mm256_cvtss_f32(all);
}
#endif

double fma_peak(Isa isa) {
  constexpr size_t kRounds = 100'000;
  FmaLoop loop = nullptr;
  size_t lanes = 0;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) loop = fma_avx2, lanes = 8;
  if (isa == Isa::kAvx512 || isa == Isa::kAmx) loop = fma_avx512, lanes = 16;
#endif
  if (loop == nullptr) return 0;
  const double begin = now();
  benchmark::DoNotOptimize(loop(kRounds));
  return 2.0 * static_cast<double>(kRounds * kFmaSums * lanes) / (now() - begin);
}

struct Coding {
  kv::Codec k = kv::Codec::kF16;
  kv::Codec v = kv::Codec::kF16;
};

// A page of random numbers.
std::vector<std::byte> make_page(const PageFormat& format) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.5f);
  std::vector<uint16_t> halves(size_t{format.rows} * format.columns);
  for (uint16_t& half : halves)
    half = std::bit_cast<uint16_t>(static_cast<_Float16>(normal(random)));
  std::vector<std::byte> page(page_bytes(format));
  if (format.codec == kv::Codec::kF16)
    std::memcpy(page.data(), halves.data(), page.size());
  else
    (*codecs_for(Isa::kPortable))->encode(format, halves.data(), page.data());
  return page;
}

// Pages as a block holds them: [page][kv_head], K then V; one thread's share.
class Blocks {
 public:
  static constexpr uint32_t kHeads = 8;
  Blocks(uint32_t head_dim, size_t bytes, Coding coding = {})
      : coding_(coding),
        head_dim_(head_dim),
        k_(make_page({coding.k, head_dim, kv::kPageTokens})),
        v_(make_page({coding.v, kv::kPageTokens, head_dim})),
        count_(bytes / block_bytes()),
        data_(count_ * block_bytes(), std::byte{0}) {
    for (size_t split = 0; split < splits(); ++split)
      for (uint32_t page = 0; page < kSplitPages; ++page) {
        std::ranges::copy(k_, data_.data + k_offset(split, page));
        std::ranges::copy(v_, data_.data + v_offset(split, page));
      }
  }

  size_t splits() const { return count_ * kHeads; }
  size_t bytes() const { return count_ * block_bytes(); }
  // Of the F16 pages that these stand for.
  size_t f16_bytes() const { return splits() * kSplitTokens * head_dim_ * 2 * sizeof(uint16_t); }
  const std::byte* data() const { return data_.data; }
  SplitPages split(size_t index) const {
    SplitPages pages;
    for (uint32_t page = 0; page < kSplitPages; ++page) {
      pages.k[page] = {data_.data + k_offset(index, page), coding_.k};
      pages.v[page] = {data_.data + v_offset(index, page), coding_.v};
    }
    return pages;
  }

 private:
  size_t block_bytes() const { return kSplitPages * kHeads * (k_.size() + v_.size()); }
  size_t k_offset(size_t split, uint32_t page) const {
    return split / kHeads * block_bytes() + (page * kHeads + split % kHeads) * k_.size();
  }
  size_t v_offset(size_t split, uint32_t page) const {
    return split / kHeads * block_bytes() + kSplitPages * kHeads * k_.size() +
           (page * kHeads + split % kHeads) * v_.size();
  }
  Coding coding_;
  size_t head_dim_;
  std::vector<std::byte> k_, v_;
  size_t count_;
  AlignedArray<std::byte> data_;
};

struct Call {
  Call(const Kernels& implementation, uint32_t head_dim, uint32_t rows)
      : kernels(implementation),
        head{.head_dim = head_dim, .scale = 0.1f, .softcap = 0.0f, .group_size = rows},
        q(size_t{rows} * head_dim, 0.25f),
        o(size_t{rows} * head_dim, 0.0f),
        scratch(
            std::max(kernels.scratch_bytes(head, rows), kernels.prompt_scratch_bytes(head, rows)),
            std::byte{0}),
        begin(rows, 0),
        end(rows, kSplitTokens),
        max(rows),
        sum(rows) {}
  void run(const SplitPages& pages) {
    const auto rows = static_cast<uint32_t>(begin.size());
    const auto attend = rows > kFewRows ? kernels.attend_split_prompt : kernels.attend_split;
    attend(head, pages, {rows, q.data, begin.data(), end.data()}, scratch.data,
           {max.data(), sum.data(), o.data});
  }
  const Kernels& kernels;
  HeadParameters head;
  AlignedArray<float> q, o;
  AlignedArray<std::byte> scratch;
  std::vector<uint32_t> begin, end;
  std::vector<float> max, sum;
};

void decode(benchmark::State& state, const Kernels* kernels, uint32_t head_dim, uint32_t rows) {
  constexpr size_t kBytes = 256'000'000;
  const Blocks blocks(head_dim, kBytes / static_cast<size_t>(state.threads()));
  Call call(*kernels, head_dim, rows);
  double read_seconds = 0, kernel_seconds = 0;
  for (auto _ : state) {
    const double begin = now();
    benchmark::DoNotOptimize(read_all(blocks.data(), blocks.bytes()));
    const double middle = now();
    for (size_t i = 0; i < blocks.splits(); ++i) call.run(blocks.split(i));
    const double end = now();
    read_seconds += middle - begin;
    kernel_seconds += end - middle;
    state.SetIterationTime(end - middle);
  }
  const double gigabytes = static_cast<double>(blocks.bytes() * state.iterations()) / 1e9;
  state.counters["GB/s"] = gigabytes / kernel_seconds;  // summed over threads
  state.counters["read_GB/s"] = gigabytes / read_seconds;
  state.counters["ratio"] = {read_seconds / kernel_seconds, benchmark::Counter::kAvgThreads};
}

double seconds_for_all(Call& call, const Blocks& blocks) {
  const double begin = now();
  for (size_t i = 0; i < blocks.splits(); ++i) call.run(blocks.split(i));
  return now() - begin;
}

void encoded(benchmark::State& state, const Kernels* kernels, uint32_t head_dim, uint32_t rows,
             Coding coding) {
  constexpr size_t kBytes = 128'000'000;
  const Blocks exact(head_dim, kBytes), blocks(head_dim, kBytes, coding);
  Call call(*kernels, head_dim, rows);
  double exact_seconds = 0, encoded_seconds = 0;
  for (auto _ : state) {
    exact_seconds += seconds_for_all(call, exact);
    const double seconds = seconds_for_all(call, blocks);
    encoded_seconds += seconds;
    state.SetIterationTime(seconds);
  }
  const auto iterations = static_cast<double>(state.iterations());
  const double exact_rate = static_cast<double>(exact.f16_bytes()) * iterations / exact_seconds;
  const double rate = static_cast<double>(blocks.f16_bytes()) * iterations / encoded_seconds;
  state.counters["GB/s"] = rate / 1e9;
  state.counters["f16_GB/s"] = exact_rate / 1e9;
  state.counters["speedup"] = rate / exact_rate;
}

// `causal`: the rows' ranges end within the split, as on the diagonal; only useful work is counted.
void prefill(benchmark::State& state, const Kernels* kernels, uint32_t head_dim, uint32_t rows,
             bool causal) {
  const Blocks blocks(head_dim, 16'000'000);
  Call call(*kernels, head_dim, rows);
  double operations = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    if (causal) call.end[row] = 1 + row * (kSplitTokens - 1) / rows;
    operations += 4.0 * head_dim * call.end[row];
  }
  // The best of each: both suffer when others use the core's caches and execution units.
  constexpr size_t kCalls = 16;
  double peak = 0, best_seconds = std::numeric_limits<double>::infinity();
  size_t calls = 0;
  for (auto _ : state) {
    peak = std::max(peak, fma_peak(kernels->isa));
    const double begin = now();
    for (size_t i = 0; i < kCalls; ++i) call.run(blocks.split(calls++ % blocks.splits()));
    const double seconds = now() - begin;
    best_seconds = std::min(best_seconds, seconds);
    state.SetIterationTime(seconds);
  }
  const double flops = operations * static_cast<double>(kCalls) / best_seconds;
  state.counters["GFLOP/s"] = flops / 1e9;
  state.counters["peak_GFLOP/s"] = peak / 1e9;
  state.counters["ratio"] = peak > 0 ? flops / peak : 0;
}

std::string name_of(const char* kind, const Kernels& kernels, uint32_t head_dim, uint32_t rows) {
  return std::string(kind) + "/" + std::string(to_string(kernels.isa)) +
         "/head_dim:" + std::to_string(head_dim) + "/rows:" + std::to_string(rows);
}

void register_encoded(const Kernels* kernels, uint32_t head_dim) {
  using kv::Codec;
  for (const Coding coding : {Coding{Codec::kI8, Codec::kI8},
                              {Codec::kI4, Codec::kI4},
                              {Codec::kI4, Codec::kI3},
                              {Codec::kI2, Codec::kI2}})
    for (const uint32_t rows : {1u, 3u, 4u, 8u, 16u, 384u}) {
      const std::string name = name_of("encoded", *kernels, head_dim, rows) +
                               "/bits:" + std::to_string(code_bits(coding.k)) + "," +
                               std::to_string(code_bits(coding.v));
      benchmark::RegisterBenchmark(name.c_str(), encoded, kernels, head_dim, rows, coding)
          ->UseManualTime();
    }
}

void register_all(const Kernels* kernels) {
  using benchmark::RegisterBenchmark;
  for (const uint32_t head_dim : {64u, 128u}) {
    register_encoded(kernels, head_dim);
    for (const uint32_t rows : {1u, 3u, 4u, 8u})
      RegisterBenchmark(name_of("decode", *kernels, head_dim, rows).c_str(), decode, kernels,
                        head_dim, rows)
          ->Threads(2)
          ->UseManualTime();
    for (const uint32_t rows : {16u, 32u, 96u, 384u})
      RegisterBenchmark(name_of("prefill", *kernels, head_dim, rows).c_str(), prefill, kernels,
                        head_dim, rows, false)
          ->UseManualTime();
    RegisterBenchmark(name_of("prefill_causal", *kernels, head_dim, 192).c_str(), prefill, kernels,
                      head_dim, 192u, true)
        ->UseManualTime();
  }
}

const bool registered = [] {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (auto kernels = kernels_for(isa)) register_all(*kernels);
  return true;
}();

}  // namespace
}  // namespace hifc::kernels
