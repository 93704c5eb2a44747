// hifc bench decode: time per token against stock llama.cpp in memory on the same weights, tokens
// and threads, and against the roofline of the drive.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "apps/arguments.h"
#include "apps/bench_model.h"
#include "apps/fio.h"
#include "apps/samples.h"
#include "base/log.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using engine::ReferenceMode;

constexpr TraceKind kTraceRound{.track = "engine",
                                .category = "bench",
                                .name = "round",
                                .arguments = {"hot_percent", "tokens"}};

// One system whose decoding is timed.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual Result<void> go_to(std::span<const int32_t> prefix) = 0;
  virtual Result<void> decode(int32_t token) = 0;
  std::vector<double> ms;  // [round] per token
};

// What of HiFC's configuration is compared.
struct Variant {
  std::string policy, attention;
  double hot_ratio = 1;

  std::string name() const {
    return fmt::format("hot{:.2f}.{}.{}", hot_ratio, policy_label(policy), attention);
  }
};

class HifcContender final : public Contender {
 public:
  HifcContender(Variant variant, std::unique_ptr<engine::Engine> engine)
      : variant_(std::move(variant)), engine_(std::move(engine)) {}

  Result<void> go_to(std::span<const int32_t> prefix) override {
    return apps::go_to(*engine_, prefix);
  }
  Result<void> decode(int32_t token) override {
    return engine_->step({&token, 1}, engine::Outputs::kLast, cache::StepKind::kGeneration);
  }

  const Variant& variant() const { return variant_; }
  engine::Engine& engine() { return *engine_; }

  // Of all measured rounds of one context.
  uint64_t stall_ns = 0, read_bytes = 0, reads = 0, hits = 0, memory_hits = 0, decoded = 0;

  // Adds what happened since `before` was taken.
  struct Snapshot {
    uint64_t stall_ns = 0, read_bytes = 0, reads = 0, hits = 0, memory_hits = 0;
  };
  Snapshot snapshot() const {
    tier::Tiers& tiers = engine_->tiers();
    Snapshot now{.stall_ns = engine_->cache_statistics().stall_ns};
    if (tiers.has_cold()) {
      now.read_bytes = tiers.store().statistics().read_bytes;
      now.reads = tiers.store().statistics().reads;
    }
    now.memory_hits =
        tiers.counters(tier::Tier::kHot).hits + tiers.counters(tier::Tier::kWarm).hits;
    now.hits = now.memory_hits + tiers.counters(tier::Tier::kCold).hits;
    return now;
  }
  void add(const Snapshot& before, uint64_t tokens) {
    const Snapshot now = snapshot();
    stall_ns += now.stall_ns - before.stall_ns;
    read_bytes += now.read_bytes - before.read_bytes;
    reads += now.reads - before.reads;
    hits += now.hits - before.hits;
    memory_hits += now.memory_hits - before.memory_hits;
    decoded += tokens;
  }

 private:
  Variant variant_;
  std::unique_ptr<engine::Engine> engine_;
};

class LlamaContender final : public Contender {
 public:
  explicit LlamaContender(std::unique_ptr<engine::Reference> reference)
      : reference_(std::move(reference)) {}
  Result<void> go_to(std::span<const int32_t> prefix) override {
    reference_->truncate(static_cast<uint32_t>(prefix.size()));
    return reference_->prefill(prefix.subspan(reference_->length()));
  }
  Result<void> decode(int32_t token) override { return reference_->step({&token, 1}, false); }

 private:
  std::unique_ptr<engine::Reference> reference_;
};

class DecodeBench {
 public:
  explicit DecodeBench(ModelBenchOptions& options) : options_(options), bench_(options) {}

  Result<int> operator()() {
    // Longest first, so that each shorter one is a cut of what is there.
    contexts_ = options_.contexts;
    std::ranges::sort(contexts_, std::greater());
    const uint64_t most = contexts_.front() + (uint64_t{options_.rounds} + 1) * options_.tokens;
    HIFC_TRY(options_.trace.start());
    HIFC_TRY(bench_.prepare(most));
    HIFC_TRY(make_llama(static_cast<uint32_t>(most)));
    BenchReport report("decode", bench_.parameters());
    const auto measured = measure_all(report);
    const auto traced =
        options_.trace.write(fmt::format("hifc bench decode -m {}", options_.model));
    HIFC_TRY(measured);
    HIFC_TRY(traced);
    return publish(report, options_.output);
  }

 private:
  Result<void> measure_all(BenchReport& report) {
    for (const uint32_t context : contexts_)
      for (const std::string& policy : or_configured(options_.policies, "policy"))
        for (const std::string& attention : or_configured(options_.attentions, "attention")) {
          HIFC_TRY(make_hifc(context, {.policy = policy, .attention = attention}));
          HIFC_TRY(measure(context));
          HIFC_TRY(add_rows(report, context));
        }
    return {};
  }

  std::vector<double> hot_ratios() const {
    std::vector<double> ratios = options_.hot_ratios;
    // The roofline needs the time of the same decode with everything hot.
    ratios.push_back(1.0);
    std::ranges::sort(ratios, std::greater());
    ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
    return ratios;
  }
  std::vector<std::string> or_configured(const std::vector<std::string>& values,
                                         std::string_view key) const {
    if (!values.empty()) return values;
    return {find_config_key(key)->get(bench_.config)};
  }

  // One policy and kind of attention at a time: of more engines side by side each finds less of the
  // caches left.
  Result<void> make_hifc(uint32_t context, Variant variant) {
    hifc_.clear();
    for (const double ratio : hot_ratios()) {
      variant.hot_ratio = ratio;
      HIFC_ASSIGN(auto engine,
                  bench_.make_engine({.hot_ratio = ratio,
                                      .context = context + (options_.rounds + 1) * options_.tokens,
                                      .policy = variant.policy,
                                      .attention = variant.attention}));
      hifc_.push_back(std::make_unique<HifcContender>(variant, std::move(engine)));
    }
    return {};
  }

  Result<void> make_llama(uint32_t most) {
    HIFC_ASSIGN(auto flash_attention,
                bench_.make_reference(ReferenceMode::kF16FlashAttention, most));
    llama_fa_ = std::make_unique<LlamaContender>(std::move(flash_attention));
    HIFC_ASSIGN(auto plain, bench_.make_reference(ReferenceMode::kF16, most));
    llama_nofa_ = std::make_unique<LlamaContender>(std::move(plain));
    return {};
  }

  std::vector<Contender*> contenders() {
    std::vector<Contender*> all = {llama_fa_.get(), llama_nofa_.get()};
    for (auto& each : hifc_) all.push_back(each.get());
    return all;
  }

  Result<void> measure(uint32_t context) {
    log_info("decode at {} tokens, policy {}, attention {}", context,
             hifc_.front()->variant().policy, hifc_.front()->variant().attention);
    const auto prefix = std::span(bench_.tokens).first(context);
    for (Contender* contender : contenders()) {
      HIFC_TRY(contender->go_to(prefix));
      contender->ms.clear();
    }
    size_t next = context;
    for (uint32_t round = 0; round <= options_.rounds; ++round, next += options_.tokens) {
      std::vector<Contender*> order = contenders();
      std::ranges::rotate(order, order.begin() + round % order.size());
      for (Contender* contender : order) HIFC_TRY(time(*contender, next, round > 0));
    }
    return {};
  }

  // The first round warms up caches and prefetching and does not count.
  Result<void> time(Contender& contender, size_t next, bool counts) {
    HIFC_TRY(check_interrupted());
    auto* hifc = dynamic_cast<HifcContender*>(&contender);
    const auto before = hifc != nullptr ? hifc->snapshot() : HifcContender::Snapshot{};
    const uint64_t start_ns = bench_.clock.now_ns();
    HIFC_TRY(decode(contender, next));
    const double ms = milliseconds(bench_.clock.now_ns() - start_ns) / options_.tokens;
    if (!counts) return {};
    contender.ms.push_back(ms);
    if (hifc != nullptr) hifc->add(before, options_.tokens);
    return {};
  }

  Result<void> decode(Contender& contender, size_t next) {
    const auto* hifc = dynamic_cast<HifcContender*>(&contender);
    const double hot = hifc != nullptr ? hifc->variant().hot_ratio : 1;
    const TraceScope scope(hifc != nullptr ? options_.trace.trace() : nullptr, kTraceRound,
                           {static_cast<uint64_t>(std::lround(100 * hot)), options_.tokens});
    for (uint32_t i = 0; i < options_.tokens; ++i)
      HIFC_TRY(contender.decode(bench_.tokens[next + i]));
    return {};
  }

  Result<void> add_rows(BenchReport& report, uint32_t context) {
    for (auto& each : hifc_) {
      const Variant& variant = each->variant();
      const auto all_hot = std::ranges::find_if(
          hifc_, [](const auto& other) { return other->variant().hot_ratio == 1.0; });
      HIFC_ASSIGN(Json metrics, metrics_of(*each, median((*all_hot)->ms)));
      report.add_row(fmt::format("decode.ctx{}.{}", context, variant.name()), std::move(metrics),
                     targets(context, variant));
    }
    return {};
  }

  static std::vector<BenchReport::Target> targets(uint32_t context, const Variant& variant) {
    using Bound = BenchReport::Bound;
    const bool compact = variant.policy == "auto75";
    if (variant.attention == "sparse") {
      if (context < 8000 || variant.hot_ratio != 0.25) return {};
      return {{"speedup", Bound::kAtLeast, 1.5}, {"roofline_ratio", Bound::kAtMost, 1.1}};
    }
    if (variant.hot_ratio == 1.0)
      return {{"speedup", Bound::kAtLeast,
               context >= 8000  ? compact ? 2.5 : 2.3
               : context <= 512 ? 0.97
                                : 1.0}};
    if (context < 8000) return {};
    if (variant.hot_ratio == 0.1 && compact) return {{"speedup", Bound::kAtLeast, 1.3}};
    if (variant.hot_ratio >= 0.25) return {{"roofline_ratio", Bound::kAtMost, 1.05}};
    return {};
  }

  Result<Json> metrics_of(HifcContender& hifc, double compute_ms) {
    const double hifc_ms = median(hifc.ms);
    const double fa_ms = median(llama_fa_->ms), nofa_ms = median(llama_nofa_->ms);
    const auto tokens = static_cast<double>(hifc.decoded);
    const double bytes_per_token = static_cast<double>(hifc.read_bytes) / tokens;
    const std::vector<double> speedups = ratios(smaller(llama_fa_->ms, llama_nofa_->ms), hifc.ms);
    Json metrics = {{"hifc_ms", hifc_ms},
                    {"llama_fa_ms", fa_ms},
                    {"llama_nofa_ms", nofa_ms},
                    {"speedup", median(speedups)},
                    {"speedup_spread", spread(speedups)},
                    {"hifc_ms_spread", spread(hifc.ms)},
                    {"stall_share", milliseconds(hifc.stall_ns) / tokens / hifc_ms},
                    {"memory_hit_share",
                     static_cast<double>(hifc.memory_hits) / static_cast<double>(hifc.hits)},
                    {"cold_bytes_per_token", bytes_per_token},
                    {"roofline_ratio", nullptr}};
    if (hifc.reads == 0) return metrics;
    const uint64_t read_bytes = hifc.read_bytes / hifc.reads;
    const uint32_t depth = kReadsPerWorker * bench_.config.prefetch_workers;
    HIFC_ASSIGN(const FioResult fio,
                fio_median({.directory = bench_.scratch.path(),
                            .file_bytes = static_cast<uint64_t>(bytes_per_token),
                            .block_bytes = read_bytes,
                            .depth = depth}));
    const double gb = bytes_per_token / 1e9;
    const double io_cpu_ms = 1000 * fio.core_s_per_gb * gb / bench_.pool->threads();
    const double io_ms = 1000 * gb / fio.gbps;
    metrics["roofline_ratio"] = hifc_ms / std::max(compute_ms + io_cpu_ms, io_ms);
    metrics["compute_ms"] = compute_ms;
    metrics["io_cpu_ms"] = io_cpu_ms;
    metrics["io_ms"] = io_ms;
    metrics["read_bytes"] = read_bytes;
    metrics["depth"] = depth;
    metrics["fio_gbps"] = fio.gbps;
    metrics["fio_core_s_per_gb"] = fio.core_s_per_gb;
    metrics["hifc_gbps"] = bytes_per_token / 1e6 / hifc_ms;
    return metrics;
  }

  static Result<FioResult> fio_median(const FioOptions& options) {
    std::vector<double> gbps, core_s;
    for (int i = 0; i < 3; ++i) {
      HIFC_ASSIGN(const FioResult fio, measure_reads(options));
      gbps.push_back(fio.gbps);
      core_s.push_back(fio.core_s_per_gb);
    }
    return FioResult{.gbps = median(gbps), .core_s_per_gb = median(core_s)};
  }

  ModelBenchOptions& options_;
  ModelBench bench_;
  std::vector<uint32_t> contexts_;
  std::unique_ptr<LlamaContender> llama_fa_, llama_nofa_;
  std::vector<std::unique_ptr<HifcContender>> hifc_;
};

}  // namespace

void add_bench_decode(CLI::App& bench, Action& chosen) {
  CLI::App* decode = bench.add_subcommand(
      "decode", "Time per token against llama.cpp in memory and the roofline of the drive");
  decode->footer(
      "Example, with 60 % and 25 % of the KV hot and the rest on the drive of /data:\n"
      "  hifc bench decode -m model.gguf --context 2048,8000 --hot-ratio 1.0,0.6,0.25 "
      "--flash /data/kv\n"
      "Several policies and kinds of attention side by side:\n"
      "  hifc bench decode -m model.gguf --context 8000 --hot-ratio 0.25 --flash /data/kv \\\n"
      "      --policy fp16,auto75 --attention exact,sparse");
  auto options = add_model_bench_options(
      *decode, {.contexts = {32, 512, 2048, 8000}, .rounds = 5, .variants = Variants::kSeveral});
  add_number(*decode, "--tokens", options->tokens, between(1u, 4096u),
             "Tokens decoded in each round");
  options->trace.add_option(*decode);
  decode->callback([=, &chosen] { chosen = [=] { return DecodeBench(*options)(); }; });
}

}  // namespace hifc::apps
