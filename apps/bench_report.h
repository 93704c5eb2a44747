// Results of a benchmark in the one form that all of them share: JSON for machines, a table for
// people, and targets that are stated and checked.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace hifc::apps {

// { "bench", "commit", "build", "machine", "parameters", "rows": [ { "name", "metrics", "target",
//   "pass" } ] }
class BenchReport {
 public:
  using Json = nlohmann::ordered_json;

  enum class Bound : uint8_t { kAtLeast, kAtMost };
  struct Target {
    std::string metric;
    Bound bound = Bound::kAtLeast;
    double value = 0;
  };

  BenchReport(std::string bench, Json parameters);

  // `metrics`: name -> number, string, true or false, null, or an array, which the table leaves
  // out. A target whose metric is null is not met.
  void add_row(std::string name, Json metrics, const std::vector<Target>& targets = {});

  bool all_targets_met() const { return all_met_; }
  const Json& json() const { return report_; }
  std::string heading() const;  // machine, build, commit and parameters; ends with an empty line
  std::string table() const;    // with the heading

 private:
  Json report_;
  bool all_met_ = true;
};

struct BenchOutput {
  bool json = false;
  bool enforce = false;  // exit status 3 when a target is missed
};

// --json and --enforce.
void add_output_flags(CLI::App& command, BenchOutput& output);

// Prints the report to standard output and gives the exit status; kIo. `table`: for people.
Result<int> publish(const BenchReport& report, const BenchOutput& output, const std::string& table);
Result<int> publish(const BenchReport& report, const BenchOutput& output);

}  // namespace hifc::apps
