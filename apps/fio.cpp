#include "apps/fio.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/bench.h"
#include "base/check.h"

namespace hifc::apps {
namespace {

constexpr uint64_t kFileBytesMin = 16u << 20;

std::string fio_file(const std::string& directory) {
  return directory + "/hifc-fio.tmp";
}

// A colon separates names.
std::string escaped(const std::string& path) {
  std::string text;
  for (const char character : path) {
    if (character == ':' || character == '\\') text += '\\';
    text += character;
  }
  return text;
}

// Huge pages for fio's buffers, as HiFC's have them: with small ones its large transfers are cut
// into many for the device, and it reaches two thirds of the bandwidth.
char huge_pages[] = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

// Standard output of a program; no shell, so paths need no quoting.
Result<std::string> output_of(const std::vector<std::string>& words) {
  // Before fork(): the child must not allocate.
  std::vector<char*> arguments, variables = {huge_pages};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  std::array<int, 2> pipe_ends = {};
  if (pipe(pipe_ends.data()) != 0) return failure(Code::kIo, "no pipe to fio", errno);
  const pid_t child = fork();
  if (child < 0) return failure(Code::kIo, "fio cannot be started", errno);
  if (child == 0) {
    dup2(pipe_ends[1], STDOUT_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execvpe(arguments[0], arguments.data(), variables.data());
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
  HIFC_TRY(check_interrupted());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return failure(Code::kNotFound,
                   "fio is not installed, so there is no bandwidth to compare with");
  return failure(Code::kIo, fmt::format("fio failed: {}", text.substr(0, 200)));
}

const char* name_of(FioPattern pattern) {
  switch (pattern) {
    case FioPattern::kRead: return "read";
    case FioPattern::kRandomRead: return "randread";
    case FioPattern::kWrite: return "write";
  }
  return "unknown";
}

Result<FioResult> parse_result(const std::string& text, FioPattern pattern) {
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())),
                                          nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || json["jobs"].empty()) return failure(Code::kIo, "fio printed no JSON");
  const auto& job = json["jobs"][0];
  const char* direction = pattern == FioPattern::kWrite ? "write" : "read";
  FioResult result;
  result.gbps = job[direction]["bw_bytes"].get<double>() / 1e9;
  const double cpu_share = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100;
  result.core_s_per_gb = result.gbps > 0 ? cpu_share / result.gbps : 0;
  return result;
}

}  // namespace

Result<FioResult> run_fio(const FioOptions& options) {
  const uint64_t block_bytes = std::max<uint64_t>(4096, options.block_bytes / 4096 * 4096);
  std::vector<std::string> words = {"fio",
                                    "--name=hifc",
                                    "--direct=1",
                                    "--ioengine=io_uring",
                                    "--fixedbufs=1",
                                    "--norandommap",
                                    "--time_based",
                                    fmt::format("--rw={}", name_of(options.pattern)),
                                    fmt::format("--runtime={:.0f}ms", options.seconds * 1000),
                                    fmt::format("--bs={}", block_bytes),
                                    fmt::format("--iodepth={}", options.depth),
                                    "--output-format=json"};
  if (options.files.empty()) {
    const uint64_t file_bytes =
        std::max(kFileBytesMin, options.file_bytes / block_bytes * block_bytes);
    words.insert(words.end(), {"--filename=" + escaped(fio_file(options.directory)),
                               fmt::format("--size={}", file_bytes), "--overwrite=1"});
  } else {
    HIFC_CHECK(options.pattern != FioPattern::kWrite);
    std::string names;
    for (const std::string& file : options.files)
      names += (names.empty() ? "" : ":") + escaped(file);
    if (options.file_bytes > 0)
      words.push_back(fmt::format("--size={}", options.file_bytes * options.files.size()));
    const bool random = options.pattern == FioPattern::kRandomRead;
    words.insert(words.end(),
                 {"--readonly", "--filename=" + names,
                  fmt::format("--file_service_type={}", random ? "random:1" : "sequential")});
  }
  HIFC_ASSIGN(const std::string text, output_of(words));
  return parse_result(text, options.pattern);
}

Result<FioResult> measure_reads(FioOptions options) {
  options.pattern = FioPattern::kRead;
  HIFC_ASSIGN(const FioResult in_order, run_fio(options));
  options.pattern = FioPattern::kRandomRead;
  HIFC_ASSIGN(const FioResult at_random, run_fio(options));
  return in_order.gbps > at_random.gbps ? in_order : at_random;
}

}  // namespace hifc::apps
