// Throughput of the codecs and of the rotation on one core. GB/s are F16 bytes: what `encode`
// reads, and what the floats that `decode` writes would take as F16. `error` is the root mean
// square error relative to the (normal) data, `full_range` what it would be without the choice of a
// range. Pages cycle through so many MB: 0.6 stay in the second-level cache, 16 do not.
//
// AVX-512 on one core of a busy Xeon at 2.6 GHz, pages of 64 x 128:
//
//   bits   encode, 0.6 MB   16 MB        decode     error    full_range
//   8      18 to 21         10 to 13     31         0.0053   0.0053
//   4      12 to 14         9 to 10      30 to 32   0.084    0.090
//   3      12 to 14         9 to 10      29 to 31   0.169    0.192
//   2      12 to 14         9 to 11      32 to 33   0.329    0.450
//
// The rotation does 12 GB/s.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace hifc::kernels {
namespace {

constexpr size_t kBytes = 16'000'000, kCachedBytes = 600'000;
constexpr size_t kDrawn = 1'000'000;

uint16_t to_half(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
double from_half(uint16_t bits) {
  return static_cast<double>(std::bit_cast<_Float16>(bits));
}

struct Pages {
  explicit Pages(PageFormat page_format, size_t bytes = kBytes)
      : format(page_format),
        values(size_t{format.rows} * format.columns),
        count(bytes / sizeof(uint16_t) / values),
        data(count * values),
        encoded(count * page_bytes(format)),
        decoded(values) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < data.size(); ++i)  // drawing random numbers takes its time
      data[i] = i < kDrawn ? to_half(normal(random)) : data[i - kDrawn];
  }
  void encode(const Codecs& codecs, size_t page) {
    codecs.encode(format, data.data() + page * values, encoded.data() + page * page_bytes(format));
  }
  void decode(const Codecs& codecs, size_t page) {
    codecs.decode(format, {0, format.rows}, encoded.data() + page * page_bytes(format),
                  decoded.data());
  }
  PageFormat format;
  size_t values, count;
  std::vector<uint16_t> data;
  std::vector<std::byte> encoded;
  std::vector<float> decoded;
};

// Relative root mean square error over some pages.
double error_of(const Codecs& codecs, Pages& pages) {
  double error = 0, power = 0;
  for (size_t page = 0; page < 32; ++page) {
    pages.encode(codecs, page);
    pages.decode(codecs, page);
    for (size_t i = 0; i < pages.values; ++i) {
      const double value = from_half(pages.data[page * pages.values + i]);
      error += std::pow(static_cast<double>(pages.decoded[i]) - value, 2);
      power += value * value;
    }
  }
  return std::sqrt(error / power);
}

// The same with the scale and min of the full range.
double full_range_error_of(const Pages& pages) {
  const double code_max = (1 << code_bits(pages.format.codec)) - 1;
  double error = 0, power = 0;
  for (size_t group = 0; group < 32 * pages.values / kGroupColumns; ++group) {
    std::vector<double> values;
    for (size_t i = 0; i < kGroupColumns; ++i)
      values.push_back(from_half(pages.data[group * kGroupColumns + i]));
    const auto [least, most] = std::ranges::minmax(values);
    const double scale = from_half(to_half(static_cast<float>((most - least) / code_max)));
    for (const double value : values) {
      const double code = std::clamp(std::round((value - least) / scale), 0.0, code_max);
      error += std::pow(least + scale * code - value, 2);
      power += value * value;
    }
  }
  return std::sqrt(error / power);
}

void report(benchmark::State& state, size_t values) {
  const double bytes = static_cast<double>(values * sizeof(uint16_t) * state.iterations());
  state.counters["GB/s"] = {bytes / 1e9, benchmark::Counter::kIsRate};
}

void encode(benchmark::State& state, const Codecs* codecs, PageFormat format, size_t bytes) {
  Pages pages(format, bytes);
  size_t page = 0;
  for (auto _ : state) {
    pages.encode(*codecs, page++ % pages.count);
    benchmark::ClobberMemory();
  }
  report(state, pages.values);
  state.counters["error"] = error_of(*codecs, pages);
  state.counters["full_range"] = full_range_error_of(pages);
}

void decode(benchmark::State& state, const Codecs* codecs, PageFormat format) {
  Pages pages(format);
  for (size_t page = 0; page < pages.count; ++page) pages.encode(*codecs, page);
  size_t page = 0;
  for (auto _ : state) {
    pages.decode(*codecs, page++ % pages.count);
    benchmark::ClobberMemory();
  }
  report(state, pages.values);
}

void rotate(benchmark::State& state, const Codecs* codecs, uint32_t head_dim) {
  constexpr uint32_t kCount = 64;
  std::vector<float> vectors(size_t{kCount} * head_dim, 1.0f);
  for (auto _ : state) {
    codecs->rotate(head_dim, kCount, vectors.data());
    benchmark::ClobberMemory();
  }
  report(state, vectors.size());
}

void register_all(const Codecs* codecs) {
  using benchmark::RegisterBenchmark;
  const std::string isa(codecs->name);
  for (const kv::Codec codec : {kv::Codec::kI8, kv::Codec::kI4, kv::Codec::kI3, kv::Codec::kI2}) {
    const PageFormat format{codec, kv::kPageTokens, 128};
    const std::string name = isa + "/bits:" + std::to_string(code_bits(codec));
    RegisterBenchmark(("encode/" + name + "/MB:0.6").c_str(), encode, codecs, format, kCachedBytes);
    RegisterBenchmark(("encode/" + name + "/MB:16").c_str(), encode, codecs, format, kBytes);
    RegisterBenchmark(("decode/" + name).c_str(), decode, codecs, format);
  }
  for (const uint32_t head_dim : {80u, 128u})
    RegisterBenchmark(("rotate/" + isa + "/head_dim:" + std::to_string(head_dim)).c_str(), rotate,
                      codecs, head_dim);
}

const bool registered = [] {
  for (const Codecs* codecs : runnable_codecs()) register_all(codecs);
  return true;
}();

}  // namespace
}  // namespace hifc::kernels
