// hifc bench prefill: time of prompts against stock llama.cpp in memory on the same weights, tokens
// and threads.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/bench_model.h"
#include "apps/samples.h"
#include "base/log.h"

namespace hifc::apps {
namespace {

using engine::ReferenceMode;

class PrefillBench {
 public:
  explicit PrefillBench(const ModelBenchOptions& options) : options_(options), bench_(options) {}

  Result<int> operator()() {
    const uint32_t most = *std::ranges::max_element(options_.contexts);
    HIFC_TRY(bench_.prepare(most));
    HIFC_ASSIGN(hifc_,
                bench_.make_engine({.hot_ratio = options_.hot_ratios.front(), .context = most}));
    HIFC_ASSIGN(fa_, bench_.make_reference(ReferenceMode::kF16FlashAttention, most));
    HIFC_ASSIGN(nofa_, bench_.make_reference(ReferenceMode::kF16, most));
    BenchReport report("prefill", bench_.parameters());
    for (const uint32_t context : options_.contexts) HIFC_TRY(measure(report, context));
    return publish(report, options_.output);
  }

 private:
  Result<void> measure(BenchReport& report, uint32_t context) {
    const auto prefix = std::span(bench_.tokens).first(context);
    std::vector<double> hifc_s, fa_s, nofa_s;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      log_info("prefill of {} tokens, round {}", context, round + 1);
      hifc_->truncate(0), fa_->truncate(0), nofa_->truncate(0);
      HIFC_TRY(bench_.time(hifc_s, [&] { return hifc_->prefill(prefix); }));
      HIFC_TRY(bench_.time(fa_s, [&] { return fa_->prefill(prefix); }));
      HIFC_TRY(bench_.time(nofa_s, [&] { return nofa_->prefill(prefix); }));
    }
    const std::vector<double> speedups = ratios(smaller(fa_s, nofa_s), hifc_s);
    const std::string label = policy_label(bench_.config.policy);
    report.add_row(fmt::format("prefill.ctx{}{}", context, label == "fp16" ? "" : "." + label),
                   {{"hifc_s", median(hifc_s)},
                    {"llama_fa_s", median(fa_s)},
                    {"llama_nofa_s", median(nofa_s)},
                    {"speedup", median(speedups)},
                    {"speedup_spread", spread(speedups)},
                    {"hifc_tokens_per_s", context / median(hifc_s)},
                    {"ubatch", hifc_->ubatch_tokens()}},
                   {{"speedup", BenchReport::Bound::kAtLeast, context >= 8000 ? 2.5 : 1.0}});
    return {};
  }

  const ModelBenchOptions& options_;
  ModelBench bench_;
  std::unique_ptr<engine::Engine> hifc_;
  std::unique_ptr<engine::Reference> fa_, nofa_;
};

}  // namespace

void add_bench_prefill(CLI::App& bench, Action& chosen) {
  CLI::App* prefill =
      bench.add_subcommand("prefill", "Time of prompts against llama.cpp in memory");
  auto options = add_model_bench_options(*prefill, {.contexts = {2048, 8000}, .rounds = 3});
  prefill->callback([=, &chosen] { chosen = [=] { return PrefillBench(*options)(); }; });
}

}  // namespace hifc::apps
