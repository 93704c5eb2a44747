#include "apps/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace hifc::apps {
namespace {

class ManualClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_ns_; }
  void advance_ms(uint64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  uint64_t now_ns_ = 1;
};

// A stream whose text can be read back.
class Capture {
 public:
  Capture() : stream_(open_memstream(&data_, &size_)) {}
  ~Capture() {
    std::fclose(stream_);
    std::free(data_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::FILE* stream() const { return stream_; }
  std::string text() const {
    std::fflush(stream_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  std::FILE* stream_;
};

TEST(FormatProgress, ShowsShareAmountRateAndTimeLeft) {
  const ProgressState state = {
      .label = "prefill", .done = 4096, .total = 7717, .elapsed_ns = 5'044'000'000};
  EXPECT_EQ(format_progress_bar(state),
            "prefill  [#####-----]  53 %  4096/7717 tokens  812 tok/s  00:04 left");
  EXPECT_EQ(format_progress_line(state), "prefill  53 %  4096/7717 tokens  812 tok/s  00:04 left");
}

TEST(FormatProgress, SaysNothingOfTheRateBeforeThereIsOne) {
  EXPECT_EQ(format_progress_bar({.label = "prefill", .total = 100}),
            "prefill  [----------]   0 %  0/100 tokens");
  EXPECT_EQ(format_progress_bar(
                {.label = "prefill", .first = 50, .done = 50, .total = 100, .elapsed_ns = 1}),
            "prefill  [#####-----]  50 %  50/100 tokens");
}

TEST(FormatProgress, CountsWhateverIsDone) {
  EXPECT_EQ(format_progress_line({.label = "attention",
                                  .unit = ProgressUnit::kRounds,
                                  .done = 3,
                                  .total = 12,
                                  .elapsed_ns = 2'000'000'000}),
            "attention  25 %  3/12 rounds  1.5 rounds/s  00:06 left");
  EXPECT_EQ(format_progress_line({.label = "prefill", .total = 1}), "prefill   0 %  0/1 token");
}

TEST(FormatProgress, RateLeavesOutWhatWasThereBefore) {
  EXPECT_EQ(
      format_progress_line(
          {.label = "prefill", .first = 50, .done = 60, .total = 100, .elapsed_ns = 2'000'000'000}),
      "prefill  60 %  60/100 tokens  5.0 tok/s  00:08 left");
}

TEST(FormatProgress, EndsWithTheTimeTaken) {
  EXPECT_EQ(format_progress_bar(
                {.label = "prefill", .done = 7717, .total = 7717, .elapsed_ns = 65'000'000'000}),
            "prefill  [##########] 100 %  7717/7717 tokens  119 tok/s  in 01:05");
}

TEST(FormatProgress, CountsBytesAndHours) {
  EXPECT_EQ(format_progress_line({.label = "hash",
                                  .unit = ProgressUnit::kBytes,
                                  .done = 1 << 20,
                                  .total = 4ull << 30,
                                  .elapsed_ns = 1'000'000'000}),
            "hash   0 %  1.0 MiB/4.0 GiB  1.0 MiB/s  1:08:15 left");
}

TEST(FormatProgress, SurvivesExtremes) {
  EXPECT_EQ(format_progress_bar({.label = "x"}), "x  [##########] 100 %  0/0 tokens");
  EXPECT_EQ(format_progress_line({.label = "x", .done = 1, .total = ~0ull, .elapsed_ns = ~0ull}),
            "x   0 %  1/18446744073709551615 tokens  0.0 tok/s  99:59:59 left");
}

TEST(Progress, BarRedrawsAtMostTenTimesASecondAndEndsTheLine) {
  const Capture capture;
  ManualClock clock;
  Progress progress({.label = "p",
                     .total = 1000,
                     .style = Progress::Style::kBar,
                     .stream = capture.stream(),
                     .clock = &clock});
  for (uint64_t done = 1; done <= 1000; ++done) {
    clock.advance_ms(1);
    progress.update(done);
  }
  progress.finish();
  progress.finish();
  const std::string text = capture.text();
  EXPECT_LE(std::ranges::count(text, '\r'), 12);
  EXPECT_TRUE(
      text.ends_with("\rp  [##########] 100 %  1000/1000 tokens  1000 tok/s  in 00:01"
                     "\x1b[K\n"))
      << text;
}

TEST(Progress, LinesComeAboutEveryTenPercent) {
  const Capture capture;
  ManualClock clock;
  {
    Progress progress({.label = "p",
                       .total = 1000,
                       .first = 500,
                       .style = Progress::Style::kLines,
                       .stream = capture.stream(),
                       .clock = &clock});
    for (uint64_t done = 501; done <= 1000; ++done) progress.update(done);
  }
  const std::string text = capture.text();
  EXPECT_EQ(std::ranges::count(text, '\n'), 5) << text;
  EXPECT_TRUE(text.starts_with("p  60 %  600/1000 tokens\n")) << text;
  EXPECT_TRUE(text.ends_with("p 100 %  1000/1000 tokens\n")) << text;
}

TEST(Progress, StoppedWorkShowsWhereItStopped) {
  const Capture capture;
  {
    Progress progress(
        {.label = "p", .total = 100, .stream = capture.stream()});  // automatic: no terminal
    progress.update(15);
    progress.update(17);
  }
  EXPECT_NE(capture.text().find("p  17 %"), std::string::npos) << capture.text();
}

TEST(Progress, QuietWritesNothing) {
  const Capture capture;
  {
    Progress progress(
        {.label = "p", .total = 10, .style = Progress::Style::kQuiet, .stream = capture.stream()});
    progress.update(10);
  }
  EXPECT_EQ(capture.text(), "");
}

}  // namespace
}  // namespace hifc::apps
