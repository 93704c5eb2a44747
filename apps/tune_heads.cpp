// hifc tune heads: how local each KV head's attention is on a text, and what it saves to read only
// the heads' parts of blocks that need them, in bytes from the device.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "apps/arguments.h"
#include "apps/bench_report.h"
#include "apps/command.h"
#include "apps/head_reads.h"
#include "apps/options.h"
#include "apps/page_shares.h"
#include "apps/progress.h"
#include "apps/tune.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/page_selector.h"
#include "engine/engine.h"
#include "engine/policy.h"
#include "io/ring.h"
#include "tier/device_probe.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using cache::PageList;

struct HeadsOptions {
  std::string model;
  std::string file;
  std::string device_directory;
  double mass = 0.98;
  uint32_t context = 6000;
  uint32_t tokens = 64;
  bool quiet = false;
  BenchOutput output;
  std::unique_ptr<ConfigOptions> config;
};

// A shape with as many KV heads as query heads, which is what reading by head is most for.
constexpr uint32_t kManyHeads = 32, kManyHeadsDim = 128;

// Over all steps.
struct Locality {
  double pages = 0;               // needed, of all
  double first = 0, newest = 0;   // share of the attention
  uint64_t kept = 0, needed = 0;  // pages that the step before needed too, of those needed
};

// Listens to exact attention: which pages each head needs besides the first and the newest.
class HeadObserver final : public cache::LayerObserver {
 public:
  HeadObserver(const kv::ModelShape& shape, double mass)
      : by_head(shape.layers),
        by_query_head(shape.layers),
        locality(size_t{shape.layers} * shape.kv_heads),
        shape_(shape),
        mass_(mass) {}

  bool wants_weights() const override { return true; }
  void weighed(uint32_t layer, uint32_t, const cache::PageWeights& weights) override {
    if (shape_.window[layer] != 0) return;
    const PageList optional = optional_pages(weights);
    HeadPages of_heads, of_query_heads;
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      for (uint32_t row = 0; row < weights.rows; ++row)
        of_query_heads.push_back(cache::heaviest(page_shares(weights, head, row), optional, mass_));
      const std::vector<float> shares = page_shares(weights, head);
      of_heads.push_back(cache::heaviest(shares, optional, mass_));
      count(layer, head, shares, of_heads.back());
    }
    by_head[layer].push_back(std::move(of_heads));
    by_query_head[layer].push_back(std::move(of_query_heads));
  }

  std::vector<std::vector<HeadPages>> by_head;        // [layer][step]
  std::vector<std::vector<HeadPages>> by_query_head;  // as if each had K and V of its own
  std::vector<Locality> locality;                     // [layer][kv_head]

 private:
  void count(uint32_t layer, uint32_t head, std::span<const float> shares, const PageList& pages) {
    Locality& local = locality[layer * shape_.kv_heads + head];
    local.pages += static_cast<double>(pages.size()) / static_cast<double>(shares.size());
    local.first += shares.front();
    for (const float share : shares.last(cache::PageSelector::kNewestPages)) local.newest += share;
    if (by_head[layer].empty()) return;
    PageList both;
    std::ranges::set_intersection(pages, by_head[layer].back()[head], std::back_inserter(both));
    local.kept += both.size(), local.needed += pages.size();
  }

  const kv::ModelShape& shape_;
  double mass_;
};

class TuneHeads {
 public:
  explicit TuneHeads(const HeadsOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_ASSIGN(const Config config, options_.config->resolve());
    config_ = in_memory(config);
    config_.context = options_.context + options_.tokens;
    HIFC_TRY(measure_device());
    HIFC_ASSIGN(model_, engine::Model::load(options_.model));
    HIFC_ASSIGN(const std::string text, read_text(options_.file));
    HIFC_ASSIGN(tokens_, model_->tokenize(text, false));
    if (tokens_.size() < config_.context)
      return failure(
          Code::kInvalid,
          fmt::format("{} has {} tokens, but --context {} and --tokens {} need {}", options_.file,
                      tokens_.size(), options_.context, options_.tokens, config_.context));
    HeadObserver heads(model_->shape(), options_.mass);
    HIFC_TRY(run(heads));
    return publish(report(heads), options_.output);
  }

 private:
  Result<void> measure_device() {
    if (options_.device_directory.empty()) return {};
    HIFC_ASSIGN(const auto ring, io::Ring::create({}));
    HIFC_ASSIGN(device_, tier::probe_device(options_.device_directory, *ring, clock_));
    return {};
  }

  Result<void> run(HeadObserver& heads) {
    HIFC_ASSIGN(const auto pool, engine::ThreadPool::create(config_.threads));
    HIFC_ASSIGN(const auto engine, engine::Engine::create(*model_, *pool,
                                                          {.config = config_,
                                                           .expected_tokens = config_.context,
                                                           .layer_observer = &heads,
                                                           .cancelled = &interrupted()}));
    Progress bar({.label = "exact attention",
                  .total = config_.context,
                  .style = Progress::style(options_.quiet)});
    const auto tokens = std::span(tokens_);
    HIFC_TRY(
        engine->prefill(tokens.first(options_.context), [&](uint32_t done) { bar.update(done); }));
    for (uint32_t i = 0; i < options_.tokens; ++i) {
      HIFC_TRY(engine->step(tokens.subspan(options_.context + i, 1), engine::Outputs::kNone,
                            cache::StepKind::kGeneration));
      bar.update(options_.context + i + 1);
    }
    bar.finish();
    return {};
  }

  BenchReport report(const HeadObserver& heads) const {
    const kv::ModelShape& shape = model_->shape();
    BenchReport report("tune.heads", {{"model", model_->description()},
                                      {"file", options_.file},
                                      {"mass", options_.mass},
                                      {"context", options_.context},
                                      {"tokens", options_.tokens},
                                      {"break_even_bytes", device_.break_even_bytes()}});
    for (uint32_t layer = 0; layer < shape.layers; ++layer)
      for (uint32_t head = 0; head < shape.kv_heads; ++head)
        if (shape.window[layer] == 0)
          report.add_row(fmt::format("layer{}.head{}", layer, head),
                         locality(heads.locality[layer * shape.kv_heads + head]));
    report.add_row(fmt::format("heads.{}x{}", shape.query_heads, shape.kv_heads),
                   savings(heads.by_head, shape.kv_heads, shape.head_dim), targets());
    report.add_row(fmt::format("heads.{0}x{0}.as_mha", shape.query_heads),
                   savings(heads.by_query_head, shape.query_heads, shape.head_dim), targets());
    if (const auto many = pooled(heads.by_query_head); !many.empty())
      report.add_row(fmt::format("heads.{0}x{0}x{1}.simulated", kManyHeads, kManyHeadsDim),
                     savings(many, kManyHeads, kManyHeadsDim), targets());
    return report;
  }

  static std::vector<BenchReport::Target> targets() {
    return {{"saved", BenchReport::Bound::kAtLeast, 0.4}};
  }

  Json locality(const Locality& local) const {
    const double steps = options_.tokens;
    return {{"pages", local.pages / steps},
            {"first", local.first / steps},
            {"newest", local.newest / steps},
            {"kept", local.needed == 0 ? Json(nullptr)
                                       : Json(static_cast<double>(local.kept) /
                                              static_cast<double>(local.needed))}};
  }

  // `needed`: [layer][step].
  Json savings(const std::vector<std::vector<HeadPages>>& needed, uint32_t kv_heads,
               uint32_t head_dim) const {
    const kv::ModelShape shape{.layers = 1,
                               .query_heads = kv_heads,
                               .kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .window = {0}};
    const auto layout = kv::BlockLayout::make(shape, kv::kPageTokens).value();
    const HeadReads reads(layout, device_), bytes_alone(layout, {});
    ReadSum whole, by_head, reordered, whole_alone, by_head_alone;
    for (const std::vector<HeadPages>& steps : needed) {
      const std::vector<uint32_t> natural = natural_order(kv_heads);
      const std::vector<uint32_t> likeness = order_by_likeness(steps);
      for (const HeadPages& step : steps) {
        whole += reads.whole(step);
        by_head += reads.by_head(step, natural);
        reordered += reads.by_head(step, likeness);
        whole_alone += bytes_alone.whole(step);
        by_head_alone += bytes_alone.by_head(step, natural);
      }
    }
    const auto less = [](double now, double before) { return 1 - now / before; };
    const auto number = [](uint64_t count) { return static_cast<double>(count); };
    Json metrics = {{"saved", less(number(by_head_alone.bytes), number(whole_alone.bytes))},
                    {"whole_bytes", number(whole_alone.bytes) / options_.tokens},
                    {"by_head_bytes", number(by_head_alone.bytes) / options_.tokens}};
    if (!device_.known()) return metrics;
    // As this device is read from.
    metrics["device_saved"] = less(number(by_head.bytes), number(whole.bytes));
    metrics["reordered_saved"] = less(number(reordered.bytes), number(whole.bytes));
    metrics["time_saved"] = less(by_head.seconds(device_), whole.seconds(device_));
    metrics["reordered_time_saved"] = less(reordered.seconds(device_), whole.seconds(device_));
    metrics["reads"] = number(by_head.reads) / options_.tokens;
    return metrics;
  }

  // The heads of neighbouring layers as if they were one layer's, up to kManyHeads.
  static std::vector<std::vector<HeadPages>> pooled(
      const std::vector<std::vector<HeadPages>>& by_layer) {
    std::vector<std::vector<HeadPages>> pools;
    std::vector<HeadPages> pool;
    for (const std::vector<HeadPages>& steps : by_layer) {
      pool.resize(std::max(pool.size(), steps.size()));
      for (size_t step = 0; step < steps.size(); ++step)
        std::ranges::copy(steps[step], std::back_inserter(pool[step]));
      if (pool.empty() || pool.front().size() < kManyHeads) continue;
      for (HeadPages& step : pool) step.resize(kManyHeads);
      pools.push_back(std::exchange(pool, {}));
    }
    return pools;
  }

  const HeadsOptions& options_;
  SystemClock clock_;
  Config config_;
  tier::DeviceProfile device_;
  std::unique_ptr<engine::Model> model_;
  std::vector<int32_t> tokens_;
};

}  // namespace

void add_tune_heads(CLI::App& tune, Action& chosen) {
  CLI::App* heads = tune.add_subcommand(
      "heads", "Show how local each KV head's attention is, and what reading by head saves");
  heads->footer(
      "Rows of heads: pages: the fewest that hold --mass of its attention with the first page and\n"
      "the newest two, of all; first, newest: share of the attention that those have; kept: of "
      "the\n"
      "pages, those that the token before needed too.\n"
      "Rows of shapes: bytes read for each token where nothing but the first and the newest pages\n"
      "is in memory: whole blocks of the pages that any head of the layer needs, or the parts of\n"
      "the heads that need them (saved). as_mha: as if each query head had K and V of its own,\n"
      "which is the same model. simulated: heads of neighbouring layers taken for one layer's.\n"
      "With --device, reads are planned by what that device charges: bytes between two parts that\n"
      "cost less than another read are read too (device_saved, time_saved); reordered: with heads\n"
      "that need the same pages next to each other.\n"
      "Example:\n"
      "  hifc tune heads -m MODEL -f TEXT --device /data/kv");
  auto options = std::make_shared<HeadsOptions>();
  heads->add_option("-m,--model", options->model, "Model file (GGUF)")->required();
  heads->add_option("-f,--file", options->file, "Text to measure on")->required();
  heads->add_option("--device", options->device_directory,
                    "Directory on the flash device whose costs are measured");
  add_number(*heads, "--mass", options->mass,
             Accepted<double>{.test = [](double share) { return share > 0 && share < 1; },
                              .text = "a number between 0 and 1, such as 0.98"},
             "Share of its attention that a head's pages hold");
  add_number(*heads, "--context", options->context, between(512u, 1u << 24),
             "Tokens of the text before those that are measured");
  add_number(*heads, "--tokens", options->tokens, between(2u, 4096u), "Tokens measured");
  heads->add_flag("-q,--quiet", options->quiet, "No progress bar");
  add_output_flags(*heads, options->output);
  std::vector<std::string_view> without(kWithoutTiers.begin(), kWithoutTiers.end());
  without.emplace_back("context");
  options->config = std::make_unique<ConfigOptions>(*heads, without);
  heads->callback([=, &chosen] { chosen = [=] { return TuneHeads(*options)(); }; });
}

}  // namespace hifc::apps
