// hifc bench attention: decode attention's bytes of KV a second against what a plain loop reads of
// the same memory with the same threads, and the arithmetic of prefill, for each kernel, codec and
// shape.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "apps/arguments.h"
#include "apps/bench.h"
#include "apps/bench_report.h"
#include "apps/bench_store.h"
#include "apps/progress.h"
#include "apps/samples.h"
#include "base/clock.h"
#include "base/units.h"
#include "cache/tiered_attention.h"
#include "engine/thread_pool.h"
#include "io/memory.h"
#include "kernels/attention.h"
#include "kernels/codec.h"
#include "kv/layout.h"

namespace hifc::apps {
namespace {

using Bound = BenchReport::Bound;
using Json = BenchReport::Json;
using kernels::Isa;
using kernels::kSplitTokens;

constexpr uint64_t kMiB = 1u << 20;
// Layers are repeated up to this much, so that caches of a core hold little of it.
constexpr uint64_t kWorkingSetBytes = 192 * kMiB;
constexpr uint32_t kPrefillTokens = 512;

struct AttentionBenchOptions {
  std::vector<std::string> shapes = {"9x3x64", "32x8x128", "32x4x128", "4x1x256", "32x32x128"};
  std::vector<std::string> codecs = {"f16", "i8", "i4", "i4-i3"};
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
  if (parts[0] > kHeadsMax || parts[0] % parts[1] != 0 || parts[2] % 16 != 0 ||
      parts[2] > kv::kHeadDimMax)
    return failure(Code::kInvalid,
                   fmt::format("shape '{}': up to {} query heads, divisible by the KV heads, and a "
                               "head_dim that is a multiple of 16 up to {}",
                               text, kHeadsMax, kv::kHeadDimMax));
  return kv::ModelShape{.layers = 1,
                        .query_heads = parts[0],
                        .kv_heads = parts[1],
                        .head_dim = parts[2],
                        .window = {0}};
}

// "K-V", or one name for both.
Result<kv::LayerCodecs> parse_codecs(const std::string& text) {
  const size_t dash = text.find('-');
  const auto k = kv::find_codec(std::string_view(text).substr(0, dash));
  const auto v =
      dash == std::string::npos ? k : kv::find_codec(std::string_view(text).substr(dash + 1));
  if (!k || !v)
    return failure(Code::kInvalid,
                   fmt::format("codec '{}' is none of {}, nor two of them such as i4-i3, for K and "
                               "for V",
                               text, fmt::join(kv::kCodecNames, ", ")));
  return kv::LayerCodecs{.k = *k, .v = *v};
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
  static Result<std::unique_ptr<Workload>> create(kv::ModelShape shape, kv::LayerCodecs codecs,
                                                  uint32_t context, Parallel& parallel) {
    HIFC_ASSIGN(const kv::BlockLayout layout, kv::BlockLayout::make(shape, kSplitTokens, codecs));
    std::unique_ptr<Workload> workload(new Workload(shape, layout, context));
    HIFC_TRY(workload->fill(parallel));
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
                    .last_split = splits(),
                    .codecs = layout_.codecs()});
      attention.compute(all,
                        [&](uint32_t split, uint32_t head) { return pages(layer, split, head); });
      attention.finish();
    }
  }

  // K and V of all layers, and nothing else.
  void read(Parallel& parallel) {
    std::atomic<uint64_t> sum = 0;
    parallel.run(layers_ * splits(), [&](uint32_t index, uint32_t) {
      const std::byte* from = block(index) + layout_.head_offset(0);
      sum += read_all(reinterpret_cast<const uint64_t*>(from),
                      shape_.kv_heads * layout_.head_bytes() / sizeof(uint64_t));
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
  uint64_t split_bytes() const { return layout_.k_bytes() + layout_.v_bytes(); }
  std::byte* block(uint64_t index) const { return memory_.data() + index * layout_.block_bytes(); }

  // Ordinary numbers of either sign between 1/8 and 1/4, encoded page by page.
  Result<void> fill(Parallel& parallel) {
    HIFC_ASSIGN(const kernels::Kernels* kernels, kernels::select_kernels());
    HIFC_ASSIGN(const kernels::Codecs* codecs, kernels::codecs_for(kernels->isa));
    const uint64_t blocks = uint64_t{layers_} * splits();
    HIFC_ASSIGN(memory_, io::AlignedMemory::allocate(blocks * layout_.block_bytes()));
    std::vector<uint16_t> page(size_t{kv::kPageTokens} * shape_.head_dim);
    fill_random(std::as_writable_bytes(std::span(page)));
    for (uint16_t& number : page) number = static_cast<uint16_t>((number & 0x83ff) | 0x3000);
    parallel.run(static_cast<uint32_t>(blocks), [&](uint32_t index, uint32_t) {
      for (uint32_t i = 0; i < layout_.pages() * shape_.kv_heads; ++i) {
        const uint32_t at = i / shape_.kv_heads, head = i % shape_.kv_heads;
        codecs->encode(layout_.k_format(), page.data(),
                       block(index) + layout_.k_page_offset(at, head));
        codecs->encode(layout_.v_format(), page.data(),
                       block(index) + layout_.v_page_offset(at, head));
      }
    });
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
    const std::byte* from = block(uint64_t{layer} * splits() + split);
    kernels::SplitPages pages;
    for (uint32_t page = 0; page < kernels::kSplitPages; ++page) {
      pages.k[page] = {from + layout_.k_page_offset(page, head), layout_.codecs().k};
      pages.v[page] = {from + layout_.v_page_offset(page, head), layout_.codecs().v};
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
                                     {"codecs", options_.codecs},
                                     {"contexts", options_.contexts},
                                     {"threads", pool_->threads()},
                                     {"rounds", options_.rounds},
                                     {"seconds", options_.seconds}});
    Progress progress({.label = "attention", .total = steps(), .unit = ProgressUnit::kRounds});
    progress_ = &progress;
    progress.update(0);
    for (const std::string& text : options_.shapes) {
      HIFC_ASSIGN(const kv::ModelShape shape, parse_shape(text));
      for (const uint32_t context : options_.contexts) {
        HIFC_ASSIGN(const std::vector<Case> cases, make_cases(shape, context));
        const std::string name = fmt::format("{}.ctx{}", text, context);
        HIFC_TRY(measure_decode(report, name, shape, cases));
        if (measures_prefill(context)) HIFC_TRY(measure_prefill(report, name, shape, cases));
      }
    }
    progress.finish();
    return publish(report, options_.output);
  }

 private:
  // One codec's KV, and what reading it takes.
  struct Case {
    std::string codec;
    std::unique_ptr<Workload> workload;
  };
  struct Contender {
    const kernels::Kernels* kernels;
    const Case* kv;
    std::unique_ptr<cache::TieredAttention> attention;
    std::vector<double> seconds, ratios;  // seconds of a layer
  };

  static bool measures_prefill(uint32_t context) { return context >= kPrefillTokens; }

  // Rounds of all measurements.
  uint64_t steps() const {
    const auto prefills =
        static_cast<uint64_t>(std::ranges::count_if(options_.contexts, measures_prefill));
    return options_.shapes.size() * (options_.contexts.size() + prefills) * options_.rounds;
  }

  Result<std::vector<Case>> make_cases(const kv::ModelShape& shape, uint32_t context) {
    std::vector<Case> cases;
    for (const std::string& text : options_.codecs) {
      HIFC_TRY(check_interrupted());
      HIFC_ASSIGN(const kv::LayerCodecs codecs, parse_codecs(text));
      HIFC_ASSIGN(auto workload, Workload::create(shape, codecs, context, *pool_));
      cases.push_back({.codec = text, .workload = std::move(workload)});
    }
    return cases;
  }

  // Whether a single token is computed on tiles; else AMX is AVX-512.
  static bool on_tiles(const kernels::Kernels& kernels, const kv::ModelShape& shape,
                       const Case& each) {
    const auto few_bits = [](kv::Codec codec) {
      return codec != kv::Codec::kF16 && codec != kv::Codec::kI8;
    };
    const kv::LayerCodecs codecs = parse_codecs(each.codec).value();
    return shape.query_heads / shape.kv_heads >= kernels.tile_group &&
           (few_bits(codecs.k) || few_bits(codecs.v));
  }
  // The best of those that are there for its codec.
  static bool best(const std::vector<Contender>& all, const Contender& one) {
    return &*std::ranges::find(all, one.kv, &Contender::kv) == &one;
  }

  // The best first.
  std::vector<Contender> contenders(const kv::ModelShape& shape, const std::vector<Case>& cases,
                                    bool many_rows) {
    std::vector<Contender> all;
    for (const Isa isa : {Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kPortable}) {
      const auto kernels = kernels::kernels_for(isa);
      if (!kernels) continue;
      for (const Case& each : cases) {
        if (isa == Isa::kAmx && !many_rows && !on_tiles(**kernels, shape, each)) continue;
        all.push_back(
            {.kernels = *kernels,
             .kv = &each,
             .attention = std::make_unique<cache::TieredAttention>(**kernels, shape, *pool_),
             .seconds = {},
             .ratios = {}});
      }
    }
    return all;
  }

  // How much faster than the same kernel over F16 pages, or the best one where it has no own, round
  // by round; empty without those.
  static std::vector<double> speedups(const std::vector<Contender>& all, const Contender& one) {
    const Contender* base = nullptr;
    for (const Contender& other : all)
      if (other.kv->codec == "f16" && (base == nullptr || other.kernels == one.kernels))
        base = &other;
    if (base == nullptr || base == &one) return {};
    return ratios(base->seconds, one.seconds);
  }
  static std::string row_name(const Contender& one, const std::string& name) {
    const std::string codec = one.kv->codec == "f16" ? "fp16" : one.kv->codec;
    return fmt::format("attention.{}.{}.{}", to_string(one.kernels->isa), codec, name);
  }

  // Seconds of one call, of as many as fit.
  template <typename Call>
  Result<double> time(const Call& call) const {
    const uint64_t begin_ns = clock_.now_ns();
    const auto enough_ns = static_cast<uint64_t>(options_.seconds * 1e9);
    uint64_t calls = 0, spent_ns = 0;
    do {
      HIFC_TRY(check_interrupted());
      call();
      ++calls;
      spent_ns = clock_.now_ns() - begin_ns;
    } while (spent_ns < enough_ns);
    return static_cast<double>(spent_ns) / 1e9 / static_cast<double>(calls);
  }

  Result<void> measure_decode(BenchReport& report, const std::string& name,
                              const kv::ModelShape& shape, const std::vector<Case>& cases) {
    std::vector<Contender> all = contenders(shape, cases, /*many_rows=*/false);
    std::vector<std::vector<double>> read_s(cases.size());  // of a layer
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      for (size_t i = 0; i < cases.size(); ++i) {
        Workload& workload = *cases[i].workload;
        HIFC_ASSIGN(const double all_s, time([&] { workload.read(*pool_); }));
        read_s[i].push_back(all_s / workload.layers());
      }
      for (Contender& contender : all) {
        Workload& workload = *contender.kv->workload;
        const auto attend = [&] { workload.attend(*contender.attention, 1, workload.layers()); };
        HIFC_ASSIGN(const double all_s, time(attend));
        contender.seconds.push_back(all_s / workload.layers());
        contender.ratios.push_back(read_s[static_cast<size_t>(contender.kv - cases.data())].back() /
                                   contender.seconds.back());
      }
      progress_->update(++steps_done_);
    }
    for (const Contender& contender : all) {
      const Workload& workload = *contender.kv->workload;
      const double gb = static_cast<double>(workload.bytes()) / workload.layers() / 1e9;
      Json metrics = {
          {"gbps", gb / median(contender.seconds)},
          {"memory_gbps", gb / median(read_s[static_cast<size_t>(contender.kv - cases.data())])},
          {"ratio", median(contender.ratios)},
          {"ratio_spread", spread(contender.ratios)},
          {"working_set_bytes", workload.bytes()}};
      std::vector<BenchReport::Target> targets;
      const bool best = AttentionBench::best(all, contender);
      if (best && contender.kv->codec == "f16") targets.push_back({"ratio", Bound::kAtLeast, 0.8});
      if (const auto faster = speedups(all, contender); !faster.empty()) {
        metrics["speedup_fp16"] = median(faster);
        metrics["speedup_fp16_spread"] = spread(faster);
        if (best && contender.kv->codec == "i4")
          targets.push_back({"speedup_fp16", Bound::kAtLeast, 1.0});
      }
      report.add_row(row_name(contender, name), std::move(metrics), targets);
    }
    return {};
  }

  Result<void> measure_prefill(BenchReport& report, const std::string& name,
                               const kv::ModelShape& shape, const std::vector<Case>& cases) {
    std::vector<Contender> all = contenders(shape, cases, /*many_rows=*/true);
    // Nobody waits for the portable one's minutes.
    std::erase_if(all, [](const Contender& each) { return each.kernels->isa == Isa::kPortable; });
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      for (Contender& contender : all) {
        Workload& workload = *contender.kv->workload;
        HIFC_ASSIGN(const double seconds,
                    time([&] { workload.attend(*contender.attention, kPrefillTokens, 1); }));
        contender.seconds.push_back(seconds);
      }
      progress_->update(++steps_done_);
    }
    for (const Contender& contender : all) {
      const double operations = contender.kv->workload->operations(kPrefillTokens);
      Json metrics = {{"gflops", operations / 1e9 / median(contender.seconds)},
                      {"ms", 1000 * median(contender.seconds)},
                      {"ms_spread", spread(contender.seconds)}};
      if (const auto faster = speedups(all, contender); !faster.empty())
        metrics["speedup_fp16"] = median(faster);
      report.add_row(fmt::format("{}.prefill{}", row_name(contender, name), kPrefillTokens),
                     std::move(metrics));
    }
    return {};
  }

  const AttentionBenchOptions& options_;
  SystemClock clock_;
  std::unique_ptr<engine::ThreadPool> pool_;
  Progress* progress_ = nullptr;
  uint64_t steps_done_ = 0;
};

// Of what a word of an option has to be, for CLI11: what is wrong, or nothing.
template <typename T>
std::string problem_of(const Result<T>& parsed) {
  return parsed ? std::string() : parsed.error().message();
}

// Else the kernels would read less than the loop they are held against.
Accepted<uint32_t> whole_splits() {
  constexpr uint32_t kMost = 1u << 20;
  return {.test =
              [](uint32_t tokens) {
                return tokens % kSplitTokens == 0 && tokens > 0 && tokens <= kMost;
              },
          .text = fmt::format("a multiple of {} up to {}", kSplitTokens, kMost)};
}

}  // namespace

void add_bench_attention(CLI::App& bench, Action& chosen) {
  CLI::App* attention = bench.add_subcommand(
      "attention", "Attention kernels: KV read a second against the memory, and arithmetic");
  attention->footer(
      "Shapes are QUERY_HEADSxKV_HEADSxHEAD_DIM. Example:\n"
      "  hifc bench attention --shape 32x8x128 --context 2048,32768");
  auto options = std::make_shared<AttentionBenchOptions>();
  attention->add_option("--shape", options->shapes, "Shapes of models")
      ->delimiter(',')
      ->check([](const std::string& text) { return problem_of(parse_shape(text)); })
      ->type_name("QxKxD,...")
      ->capture_default_str();
  attention->add_option("--codec", options->codecs, "Codecs of K and V, or two as K-V: f16 ... i2")
      ->delimiter(',')
      ->check([](const std::string& text) { return problem_of(parse_codecs(text)); })
      ->type_name("C,...")
      ->capture_default_str();
  add_numbers(*attention, "--context", options->contexts, whole_splits(),
              fmt::format("Tokens of KV, multiples of {}", kSplitTokens));
  add_number(*attention, "--threads", options->threads, between(0u, 512u), "Threads; 0: all cores");
  add_number(*attention, "--rounds", options->rounds, between(1u, 4096u),
             "Interleaved rounds; medians are shown");
  add_number(*attention, "--seconds", options->seconds, between(0.01, 3600.0),
             "Time of each contender in each round")
      ->type_name("S");
  add_output_flags(*attention, options->output);
  attention->callback([=, &chosen] { chosen = [=] { return AttentionBench(*options)(); }; });
}

}  // namespace hifc::apps
