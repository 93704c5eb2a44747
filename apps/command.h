// The subcommands of `hifc`: each adds itself to the command line and leaves what to do when
// chosen.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "base/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace hifc::apps {

// Exit statuses.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitTargetMissed = 3;  // --enforce
inline constexpr int kExitInterrupted = 130;

// Runs the chosen subcommand and returns the exit status.
using Action = std::function<Result<int>()>;

void add_run_command(CLI::App& app, Action& chosen);
void add_eval_command(CLI::App& app, Action& chosen);
void add_bench_command(CLI::App& app, Action& chosen);
void add_store_command(CLI::App& app, Action& chosen);
void add_tune_command(CLI::App& app, Action& chosen);

// True once the user asked to stop (SIGINT, SIGTERM, SIGHUP); a second signal ends the process at
// once.
const std::atomic<bool>& interrupted();
void install_signal_handlers();

// The whole of a text file, or of standard input for "-".
Result<std::string> read_text(const std::string& path);
Result<void> write_text(const std::string& path, const std::string& text);

// Peak and present resident memory of this process.
struct ResidentMemory {
  uint64_t peak_bytes = 0;
  uint64_t now_bytes = 0;
};
ResidentMemory resident_memory();

}  // namespace hifc::apps
