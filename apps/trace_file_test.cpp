#include "apps/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "testing/sim_clock.h"
#include "testing/temp_directory.h"

namespace hifc::apps {
namespace {

using Json = nlohmann::json;
using hifc::testing::SimClock;
using hifc::testing::TempDirectory;

constexpr TraceKind kStep{
    .track = "engine", .category = "step", .name = "step", .arguments = {"position", "tokens"}};
constexpr TraceKind kLayer{.track = "engine",
                           .category = "layer",
                           .name = "layer",
                           .arguments = {"layer"},
                           .numbered = true};
constexpr TraceKind kRead{
    .track = "reads", .category = "io", .name = "read", .arguments = {"layer", "bytes"}};
constexpr TraceKind kHostile{.track = "a \"track\"\n",
                             .category = "\\",
                             .name = "\x01 \xff\" }],",
                             .arguments = {"\"", "\xc3"}};

std::string text_of(const Trace& trace, std::string_view process = "test") {
  std::string text;
  print_trace(trace, process, [&](std::string_view piece) { text += piece; });
  return text;
}

Json json_of(const Trace& trace, std::string_view process = "test") {
  return Json::parse(text_of(trace, process));
}

std::vector<Json> of_phase(const Json& json, std::string_view phase) {
  std::vector<Json> events;
  for (const Json& event : json["traceEvents"])
    if (event["ph"] == phase) events.push_back(event);
  return events;
}

TEST(PrintTrace, AnEmptyTraceIsValid) {
  const SimClock clock;
  const Json json = json_of(Trace(clock));
  EXPECT_EQ(json["traceEvents"].size(), 1u);  // the name of the process
  EXPECT_EQ(json["otherData"]["dropped_events"], 0);
}

TEST(PrintTrace, SpansHaveTimesInMicrosecondsSinceTheStart) {
  SimClock clock;
  clock.advance_ns(5'000'000);
  Trace trace(clock);
  trace.add(kStep, 5'001'234, 5'003'234'567, {512, 1});
  const auto events = of_phase(json_of(trace), "X");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "step");
  EXPECT_EQ(events[0]["cat"], "step");
  EXPECT_EQ(events[0]["ts"], 1.234);
  EXPECT_EQ(events[0]["dur"], 4'998'233.333);
  EXPECT_EQ(events[0]["args"], (Json{{"position", 512}, {"tokens", 1}}));
}

TEST(PrintTrace, TracksAndTheProcessHaveNames) {
  const SimClock clock;
  Trace trace(clock);
  trace.add(kStep, 0, 1, {});
  TraceAsync(&trace, kRead, {}).end(TraceEnd::kDone);
  const Json json = json_of(trace, "some run");
  std::map<std::string, int> tracks;
  const auto names = of_phase(json, "M");
  EXPECT_EQ(names[0]["name"], "process_name");
  EXPECT_EQ(names[0]["args"]["name"], "some run");
  for (const Json& event : names)
    if (event["name"] == "thread_name") tracks[event["args"]["name"]] = event["tid"];
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(of_phase(json, "X")[0]["tid"], tracks["engine"]);
  EXPECT_EQ(of_phase(json, "b")[0]["tid"], tracks["reads"]);
  EXPECT_NE(tracks["engine"], tracks["reads"]);
}

TEST(PrintTrace, OuterSpansComeBeforeInnerOnesEvenWhenTheyBeginTogether) {
  const SimClock clock;
  Trace trace(clock);
  trace.add(kLayer, 10, 20, {0});
  trace.add(kLayer, 20, 20, {1});  // neither it nor what is around it takes any time
  trace.add(kLayer, 20, 20, {2});
  trace.add(kStep, 10, 30, {});
  std::vector<std::string> names;
  for (const Json& event : of_phase(json_of(trace), "X")) names.push_back(event["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"step", "layer 0", "layer 2", "layer 1"}));
}

// What Perfetto asks of complete events: of two on a track, one is inside the other or after it.
TEST(PrintTrace, ScopesNeverOverlap) {
  SimClock clock;
  Trace trace(clock, 20);  // the ring has dropped inner spans of what it still has
  for (uint64_t step = 0; step < 5; ++step) {
    const TraceScope outer(&trace, kStep, {step});
    for (uint64_t layer = 0; layer < 6; ++layer) {
      const TraceScope inner(&trace, kLayer, {layer});
      clock.advance_ns(1 + layer * 333);
    }
  }
  const auto events = of_phase(json_of(trace), "X");
  ASSERT_EQ(events.size(), 20u);
  std::vector<double> ends;
  for (const Json& event : events) {
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    constexpr double kRounding = 1e-6;
    while (!ends.empty() && ends.back() <= begin + kRounding) ends.pop_back();
    EXPECT_LE(end, ends.empty() ? end : ends.back() + kRounding);
    ends.push_back(end);
  }
}

TEST(PrintTrace, AsynchronousSpansArePairsWithIdsOfTheirOwn) {
  SimClock clock;
  Trace trace(clock);
  const TraceAsync first(&trace, kRead, {3, 4096}), second(&trace, kRead, {4, 8192});
  clock.advance_ns(1500);
  first.end(TraceEnd::kDone);
  second.end(TraceEnd::kFailed);
  const Json json = json_of(trace);
  const auto begins = of_phase(json, "b"), ends = of_phase(json, "e");
  ASSERT_EQ(begins.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_NE(begins[0]["id"], begins[1]["id"]);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"id", "cat", "name", "pid"}) EXPECT_EQ(begins[i][key], ends[i][key]);
    EXPECT_EQ(begins[i]["ts"], 0);
    EXPECT_EQ(ends[i]["ts"], 1.5);
    const bool failed = begins[i]["args"]["layer"] == 4;
    EXPECT_EQ(begins[i]["args"]["bytes"], failed ? 8192 : 4096);
    EXPECT_EQ(ends[i]["args"]["failed"], failed);
  }
}

TEST(PrintTrace, WhatIsStillOpenHasABeginningOnly) {
  const SimClock clock;
  Trace trace(clock);
  const TraceAsync open(&trace, kRead, {1, 2});
  const Json json = json_of(trace);
  EXPECT_EQ(of_phase(json, "b").size(), 1u);
  EXPECT_EQ(of_phase(json, "e").size(), 0u);
}

TEST(PrintTrace, AnyTextIsEscaped) {
  const SimClock clock;
  Trace trace(clock);
  trace.add(kHostile, 0, 1, {1, 2});
  const Json json = json_of(trace, "\xff\"}");
  const auto events = of_phase(json, "X");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "\x01 \xef\xbf\xbd\" }],");
  EXPECT_EQ(events[0]["args"]["\""], 1);
  EXPECT_EQ(of_phase(json, "M")[0]["args"]["name"], "\xef\xbf\xbd\"}");
}

TEST(PrintTrace, CountsWhatWasDropped) {
  const SimClock clock;
  Trace trace(clock, 2);
  for (uint64_t i = 0; i < 5; ++i) trace.add(kStep, i, i + 1, {i});
  const Json json = json_of(trace);
  EXPECT_EQ(json["otherData"]["dropped_events"], 3);
  EXPECT_EQ(of_phase(json, "X").size(), 2u);
}

// More than one piece.
TEST(PrintTrace, LongTracesAreValid) {
  const SimClock clock;
  Trace trace(clock);
  for (uint64_t i = 0; i < 20000; ++i) trace.add(kLayer, i, i + 1, {i});
  size_t pieces = 0;
  print_trace(trace, "", [&](std::string_view) { ++pieces; });
  EXPECT_GT(pieces, 1u);
  EXPECT_EQ(of_phase(json_of(trace), "X").size(), 20000u);
}

class TraceFileTest : public ::testing::Test {
 protected:
  // As a command does; `words` stand after its name.
  Result<void> start(std::vector<std::string> words) {
    file_.add_option(app_);
    std::ranges::reverse(words);
    app_.parse(words);
    return file_.start();
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_.path()),
                                             std::filesystem::directory_iterator()));
  }

  TempDirectory directory_;
  std::string path_ = directory_.file("t.json");
  CLI::App app_;
  TraceFile file_;
};

TEST_F(TraceFileTest, WithoutTheOptionNothingIsRecordedOrWritten) {
  ASSERT_TRUE(start({}));
  EXPECT_EQ(file_.trace(), nullptr);
  EXPECT_TRUE(file_.write("x"));
  EXPECT_EQ(files(), 0u);
}

TEST_F(TraceFileTest, IsWrittenAtTheEndAndReplacesTheFormerOne) {
  std::ofstream(path_) << "former";
  ASSERT_TRUE(start({"--trace", path_}));
  EXPECT_EQ(std::filesystem::file_size(path_), 6u);
  {
    const TraceScope scope(file_.trace(), kStep);
  }
  ASSERT_TRUE(file_.write("x"));
  std::ifstream written(path_);
  EXPECT_EQ(of_phase(Json::parse(written), "X").size(), 1u);
  EXPECT_EQ(files(), 1u);
}

TEST_F(TraceFileTest, StartFailsWhereNoFileCanBeMade) {
  const std::string nowhere = directory_.file("none/t.json");
  const auto started = start({"--trace", nowhere});
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().message(),
            "cannot write the trace file \"" + nowhere + "\": No such file or directory");
  EXPECT_EQ(file_.trace(), nullptr);
}

TEST_F(TraceFileTest, NeverReplacesWhatIsNoFile) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const auto started = start({"--trace", path_});
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, Code::kInvalid);
  EXPECT_TRUE(std::filesystem::is_fifo(path_));
}

}  // namespace
}  // namespace hifc::apps
