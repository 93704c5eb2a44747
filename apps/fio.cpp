#include "apps/fio.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace hifc::apps {
namespace {

constexpr uint64_t kFileBytesMin = 16u << 20;

std::string fio_file(const std::string& directory) {
  return directory + "/hifc-fio.tmp";
}

// Standard output of a program; no shell, so paths need no quoting.
Result<std::string> output_of(const std::vector<std::string>& words) {
  std::vector<char*> arguments;  // before fork(): the child must not allocate
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::array<int, 2> pipe_ends = {};
  if (pipe(pipe_ends.data()) != 0) return failure(Code::kIo, "no pipe to fio", errno);
  const pid_t child = fork();
  if (child < 0) return failure(Code::kIo, "fio cannot be started", errno);
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(pipe_ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got; (got = read(pipe_ends[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(got));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return failure(Code::kNotFound,
                   "fio is not installed, so there is no bandwidth to compare with");
  return failure(Code::kIo, fmt::format("fio failed: {}", text.substr(0, 200)));
}

Result<FioResult> run_fio(const FioOptions& options, const char* pattern) {
  const uint64_t read_bytes = std::max<uint64_t>(4096, options.read_bytes / 4096 * 4096);
  const uint64_t file_bytes = std::max(kFileBytesMin, options.file_bytes / read_bytes * read_bytes);
  HIFC_ASSIGN(const std::string text,
              output_of({"fio", "--name=hifc", "--filename=" + fio_file(options.directory),
                         fmt::format("--size={}", file_bytes), fmt::format("--rw={}", pattern),
                         "--direct=1", "--ioengine=io_uring", "--fixedbufs=1", "--norandommap",
                         "--time_based", "--runtime=1", fmt::format("--bs={}", read_bytes),
                         fmt::format("--iodepth={}", options.depth), "--output-format=json"}));
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())),
                                          nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || json["jobs"].empty()) return failure(Code::kIo, "fio printed no JSON");
  const auto& job = json["jobs"][0];
  FioResult result;
  result.gbps = job["read"]["bw_bytes"].get<double>() / 1e9;
  const double cpu_share = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100;
  result.core_s_per_gb = result.gbps > 0 ? cpu_share / result.gbps : 0;
  return result;
}

}  // namespace

Result<FioResult> measure_reads(const FioOptions& options) {
  HIFC_ASSIGN(const FioResult in_order, run_fio(options, "read"));
  HIFC_ASSIGN(const FioResult at_random, run_fio(options, "randread"));
  return in_order.gbps > at_random.gbps ? in_order : at_random;
}

void remove_fio_file(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::remove(fio_file(directory), ignored);
}

}  // namespace hifc::apps
