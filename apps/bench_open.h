// Opening a store of many small values after its process was killed, and what the number of values
// does to putting and finding them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "base/result.h"

namespace hifc::apps {

struct OpenBenchOptions {
  std::string directory;         // for one store each
  std::vector<uint64_t> values;  // of each store; 0: skipped
  uint32_t rounds = 5;
};

// Room that the stores take, all of which are there at the end.
uint64_t open_bench_bytes(const std::vector<uint64_t>& values);

// flash.open_N for each store; with two stores or more also flash.put_p99 and flash.lookup_p99 of
// the largest against the smallest.
Result<void> add_open_rows(BenchReport& report, const OpenBenchOptions& options);

}  // namespace hifc::apps
