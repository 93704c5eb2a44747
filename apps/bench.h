// The benchmarks behind `hifc bench`: each adds its subcommand, as in apps/command.h.
#pragma once

#include "apps/command.h"

namespace hifc::apps {

void add_bench_attention(CLI::App& bench, Action& chosen);
void add_bench_decode(CLI::App& bench, Action& chosen);
void add_bench_prefetch(CLI::App& bench, Action& chosen);
void add_bench_prefill(CLI::App& bench, Action& chosen);
void add_bench_flash(CLI::App& bench, Action& chosen);
void add_bench_quality(CLI::App& bench, Action& chosen);
void add_bench_resume(CLI::App& bench, Action& chosen);
void add_bench_retrieval(CLI::App& bench, Action& chosen);
void add_bench_swap(CLI::App& bench, Action& chosen);
void add_bench_table(CLI::App& bench, Action& chosen);

Result<void> check_interrupted();

}  // namespace hifc::apps
