// The rows of `hifc bench table`: what is measured of one contender, its ratios to host offload,
// and the table for people, with what is claimed of the published system's.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hifc::apps {

// What was not measured is empty.
struct Latencies {
  struct Samples {
    std::vector<double> seconds;  // [round]
    std::vector<double> waits;    // [round] of these, seconds until KV was there
  };
  Samples first_token;  // of a prompt, from an empty cache
  Samples stored;       // of a prompt whose KV is on flash
  Samples token;        // of one more token
};

// Medians in milliseconds, spreads, and ratios to two kinds of host offload. Null: not measured.
nlohmann::ordered_json latency_metrics(const Latencies& own, const Latencies& offload,
                                       const Latencies& offload_same_policy);

// Of rows as BenchReport has them.
std::string latency_table(const nlohmann::ordered_json& rows);

}  // namespace hifc::apps
