#include "apps/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "base/units.h"

namespace hifc::apps {
namespace {

constexpr uint64_t kBarCells = 10;
constexpr uint64_t kRedrawNs = 100'000'000;

const SystemClock kSystemClock;

// Done, in parts of `parts`; nothing to do counts as done.
uint64_t share(const ProgressState& state, uint64_t parts) {
  if (state.done >= state.total) return parts;
  return static_cast<uint64_t>(static_cast<double>(state.done) * static_cast<double>(parts) /
                               static_cast<double>(state.total));
}

// Units a second; 0 while nothing can be said yet.
double rate(const ProgressState& state) {
  if (state.elapsed_ns == 0 || state.done <= state.first) return 0;
  return static_cast<double>(state.done - state.first) * 1e9 /
         static_cast<double>(state.elapsed_ns);
}

std::string format_amount(const ProgressState& state) {
  if (state.unit == ProgressUnit::kBytes)
    return format_size(state.done) + "/" + format_size(state.total);
  const std::string_view noun = state.unit == ProgressUnit::kRounds ? "round" : "token";
  return fmt::format("{}/{}", state.done, plural(state.total, noun));
}

std::string format_rate(ProgressUnit unit, double per_second) {
  if (unit == ProgressUnit::kBytes)
    return format_size(static_cast<uint64_t>(std::min(per_second, 1e18))) + "/s";
  const std::string_view name = unit == ProgressUnit::kRounds ? "rounds" : "tok";
  return fmt::format("{:.{}f} {}/s", per_second, per_second < 9.95 ? 1 : 0, name);
}

std::string format_duration(double duration_s) {
  // Beyond four days the minutes say nothing.
  const auto seconds = static_cast<uint64_t>(std::min(duration_s + 0.5, 359'999.0));
  const uint64_t hours = seconds / 3600, minutes = seconds / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, seconds % 60);
  return fmt::format("{:02}:{:02}", minutes, seconds % 60);
}

std::string format_time(const ProgressState& state, double per_second) {
  if (state.done >= state.total)
    return "in " + format_duration(static_cast<double>(state.elapsed_ns) / 1e9);
  return format_duration(static_cast<double>(state.total - state.done) / per_second) + " left";
}

std::string format_details(const ProgressState& state) {
  std::string text = fmt::format("{:3} %  {}", share(state, 100), format_amount(state));
  const double per_second = rate(state);
  if (per_second > 0) {
    text += "  " + format_rate(state.unit, per_second) + "  " + format_time(state, per_second);
  }
  return text;
}

bool can_redraw(std::FILE* stream) {
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

Progress::Style choose_style(const Progress::Options& options) {
  if (options.style != Progress::Style::kAutomatic) return options.style;
  return can_redraw(options.stream) ? Progress::Style::kBar : Progress::Style::kLines;
}

// A line that wraps could not be redrawn.
size_t terminal_columns(std::FILE* stream) {
  winsize size = {};
  const bool known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::string::npos;
}

}  // namespace

std::string format_progress_bar(const ProgressState& state) {
  const uint64_t cells = share(state, kBarCells);
  return fmt::format("{}  [{:#<{}}{:-<{}}] {}", state.label, "", cells, "", kBarCells - cells,
                     format_details(state));
}

std::string format_progress_line(const ProgressState& state) {
  return fmt::format("{} {}", state.label, format_details(state));
}

Progress::Progress(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : kSystemClock),
      style_(choose_style(options_)),
      start_ns_(clock_.now_ns()),
      done_(options_.first),
      written_tenth_(share(state(), 10)) {}

ProgressState Progress::state() const {
  return {.label = options_.label,
          .unit = options_.unit,
          .first = options_.first,
          .done = done_,
          .total = options_.total,
          .elapsed_ns = clock_.now_ns() - start_ns_};
}

void Progress::update(uint64_t done) {
  done_ = done;
  if (finished_) return;
  if (style_ == Style::kBar) {
    if (drawn_ns_ == 0 || clock_.now_ns() - drawn_ns_ >= kRedrawNs) draw_bar();
  } else if (style_ == Style::kLines && share(state(), 10) > written_tenth_) {
    write_line();
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (style_ == Style::kBar) {
    draw_bar();
    std::fputc('\n', options_.stream);
    std::fflush(options_.stream);
  } else if (style_ == Style::kLines && share(state(), 100) > written_tenth_ * 10) {
    write_line();
  }
}

void Progress::draw_bar() {
  const std::string bar = format_progress_bar(state());
  const std::string_view visible =
      std::string_view(bar).substr(0, terminal_columns(options_.stream) - 1);
  // Back to the first column, and erase what an earlier, longer line left behind.
  fmt::print(options_.stream, "\r{}\x1b[K", visible);
  std::fflush(options_.stream);
  drawn_ns_ = clock_.now_ns();
}

void Progress::write_line() {
  fmt::print(options_.stream, "{}\n", format_progress_line(state()));
  std::fflush(options_.stream);
  written_tenth_ = share(state(), 10);
}

}  // namespace hifc::apps
