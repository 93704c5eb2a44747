#include "apps/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/command.h"
#include "apps/table.h"
#include "base/text.h"
#include "base/units.h"

namespace hifc::apps {
namespace {

using Json = nlohmann::ordered_json;

Json ratio(double part, double whole) {
  return whole > 0 ? Json(part / whole) : Json(nullptr);
}

Json tier_json(const tier::TierCounters& counters) {
  return {{"capacity_bytes", counters.capacity_bytes},
          {"peak_bytes", counters.peak_bytes},
          {"hits", counters.hits},
          {"bytes_read", counters.bytes_read},
          {"bytes_written", counters.bytes_written}};
}

// Rates are averages over the whole run: what the drive gave, not what it could give.
Json flash_json(tier::Tiers& tiers, double run_ms) {
  if (!tiers.has_cold()) return nullptr;
  const flash::StoreStatistics& store = tiers.store().statistics();
  const auto bytes = [](uint64_t value) { return static_cast<double>(value); };
  return {
      {"read_gbps", ratio(bytes(store.read_bytes), 1e6 * run_ms)},
      {"write_gbps", ratio(bytes(store.written_bytes), 1e6 * run_ms)},
      {"writes", store.writes},
      {"mean_write_bytes", ratio(bytes(store.written_bytes), bytes(store.writes))},
      {"write_amplification", ratio(bytes(store.written_bytes), bytes(store.payload_bytes_put))},
      {"corrupt_blocks", store.corrupt_chunks},
      {"corrupt_headers", store.corrupt_headers},
      {"quarantined_groups", store.quarantined_values},
      {"timeouts", store.timeouts}};
}

// Means over layers and heads of a token; the spread is that of tokens.
Json distribution_json(const std::vector<float>& shares) {
  const std::vector<double> values(shares.begin(), shares.end());
  return {{"mean", mean(values)},
          {"p50", percentile(values, 0.5)},
          {"p99", percentile(values, 0.99)},
          {"max", percentile(values, 1.0)}};
}

Json prefetch_json(const cache::PrefetchStatistics& prefetch, std::string_view predictor) {
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  return {{"predictor", predictor},
          {"blocks_wanted", prefetch.blocks_wanted},
          {"blocks_on_time", prefetch.blocks_on_time},
          {"blocks_fetched", prefetch.blocks_fetched},
          {"on_time", ratio(count(prefetch.blocks_on_time), count(prefetch.blocks_wanted))},
          {"share_fetched", ratio(count(prefetch.blocks_fetched), count(prefetch.blocks_wanted))}};
}

Json resume_json(const engine::ResumeReport& resume) {
  return {{"decision", engine::to_string(resume.decision)},
          {"stored_tokens", resume.stored_tokens},
          {"load_ms", milliseconds(resume.load_ns)}};
}

std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace

Json attention_json(const engine::Engine& engine) {
  const Config& config = engine.config();
  Json json = {{"mode", kAttentionModeNames[static_cast<size_t>(config.attention)]}};
  const cache::SkippedMass* skipped = engine.skipped();
  if (skipped == nullptr) return json;
  const cache::SparseStatistics sparse = engine.cache_statistics().sparse;
  const auto count = [](uint64_t value) { return static_cast<double>(value); };
  json["mass"] = config.mass;
  json["sparse_tokens"] = skipped->estimate.size();
  json["pages_selected_share"] = ratio(count(sparse.pages_selected), count(sparse.pages_seen));
  json["pages_missed"] = sparse.pages_missed;
  json["skipped_mass"] = distribution_json(skipped->estimate);
  json["skipped_mass_bound"] = distribution_json(skipped->bound);
  json["statistics_bytes"] = engine.budget().statistics_bytes;
  return json;
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

Json run_report(engine::Engine& engine, const RunMeasurements& run) {
  const cache::CacheStatistics cache = engine.cache_statistics();
  tier::Tiers& tiers = engine.tiers();
  const double decode_ms = mean(run.token_ms);
  const auto tokens = static_cast<double>(run.token_ms.size());
  const double stall_ms = tokens > 0 ? run.decode_stall_ms / tokens : 0;
  Json report = {
      {"model", engine.model().description()},
      {"policy", run.policy},
      {"prompt_tokens", run.prompt_tokens},
      {"reused_tokens", engine.resume_report().reused_tokens},
      {"generated_tokens", run.generated_tokens},
      {"ttft_ms", run.ttft_ms > 0 ? Json(run.ttft_ms) : Json(nullptr)},
      {"prefill_tokens_per_s", ratio(1000.0 * run.computed_tokens, run.prefill_ms)},
      {"decode_ms_per_token", tokens > 0 ? Json(decode_ms) : Json(nullptr)},
      {"decode_ms_p99", tokens > 0 ? Json(percentile(run.token_ms, 0.99)) : Json(nullptr)},
      {"kv_bytes_total", cache.kv_bytes},
      {"peak_rss_bytes", resident_memory().peak_bytes},
      {"model_rss_bytes", run.model_rss_bytes},
      {"text", run.text},
      {"logits_hash", fmt::format("{:016x}", engine.statistics().logits_hash)}};
  for (const tier::Tier tier : {tier::Tier::kHot, tier::Tier::kWarm, tier::Tier::kCold})
    report["tiers"][std::string(tier::to_string(tier))] = tier_json(tiers.counters(tier));
  report["flash"] = flash_json(tiers, run.prefill_ms + decode_ms * tokens);
  const bool sparse = engine.config().attention == AttentionMode::kSparse;
  report["attention"] = attention_json(engine);
  report["prefetch"] = prefetch_json(
      cache.prefetch,
      sparse ? kPredictorNames[static_cast<size_t>(engine.config().predictor)] : "layer_order");
  report["resume"] = resume_json(engine.resume_report());
  report["recomputed_groups"] = engine.statistics().recomputed_groups;
  report["stall_ms_per_token"] = tokens > 0 ? Json(stall_ms) : Json(nullptr);
  report["compute_ms_per_token"] = tokens > 0 ? Json(decode_ms - stall_ms) : Json(nullptr);
  // Needs the same run with everything hot and the drive's measured bandwidth: `hifc bench decode`.
  report["roofline_ratio"] = nullptr;
  return report;
}

std::string run_table(engine::Engine& engine, const RunMeasurements& run) {
  tier::Tiers& tiers = engine.tiers();
  using Align = Table::Align;
  Table table({{"tier"},
               {"capacity", Align::kRight},
               {"peak", Align::kRight},
               {"block hits", Align::kRight},
               {"share", Align::kRight},
               {"read", Align::kRight},
               {"written", Align::kRight}});
  uint64_t hits = 0;
  for (const tier::Tier tier : {tier::Tier::kHot, tier::Tier::kWarm, tier::Tier::kCold})
    hits += tiers.counters(tier).hits;
  for (const tier::Tier tier : {tier::Tier::kHot, tier::Tier::kWarm, tier::Tier::kCold}) {
    const tier::TierCounters counters = tiers.counters(tier);
    table.add_row({std::string(tier::to_string(tier)), format_size(counters.capacity_bytes),
                   format_size(counters.peak_bytes), fmt::format("{}", counters.hits),
                   percent(counters.hits, hits), format_size(counters.bytes_read),
                   format_size(counters.bytes_written)});
  }
  const engine::ResumeReport& resume = engine.resume_report();
  std::string text = "\n";
  if (resume.decision != engine::ResumeDecision::kOff)
    text += fmt::format("reused {} of {} ({} stored: {})\n", resume.reused_tokens,
                        plural(run.prompt_tokens, "prompt token"), resume.stored_tokens,
                        engine::to_string(resume.decision));
  text += fmt::format("prompt {} of {} in {:.2f} s ({:.0f} tokens/s)", run.computed_tokens,
                      plural(run.prompt_tokens, "token"), run.prefill_ms / 1000,
                      run.prefill_ms > 0 ? 1000.0 * run.computed_tokens / run.prefill_ms : 0);
  text += run.ttft_ms > 0 ? fmt::format(", first token after {:.2f} s\n", run.ttft_ms / 1000)
                          : ", interrupted\n";
  const double decode_ms = mean(run.token_ms);
  if (!run.token_ms.empty())
    text += fmt::format(
        "generated {}, {:.2f} ms each (p99 {:.2f} ms, waiting for flash {:.2f} ms)\n",
        plural(run.generated_tokens, "token"), decode_ms, percentile(run.token_ms, 0.99),
        run.decode_stall_ms / static_cast<double>(run.token_ms.size()));
  text += fmt::format("KV {}, peak resident memory {} (model alone {})\n\n",
                      format_size(engine.cache_statistics().kv_bytes),
                      format_size(resident_memory().peak_bytes), format_size(run.model_rss_bytes));
  return text + table.to_string();
}

}  // namespace hifc::apps
