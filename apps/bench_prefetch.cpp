// hifc bench prefetch: how well the pages that attention needs next are told from those it needed
// before, on real text, and what reading them ahead leaves to wait for.
//
// One engine in memory computes exact attention and gives every page's share of it: recall and
// share_fetched are of predictions made from these. One engine over flash for each predictor then
// runs sparse attention over the same tokens: on_time, bytes and stall_ms are its.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/arguments.h"
#include "apps/bench_model.h"
#include "apps/page_shares.h"
#include "apps/samples.h"
#include "base/log.h"
#include "cache/page_predictor.h"
#include "cache/page_selector.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using cache::PageList;

// A page is needed where it belongs to the fewest that hold so much of the attention, with the
// first page and the newest, which are always there.
constexpr double kNeededShare = 0.95;
// Steps before predictions are judged: what they go by has to fill.
constexpr uint32_t kWarmUp = cache::kHistorySteps;

struct Counts {
  uint64_t needed = 0, hit = 0, fetched = 0, all = 0;

  void add(const PageList& need, const PageList& have, uint32_t pages) {
    PageList both;
    std::ranges::set_intersection(need, have, std::back_inserter(both));
    needed += need.size(), hit += both.size(), fetched += have.size(), all += pages;
  }
  double recall() const { return static_cast<double>(hit) / static_cast<double>(needed); }
  double share() const { return static_cast<double>(fetched) / static_cast<double>(all); }
};

// One predictor for every layer and KV head.
class Predictions {
 public:
  Predictions(PredictorKind kind, const kv::ModelShape& shape, double share)
      : heads_(shape.kv_heads) {
    for (uint32_t i = 0; i < shape.layers * shape.kv_heads; ++i)
      predictors_.push_back(cache::make_predictor(kind, share));
  }
  cache::PagePredictor& of(uint32_t layer, uint32_t kv_head) {
    return *predictors_[layer * heads_ + kv_head];
  }
  Counts pages;   // of a KV head
  Counts blocks;  // of pages of all KV heads together, as they are read

 private:
  uint32_t heads_;
  std::vector<std::unique_ptr<cache::PagePredictor>> predictors_;
};

// Listens to exact attention: what it needed, and what predictors would have read.
class Oracle final : public cache::LayerObserver {
 public:
  Oracle(const kv::ModelShape& shape, double share) : shape_(shape) {
    for (size_t kind = 0; kind < kPredictorNames.size(); ++kind)
      predictions_.emplace_back(static_cast<PredictorKind>(kind), shape, share);
  }

  bool wants_weights() const override { return true; }
  void weighed(uint32_t layer, uint32_t, const cache::PageWeights& weights) override {
    if (shape_.window[layer] != 0) return;
    if (layer == 0) ++steps_;
    const uint32_t pages = weights.pages;
    const PageList candidates = optional_pages(weights);
    std::vector<PageList> together(predictions_.size());
    PageList needed_together;
    for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
      const std::vector<float> mass = page_shares(weights, h);
      const PageList need = cache::heaviest(mass, candidates, kNeededShare);
      needed_.push_back(need);
      needed_together.insert(needed_together.end(), need.begin(), need.end());
      for (size_t i = 0; i < predictions_.size(); ++i) {
        cache::PagePredictor& predictor = predictions_[i].of(layer, h);
        const PageList predicted = predictor.predict(candidates);
        if (steps_ > kWarmUp) predictions_[i].pages.add(need, predicted, pages);
        together[i].insert(together[i].end(), predicted.begin(), predicted.end());
        predictor.observe(mass);
      }
    }
    sort_once(needed_together);
    for (size_t i = 0; i < predictions_.size(); ++i) {
      sort_once(together[i]);
      if (steps_ > kWarmUp) predictions_[i].blocks.add(needed_together, together[i], pages);
    }
  }

  const Predictions& predictions(size_t kind) const { return predictions_[kind]; }
  // [step][layer without a window][kv_head]
  const std::vector<PageList>& needed() const { return needed_; }

 private:
  static void sort_once(PageList& pages) {
    std::ranges::sort(pages);
    pages.erase(std::ranges::unique(pages).begin(), pages.end());
  }

  kv::ModelShape shape_;
  uint32_t steps_ = 0;
  std::vector<Predictions> predictions_;  // [kind]
  std::vector<PageList> needed_;
};

// Listens to sparse attention over the same tokens.
class Selections final : public cache::LayerObserver {
 public:
  Selections(const kv::ModelShape& shape, const std::vector<PageList>& needed)
      : shape_(shape),
        full_layers_(static_cast<uint32_t>(std::ranges::count(shape.window, 0u))),
        needed_(needed) {}

  bool wants_weights() const override { return true; }
  // A layer whose sketches are not there yet.
  void weighed(uint32_t layer, uint32_t, const cache::PageWeights&) override {
    next_ += shape_.window[layer] == 0 ? shape_.kv_heads : 0;
  }
  void selected(uint32_t, uint32_t, const PageList& pages) override {
    const PageList& need = needed_[next_];
    if (next_ >= kWarmUp * full_layers_ * shape_.kv_heads)
      counts.add(need, without_always(pages), pages.back() + 1);
    ++next_;
  }
  Counts counts;

 private:
  static PageList without_always(const PageList& pages) {
    return {pages.begin() + 1, pages.end() - cache::PageSelector::kNewestPages};
  }

  kv::ModelShape shape_;
  uint32_t full_layers_;
  const std::vector<PageList>& needed_;
  size_t next_ = 0;
};

class PrefetchBench {
 public:
  explicit PrefetchBench(const ModelBenchOptions& options) : options_(options), bench_(options) {}

  Result<int> operator()() {
    const uint32_t context = *std::ranges::max_element(options_.contexts);
    HIFC_TRY(bench_.prepare(uint64_t{context} + options_.tokens));
    if (!bench_.config.flash_path)
      return failure(Code::kInvalid, "bench prefetch needs a flash tier: give --flash DIR");
    BenchReport report("prefetch", bench_.parameters());
    for (const uint32_t length : options_.contexts) HIFC_TRY(measure(report, length));
    return publish(report, options_.output);
  }

 private:
  Result<void> measure(BenchReport& report, uint32_t context) {
    const kv::ModelShape& shape = bench_.model->shape();
    const double share = 1 - cache::PageSelector::kPredicted * (1 - bench_.config.mass);
    Oracle oracle(shape, share);
    log_info("exact attention from {} tokens on", context);
    HIFC_TRY(
        run({.context = context + options_.tokens, .attention = "exact", .layer_observer = &oracle},
            context));
    for (size_t kind = 0; kind < kPredictorNames.size(); ++kind) {
      log_info("sparse attention, predictor {}", kPredictorNames[kind]);
      HIFC_TRY(add_row(report, context, kind, oracle));
    }
    return {};
  }

  struct Run {
    cache::CacheStatistics statistics;
    uint64_t read_bytes = 0;
    uint64_t hits = 0;  // blocks that attention took, from whichever tier
    double ms = 0;
  };
  Result<Run> run(const ModelBench::EngineSetup& setup, uint32_t context) {
    HIFC_ASSIGN(const auto engine, bench_.make_engine(setup));
    const auto tokens = std::span(bench_.tokens);
    HIFC_TRY(engine->prefill(tokens.first(context)));
    HIFC_TRY(engine->flush());
    const Run before = snapshot(*engine);
    std::vector<double> seconds;
    for (uint32_t i = 0; i < options_.tokens; ++i) {
      const int32_t token = tokens[context + i];
      HIFC_TRY(bench_.time(seconds, [&] {
        return engine->step({&token, 1}, engine::Outputs::kNone, cache::StepKind::kGeneration);
      }));
    }
    Run after = snapshot(*engine);
    after.statistics.stall_ns -= before.statistics.stall_ns;
    after.statistics.prefetch.blocks_wanted -= before.statistics.prefetch.blocks_wanted;
    after.statistics.prefetch.blocks_on_time -= before.statistics.prefetch.blocks_on_time;
    after.read_bytes -= before.read_bytes;
    after.hits -= before.hits;
    after.ms = 1000 * median(seconds);
    return after;
  }

  static Run snapshot(engine::Engine& engine) {
    Run now{.statistics = engine.cache_statistics()};
    if (engine.tiers().has_cold()) now.read_bytes = engine.tiers().store().statistics().read_bytes;
    for (const auto tier : {tier::Tier::kHot, tier::Tier::kWarm, tier::Tier::kCold})
      now.hits += engine.tiers().counters(tier).hits;
    return now;
  }

  Result<void> add_row(BenchReport& report, uint32_t context, size_t kind, const Oracle& oracle) {
    Selections selections(bench_.model->shape(), oracle.needed());
    HIFC_ASSIGN(const Run sparse, run({.hot_ratio = options_.hot_ratios.front(),
                                       .context = context + options_.tokens,
                                       .attention = "sparse",
                                       .predictor = std::string(kPredictorNames[kind]),
                                       .layer_observer = &selections},
                                      context));
    const cache::PrefetchStatistics& reads = sparse.statistics.prefetch;
    const auto late = static_cast<double>(reads.blocks_wanted - reads.blocks_on_time);
    const Predictions& predicted = oracle.predictions(kind);
    const double tokens = options_.tokens;
    const bool standard = kind == static_cast<size_t>(Config{}.predictor);
    using Bound = BenchReport::Bound;
    std::vector<BenchReport::Target> targets;
    if (standard)
      targets = {{"selected_recall", Bound::kAtLeast, 0.98},
                 {"selected_share", Bound::kAtMost, 0.35},
                 {"on_time", Bound::kAtLeast, 0.99}};
    report.add_row(
        fmt::format("prefetch.{}.ctx{}", kPredictorNames[kind], context),
        {{"recall", predicted.pages.recall()},
         {"share_fetched", predicted.pages.share()},
         {"block_recall", predicted.blocks.recall()},
         {"block_share_fetched", predicted.blocks.share()},
         {"selected_recall", selections.counts.recall()},
         {"selected_share", selections.counts.share()},
         {"on_time", 1 - late / static_cast<double>(sparse.hits)},
         {"on_time_of_cold", static_cast<double>(reads.blocks_on_time) /
                                 static_cast<double>(std::max<uint64_t>(1, reads.blocks_wanted))},
         {"bytes", static_cast<double>(sparse.read_bytes) / tokens},
         {"stall_ms", milliseconds(sparse.statistics.stall_ns) / tokens},
         {"token_ms", sparse.ms}},
        targets);
    return {};
  }

  const ModelBenchOptions& options_;
  ModelBench bench_;
};

}  // namespace

void add_bench_prefetch(CLI::App& bench, Action& chosen) {
  CLI::App* prefetch = bench.add_subcommand(
      "prefetch", "How well the pages that attention needs next are predicted and read ahead");
  prefetch->footer(
      "recall: share of the needed pages (the fewest that hold 95 % of the attention, with the\n"
      "first page and the newest two, which are always there) that were predicted from exact\n"
      "attention; share_fetched: predicted pages, of all. Both of KV heads on their own; block_:\n"
      "of pages of all KV heads together, which is what is read. selected_: of what sparse\n"
      "attention took, predictions corrected by sketches of the pages and the step's query.\n"
      "on_time: share of its blocks that were in memory when the query was known; bytes, stall_ms\n"
      "and token_ms: of a token.\n"
      "Example, with a quarter of the KV hot:\n"
      "  hifc bench prefetch -m model.gguf --context 6000 --flash /data/kv");
  auto options =
      add_model_bench_options(*prefetch, {.contexts = {6000}, .rounds = 1, .hot_ratios = {0.25}});
  options->tokens = 96;
  add_number(*prefetch, "--tokens", options->tokens, between(32u, 4096u), "Tokens decoded");
  prefetch->callback([=, &chosen] { chosen = [=] { return PrefetchBench(*options)(); }; });
}

}  // namespace hifc::apps
