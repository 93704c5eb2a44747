// hifc bench: HiFC against its baselines, interleaved with them in one process.
#include "apps/bench.h"

#include <CLI/CLI.hpp>

namespace hifc::apps {

void add_bench_command(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure HiFC against its baselines");
  bench->require_subcommand(1);
  add_bench_attention(*bench, chosen);
  add_bench_decode(*bench, chosen);
  add_bench_prefetch(*bench, chosen);
  add_bench_prefill(*bench, chosen);
  add_bench_flash(*bench, chosen);
  add_bench_quality(*bench, chosen);
  add_bench_resume(*bench, chosen);
  add_bench_retrieval(*bench, chosen);
  add_bench_swap(*bench, chosen);
  add_bench_table(*bench, chosen);
}

Result<void> check_interrupted() {
  if (interrupted()) return failure(Code::kCancelled, "interrupted");
  return {};
}

}  // namespace hifc::apps
