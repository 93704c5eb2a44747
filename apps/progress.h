// Progress of long work on stderr: a bar that redraws itself on a terminal, else a line about every
// 10 %. One thread at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace hifc::apps {

enum class ProgressUnit : uint8_t { kTokens, kBytes, kRounds };

struct ProgressState {
  std::string_view label;
  ProgressUnit unit = ProgressUnit::kTokens;
  uint64_t first = 0;  // done before the work began (reused tokens); not part of the rate
  uint64_t done = 0;   // includes `first`
  uint64_t total = 0;
  uint64_t elapsed_ns = 0;
};

// "prefill  [#####-----]  53 %  4096/7717 tokens  812 tok/s  00:05 left"
std::string format_progress_bar(const ProgressState& state);
// The same without the bar, for logs.
std::string format_progress_line(const ProgressState& state);

class Progress {
 public:
  // kAutomatic: a bar if `stream` is a terminal that can redraw a line, else lines.
  enum class Style : uint8_t { kAutomatic, kBar, kLines, kQuiet };
  // What -q asks for.
  static Style style(bool quiet) { return quiet ? Style::kQuiet : Style::kAutomatic; }

  struct Options {
    std::string label;
    uint64_t total = 0;
    uint64_t first = 0;
    ProgressUnit unit = ProgressUnit::kTokens;
    Style style = Style::kAutomatic;
    std::FILE* stream = stderr;
    const Clock* clock = nullptr;  // null: the system's; must outlive this object
  };

  explicit Progress(Options options);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Cheap: draws at most ten times a second (bar) or once for each 10 % (lines).
  void update(uint64_t done);
  // Shows the last state and ends the line; also right after work that stopped half-way.
  // Idempotent.
  void finish();

 private:
  ProgressState state() const;
  void draw_bar();
  void write_line();

  const Options options_;
  const Clock& clock_;
  const Style style_;
  const uint64_t start_ns_;
  uint64_t done_;
  uint64_t drawn_ns_ = 0;   // time of the last draw of the bar; 0: never
  uint64_t written_tenth_;  // tenths of the total that lines have reported
  bool finished_ = false;
};

}  // namespace hifc::apps
