// hifc bench swap: conversations swapped in from flash by HiFC and by the ways that are common
// elsewhere, under several replacement policies.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "apps/arguments.h"
#include "apps/bench.h"
#include "apps/bench_report.h"
#include "apps/progress.h"
#include "apps/samples.h"
#include "apps/scratch_directory.h"
#include "apps/swap_file.h"
#include "apps/swap_plan.h"
#include "apps/swap_tiers.h"
#include "apps/swap_workload.h"
#include "base/config.h"
#include "base/units.h"
#include "engine/device_record.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using Bound = BenchReport::Bound;
using cache::ReplacementPolicy;

constexpr uint64_t kGiB = 1u << 30;
constexpr std::array kPolicies = {ReplacementPolicy::kLru, ReplacementPolicy::kFifo,
                                  ReplacementPolicy::kScan, ReplacementPolicy::kCost};
constexpr std::array kWays = {SwapWay::kBuffered4k, SwapWay::kBufferedBlock, SwapWay::kDirectSync};
// The baselines swap in what this policy misses.
constexpr size_t kBaselinePolicy = 0;
// Of a baseline's pages; with more, the device is not what was measured.
constexpr double kCachedMost = 0.01;

struct SwapBenchOptions {
  std::string directory;
  uint32_t rounds = 5;
  double seconds = 1.5;  // of each baseline in each round
  double memory = 0.4;   // share of the data that memory holds
  uint64_t block_kib = 192;
  uint32_t depth = kReadsPerWorker * Config{}.prefetch_workers;
  SwapWorkloadOptions workload;
  BenchOutput output;
};

class SwapBench {
 public:
  explicit SwapBench(const SwapBenchOptions& options)
      : options_(options), workload_(with_block_bytes(options)) {}

  Result<int> operator()() {
    HIFC_ASSIGN(scratch_, ScratchDirectory::create(options_.directory));
    HIFC_TRY(check_room());
    HIFC_TRY(prepare());
    HIFC_TRY(run_rounds());
    BenchReport report("swap", parameters());
    add_device(report);
    for (size_t way = 0; way < kWays.size(); ++way) add_baseline(report, way);
    for (size_t policy = 0; policy < kPolicies.size(); ++policy) add_hifc(report, policy);
    return publish(report, options_.output);
  }

 private:
  struct Baseline {
    std::vector<double> gbps;  // [round]
    double cached_share = 0;
    size_t next = 0;  // step of the plan
  };
  struct Contender {
    SwapPlan plan;
    std::vector<double> gbps, seconds;  // [round]
    std::vector<double> access_ms;      // of all rounds
  };

  static SwapWorkloadOptions with_block_bytes(const SwapBenchOptions& options) {
    SwapWorkloadOptions workload = options.workload;
    workload.block_bytes = options.block_kib << 10;
    return workload;
  }

  uint64_t memory_bytes() const {
    const double groups = options_.memory * workload_.groups();
    return static_cast<uint64_t>(groups) * workload_.group_bytes();
  }

  Json parameters() const {
    const SwapWorkloadOptions& workload = workload_.options();
    return {{"directory", options_.directory},     {"rounds", options_.rounds},
            {"seconds", options_.seconds},         {"data_bytes", workload_.bytes()},
            {"memory_bytes", memory_bytes()},      {"sequences", workload.sequences},
            {"groups", workload_.groups()},        {"layers", workload.layers},
            {"block_bytes", workload.block_bytes}, {"accesses", workload.accesses},
            {"passes", workload.passes},           {"depth", options_.depth}};
  }

  // The plain file and the store.
  Result<void> check_room() const {
    const uint64_t needed = workload_.bytes() + SwapTiers::flash_bytes(workload_);
    HIFC_ASSIGN(const uint64_t free, free_bytes(options_.directory));
    if (needed + kGiB <= free) return {};
    return failure(Code::kFull,
                   fmt::format("{} has {} free, the benchmark needs {} and 1 GiB more",
                               options_.directory, format_size(free), format_size(needed)));
  }

  Result<void> prepare() {
    const std::string store = scratch_.path() + "/store";
    HIFC_TRY(write(store));
    HIFC_ASSIGN(device_,
                engine::device_profile(tiers_->tiers(), store, clock_, {.depth = options_.depth}));
    for (size_t i = 0; i < kPolicies.size(); ++i)
      contenders_[i].plan = make_plan(workload_, kPolicies[i], memory_bytes(), device_);
    HIFC_TRY(tiers_->replay(everything(), SwapTiers::Check::kCompare));
    return {};
  }

  // Once to a file and once to the store.
  Result<void> write(const std::string& store) {
    Progress progress(
        {.label = "write", .total = 2 * workload_.bytes(), .unit = ProgressUnit::kBytes});
    uint64_t before = 0;
    const auto written = [&](uint32_t groups) {
      progress.update(before + groups * workload_.group_bytes());
    };
    HIFC_ASSIGN(file_, SwapFile::create(workload_, scratch_.path() + "/blocks", written));
    before = workload_.bytes();
    HIFC_ASSIGN(tiers_,
                SwapTiers::create(
                    workload_,
                    {.directory = store, .memory_bytes = memory_bytes(), .depth = options_.depth},
                    written));
    return {};
  }

  Result<void> run_rounds() {
    Progress progress({.label = "swap", .total = options_.rounds, .unit = ProgressUnit::kRounds});
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      HIFC_TRY(run_round(round));
      progress.update(round + 1);
    }
    return {};
  }

  // Every group once, none of which stays.
  SwapPlan everything() const {
    SwapPlan plan;
    for (const SwapWorkload::Sequence& sequence : workload_.sequences()) {
      SwapStep step;
      for (uint32_t i = 0; i < sequence.groups; ++i) step.read.push_back(sequence.first_group + i);
      step.kept.resize(step.read.size());
      plan.steps.push_back(std::move(step));
    }
    return plan;
  }

  // In every other round in the other order: the device's speed drifts.
  Result<void> run_round(uint32_t round) {
    const size_t count = kWays.size() + kPolicies.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t turn = round % 2 == 0 ? i : count - 1 - i;
      if (turn < kWays.size())
        HIFC_TRY(run_baseline(turn));
      else
        HIFC_TRY(run_hifc(turn - kWays.size()));
    }
    return {};
  }

  // Goes on where the last round stopped, and from the beginning after the end.
  Result<void> run_baseline(size_t way) {
    Baseline& baseline = baselines_[way];
    const std::vector<SwapStep>& steps = contenders_[kBaselinePolicy].plan.steps;
    uint64_t bytes = 0;
    double seconds = 0;
    while (seconds < options_.seconds) {
      const SwapStep& step = steps[baseline.next++ % steps.size()];
      if (step.read.empty()) continue;
      HIFC_ASSIGN(const SwapFile::Reading reading,
                  file_->read(kWays[way], step.read, options_.seconds - seconds));
      bytes += reading.bytes;
      seconds += reading.seconds;
      baseline.cached_share = std::max(baseline.cached_share, reading.cached_share);
    }
    baseline.gbps.push_back(static_cast<double>(bytes) / 1e9 / seconds);
    return {};
  }

  Result<void> run_hifc(size_t policy) {
    Contender& contender = contenders_[policy];
    HIFC_ASSIGN(SwapTiers::Reading reading,
                tiers_->replay(contender.plan, SwapTiers::Check::kChecksums));
    contender.gbps.push_back(static_cast<double>(reading.bytes) / 1e9 / reading.seconds);
    contender.seconds.push_back(reading.seconds);
    contender.access_ms.insert(contender.access_ms.end(), reading.access_ms.begin(),
                               reading.access_ms.end());
    return {};
  }

  // Of each round: what both got from the same minute of the device.
  std::vector<double> ratios(const std::vector<double>& gbps, SwapWay over) const {
    const std::vector<double>& base = baselines_[static_cast<size_t>(over)].gbps;
    std::vector<double> result;
    for (size_t round = 0; round < gbps.size(); ++round)
      result.push_back(gbps[round] / base[round]);
    return result;
  }

  Json metrics(const std::vector<double>& gbps, const SwapPlan& plan, double trace_s) const {
    const auto over_4k = ratios(gbps, SwapWay::kBuffered4k);
    const auto over_block = ratios(gbps, SwapWay::kBufferedBlock);
    return {{"gbps", median(gbps)},
            {"gbps_spread", spread(gbps)},
            {"hit_rate", plan.hit_rate()},
            {"hit_rate_popular", plan.hit_rate(SwapPhase::kPopular)},
            {"hit_rate_cyclic", plan.hit_rate(SwapPhase::kCyclic)},
            {"trace_s", trace_s},
            {"speedup", median(over_4k)},
            {"speedup_spread", spread(over_4k)},
            {"speedup_block", median(over_block)},
            {"speedup_block_spread", spread(over_block)}};
  }

  void add_device(BenchReport& report) const {
    report.add_row("swap.device", {{"fixed_us", device_.fixed_s * 1e6},
                                   {"gbps", 1e-9 / device_.s_per_byte},
                                   {"latency_us", device_.latency_s * 1e6},
                                   {"depth", device_.depth}});
  }

  // How fast a baseline reads has nothing to do with the policy, so it is measured under one.
  void add_baseline(BenchReport& report, size_t way) const {
    const Baseline& baseline = baselines_[way];
    for (size_t policy = 0; policy < kPolicies.size(); ++policy) {
      const SwapPlan& plan = contenders_[policy].plan;
      const auto bytes = static_cast<double>(plan.groups_read * workload_.group_bytes());
      Json row = metrics(baseline.gbps, plan, bytes / 1e9 / median(baseline.gbps));
      std::vector<BenchReport::Target> targets;
      if (policy == kBaselinePolicy) {
        row["cached_share"] = baseline.cached_share;
        targets.push_back({"cached_share", Bound::kAtMost, kCachedMost});
      }
      report.add_row(fmt::format("swap.{}.{}", to_string(kWays[way]), to_string(kPolicies[policy])),
                     row, targets);
    }
  }

  void add_hifc(BenchReport& report, size_t policy) const {
    const Contender& contender = contenders_[policy];
    Json row = metrics(contender.gbps, contender.plan, median(contender.seconds));
    row["swap_in_ms"] = median(contender.access_ms);
    report.add_row(fmt::format("swap.hifc.{}", to_string(kPolicies[policy])), row,
                   {{"speedup", Bound::kAtLeast, 8}, {"speedup_block", Bound::kAtLeast, 3}});
  }

  const SwapBenchOptions& options_;
  const SwapWorkload workload_;
  SystemClock clock_;
  ScratchDirectory scratch_;
  std::unique_ptr<SwapFile> file_;
  std::unique_ptr<SwapTiers> tiers_;
  tier::DeviceProfile device_;
  std::array<Baseline, kWays.size()> baselines_;
  std::array<Contender, kPolicies.size()> contenders_;
};

constexpr const char* kHelp =
    "Conversations lie on flash as groups of blocks, one block for each layer. Memory has room "
    "for\n"
    "a share of them. A trace wants conversations, first by popularity (Zipf), then all in turn;\n"
    "of each, the groups that are not in memory are read.\n"
    "\n"
    "Ways to read, in rows swap.WAY.POLICY:\n"
    "  buffered_4k     pread() of pages of 4 KiB in random order, page cache cold: what paging "
    "does\n"
    "  buffered_block  pread() of whole blocks in random order, page cache cold\n"
    "  direct_sync     O_DIRECT pread() of whole blocks, one after another\n"
    "  hifc            the flash store into HiFC's tiers: many reads at a time, checksums "
    "verified\n"
    "Policies:\n"
    "  lru, fifo       what was used, or came in, longest ago goes\n"
    "  scan            what is expected latest goes; keeps a part of a cyclic scan\n"
    "  cost            chance of use x measured reload time / bytes decides\n"
    "\n"
    "hifc is measured under every policy with the whole trace. Other ways read for --seconds in\n"
    "each round what lru misses; their rows for other policies have the same speed and the "
    "policy's\n"
    "own hit_rate. trace_s: time that the trace waits for reads. speedup and speedup_block: gbps\n"
    "over that of buffered_4k and of buffered_block in the same round; medians. What is read is\n"
    "compared with what was written, outside of the time: of hifc every block once, and in the\n"
    "rounds by its checksums.\n"
    "\n"
    "Example: conversations of Llama 2 7B, 128 MiB for 256 tokens; 8.5 GiB of room:\n"
    "  hifc bench swap --flash /data/kv --layers 32 --block-kib 4096 --sequences 8 --groups 2";

}  // namespace

void add_bench_swap(CLI::App& bench, Action& chosen) {
  CLI::App* swap = bench.add_subcommand(
      "swap", "Swapping conversations in from flash: replacement policies and ways to read");
  auto options = std::make_shared<SwapBenchOptions>();
  swap->footer(kHelp);
  swap->add_option("--flash", options->directory, "Directory on the drive to measure")
      ->required()
      ->type_name("DIR");
  SwapWorkloadOptions& workload = options->workload;
  const auto counts = between(1u, 4096u);
  add_number(*swap, "--rounds", options->rounds, counts, "Interleaved rounds; medians are shown");
  add_number(*swap, "--seconds", options->seconds, between(0.05, 3600.0),
             "Time of each baseline in each round")
      ->type_name("S");
  add_number(*swap, "--sequences", workload.sequences, counts, "Conversations");
  add_number(*swap, "--groups", workload.groups, counts,
             "Groups of a conversation on average; they have from half to one and a half of it");
  add_number(*swap, "--layers", workload.layers, between(1u, 512u), "Blocks of a group");
  add_number(*swap, "--block-kib", options->block_kib, between(uint64_t{4}, uint64_t{16384}),
             "Size of a block, a multiple of 4")
      ->type_name("KIB");
  add_number(*swap, "--memory", options->memory, between(0.0, 1.0),
             "Share of all groups that memory has room for")
      ->type_name("SHARE");
  add_number(*swap, "--accesses", workload.accesses, between(0u, 1'000'000u),
             "Conversations wanted by popularity");
  add_number(*swap, "--passes", workload.passes, counts, "Then all of them in turn, so many times");
  add_number(*swap, "--depth", options->depth, between(1u, 2048u), "HiFC's reads in flight");
  add_output_flags(*swap, options->output);
  swap->callback([=, &chosen] {
    if (options->block_kib % 4 != 0)
      throw BadValue("--block-kib", std::to_string(options->block_kib), "a multiple of 4");
    chosen = [=] { return SwapBench(*options)(); };
  });
}

}  // namespace hifc::apps
