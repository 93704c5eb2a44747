#include "apps/latency_table.h"

#include <gtest/gtest.h>

namespace hifc::apps {
namespace {

using Json = nlohmann::ordered_json;

TEST(LatencyMetrics, AreMediansAndRatiosOfTheSameRound) {
  const Latencies own{.first_token = {.seconds = {6, 8}, .waits = {1, 2}},
                      .stored = {.seconds = {0.1, 0.3, 0.2}, .waits = {0.1, 0.1, 0}},
                      .token = {.seconds = {0.02, 0.03, 0.02}, .waits = {0, 0.01, 0}}};
  const Latencies offload{.first_token = {.seconds = {12, 8}, .waits = {}},
                          .stored = {},
                          .token = {.seconds = {0.04, 0.03, 0.08}, .waits = {}}};
  const Latencies same{
      .first_token = {}, .stored = {}, .token = {.seconds = {0.01, 0.03, 0.04}, .waits = {}}};
  const Json metrics = latency_metrics(own, offload, same);
  EXPECT_DOUBLE_EQ(metrics["ttft_ms"], 7000);
  EXPECT_DOUBLE_EQ(metrics["ttft_wait_ms"], 1500);
  EXPECT_DOUBLE_EQ(metrics["ttft_stored_ms"], 200);
  EXPECT_DOUBLE_EQ(metrics["token_ms"], 20);
  EXPECT_DOUBLE_EQ(metrics["token_wait_ms"], 0);
  EXPECT_DOUBLE_EQ(metrics["ttft_vs_offload"], 0.75);
  EXPECT_DOUBLE_EQ(metrics["token_vs_offload"], 0.5);
  EXPECT_DOUBLE_EQ(metrics["token_vs_offload_same_policy"], 1);
  EXPECT_DOUBLE_EQ(metrics["token_vs_offload_spread"], 1.5);
}

TEST(LatencyMetrics, AreNullWhereNothingWasMeasured) {
  const Latencies offload{.first_token = {.seconds = {12}, .waits = {}},
                          .stored = {},
                          .token = {.seconds = {0.04}, .waits = {}}};
  for (const auto& [name, value] : latency_metrics({}, offload, offload).items())
    EXPECT_TRUE(value.is_null()) << name;
}

TEST(LatencyTable, SetsRowsBesideTheClaims) {
  const Json rows = {
      {{"name", "table.original"},
       {"metrics", {{"ttft_ms", nullptr}, {"out_of_memory", true}, {"kv_memory_bytes", 3u << 20}}},
       {"target", Json::object()},
       {"pass", nullptr}},
      {{"name", "table.offload.fp16"},
       {"metrics", {{"ttft_ms", 1000.0}, {"emulated", "as it is"}}},
       {"target", Json::object()},
       {"pass", nullptr}},
      {{"name", "table.exact.auto75"},
       {"metrics", {{"ttft_vs_offload", 0.9}, {"token_vs_offload", 0.5}}},
       {"target", {{"ttft_vs_offload", "<= 0.8"}}},
       {"pass", false}}};
  const std::string text = latency_table(rows);
  for (const char* part :
       {"3.0 MiB, out of memory", "table.offload.fp16 (emulated)", "0.90 (<= 0.8)", "MISSED",
        "F6: original", "F6: host offload", "F6: HiFC", "0.61", "0.80", "A100", "emulated: "})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

}  // namespace
}  // namespace hifc::apps
