// How long single calls of the index take and how much memory it needs: while it fills, when it is
// full, and in steady state, where for every new segment the oldest one vanishes. Latencies are in
// nanoseconds by the wall clock and include reading it. On a shared machine the maximum is what the
// system does in between (`nothing_max`); the workload is the same in every run, so that
// `*_max_of_least`, the maximum of each call's least time in several runs, is the index's own.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "flash/index.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kValues = 2'000'000;
constexpr uint64_t kPerSegment = 500;
constexpr int kRuns = 4;

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

Key key_of(uint64_t number) {
  Key key;
  for (size_t i = 0; i < key.size(); i += 8) {
    const uint64_t word = hash64(std::as_bytes(std::span(&number, 1)), i);
    std::memcpy(&key[i], &word, 8);
  }
  return key;
}

// The times of one phase's calls, in every run of the same workload.
struct Phase {
  std::vector<uint32_t> first_run = std::vector<uint32_t>(kValues);
  std::vector<uint32_t> least = std::vector<uint32_t>(kValues, UINT32_MAX);
};

// Calls `operation` with kValues numbers and their keys.
template <typename Operation>
void measure(Phase& phase, uint64_t first, Operation operation) {
  for (uint64_t i = 0; i < kValues; ++i) {
    const Key key = key_of(first + i);
    const uint64_t begin = now_ns();
    operation(first + i, key);
    const auto time = static_cast<uint32_t>(now_ns() - begin);
    if (phase.least[i] == UINT32_MAX) phase.first_run[i] = time;
    phase.least[i] = std::min(phase.least[i], time);
  }
}

void report(benchmark::State& state, const std::string& name, Phase& phase) {
  std::vector<uint32_t>& times = phase.first_run;
  std::ranges::sort(times);
  state.counters[name + "_median"] = times[kValues / 2];
  state.counters[name + "_p99"] = times[kValues / 100 * 99];
  state.counters[name + "_p99.9"] = times[kValues / 1000 * 999];
  state.counters[name + "_max"] = times.back();
  state.counters[name + "_max_of_least"] = std::ranges::max(phase.least);
}

// An index whose segments' lives are kept as a store might keep them.
struct Filled {
  Filled() : index([this](uint32_t segment) { return alive.contains(segment); }, 1) {}

  void insert(uint64_t number, const Key& key) {
    const auto segment = static_cast<uint32_t>(number / kPerSegment);
    if (number % kPerSegment == 0) {
      alive.insert(segment);
      if (number >= kValues) alive.erase(segment - static_cast<uint32_t>(kValues / kPerSegment));
    }
    index.insert(key, {.segment = segment, .batch_page = 1, .value = 2, .header_pages = 3});
    const uint64_t live = std::min(number, kValues - kPerSegment) + 1;
    if (live >= 10'000) {
      bytes_per_value_max =
          std::max(bytes_per_value_max,
                   static_cast<double>(index.memory_bytes()) / static_cast<double>(live));
    }
  }

  std::unordered_set<uint32_t> alive;
  Index index;
  double bytes_per_value_max = 0;
};

size_t heap_bytes() {
  return mallinfo2().uordblks + mallinfo2().hblkhd;
}

struct Phases {
  Phase nothing, insert, find, steady_insert;
};

void run(benchmark::State& state, Phases& phases) {
  measure(phases.nothing, 0, [](uint64_t, const Key&) {});
  const size_t heap_before = heap_bytes();
  Filled filled;
  const auto insert = [&](uint64_t number, const Key& key) { filled.insert(number, key); };
  measure(phases.insert, 0, insert);
  state.counters["bytes_per_value"] = static_cast<double>(filled.index.memory_bytes()) / kValues;
  state.counters["bytes_per_value_max"] = filled.bytes_per_value_max;
  state.counters["heap_per_value"] = static_cast<double>(heap_bytes() - heap_before) / kValues;
  measure(phases.find, 0,
          [&](uint64_t, const Key& key) { benchmark::DoNotOptimize(filled.index.find(key)); });
  for (uint64_t number = kValues; number < 2 * kValues; ++number) insert(number, key_of(number));
  filled.bytes_per_value_max = 0;
  measure(phases.steady_insert, 2 * kValues, insert);
  state.counters["steady_bytes_per_value"] =
      static_cast<double>(filled.index.memory_bytes()) / kValues;
  state.counters["steady_bytes_per_value_max"] = filled.bytes_per_value_max;
}

void Index2Million(benchmark::State& state) {
  for (auto _ : state) {
    Phases phases;
    for (int i = 0; i < kRuns; ++i) run(state, phases);
    report(state, "nothing", phases.nothing);
    report(state, "insert", phases.insert);
    report(state, "find", phases.find);
    report(state, "steady_insert", phases.steady_insert);
  }
}
BENCHMARK(Index2Million)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace hifc::flash
