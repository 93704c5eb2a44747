#include "base/text.h"

#include <gtest/gtest.h>

#include <array>

namespace hifc {
namespace {

TEST(Quote, KeepsOrdinaryText) {
  EXPECT_EQ(quote("64 GB of flash"), "\"64 GB of flash\"");
}

TEST(Quote, EscapesWhatWouldBreakTheLine) {
  EXPECT_EQ(quote("a\nb\x1b"), "\"a\\x0ab\\x1b\"");
}

TEST(Quote, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(quote(std::string(100, 'x')), "\"" + std::string(60, 'x') + "...\"");
  const std::string umlaut_across_cut = std::string(59, 'x') + "\xC3\xA4" + "tail";
  EXPECT_EQ(quote(umlaut_across_cut), "\"" + std::string(59, 'x') + "...\"");
}

TEST(Plural, OneIsNoPlural) {
  EXPECT_EQ(plural(0, "file"), "0 files");
  EXPECT_EQ(plural(1, "file"), "1 file");
  EXPECT_EQ(plural(2, "segment file"), "2 segment files");
}

TEST(NearestName, FindsTheSlip) {
  constexpr std::array<std::string_view, 3> kNames = {"hot_cache_size", "hot_cache_ratio",
                                                      "context"};
  EXPECT_EQ(nearest_name("hot_cache_ratoi", kNames), "hot_cache_ratio");
  EXPECT_EQ(nearest_name("HOT_CACHE_SIZE", kNames), "hot_cache_size");
  EXPECT_EQ(nearest_name("contxt", kNames), "context");
}

TEST(NearestName, SuggestsNothingForAnotherWord) {
  constexpr std::array<std::string_view, 1> kNames = {"context"};
  EXPECT_EQ(nearest_name("banana", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'c'), kNames), "");
}

}  // namespace
}  // namespace hifc
