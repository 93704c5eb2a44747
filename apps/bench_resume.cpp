// hifc bench resume: the first token after a restart, with the prompt's KV on flash, against
// reading as many bytes, computing the prompt again, and llama.cpp's own file of its state.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/bench_model.h"
#include "apps/fio.h"
#include "apps/page_cache.h"
#include "apps/samples.h"
#include "base/log.h"

namespace hifc::apps {
namespace {

// Computing takes a hundred times as long as loading and varies little.
constexpr size_t kRecomputeRounds = 3;

using Json = BenchReport::Json;
using Bound = BenchReport::Bound;
using engine::ReferenceMode;

class ResumeBench {
 public:
  explicit ResumeBench(const ModelBenchOptions& options) : options_(options), bench_(options) {}

  Result<int> operator()() {
    const uint32_t most = *std::ranges::max_element(options_.contexts);
    HIFC_TRY(bench_.prepare(most + 1 + options_.tokens));
    if (!bench_.config.flash_path)
      return failure(Code::kInvalid, "there is nothing to resume from: give --flash DIR");
    bench_.config.resume = true;
    BenchReport report("resume", bench_.parameters());
    for (const uint32_t context : options_.contexts) HIFC_TRY(measure(report, context));
    return publish(report, options_.output);
  }

 private:
  struct Llama {
    ReferenceMode mode = ReferenceMode::kF16;
    std::string file;
    std::unique_ptr<engine::Reference> reference;
    std::vector<double> seconds;
  };
  struct Samples {
    std::vector<double> open_s, resume_s, decode_s, recompute_s, fio_gbps, roofline_ratios,
        recompute_ratios, llama_ratios;
    uint64_t prefix_bytes = 0, reads = 0;
    uint32_t reused_tokens = 0;
  };

  std::span<const int32_t> prefix() const { return std::span(bench_.tokens).first(context_); }
  std::span<const int32_t> prompt() const { return std::span(bench_.tokens).first(context_ + 1); }

  Result<void> measure(BenchReport& report, uint32_t context) {
    context_ = context;
    samples_ = {};
    log_info("{} tokens are computed and stored", context);
    HIFC_TRY(store_prefix());
    HIFC_TRY(make_llama());
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      log_info("resume of {} tokens, round {}", context, round + 1);
      HIFC_TRY(resume());
      for (Llama& llama : llama_) HIFC_TRY(load(llama));
      HIFC_TRY(measure_drive());
      add_ratios();
    }
    add_row(report);
    return {};
  }

  std::string flash_path() const {
    return fmt::format("{}/ctx{}", bench_.scratch.path(), context_);
  }

  Result<std::unique_ptr<engine::Engine>> make_engine() {
    return bench_.make_engine({.hot_ratio = options_.hot_ratios.front(),
                               .context = context_ + 1 + options_.tokens,
                               .flash_path = flash_path()});
  }

  Result<void> store_prefix() {
    HIFC_ASSIGN(const auto engine, make_engine());
    HIFC_TRY(engine->prefill(prefix()));
    return engine->save();
  }

  Result<void> make_llama() {
    llama_.clear();
    for (const ReferenceMode mode : {ReferenceMode::kF16FlashAttention, ReferenceMode::kF16}) {
      Llama llama{.mode = mode,
                  .file = fmt::format("{}/{}.state", bench_.scratch.path(), to_string(mode)),
                  .reference = nullptr,
                  .seconds = {}};
      HIFC_ASSIGN(llama.reference, bench_.make_reference(mode, context_ + 1));
      HIFC_TRY(llama.reference->prefill(prefix()));
      HIFC_TRY(check_interrupted());
      HIFC_TRY(llama.reference->save_state(llama.file));
      llama_.push_back(std::move(llama));
    }
    return {};
  }

  // A new engine knows no more than a new process: the store's reads bypass the page cache.
  Result<void> resume() {
    std::unique_ptr<engine::Engine> engine;
    HIFC_TRY(bench_.time(samples_.open_s, [&]() -> Result<void> {
      HIFC_ASSIGN(engine, make_engine());
      return {};
    }));
    const flash::StoreStatistics before = engine->tiers().store().statistics();
    HIFC_TRY(bench_.time(samples_.resume_s, [&] {
      const uint32_t done = engine->resume(prompt());
      return engine->prefill(prompt().subspan(done));
    }));
    const flash::StoreStatistics after = engine->tiers().store().statistics();
    samples_.prefix_bytes = after.read_bytes - before.read_bytes;
    samples_.reads = after.reads - before.reads;
    samples_.reused_tokens = engine->resume_report().reused_tokens;
    HIFC_TRY(decode(*engine));
    if (samples_.recompute_s.size() >= kRecomputeRounds) return {};
    engine->truncate(0);
    return bench_.time(samples_.recompute_s, [&] { return engine->prefill(prompt()); });
  }

  Result<void> decode(engine::Engine& engine) {
    std::vector<double> seconds;
    for (uint32_t i = 0; i < options_.tokens; ++i)
      HIFC_TRY(bench_.time(seconds, [&] {
        return engine.step({&bench_.tokens[context_ + 1 + i], 1}, engine::Outputs::kLast,
                           cache::StepKind::kGeneration);
      }));
    samples_.decode_s.push_back(median(seconds));
    return {};
  }

  Result<void> load(Llama& llama) {
    HIFC_TRY(forget_pages(llama.file));
    llama.reference->truncate(0);
    return bench_.time(llama.seconds, [&]() -> Result<void> {
      HIFC_TRY(llama.reference->load_state(llama.file));
      return llama.reference->step(prompt().last(1), false);
    });
  }

  // Reads of the same file and as large as HiFC's were. A segment is written from its beginning.
  Result<void> measure_drive() {
    HIFC_TRY(check_interrupted());
    const std::string segment = flash_path() + "/hifc-00000000.seg";
    std::error_code error;
    const uint64_t segment_bytes = std::filesystem::file_size(segment, error);
    if (error) return failure(Code::kIo, fmt::format("{} is gone", segment));
    HIFC_ASSIGN(
        const FioResult fio,
        measure_reads({.directory = bench_.scratch.path(),
                       .files = {segment},
                       .file_bytes = std::min<uint64_t>(segment_bytes, samples_.prefix_bytes),
                       .block_bytes = samples_.prefix_bytes / std::max<uint64_t>(1, samples_.reads),
                       .depth = kReadsPerWorker * bench_.config.prefetch_workers}));
    samples_.fio_gbps.push_back(fio.gbps);
    return {};
  }

  // Of what was measured in one round: the machine's speed drifts between rounds.
  void add_ratios() {
    const double resume_s = samples_.resume_s.back();
    const double read_s =
        static_cast<double>(samples_.prefix_bytes) / 1e9 / samples_.fio_gbps.back();
    samples_.roofline_ratios.push_back(resume_s / (read_s + samples_.decode_s.back()));
    samples_.recompute_ratios.push_back(median(samples_.recompute_s) / resume_s);
    samples_.llama_ratios.push_back(std::min(llama_[0].seconds.back(), llama_[1].seconds.back()) /
                                    resume_s);
  }

  void add_row(BenchReport& report) const {
    const auto ms = [](const std::vector<double>& seconds) { return 1000 * median(seconds); };
    const double fa_ms = ms(llama_[0].seconds), nofa_ms = ms(llama_[1].seconds);
    report.add_row(fmt::format("resume.ctx{}", context_),
                   {{"resume_ms", ms(samples_.resume_s)},
                    {"recompute_ms", ms(samples_.recompute_s)},
                    {"llama_state_ms", std::min(fa_ms, nofa_ms)},
                    {"llama_state_fa_ms", fa_ms},
                    {"llama_state_nofa_ms", nofa_ms},
                    {"speedup_recompute", median(samples_.recompute_ratios)},
                    {"speedup_llama_state", median(samples_.llama_ratios)},
                    {"roofline_ratio", median(samples_.roofline_ratios)},
                    {"roofline_ratio_spread", spread(samples_.roofline_ratios)},
                    {"decode_ms", ms(samples_.decode_s)},
                    {"open_ms", ms(samples_.open_s)},
                    {"prefix_bytes", samples_.prefix_bytes},
                    {"reads", samples_.reads},
                    {"fio_gbps", median(samples_.fio_gbps)},
                    {"reused_tokens", samples_.reused_tokens}},
                   {{"roofline_ratio", Bound::kAtMost, 1.3},
                    {"speedup_recompute", Bound::kAtLeast, 60},
                    {"speedup_llama_state", Bound::kAtLeast, 1},
                    {"reused_tokens", Bound::kAtLeast, static_cast<double>(context_)}});
  }

  const ModelBenchOptions& options_;
  ModelBench bench_;
  uint32_t context_ = 0;
  std::vector<Llama> llama_;
  Samples samples_;
};

}  // namespace

void add_bench_resume(CLI::App& bench, Action& chosen) {
  CLI::App* resume = bench.add_subcommand(
      "resume", "The first token after a restart, with the prompt's KV on flash");
  resume->footer(
      "Example:\n"
      "  hifc bench resume -m model.gguf --context 7424 --flash /data/kv");
  auto options = add_model_bench_options(*resume, {.contexts = {7424}, .rounds = 9});
  resume->callback([=, &chosen] { chosen = [=] { return ResumeBench(*options)(); }; });
}

}  // namespace hifc::apps
