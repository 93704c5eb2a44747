// hifc store: look at a flash directory and put it right, while no store is open there.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "apps/command.h"
#include "apps/progress.h"
#include "apps/store_report.h"
#include "base/units.h"
#include "flash/directory.h"
#include "io/file_system.h"

namespace hifc::apps {
namespace {

using flash::Execution;

struct StoreOptions {
  std::string directory;
  bool json = false;
  bool segments = false;
  bool dry_run = false;
  std::string to;

  Execution execution() const { return dry_run ? Execution::kDryRun : Execution::kApply; }
  SegmentRows rows() const { return segments ? SegmentRows::kAll : SegmentRows::kNone; }
};

// A bar on a terminal, else nothing: errors are to be the only words on stderr.
class ReadingProgress {
 public:
  void update(uint64_t done_bytes, uint64_t total_bytes) {
    if (isatty(STDERR_FILENO) == 0) return;
    if (!progress_)
      progress_.emplace(Progress::Options{
          .label = "reading", .total = total_bytes, .unit = ProgressUnit::kBytes});
    progress_->update(done_bytes);
  }

 private:
  std::optional<Progress> progress_;
};

// The directory, owned, and what is needed to read it.
class Session {
 public:
  static Result<Session> open(const std::string& path) {
    Session session;
    HIFC_ASSIGN(session.directory_, flash::Directory::open(path, io::system_files(),
                                                           flash::Directory::Missing::kRefuse));
    HIFC_ASSIGN(session.ring_, io::Ring::create({}));
    return session;
  }

  flash::Directory& directory() { return *directory_; }
  io::Ring& ring() { return *ring_; }
  static flash::InspectionOptions options(flash::Depth depth, ReadingProgress& progress) {
    return {.depth = depth,
            .cancelled = &interrupted(),
            .progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); }};
  }

 private:
  std::unique_ptr<flash::Directory> directory_;
  std::unique_ptr<io::Ring> ring_;
};

Result<void> print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return {};
  return failure(Code::kIo, "the result cannot be written to standard output", errno);
}

// File names and messages may hold any bytes.
Result<void> print(const StoreJson& json) {
  return print(json.dump(2, ' ', false, StoreJson::error_handler_t::replace) + "\n");
}

Result<flash::Inspection> inspect(const StoreOptions& options, flash::Depth depth) {
  HIFC_ASSIGN(Session session, Session::open(options.directory));
  ReadingProgress progress;
  return flash::inspect(session.directory(), session.ring(), Session::options(depth, progress));
}

Result<int> stat(const StoreOptions& options) {
  HIFC_ASSIGN(const flash::Inspection found, inspect(options, flash::Depth::kRecords));
  HIFC_TRY(options.json ? print(stat_json(found, options.rows()))
                        : print(stat_text(found, options.rows())));
  return kExitOk;
}

Result<int> verify(const StoreOptions& options) {
  HIFC_ASSIGN(const flash::Inspection found, inspect(options, flash::Depth::kPayload));
  HIFC_TRY(options.json ? print(verify_json(found)) : print(verify_text(found)));
  return found.intact() ? kExitOk : kExitFailure;
}

Result<flash::Repair> repair_directory(const StoreOptions& options) {
  HIFC_ASSIGN(Session session, Session::open(options.directory));
  ReadingProgress progress;
  return flash::repair(session.directory(), session.ring(),
                       Session::options(flash::Depth::kPayload, progress), options.execution());
}

Result<int> repair(const StoreOptions& options) {
  HIFC_ASSIGN(const flash::Repair done, repair_directory(options));
  HIFC_TRY(options.json ? print(repair_json(done, options.execution()))
                        : print(repair_text(done, options.execution())));
  return done.unrepaired.empty() ? kExitOk : kExitFailure;
}

Result<flash::Trim> trim_directory(const StoreOptions& options, uint64_t target_bytes) {
  HIFC_ASSIGN(Session session, Session::open(options.directory));
  ReadingProgress progress;
  return flash::trim(session.directory(), session.ring(), target_bytes,
                     Session::options(flash::Depth::kRecords, progress), options.execution());
}

Result<int> trim(const StoreOptions& options) {
  HIFC_ASSIGN(const uint64_t target_bytes, parse_size(options.to, "--to"));
  HIFC_ASSIGN(const flash::Trim done, trim_directory(options, target_bytes));
  HIFC_TRY(options.json ? print(trim_json(done, target_bytes, options.execution()))
                        : print(trim_text(done, options.execution())));
  if (done.size_bytes_after <= target_bytes) return kExitOk;
  return failure(Code::kIo, fmt::format("{} are left in {} because files there cannot be read",
                                        format_size(done.size_bytes_after), options.directory));
}

struct Tool {
  const char* name;
  const char* help;
  Result<int> (*run)(const StoreOptions&);
};

CLI::App* add_tool(CLI::App& store, const Tool& tool, const std::shared_ptr<StoreOptions>& options,
                   Action& chosen) {
  CLI::App* command = store.add_subcommand(tool.name, tool.help);
  command->add_option("directory", options->directory, "Flash directory (run --flash)")->required();
  command->add_flag("--json", options->json, "Print JSON");
  command->callback(
      [options, run = tool.run, &chosen] { chosen = [options, run] { return run(*options); }; });
  return command;
}

void add_dry_run(CLI::App& command, StoreOptions& options) {
  command.add_flag("--dry-run", options.dry_run, "Change nothing; say what would be");
}

}  // namespace

void add_store_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<StoreOptions>();
  CLI::App* store = app.add_subcommand("store", "Look at a flash directory and put it right");
  store->require_subcommand(1);
  CLI::App* stat_command =
      add_tool(*store, {"stat", "What the directory holds", stat}, options, chosen);
  stat_command->add_flag("--segments", options->segments, "A row for each segment, oldest first");
  add_tool(*store, {"verify", "Read everything; exit status 1 when something is damaged", verify},
           options, chosen);
  CLI::App* repair_command = add_tool(
      *store, {"repair", "Drop what is damaged; what is intact stays", repair}, options, chosen);
  add_dry_run(*repair_command, *options);
  CLI::App* trim_command =
      add_tool(*store, {"trim", "Remove the oldest segments", trim}, options, chosen);
  trim_command->add_option("--to", options->to, "Bytes to leave at most, such as 10GiB; 0: none")
      ->required()
      ->check([](const std::string& text) {
        constexpr std::string_view kName = "--to";
        const auto size = parse_size(text, kName);
        // CLI11 puts the name in front itself.
        return size ? std::string() : size.error().message().substr(kName.size() + 2);
      });
  add_dry_run(*trim_command, *options);
  store->footer(
      "No store may be open on the directory. Files that are not HiFC's are left alone.\n"
      "  hifc store verify /data/kv && hifc store trim /data/kv --to 20GiB");
}

}  // namespace hifc::apps
