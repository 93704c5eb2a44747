// hifc bench attention: decode attention's bytes of KV a second against what a plain loop reads of
// the same memory with the same threads, and the arithmetic of prefill, for each kernel and shape.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "apps/bench.h"
#include "apps/bench_report.h"
#include "apps/bench_store.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "cache/tiered_attention.h"
#include "engine/thread_pool.h"
#include "io/memory.h"
#include "kernels/attention.h"
#include "kv/layout.h"

namespace hifc::apps {
namespace {

using Bound = BenchReport::Bound;
using kernels::Isa;
using kernels::kSplitTokens;

constexpr uint64_t kMiB = 1u << 20;
// Layers are repeated up to this much, so that caches of a core hold little of it.
constexpr uint64_t kWorkingSetBytes = 192 * kMiB;
constexpr uint32_t kPrefillTokens = 512;

struct AttentionBenchOptions {
  std::vector<std::string> shapes = {"9x3x64", "32x8x128", "4x1x256", "32x32x128"};
  std::vector<uint32_t> contexts = {8192};
  uint32_t threads = 0;
  uint32_t rounds = 9;
  double seconds = 0.2;  // of each contender in each round
  BenchOutput output;
};

// "QxKxD": query heads, KV heads, head_dim.
Result<kv::ModelShape> parse_shape(const std::string& text) {
  uint32_t parts[3] = {};
  const char *at = text.data(), *const end = at + text.size();
  for (uint32_t i = 0; i < 3; ++i) {
    const auto parsed = std::from_chars(at, end, parts[i]);
    const bool last = i == 2;
    const bool ended = parsed.ptr == end;
    if (parsed.ec != std::errc() || ended != last || (!last && *parsed.ptr != 'x') || parts[i] == 0)
      return failure(
          Code::kInvalid,
          fmt::format("shape '{}' is not QUERY_HEADSxKV_HEADSxHEAD_DIM, such as 32x8x128", text));
    at = parsed.ptr + 1;
  }
  constexpr uint32_t kHeadsMax = 1024;
  if (parts[0] > kHeadsMax || parts[0] % parts[1] != 0 || parts[2] % 16 != 0 || parts[2] > 512)
    return failure(Code::kInvalid,
                   fmt::format("shape '{}': up to {} query heads, divisible by the KV heads, and a "
                               "head_dim that is a multiple of 16 up to 512",
                               text, kHeadsMax));
  return kv::ModelShape{.layers = 1,
                        .query_heads = parts[0],
                        .kv_heads = parts[1],
                        .head_dim = parts[2],
                        .window = {0}};
}

// What reading costs at least.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t
read_all(const uint64_t* words, size_t count) {
  uint64_t sums[32] = {};
  for (size_t i = 0; i + 32 <= count; i += 32)
    for (size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  return std::accumulate(std::begin(sums), std::end(sums), uint64_t{0});
}

// KV of a context, of as many layers as make a working set, and a query to attend with.
class Workload {
 public:
  static Result<std::unique_ptr<Workload>> create(kv::ModelShape shape, uint32_t context) {
    HIFC_ASSIGN(const kv::BlockLayout layout, kv::BlockLayout::make(shape, kSplitTokens));
    std::unique_ptr<Workload> workload(new Workload(shape, layout, context));
    HIFC_TRY(workload->fill());
    return workload;
  }

  uint64_t bytes() const { return uint64_t{layers_} * splits() * split_bytes(); }
  uint32_t layers() const { return layers_; }

  // One token, or a chunk of a prompt, at the end of the context, in every layer.
  void attend(cache::TieredAttention& attention, uint32_t tokens, uint32_t layers) {
    std::vector<uint32_t> all(splits());
    std::iota(all.begin(), all.end(), 0u);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      attention.begin(
          input(), {.kind = tokens == 1 ? cache::StepKind::kGeneration : cache::StepKind::kPrompt,
                    .position = context_ - tokens,
                    .tokens = tokens,
                    .first_split = 0,
                    .last_split = splits()});
      attention.compute(all,
                        [&](uint32_t split, uint32_t head) { return pages(layer, split, head); });
      attention.finish();
    }
  }

  // K and V of all layers, and nothing else.
  void read(Parallel& parallel) {
    std::atomic<uint64_t> sum = 0;
    parallel.run(layers_ * splits(), [&](uint32_t index, uint32_t) {
      const std::byte* block = memory_.data() + index * layout_.block_bytes();
      const std::byte* k = block + layout_.k_page_offset(0, 0);
      const std::byte* v = block + layout_.v_page_offset(0, 0);
      const size_t words = split_bytes() / 2 / sizeof(uint64_t);
      sum += read_all(reinterpret_cast<const uint64_t*>(k), words) +
             read_all(reinterpret_cast<const uint64_t*>(v), words);
    });
  }

  // Of the causal part alone, in one layer.
  double operations(uint32_t tokens) const {
    double pairs = 0;
    for (uint32_t i = 0; i < tokens; ++i) pairs += context_ - tokens + i + 1;
    return pairs * 4.0 * shape_.query_heads * shape_.head_dim;
  }

 private:
  Workload(kv::ModelShape shape, kv::BlockLayout layout, uint32_t context)
      : shape_(std::move(shape)), layout_(layout), context_(context) {
    const uint64_t layer_bytes = splits() * split_bytes();
    layers_ = static_cast<uint32_t>((kWorkingSetBytes + layer_bytes - 1) / layer_bytes);
  }

  uint32_t splits() const { return context_ / kSplitTokens; }
  uint64_t split_bytes() const {
    return uint64_t{kSplitTokens} * shape_.kv_heads * shape_.head_dim * 2 * sizeof(uint16_t);
  }

  Result<void> fill() {
    HIFC_ASSIGN(memory_,
                io::AlignedMemory::allocate(uint64_t{layers_} * splits() * layout_.block_bytes()));
    fill_random(memory_.span());
    // Ordinary numbers of either sign between 1/8 and 1/4.
    auto* numbers = reinterpret_cast<uint16_t*>(memory_.data());
    for (size_t i = 0; i < memory_.size_bytes() / sizeof(uint16_t); ++i)
      numbers[i] = static_cast<uint16_t>((numbers[i] & 0x83ff) | 0x3000);
    const size_t rows = size_t{kPrefillTokens} * shape_.query_heads * shape_.head_dim;
    q_.resize(rows), out_.resize(rows);
    for (size_t i = 0; i < rows; ++i) q_[i] = static_cast<float>(i % 13) / 13 - 0.5f;
    return {};
  }

  cache::LayerInput input() {
    return {.layer = 0,
            .q = q_.data(),
            .q_token_stride = size_t{shape_.query_heads} * shape_.head_dim,
            .q_head_stride = shape_.head_dim,
            .out = out_.data(),
            .scale = 0.125f};
  }

  kernels::SplitPages pages(uint32_t layer, uint32_t split, uint32_t head) const {
    const std::byte* block =
        memory_.data() + (size_t{layer} * splits() + split) * layout_.block_bytes();
    kernels::SplitPages pages;
    for (uint32_t page = 0; page < kernels::kSplitPages; ++page) {
      pages.k[page].data = block + layout_.k_page_offset(page, head);
      pages.v[page].data = block + layout_.v_page_offset(page, head);
    }
    return pages;
  }

  kv::ModelShape shape_;
  kv::BlockLayout layout_;
  uint32_t context_;
  uint32_t layers_ = 1;
  io::AlignedMemory memory_;
  std::vector<float> q_, out_;
};

class AttentionBench {
 public:
  explicit AttentionBench(const AttentionBenchOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_ASSIGN(pool_, engine::ThreadPool::create(options_.threads));
    BenchReport report("attention", {{"shapes", options_.shapes},
                                     {"contexts", options_.contexts},
                                     {"threads", pool_->threads()},
                                     {"rounds", options_.rounds},
                                     {"seconds", options_.seconds}});
    std::vector<kv::ModelShape> shapes;  // all of them are right before anything is measured
    for (const std::string& text : options_.shapes) {
      HIFC_ASSIGN(shapes.emplace_back(), parse_shape(text));
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      const kv::ModelShape& shape = shapes[i];
      for (const uint32_t context : options_.contexts) {
        HIFC_ASSIGN(const auto workload, Workload::create(shape, context));
        const std::string name = fmt::format("{}.ctx{}", options_.shapes[i], context);
        HIFC_TRY(measure_decode(report, name, shape, *workload));
        if (context >= kPrefillTokens) HIFC_TRY(measure_prefill(report, name, shape, *workload));
      }
    }
    return publish(report, options_.output);
  }

 private:
  struct Contender {
    const kernels::Kernels* kernels;
    std::unique_ptr<cache::TieredAttention> attention;
    std::vector<double> seconds, ratios;
  };

  // The best first. AMX is not for few rows: there it is AVX-512.
  std::vector<Contender> contenders(const kv::ModelShape& shape, bool many_rows) {
    std::vector<Contender> all;
    for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kPortable}) {
      const auto kernels = kernels::kernels_for(isa);
      if (!kernels || (isa == Isa::kAmx && !many_rows)) continue;
      all.push_back(
          {.kernels = *kernels,
           .attention = std::make_unique<cache::TieredAttention>(**kernels, shape, *pool_),
           .seconds = {},
           .ratios = {}});
    }
    return all;
  }

  // Seconds of one call, of as many as fit.
  template <typename Call>
  double time(const Call& call) const {
    const uint64_t begin_ns = clock_.now_ns();
    const auto enough_ns = static_cast<uint64_t>(options_.seconds * 1e9);
    uint64_t calls = 0, spent_ns = 0;
    do {
      call();
      ++calls;
      spent_ns = clock_.now_ns() - begin_ns;
    } while (spent_ns < enough_ns);
    return static_cast<double>(spent_ns) / 1e9 / static_cast<double>(calls);
  }

  Result<void> measure_decode(BenchReport& report, const std::string& name,
                              const kv::ModelShape& shape, Workload& workload) {
    std::vector<Contender> all = contenders(shape, /*many_rows=*/false);
    std::vector<double> read_s;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      log_info("decode {}, round {}", name, round + 1);
      HIFC_TRY(check_interrupted());
      read_s.push_back(time([&] { workload.read(*pool_); }));
      for (Contender& contender : all) {
        contender.seconds.push_back(
            time([&] { workload.attend(*contender.attention, 1, workload.layers()); }));
        contender.ratios.push_back(read_s.back() / contender.seconds.back());
      }
    }
    const double gb = static_cast<double>(workload.bytes()) / 1e9;
    for (const Contender& contender : all) {
      std::vector<BenchReport::Target> targets;
      if (&contender == &all.front()) targets.push_back({"ratio", Bound::kAtLeast, 0.8});
      report.add_row(fmt::format("attention.{}.fp16.{}", to_string(contender.kernels->isa), name),
                     {{"gbps", gb / median(contender.seconds)},
                      {"memory_gbps", gb / median(read_s)},
                      {"ratio", median(contender.ratios)},
                      {"ratio_spread", spread(contender.ratios)},
                      {"working_set_bytes", workload.bytes()}},
                     targets);
    }
    return {};
  }

  Result<void> measure_prefill(BenchReport& report, const std::string& name,
                               const kv::ModelShape& shape, Workload& workload) {
    std::vector<Contender> all = contenders(shape, /*many_rows=*/true);
    // Nobody waits for the portable one's minutes.
    std::erase_if(all, [](const Contender& each) { return each.kernels->isa == Isa::kPortable; });
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      log_info("prefill {}, round {}", name, round + 1);
      HIFC_TRY(check_interrupted());
      for (Contender& contender : all)
        contender.seconds.push_back(
            time([&] { workload.attend(*contender.attention, kPrefillTokens, 1); }));
    }
    for (const Contender& contender : all)
      report.add_row(
          fmt::format("attention.{}.fp16.{}.prefill{}", to_string(contender.kernels->isa), name,
                      kPrefillTokens),
          {{"gflops", workload.operations(kPrefillTokens) / 1e9 / median(contender.seconds)},
           {"ms", 1000 * median(contender.seconds)},
           {"ms_spread", spread(contender.seconds)}});
    return {};
  }

  const AttentionBenchOptions& options_;
  SystemClock clock_;
  std::unique_ptr<engine::ThreadPool> pool_;
};

}  // namespace

void add_bench_attention(CLI::App& bench, Action& chosen) {
  CLI::App* attention = bench.add_subcommand(
      "attention", "Attention kernels: KV read a second against the memory, and arithmetic");
  attention->footer(
      "Shapes are QUERY_HEADSxKV_HEADSxHEAD_DIM. Example:\n"
      "  hifc bench attention --shape 32x8x128 --context 2048,32768");
  auto options = std::make_shared<AttentionBenchOptions>();
  // Else the kernels would read less than the loop they are held against.
  const auto whole_splits = [](const std::string& text) {
    const bool whole = std::strtoul(text.c_str(), nullptr, 10) % kSplitTokens == 0;
    return whole ? std::string() : fmt::format("{} is not a multiple of {}", text, kSplitTokens);
  };
  attention->add_option("--shape", options->shapes, "Shapes of models")
      ->delimiter(',')
      ->type_name("QxKxD,...")
      ->capture_default_str();
  attention->add_option("--context", options->contexts, "Tokens of KV")
      ->delimiter(',')
      ->check(CLI::Range(kSplitTokens, 1u << 20))
      ->check(whole_splits)
      ->type_name("N,...")
      ->capture_default_str();
  attention->add_option("--threads", options->threads, "Threads; 0: all cores")
      ->check(CLI::Range(0u, 512u))
      ->type_name("N")
      ->capture_default_str();
  attention->add_option("--rounds", options->rounds, "Interleaved rounds; medians are shown")
      ->check(CLI::Range(1u, 4096u))
      ->type_name("N")
      ->capture_default_str();
  attention->add_option("--seconds", options->seconds, "Time of each contender in each round")
      ->check(CLI::Range(0.01, 3600.0))
      ->type_name("S")
      ->capture_default_str();
  add_output_flags(*attention, options->output);
  attention->callback([=, &chosen] { chosen = [=] { return AttentionBench(*options)(); }; });
}

}  // namespace hifc::apps
