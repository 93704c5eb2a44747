#include "apps/trace_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/replacement_file.h"

namespace hifc::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWhat = "trace file";
constexpr int kProcess = 1;
// Pieces as long as this are worth a system call.
constexpr size_t kPieceBytes = size_t{1} << 20;

class Printer {
 public:
  Printer(const Trace& trace, FunctionRef<void(std::string_view)> out) : trace_(trace), out_(out) {
    trace.for_each([&](const Trace::Event& event) { events_.push_back(&event); });
    find_tracks();
  }

  void print(std::string_view process) {
    text_ = "{\"traceEvents\":[\n";
    add(metadata("process_name", 0, process));
    for (size_t i = 0; i < tracks_.size(); ++i)
      add(metadata("thread_name", static_cast<int>(i) + 1, tracks_[i]));
    sort();
    for (const Trace::Event* event : events_)
      event->async_id == 0 ? add(complete(*event)) : add_async(*event);
    text_ +=
        fmt::format("\n],\"displayTimeUnit\":\"ms\",\"otherData\":{{\"dropped_events\":{}}}}}\n",
                    trace_.dropped());
    out_(text_);
  }

 private:
  void find_tracks() {
    for (const Trace::Event* event : events_)
      if (std::ranges::find(tracks_, event->kind->track) == tracks_.end())
        tracks_.emplace_back(event->kind->track);
    std::ranges::sort(tracks_);
  }

  // Of spans that begin together the outer one comes first: it lasts longer or, where both take no
  // time at all, was recorded later.
  void sort() {
    std::vector<std::pair<size_t, const Trace::Event*>> ordered;
    for (const Trace::Event* event : events_) ordered.emplace_back(ordered.size(), event);
    std::ranges::sort(ordered, [](const auto& a, const auto& b) {
      if (a.second->start_ns != b.second->start_ns) return a.second->start_ns < b.second->start_ns;
      if (a.second->duration_ns != b.second->duration_ns)
        return a.second->duration_ns > b.second->duration_ns;
      return a.first > b.first;
    });
    for (size_t i = 0; i < ordered.size(); ++i) events_[i] = ordered[i].second;
  }

  void add(const Json& event) {
    if (!first_) text_ += ",\n";
    first_ = false;
    text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text_.size() < kPieceBytes) return;
    out_(text_);
    text_.clear();
  }

  static Json metadata(std::string_view name, int track, std::string_view value) {
    return {{"name", name},
            {"ph", "M"},
            {"pid", kProcess},
            {"tid", track},
            {"args", {{"name", value}}}};
  }

  Json base(const Trace::Event& event, std::string_view phase, uint64_t time_ns) const {
    const TraceKind& kind = *event.kind;
    const auto track = std::ranges::find(tracks_, kind.track) - tracks_.begin();
    return {{"name", kind.numbered ? fmt::format("{} {}", kind.name, event.values[0]) : kind.name},
            {"cat", kind.category},
            {"ph", phase},
            {"ts", microseconds(time_ns - trace_.start_ns())},
            {"pid", kProcess},
            {"tid", track + 1}};
  }

  Json complete(const Trace::Event& event) const {
    Json json = base(event, "X", event.start_ns);
    json["dur"] = microseconds(event.duration_ns);
    json["args"] = arguments(event);
    return json;
  }

  void add_async(const Trace::Event& event) {
    const std::string id = fmt::format("{:#x}", event.async_id);
    Json begin = base(event, "b", event.start_ns);
    begin["id"] = id;
    begin["args"] = arguments(event);
    add(begin);
    if (event.end == TraceEnd::kOpen) return;
    Json end = base(event, "e", event.start_ns + event.duration_ns);
    end["id"] = id;
    end["args"] = {{"failed", event.end == TraceEnd::kFailed}};
    add(end);
  }

  static Json arguments(const Trace::Event& event) {
    Json arguments = Json::object();
    for (size_t i = 0; i < kTraceArguments && event.kind->arguments[i] != nullptr; ++i)
      arguments[event.kind->arguments[i]] = event.values[i];
    return arguments;
  }

  // Exact to the nanosecond for some weeks.
  static double microseconds(uint64_t ns) { return static_cast<double>(ns) / 1000; }

  const Trace& trace_;
  FunctionRef<void(std::string_view)> out_;
  std::vector<const Trace::Event*> events_;
  std::vector<std::string> tracks_;
  std::string text_;
  bool first_ = true;
};

}  // namespace

void print_trace(const Trace& trace, std::string_view process,
                 FunctionRef<void(std::string_view)> out) {
  Printer(trace, out).print(process);
}

void TraceFile::add_option(CLI::App& app) {
  app.add_option("--trace", path_, "Write a timeline to FILE, which https://ui.perfetto.dev shows")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path.empty() ? "\"\" is not the name of a file" : std::string();
      });
}

Result<void> TraceFile::start() {
  if (path_.empty()) return {};
  HIFC_TRY(ReplacementFile::create(path_, kWhat));
  trace_ = std::make_unique<Trace>(clock_);
  return {};
}

Result<void> TraceFile::write(std::string_view process) const {
  if (trace_ == nullptr) return {};
  HIFC_ASSIGN(ReplacementFile file, ReplacementFile::create(path_, kWhat));
  Result<void> written;
  print_trace(*trace_, process, [&](std::string_view piece) {
    if (written) written = file.write(piece);
  });
  HIFC_TRY(written);
  return file.commit();
}

}  // namespace hifc::apps
