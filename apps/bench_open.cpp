#include "apps/bench_open.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <ctime>
#include <memory>
#include <random>

#include "apps/bench.h"
#include "apps/bench_store.h"
#include "apps/samples.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/memory.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;
using Bound = BenchReport::Bound;

constexpr uint64_t kValueBytes = 4096;
constexpr uint64_t kBatchValues = 4000;
constexpr uint32_t kBatchesInFlight = 2;
constexpr flash::BatchShape kShape = {.lanes = 1, .chunk_bytes = kValueBytes};

constexpr uint32_t kPutsPerRound = 500;
constexpr uint32_t kLookupsPerRound = 50'000;

uint64_t capacity_bytes(uint64_t values) {
  // A page and its record, checksum and checkpoint entry; and segments that are not full.
  return values * (kValueBytes + 128) + (uint64_t{1} << 30);
}

// A store with its ring, and memory to put from.
struct OpenedStore {
  uint64_t values = 0;
  uint64_t next = 0;  // number of the next value to put
  io::AlignedMemory memory;
  std::unique_ptr<io::Ring> ring;
  std::unique_ptr<flash::Store> store;
  std::vector<double> put_us, put_processor_us, lookup_us;  // of this round
  uint64_t found = 0;                                       // in all lookups

  static Result<OpenedStore> open(const std::string& directory, uint64_t values) {
    OpenedStore opened;
    opened.values = opened.next = values;
    HIFC_ASSIGN(opened.memory, io::AlignedMemory::allocate(kBatchValues * kValueBytes));
    fill_random(opened.memory.span());
    HIFC_ASSIGN(opened.ring, io::Ring::create({}));
    opened.ring->register_memory(opened.memory.span());
    HIFC_ASSIGN(opened.store, flash::Store::open({.directory = directory,
                                                  .capacity_bytes = capacity_bytes(values)},
                                                 *opened.ring));
    return opened;
  }

  // The batch's `count` values from `first` on.
  Result<void> put(uint64_t first, uint64_t count, flash::Store::PutDone done) {
    std::vector<flash::PutValue> batch;
    for (uint64_t i = 0; i < count; ++i)
      batch.push_back({.key = bench_key(first + i),
                       .lanes = {memory.span().subspan(i * kValueBytes, kValueBytes)}});
    return store->put(kShape, std::move(batch), std::move(done));
  }
};

// ---- a store whose process is killed ----

Result<void> fill(const std::string& directory, uint64_t values) {
  HIFC_ASSIGN(OpenedStore opened, OpenedStore::open(directory, values));
  uint32_t in_flight = 0;
  Result<void> outcome;
  for (uint64_t first = 0; first < values && outcome;) {
    if (in_flight == kBatchesInFlight) {
      opened.store->wait();
      continue;
    }
    const uint64_t count = std::min(kBatchValues, values - first);
    const auto put = opened.put(first, count, [&](Result<std::vector<flash::Handle>> handles) {
      --in_flight;
      if (!handles) outcome = std::unexpected(std::move(handles).error());
    });
    if (put)
      ++in_flight, first += count;
    else if (put.error().code == Code::kBusy)
      opened.store->wait();
    else
      outcome = std::unexpected(put.error());
    if (interrupted()) outcome = check_interrupted();
  }
  while (in_flight > 0) opened.store->wait();
  HIFC_TRY(outcome);
  (void)new OpenedStore(std::move(opened));  // to be killed with: no checkpoint, no clean end
  return {};
}

// Says "" when the store is filled, else why not; then waits to be killed.
[[noreturn]] void fill_and_wait(const std::string& directory, uint64_t values, int reports) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto filled = fill(directory, values);
  const std::string message = filled ? "" : filled.error().message();
  (void)!write(reports, message.c_str(), message.size());
  close(reports);
  while (true) pause();
}

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 256> buffer;
  for (ssize_t got; (got = read(descriptor, buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(got));
  return text;
}

Result<void> fill_in_killed_process(const std::string& directory, uint64_t values) {
  std::array<int, 2> pipe_ends = {};
  if (pipe(pipe_ends.data()) != 0) return failure(Code::kIo, "no pipe", errno);
  const pid_t child = fork();
  if (child < 0) return failure(Code::kIo, "the process to be killed cannot be started", errno);
  if (child == 0) {
    close(pipe_ends[0]);
    fill_and_wait(directory, values, pipe_ends[1]);
  }
  close(pipe_ends[1]);
  const std::string message = read_all(pipe_ends[0]);
  close(pipe_ends[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  HIFC_TRY(check_interrupted());
  if (!message.empty()) return failure(Code::kIo, message);
  return {};
}

std::string short_name(uint64_t values) {
  if (values % 1'000'000 == 0) return fmt::format("{}m", values / 1'000'000);
  if (values % 1'000 == 0) return fmt::format("{}k", values / 1'000);
  return fmt::format("{}", values);
}

std::vector<BenchReport::Target> open_targets(uint64_t values) {
  std::vector<BenchReport::Target> targets = {{"recovered_share", Bound::kAtLeast, 1},
                                              {"index_bytes_per_value", Bound::kAtMost, 40}};
  if (values <= 100'000)
    targets.push_back({"open_s", Bound::kAtMost, 2});
  else if (values <= 2'000'000)
    targets.push_back({"open_s", Bound::kAtMost, 15});
  return targets;
}

Result<OpenedStore> measure_open(BenchReport& report, const std::string& directory,
                                 uint64_t values) {
  log_info("filling a store with {} values, to be killed", values);
  HIFC_TRY(fill_in_killed_process(directory, values));
  const SystemClock clock;
  const uint64_t start_ns = clock.now_ns();
  HIFC_ASSIGN(OpenedStore opened, OpenedStore::open(directory, values));
  const double open_s = milliseconds(clock.now_ns() - start_ns) / 1000;
  const flash::StoreStatistics& statistics = opened.store->statistics();
  const auto count = static_cast<double>(values);
  report.add_row(fmt::format("flash.open_{}", short_name(values)),
                 {{"open_s", open_s},
                  {"values", values},
                  {"recovered_share", static_cast<double>(statistics.recovered_values) / count},
                  {"index_bytes_per_value", static_cast<double>(statistics.index_bytes) / count},
                  {"bytes_on_disk", statistics.bytes_on_disk},
                  {"read_bytes", opened.ring->statistics().read_bytes}},
                 open_targets(values));
  return opened;
}

// ---- putting and finding ----

uint64_t processor_ns() {  // of this thread
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

Result<void> put_one(OpenedStore& opened) {
  bool done = false;
  Result<void> outcome;
  HIFC_TRY(opened.put(opened.next++, 1, [&](Result<std::vector<flash::Handle>> handles) {
    done = true;
    if (!handles) outcome = std::unexpected(std::move(handles).error());
  }));
  while (!done) opened.store->wait();
  return outcome;
}

// One value at a time, from the call to its completion: as seen from outside, which is mostly the
// device, and without waiting for it.
Result<void> time_puts(OpenedStore& opened) {
  const SystemClock clock;
  opened.put_us.clear(), opened.put_processor_us.clear();
  for (uint32_t i = 0; i < kPutsPerRound; ++i) {
    const uint64_t start_ns = clock.now_ns(), start_processor_ns = processor_ns();
    HIFC_TRY(put_one(opened));
    opened.put_processor_us.push_back(milliseconds(processor_ns() - start_processor_ns) * 1000);
    opened.put_us.push_back(milliseconds(clock.now_ns() - start_ns) * 1000);
  }
  return {};
}

// Whether a value is there, which it is every other time: what a cache asks for each group of a
// prompt.
void time_lookups(OpenedStore& opened, std::mt19937_64& random) {
  const SystemClock clock;
  opened.lookup_us.clear();
  for (uint32_t i = 0; i < kLookupsPerRound; ++i) {
    const flash::Key key = bench_key(random() % (2 * opened.values));
    const uint64_t start_ns = clock.now_ns();
    const bool found = opened.store->contains(key);
    opened.lookup_us.push_back(milliseconds(clock.now_ns() - start_ns) * 1000);
    if (found) ++opened.found;
  }
}

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

// 99th percentiles of two stores, round by round.
class Comparison {
 public:
  void add(const std::vector<double>& of_small, const std::vector<double>& of_large) {
    small_.push_back(percentile(of_small, 0.99));
    large_.push_back(percentile(of_large, 0.99));
    ratios_.push_back(large_.back() / small_.back());
  }
  void add_metrics(Json& metrics, std::string_view prefix, const OpenedStore& small,
                   const OpenedStore& large) const {
    metrics[fmt::format("{}p99_us_{}", prefix, short_name(small.values))] = median(small_);
    metrics[fmt::format("{}p99_us_{}", prefix, short_name(large.values))] = median(large_);
    metrics[fmt::format("{}ratio", prefix)] = median(ratios_);
    metrics[fmt::format("{}ratio_spread", prefix)] = spread(ratios_);
  }

 private:
  std::vector<double> small_, large_, ratios_;
};

Result<void> add_latency_rows(BenchReport& report, OpenedStore& small, OpenedStore& large,
                              uint32_t rounds) {
  Comparison puts, put_processor, lookups;
  std::mt19937_64 random(1);
  for (uint32_t round = 0; round < rounds; ++round) {
    for (OpenedStore* const each : {&small, &large}) {
      HIFC_TRY(check_interrupted());
      HIFC_TRY(time_puts(*each));
      time_lookups(*each, random);
    }
    puts.add(small.put_us, large.put_us);
    put_processor.add(small.put_processor_us, large.put_processor_us);
    lookups.add(small.lookup_us, large.lookup_us);
  }
  Json put_metrics, lookup_metrics;
  puts.add_metrics(put_metrics, "", small, large);
  put_processor.add_metrics(put_metrics, "processor_", small, large);
  lookups.add_metrics(lookup_metrics, "", small, large);
  lookup_metrics["found"] = small.found + large.found;
  report.add_row("flash.put_p99", put_metrics, {{"processor_ratio", Bound::kAtMost, 1.5}});
  report.add_row("flash.lookup_p99", lookup_metrics);
  return {};
}

}  // namespace

uint64_t open_bench_bytes(const std::vector<uint64_t>& values) {
  uint64_t bytes = 0;
  for (const uint64_t each : values) bytes += each == 0 ? 0 : capacity_bytes(each);
  return bytes;
}

Result<void> add_open_rows(BenchReport& report, const OpenBenchOptions& options) {
  std::vector<uint64_t> values = options.values;
  std::ranges::sort(values);
  std::erase(values, 0);
  std::vector<OpenedStore> stores;
  for (const uint64_t each : values) {
    HIFC_ASSIGN(OpenedStore opened,
                measure_open(report, fmt::format("{}/{}", options.directory, each), each));
    stores.push_back(std::move(opened));
  }
  if (stores.size() < 2) return {};
  return add_latency_rows(report, stores.front(), stores.back(), options.rounds);
}

}  // namespace hifc::apps
