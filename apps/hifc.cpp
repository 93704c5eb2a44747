// hifc: the command line.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/options.h"
#include "hifc/build_info.h"

int main(int argc, char** argv) {
  using namespace hifc::apps;
  CLI::App app("HiFC: the KV cache of large language models in memory and on flash");
  app.name("hifc");
  app.footer("hifc COMMAND --help explains a command.");
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", fmt::format("hifc {} ({})", hifc::build_info().version,
                                                hifc::build_info().commit));
  Action chosen;
  add_run_command(app, chosen);
  add_eval_command(app, chosen);
  add_bench_command(app, chosen);
  add_store_command(app, chosen);
  add_tune_command(app, chosen);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    require(check_commands(app, arguments));
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "hifc: {}\n", explain(app, error, arguments));
    return kExitUsage;
  }
  if (!chosen) {
    fmt::print(stderr, "{}", app.help());
    return kExitUsage;
  }
  install_signal_handlers();
  const auto status = chosen();
  if (status) return *status;
  fmt::print(stderr, "hifc: {}\n", status.error().message());
  return status.error().code == hifc::Code::kCancelled ? kExitInterrupted : kExitFailure;
}
