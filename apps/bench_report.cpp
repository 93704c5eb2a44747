#include "apps/bench_report.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "apps/command.h"
#include "apps/table.h"
#include "hifc/build_info.h"
#include "kernels/attention.h"

namespace hifc::apps {
namespace {

using Json = BenchReport::Json;

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

Json machine() {
  utsname system = {};
  uname(&system);
  const auto kernels = kernels::select_kernels();
  return {{"cpu", cpu_name()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_bytes", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)},
          {"kernel", system.release},
          {"isa", kernels ? Json(kernels::to_string((*kernels)->isa)) : Json(nullptr)}};
}

bool met(const Json& value, const BenchReport::Target& target) {
  if (!value.is_number()) return false;
  const double measured = value.get<double>();
  return target.bound == BenchReport::Bound::kAtLeast ? measured >= target.value
                                                      : measured <= target.value;
}

std::string text_of(const Json& value) {
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

}  // namespace

BenchReport::BenchReport(std::string bench, Json parameters) {
  const BuildInfo& build = build_info();
  report_ = {{"bench", std::move(bench)},
             {"commit", build.commit},
             {"build", fmt::format("{} {}", build.type, build.compiler)},
             {"machine", machine()},
             {"parameters", std::move(parameters)},
             {"rows", Json::array()}};
}

void BenchReport::add_row(std::string name, Json metrics, const std::vector<Target>& targets) {
  Json target = Json::object();
  bool pass = true;
  for (const Target& each : targets) {
    const char* bound = each.bound == Bound::kAtLeast ? ">=" : "<=";
    target[each.metric] = fmt::format("{} {}", bound, each.value);
    pass = pass && met(metrics.value(each.metric, Json(nullptr)), each);
  }
  all_met_ = all_met_ && pass;
  report_["rows"].push_back({{"name", std::move(name)},
                             {"metrics", std::move(metrics)},
                             {"target", std::move(target)},
                             {"pass", targets.empty() ? Json(nullptr) : Json(pass)}});
}

std::string BenchReport::heading() const {
  return fmt::format("{} at {}, {}\n{}\nparameters {}\n\n", report_["bench"].get<std::string>(),
                     report_["commit"].get<std::string>(), report_["build"].get<std::string>(),
                     report_["machine"].dump(), report_["parameters"].dump());
}

std::string BenchReport::table() const {
  Table table({{"row"}, {"metric"}, {"value", Table::Align::kRight}, {"target"}});
  for (const Json& row : report_["rows"]) {
    std::string name = row["name"];
    for (const auto& [metric, value] : row["metrics"].items()) {
      if (value.is_array()) continue;  // too long for people
      const Json target = row["target"].value(metric, Json(""));
      table.add_row({name, metric, text_of(value), text_of(target)});
      name.clear();
    }
    if (!row["pass"].is_null())
      table.add_row({"", row["pass"].get<bool>() ? "pass" : "MISSED", "", ""});
  }
  return heading() + table.to_string();
}

void add_output_flags(CLI::App& command, BenchOutput& output) {
  command.add_flag("--json", output.json, "Print JSON");
  command.add_flag("--enforce", output.enforce, "Exit status 3 when a target is missed");
}

Result<int> publish(const BenchReport& report, const BenchOutput& output,
                    const std::string& table) {
  const std::string text = output.json ? report.json().dump(2) + "\n" : table;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0)
    return failure(Code::kIo, "standard output cannot be written", errno);
  return output.enforce && !report.all_targets_met() ? kExitTargetMissed : kExitOk;
}

Result<int> publish(const BenchReport& report, const BenchOutput& output) {
  return publish(report, output, report.table());
}

}  // namespace hifc::apps
