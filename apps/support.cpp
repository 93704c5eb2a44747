#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "apps/command.h"

namespace hifc::apps {
namespace {

std::atomic<bool> interrupted_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

// Far beyond any context; an endless file must not fill the memory.
constexpr size_t kTextBytesMax = size_t{256} << 20;

std::unexpected<Error> too_long(const std::string& path) {
  return failure(Code::kInvalid, "text file '" + path + "' has more than 256 MiB");
}

void on_signal(int) {
  if (interrupted_flag.exchange(true)) _exit(kExitInterrupted);
}

}  // namespace

const std::atomic<bool>& interrupted() {
  return interrupted_flag;
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a failed write, which is reported
}

Result<std::string> read_text(const std::string& path) {
  errno = 0;
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  std::istream& input = path == "-" ? std::cin : file;
  std::string text;
  std::array<char, 1 << 16> chunk;
  while (input.read(chunk.data(), chunk.size()) || input.gcount() > 0) {
    text.append(chunk.data(), static_cast<size_t>(input.gcount()));
    if (text.size() > kTextBytesMax) return too_long(path);
  }
  // Reading ends at the end of the file; anything else is a failure.
  if (!input.eof() || errno == EISDIR)
    return failure(Code::kIo, "text file '" + path + "' cannot be read", errno);
  return text;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return failure(Code::kIo, "'" + path + "' cannot be written", errno);
  return {};
}

ResidentMemory resident_memory() {
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    words >> name >> kib;
    if (name == "VmHWM:") memory.peak_bytes = kib * 1024;
    if (name == "VmRSS:") memory.now_bytes = kib * 1024;
  }
  return memory;
}

}  // namespace hifc::apps
