// The report of one run: what `hifc run` prints as a table and `--report` writes as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace hifc::apps {

struct RunMeasurements {
  std::string policy;  // as configured
  std::string text;
  uint32_t prompt_tokens = 0;
  uint32_t computed_tokens = 0;  // of the prompt, after the reused ones; fewer if interrupted
  uint32_t generated_tokens = 0;
  double ttft_ms = 0;  // prefill and the first token's sampling; 0: interrupted before
  double prefill_ms = 0;
  std::vector<double> token_ms;  // each generated token after the first
  double decode_stall_ms = 0;    // of token_ms: waiting for flash
  uint64_t model_rss_bytes = 0;  // resident once the model was loaded and checked
};

double percentile(std::vector<double> values, double share);
double mean(const std::vector<double>& values);

// Keys as documented in docs/report.md; unknown figures are null.
nlohmann::ordered_json run_report(engine::Engine& engine, const RunMeasurements& run);

// What attention left out; alike in every report.
nlohmann::ordered_json attention_json(const engine::Engine& engine);

std::string run_table(engine::Engine& engine, const RunMeasurements& run);

}  // namespace hifc::apps
