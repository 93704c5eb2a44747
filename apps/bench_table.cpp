// hifc bench table: the first token, the time of each further one and the memory that KV takes, on
// one prompt in one run: llama.cpp with all KV in memory, host offload (emulated), and HiFC with a
// part of the KV on flash.
//
// The contenders take turns in three parts: prompts from an empty cache, tokens after the last of
// them, and prompts whose KV a new engine finds on flash.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "apps/arguments.h"
#include "apps/bench_model.h"
#include "apps/host_offload.h"
#include "apps/latency_table.h"
#include "apps/page_cache.h"
#include "apps/progress.h"
#include "apps/samples.h"
#include "base/units.h"
#include "engine/policy.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using engine::Reference;
using engine::ReferenceMode;

// Of llama.cpp's two modes, one that takes so many times as long for a prompt computes it only
// once.
constexpr double kFarSlower = 1.5;
// What others are held against, whatever the policies: systems that offload do so in F16.
constexpr std::string_view kBaselinePolicy = "f16";

struct TableBenchOptions {
  std::shared_ptr<ModelBenchOptions> model;
  uint32_t prompt_rounds = 2;
  std::optional<uint64_t> memory_cap = {};
};

// One system whose latencies are measured.
class Contender {
 public:
  explicit Contender(std::string contender_name) : name(std::move(contender_name)) {}
  virtual ~Contender() = default;
  // Empties the cache; its memory stays there.
  virtual Result<void> restart() = 0;
  virtual Result<void> prefill(std::span<const int32_t> prompt) = 0;
  virtual Result<void> decode(int32_t token) = 0;
  virtual uint64_t waited_ns() const { return 0; }  // for KV, so far

  const std::string name;
  Latencies latencies;
};

class LlamaContender final : public Contender {
 public:
  LlamaContender(ReferenceMode mode, std::unique_ptr<Reference> reference)
      : Contender(fmt::format("original ({})", to_string(mode))),
        reference_(std::move(reference)) {}
  Result<void> restart() override {
    reference_->truncate(0);
    return {};
  }
  Result<void> prefill(std::span<const int32_t> prompt) override {
    return reference_->prefill(prompt);
  }
  Result<void> decode(int32_t token) override { return reference_->step({&token, 1}, false); }

 private:
  std::unique_ptr<Reference> reference_;
};

// HiFC, or with a HostOffload a system that is emulated.
class EngineContender final : public Contender {
 public:
  EngineContender(ModelBench& bench, std::string contender_name, ModelBench::EngineSetup setup,
                  std::unique_ptr<HostOffload> offload)
      : Contender(std::move(contender_name)),
        bench_(bench),
        setup_(std::move(setup)),
        offload_(std::move(offload)) {
    setup_.layer_observer = offload_.get();
  }

  const ModelBench::EngineSetup& setup() const { return setup_; }
  bool emulated() const { return offload_ != nullptr; }

  // On another directory each time: groups that are stored would not be written again.
  Result<void> restart() override {
    engine_.reset();
    if (!emulated()) {
      HIFC_ASSIGN(directory_, ScratchDirectory::create(bench_.scratch.path()));
      setup_.flash_path = directory_.path();
    }
    return open();
  }
  Result<void> prefill(std::span<const int32_t> prompt) override {
    HIFC_TRY(engine_->prefill(prompt));
    return engine_->flush();
  }
  Result<void> decode(int32_t token) override {
    return engine_->step({&token, 1}, engine::Outputs::kLast, cache::StepKind::kGeneration);
  }
  uint64_t waited_ns() const override {
    return emulated() ? offload_->copying_ns() : engine_->cache_statistics().stall_ns;
  }

  // Leaves everything on flash, as at the end of a run.
  Result<void> store() {
    memory_bytes_ = peak_memory_bytes();
    flash_bytes_ = engine_->tiers().store().statistics().payload_bytes_put;
    HIFC_TRY(engine_->save());
    engine_.reset();
    return {};
  }
  // As a new process would. The store's reads bypass the page cache where they can.
  Result<void> reopen() {
    std::error_code unreadable;  // which opening says better
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path(), unreadable))
      HIFC_TRY(forget_pages(entry.path()));
    return open();
  }
  Result<void> resume(std::span<const int32_t> prompt) {
    HIFC_TRY(engine_->prefill(prompt.subspan(engine_->resume(prompt))));
    reused_tokens_ = engine_->resume_report().reused_tokens;
    return {};
  }
  void close() { engine_.reset(); }

  // What is told about it besides its latencies.
  Json facts() const {
    if (emulated())
      return {{"emulated", "a memcpy of each layer's KV, before its attention"},
              {"kv_memory_bytes", offload_->host_bytes() + offload_->device_bytes()},
              {"kv_flash_bytes", 0},
              {"copy_gbps", static_cast<double>(offload_->copied_bytes()) /
                                static_cast<double>(offload_->copying_ns())}};
    return {{"kv_memory_bytes", memory_bytes_},
            {"kv_flash_bytes", flash_bytes_},
            {"reused_tokens", reused_tokens_}};
  }

 private:
  Result<void> open() {
    HIFC_ASSIGN(engine_, bench_.make_engine(setup_));
    return {};
  }
  // With what sparse attention knows of all pages.
  uint64_t peak_memory_bytes() const {
    return engine_->tiers().counters(tier::Tier::kHot).peak_bytes +
           engine_->tiers().counters(tier::Tier::kWarm).peak_bytes +
           engine_->budget().statistics_bytes;
  }

  ModelBench& bench_;
  ModelBench::EngineSetup setup_;
  std::unique_ptr<HostOffload> offload_;
  ScratchDirectory directory_;
  std::unique_ptr<engine::Engine> engine_;
  uint64_t memory_bytes_ = 0, flash_bytes_ = 0;
  uint32_t reused_tokens_ = 0;
};

class TableBench {
 public:
  explicit TableBench(const TableBenchOptions& options)
      : table_options_(options), options_(*options.model), bench_(options_) {}

  Result<int> operator()() {
    // The first round of tokens warms up caches and prefetching and does not count.
    const uint64_t most = context() + (uint64_t{options_.rounds} + 1) * options_.tokens;
    HIFC_TRY(bench_.prepare(most));
    tokens_max_ = static_cast<uint32_t>(most);
    if (!bench_.config.flash_path)
      return failure(Code::kInvalid, "bench table needs a flash tier: give --flash DIR");
    bench_.config.resume = true;
    HIFC_TRY(make_original());
    HIFC_TRY(make_offloads());
    make_hifc();
    HIFC_TRY(time_prompts());
    HIFC_TRY(time_tokens());
    HIFC_TRY(time_stored_prompts());
    BenchReport report("table", parameters());
    add_rows(report);
    return publish(report, options_.output,
                   report.heading() + latency_table(report.json()["rows"]));
  }

 private:
  uint32_t context() const { return options_.contexts.front(); }
  std::span<const int32_t> prompt() const { return std::span(bench_.tokens).first(context()); }

  Json parameters() const {
    Json parameters = bench_.parameters();
    parameters["policy"] = options_.policies;
    parameters["attention"] = options_.attentions;
    parameters["prompt_rounds"] = table_options_.prompt_rounds;
    parameters["memory_cap"] =
        table_options_.memory_cap ? Json(*table_options_.memory_cap) : Json(nullptr);
    return parameters;
  }

  uint64_t original_bytes() const {
    return Reference::kv_bytes(bench_.model->shape(),
                               {.mode = ReferenceMode::kF16, .context_tokens = tokens_max_});
  }
  bool out_of_memory() const {
    return original_bytes() > table_options_.memory_cap.value_or(UINT64_MAX);
  }

  Result<void> make_original() {
    if (out_of_memory()) return {};
    for (const ReferenceMode mode : {ReferenceMode::kF16FlashAttention, ReferenceMode::kF16}) {
      HIFC_ASSIGN(auto reference, bench_.make_reference(mode, tokens_max_));
      llama_.push_back(std::make_unique<LlamaContender>(mode, std::move(reference)));
    }
    return {};
  }

  Result<void> make_offloads() {
    std::vector<std::string> policies = options_.policies;
    if (std::ranges::find(policies, kBaselinePolicy) == policies.end())
      policies.emplace(policies.begin(), kBaselinePolicy);
    for (const std::string& policy : policies) {
      HIFC_ASSIGN(const kv::CodecPolicy codecs, engine::resolve_policy(policy, *bench_.model));
      HIFC_ASSIGN(const kv::GroupLayout layout,
                  kv::GroupLayout::make(bench_.model->shape(), kDefaultBlockTokens, codecs));
      HIFC_ASSIGN(auto offload, HostOffload::create(layout, tokens_max_, *bench_.pool));
      offloads_.push_back(make_engine_contender(
          "offload",
          {.context = tokens_max_, .policy = policy, .attention = "exact", .flash = false},
          std::move(offload)));
    }
    return {};
  }

  void make_hifc() {
    for (const std::string& attention : options_.attentions)
      for (const std::string& policy : options_.policies)
        hifc_.push_back(make_engine_contender(attention,
                                              {.hot_ratio = options_.hot_ratios.front(),
                                               .context = tokens_max_,
                                               .policy = policy,
                                               .attention = attention},
                                              nullptr));
  }

  std::unique_ptr<EngineContender> make_engine_contender(const std::string& kind,
                                                         ModelBench::EngineSetup setup,
                                                         std::unique_ptr<HostOffload> offload) {
    std::string name = fmt::format("{}.{}", kind, policy_label(setup.policy));
    return std::make_unique<EngineContender>(bench_, std::move(name), std::move(setup),
                                             std::move(offload));
  }

  std::vector<Contender*> contenders() const {
    std::vector<Contender*> all;
    for (const auto& each : llama_) all.push_back(each.get());
    for (const auto& each : offloads_) all.push_back(each.get());
    for (const auto& each : hifc_) all.push_back(each.get());
    return all;
  }

  // Another one begins in each round.
  template <typename Contenders, typename Work>
  static Result<void> take_turns(std::string label, uint32_t rounds, const Contenders& contenders,
                                 const Work& work) {
    const size_t count = contenders.size();
    Progress progress(
        {.label = std::move(label), .total = rounds * count, .unit = ProgressUnit::kRounds});
    for (uint32_t round = 0; round < rounds; ++round)
      for (size_t i = 0; i < count; ++i) {
        HIFC_TRY(work(*contenders[(round + i) % count], round));
        progress.update(round * count + i + 1);
      }
    return {};
  }

  Result<void> time_prompts() {
    return take_turns("first tokens", table_options_.prompt_rounds, contenders(),
                      [&](Contender& contender, uint32_t) -> Result<void> {
                        if (&contender == far_slower()) return {};
                        HIFC_TRY(contender.restart());
                        return time(contender, contender.latencies.first_token, 1,
                                    [&] { return contender.prefill(prompt()); });
                      });
  }

  // One of llama.cpp's modes or none, once both have computed a prompt.
  const Contender* far_slower() const {
    if (llama_.empty()) return nullptr;
    const auto first = [](const auto& llama) {
      const std::vector<double>& seconds = llama->latencies.first_token.seconds;
      return seconds.empty() ? 0.0 : seconds.front();
    };
    const auto [fast, slow] = std::ranges::minmax_element(llama_, {}, first);
    const bool far = first(*fast) > 0 && first(*slow) > kFarSlower * first(*fast);
    return far ? slow->get() : nullptr;
  }

  Result<void> time_tokens() {
    return take_turns("further tokens", options_.rounds + 1, contenders(),
                      [&](Contender& contender, uint32_t round) {
                        Latencies::Samples warm_up;
                        const uint32_t first = context() + round * options_.tokens;
                        return time(contender, round > 0 ? contender.latencies.token : warm_up,
                                    options_.tokens, [&] { return decode(contender, first); });
                      });
  }

  Result<void> decode(Contender& contender, uint32_t first) {
    for (uint32_t i = first; i < first + options_.tokens; ++i)
      HIFC_TRY(contender.decode(bench_.tokens[i]));
    return {};
  }

  Result<void> time_stored_prompts() {
    for (const auto& contender : hifc_) HIFC_TRY(contender->store());
    return take_turns("stored prompts", options_.rounds, hifc_,
                      [&](EngineContender& contender, uint32_t) -> Result<void> {
                        HIFC_TRY(contender.reopen());
                        HIFC_TRY(time(contender, contender.latencies.stored, 1,
                                      [&] { return contender.resume(prompt()); }));
                        contender.close();
                        return {};
                      });
  }

  // Appends what one of `count` parts of the work takes.
  template <typename Work>
  Result<void> time(const Contender& contender, Latencies::Samples& samples, uint32_t count,
                    const Work& work) {
    const uint64_t waited_ns = contender.waited_ns();
    HIFC_TRY(bench_.time(samples.seconds, work));
    samples.seconds.back() /= count;
    samples.waits.push_back(milliseconds(contender.waited_ns() - waited_ns) / 1000 / count);
    return {};
  }

  void add_rows(BenchReport& report) const {
    add_original(report);
    for (const auto& contender : offloads_) add_row(report, *contender);
    for (const auto& contender : hifc_) add_row(report, *contender);
  }

  const Latencies& offload(std::string_view policy) const {
    const auto found = std::ranges::find_if(
        offloads_, [&](const auto& each) { return each->setup().policy == policy; });
    return (*found)->latencies;
  }

  void add_original(BenchReport& report) const {
    Latencies better;
    for (const auto& llama : llama_) {
      const Latencies& own = llama->latencies;
      better.first_token.seconds = smaller(better.first_token.seconds, own.first_token.seconds);
      better.token.seconds = smaller(better.token.seconds, own.token.seconds);
    }
    const Latencies& baseline = offload(kBaselinePolicy);
    Json metrics = latency_metrics(better, baseline, baseline);
    metrics.update({{"out_of_memory", out_of_memory()},
                    {"kv_memory_bytes", original_bytes()},
                    {"kv_flash_bytes", 0}});
    for (const auto& llama : llama_) {
      const bool flash_attention = llama == llama_.front();
      metrics[flash_attention ? "ttft_fa_ms" : "ttft_nofa_ms"] =
          1000 * median(llama->latencies.first_token.seconds);
      metrics[flash_attention ? "token_fa_ms" : "token_nofa_ms"] =
          1000 * median(llama->latencies.token.seconds);
    }
    report.add_row("table.original", std::move(metrics));
  }

  void add_row(BenchReport& report, const EngineContender& contender) const {
    const std::string& policy = contender.setup().policy;
    Json metrics = latency_metrics(contender.latencies, offload(kBaselinePolicy), offload(policy));
    metrics.update(contender.facts());
    report.add_row("table." + contender.name, std::move(metrics), targets(contender));
  }

  // What is claimed of F6, as shares of host offload.
  static std::vector<BenchReport::Target> targets(const EngineContender& contender) {
    using Bound = BenchReport::Bound;
    if (contender.name != "exact.auto75") return {};
    return {{"token_vs_offload", Bound::kAtMost, 0.61}, {"ttft_vs_offload", Bound::kAtMost, 0.80}};
  }

  const TableBenchOptions& table_options_;
  const ModelBenchOptions& options_;
  ModelBench bench_;
  uint32_t tokens_max_ = 0;
  std::vector<std::unique_ptr<LlamaContender>> llama_;  // flash attention on, off; or none
  std::vector<std::unique_ptr<EngineContender>> offloads_, hifc_;
};

constexpr const char* kFooter =
    "Rows, on one prompt:\n"
    "  original          llama.cpp with its whole F16 cache in memory, better of its two modes of\n"
    "                    attention for each figure\n"
    "  offload.POLICY    host offload, EMULATED: HiFC's attention with all KV in memory, but "
    "before\n"
    "                    each layer's all KV of the layer is copied from one buffer, which stands\n"
    "                    for the host's memory, to another, which stands for the device's. "
    "Nothing\n"
    "                    is read ahead, and nothing else runs meanwhile\n"
    "  exact.POLICY      HiFC with a share of the KV in memory, the rest on flash\n"
    "  sparse.POLICY     the same with sparse attention for the tokens after the prompt\n"
    "First tokens: of the whole prompt from an empty cache, with what is written to flash; "
    "stored:\n"
    "of a new engine that finds it on flash. Ratios are to offload.fp16 in the same round.\n"
    "Example, with 60 % of the KV in memory, where there is too little of it for the original:\n"
    "  hifc bench table -m model.gguf --flash /data/kv --memory-cap 128MiB";

void add_memory_cap(CLI::App& table, std::optional<uint64_t>& memory_cap) {
  const CLI::callback_t parse = [&memory_cap](const CLI::results_t& words) {
    const auto size = parse_size(words.back(), "--memory-cap");
    if (!size) throw UsageError(size.error().message());
    memory_cap = *size;
    return true;
  };
  table
      .add_option("--memory-cap", parse,
                  "Memory that there is for KV: where the original needs more, its row says so")
      ->type_name("SIZE");
}

// A table is of one prompt and one share of memory.
void require_one(const ModelBenchOptions& options) {
  if (options.contexts.size() > 1) throw UsageError("--context: bench table takes one length");
  if (options.hot_ratios.size() > 1) throw UsageError("--hot-ratio: bench table takes one share");
}

}  // namespace

void add_bench_table(CLI::App& bench, Action& chosen) {
  CLI::App* table = bench.add_subcommand(
      "table", "First token, further tokens and memory against host offload and llama.cpp");
  table->footer(kFooter);
  auto options = std::make_shared<TableBenchOptions>();
  options->model = add_model_bench_options(
      *table, {.contexts = {8000}, .variants = Variants::kSeveral, .hot_ratios = {0.6}});
  options->model->policies = {"f16", "auto75"};
  options->model->attentions = {"exact", "sparse"};
  table->get_option("--policy")->default_str("fp16,auto75");
  table->get_option("--attention")->default_str("exact,sparse");
  add_number(*table, "--tokens", options->model->tokens, between(1u, 4096u),
             "Tokens decoded in each round");
  add_number(*table, "--prompt-rounds", options->prompt_rounds, between(1u, 4096u),
             "Interleaved rounds of prompts, which take longest");
  add_memory_cap(*table, options->memory_cap);
  table->callback([=, &chosen] {
    require_one(*options->model);
    chosen = [=] { return TableBench(*options)(); };
  });
}

}  // namespace hifc::apps
