// hifc bench flash: the store's reads and writes against fio's on the same file system, and how
// long it takes to open.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "apps/arguments.h"
#include "apps/bench.h"
#include "apps/bench_open.h"
#include "apps/bench_report.h"
#include "apps/bench_store.h"
#include "apps/fio.h"
#include "apps/samples.h"
#include "apps/scratch_directory.h"
#include "base/config.h"
#include "base/log.h"
#include "base/units.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using Bound = BenchReport::Bound;

constexpr uint64_t kMiB = 1u << 20;

struct FlashBenchOptions {
  std::string directory;
  uint32_t rounds = 9;
  double seconds = 1;  // of each contender in each round
  uint32_t depth = kReadsPerWorker * Config{}.prefetch_workers;
  uint32_t random_depth = 32;
  uint64_t size_mib = 1024;  // of what is written and read again and again
  std::vector<uint64_t> values = {100'000};
  BenchOutput output;
};

class FlashBench {
 public:
  explicit FlashBench(const FlashBenchOptions& options) : options_(options) {}

  Result<int> operator()() {
    HIFC_ASSIGN(scratch_, ScratchDirectory::create(options_.directory));
    HIFC_TRY(check_room());
    BenchReport report("flash", parameters());
    // Whole values of 4 MiB; SmolLM2's groups of 30 blocks of 192 KiB; single pages.
    HIFC_TRY(measure_values(report, "4m", {.lanes = 1, .lane_bytes = 4 * kMiB}));
    HIFC_TRY(measure_values(report, "192k", {.lanes = 30, .lane_bytes = 192u << 10}));
    HIFC_TRY(measure_pages(report));
    HIFC_TRY(add_open_rows(
        report,
        {.directory = scratch_.path(), .values = options_.values, .rounds = options_.rounds}));
    return publish(report, options_.output);
  }

 private:
  struct Case {
    std::string row;
    std::vector<std::string> files = {};  // that fio reads too
    FioPattern pattern = FioPattern::kRead;
    uint64_t block_bytes = 0;
    uint32_t depth = 0;
    double ratio_min = 0;
    std::function<Result<BenchStore::Speed>()> transfer;
  };

  uint64_t size_bytes() const { return options_.size_mib * kMiB; }

  Json parameters() const {
    return {{"directory", options_.directory}, {"rounds", options_.rounds},
            {"seconds", options_.seconds},     {"depth", options_.depth},
            {"size_bytes", size_bytes()},      {"values", options_.values}};
  }

  // One store and fio's file at a time; later a store of many values.
  Result<void> check_room() const {
    const uint64_t needed = std::max(2 * size_bytes(), open_bench_bytes(options_.values));
    HIFC_ASSIGN(const uint64_t free, free_bytes(options_.directory));
    if (needed + 1024 * kMiB <= free) return {};
    return failure(Code::kFull,
                   fmt::format("{} has {} free, the benchmark needs {} and 1 GiB more",
                               options_.directory, format_size(free), format_size(needed)));
  }

  Result<std::unique_ptr<BenchStore>> make_store(BenchStore::Options options) const {
    options.directory = scratch_.path() + "/store";
    options.capacity_bytes = size_bytes();
    HIFC_ASSIGN(auto store, BenchStore::create(std::move(options)));
    HIFC_TRY(store->fill());
    return store;
  }

  Result<void> measure_values(BenchReport& report, const std::string& name,
                              BenchStore::Options shape) const {
    shape.depth = options_.depth;
    // As the cache does (tier/tiers.cpp): 64 chunks a lane, but whole pages.
    shape.chunk_bytes =
        static_cast<uint32_t>(std::max<uint64_t>(io::kAlignment, shape.lane_bytes / 64));
    HIFC_ASSIGN(const auto store, make_store(shape));
    const auto with = [&](const char* direction, FioPattern pattern, auto transfer) {
      return Case{
          .row = fmt::format("flash.{}_{}", direction, name),
          .files = pattern == FioPattern::kRead ? store->files() : std::vector<std::string>(),
          .pattern = pattern,
          .block_bytes = shape.lane_bytes,
          .depth = options_.depth,
          .ratio_min = 0.97,
          .transfer = transfer};
    };
    HIFC_TRY(compare(
        report, with("write", FioPattern::kWrite, [&] { return store->write(options_.seconds); })));
    if (shape.lanes > 1) HIFC_TRY(measure_write_amplification(report, *store));
    HIFC_TRY(store->pin());
    return compare(report,
                   with("read", FioPattern::kRead, [&] { return store->read(options_.seconds); }));
  }

  Result<void> measure_write_amplification(BenchReport& report, BenchStore& store) const {
    // First what the store may write again at once is spent, then it is in steady state.
    HIFC_TRY(store.write_amplification(4 * size_bytes()));
    HIFC_ASSIGN(const double ratio, store.write_amplification(4 * size_bytes()));
    const flash::StoreStatistics& statistics = store.statistics();
    report.add_row("flash.write_amplification",
                   {{"ratio", ratio},
                    {"reinserted_bytes", statistics.reinserted_bytes},
                    {"overwrites_min", statistics.overwrites_min},
                    {"overwrites_max", statistics.overwrites_max}},
                   {{"ratio", Bound::kAtMost, 1.02}});
    return {};
  }

  Result<void> measure_pages(BenchReport& report) const {
    HIFC_ASSIGN(const auto store, make_store({.directory = {},
                                              .depth = options_.random_depth,
                                              .lanes = 1,
                                              .lane_bytes = kMiB,
                                              .chunk_bytes = io::kAlignment}));
    HIFC_TRY(store->pin());
    return compare(report, {.row = "flash.randread_4k",
                            .files = store->files(),
                            .pattern = FioPattern::kRandomRead,
                            .block_bytes = io::kAlignment,
                            .depth = options_.random_depth,
                            .ratio_min = 0.9,
                            .transfer = [&] { return store->read_chunks(options_.seconds); }});
  }

  struct Round {
    BenchStore::Speed store;
    FioResult fio;
  };

  // The store and fio by turns, and each first in every other round: the machine's speed drifts.
  Result<Round> run_round(const Case& with, uint32_t number) const {
    Round round;
    const auto run_store = [&]() -> Result<void> {
      HIFC_ASSIGN(round.store, with.transfer());
      return {};
    };
    if (number % 2 == 0) HIFC_TRY(run_store());
    HIFC_ASSIGN(round.fio, run_fio({.directory = scratch_.path(),
                                    .files = with.files,
                                    .pattern = with.pattern,
                                    .file_bytes = with.files.empty() ? size_bytes() : 0,
                                    .block_bytes = with.block_bytes,
                                    .depth = with.depth,
                                    .seconds = options_.seconds}));
    if (number % 2 == 1) HIFC_TRY(run_store());
    return round;
  }

  Result<void> compare(BenchReport& report, const Case& with) const {
    std::vector<double> gbps, core_s, fio_gbps, fio_core_s, ratios;
    for (uint32_t number = 0; number < options_.rounds; ++number) {
      log_info("{}, round {}", with.row, number + 1);
      HIFC_ASSIGN(const Round round, run_round(with, number));
      gbps.push_back(round.store.gbps), core_s.push_back(round.store.core_s_per_gb);
      fio_gbps.push_back(round.fio.gbps), fio_core_s.push_back(round.fio.core_s_per_gb);
      ratios.push_back(round.store.gbps / round.fio.gbps);
    }
    std::vector<BenchReport::Target> targets = {{"ratio", Bound::kAtLeast, with.ratio_min}};
    if (with.pattern != FioPattern::kRandomRead)
      targets.push_back({"core_s_per_gb", Bound::kAtMost, 0.3});
    report.add_row(with.row,
                   {{"gbps", median(gbps)},
                    {"fio_gbps", median(fio_gbps)},
                    {"ratio", median(ratios)},
                    {"ratio_spread", spread(ratios)},
                    {"core_s_per_gb", median(core_s)},
                    {"fio_core_s_per_gb", median(fio_core_s)},
                    {"depth", with.depth}},
                   targets);
    return {};
  }

  const FlashBenchOptions& options_;
  ScratchDirectory scratch_;
};

}  // namespace

void add_bench_flash(CLI::App& bench, Action& chosen) {
  CLI::App* flash = bench.add_subcommand(
      "flash", "The flash store against fio: bandwidth, processor time, opening");
  auto options = std::make_shared<FlashBenchOptions>();
  flash->footer(
      "Files of the benchmark are made in a directory of their own in DIR and removed at the end.\n"
      "Opening 2 million values needs 12 GB of room:\n"
      "  hifc bench flash --flash /data/kv --values 100000,2000000");
  flash->add_option("--flash", options->directory, "Directory on the drive to measure")
      ->required()
      ->type_name("DIR");
  const auto counts = between(1u, 4096u);
  add_number(*flash, "--rounds", options->rounds, counts, "Interleaved rounds; medians are shown");
  add_number(*flash, "--depth", options->depth, counts,
             "Transfers in flight; 32 for single pages in any case");
  add_number(*flash, "--seconds", options->seconds, between(0.05, 3600.0),
             "Time of each contender in each round")
      ->type_name("S");
  add_number(*flash, "--size-mib", options->size_mib, between(uint64_t{256}, uint64_t{1} << 20),
             "What is written and read again and again")
      ->type_name("MIB");
  add_numbers(*flash, "--values", options->values, between(uint64_t{0}, uint64_t{100'000'000}),
              "Values of the stores to open; none: 0");
  add_output_flags(*flash, options->output);
  flash->callback([=, &chosen] { chosen = [=] { return FlashBench(*options)(); }; });
}

}  // namespace hifc::apps
