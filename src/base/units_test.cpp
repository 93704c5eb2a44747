#include "base/units.h"

#include <gtest/gtest.h>

namespace hifc {
namespace {

uint64_t parsed(std::string_view text) {
  const auto size = parse_size(text, "key");
  EXPECT_TRUE(size.has_value()) << text;
  return size.value_or(~0ull);
}

TEST(ParseSize, AcceptsDecimalAndBinaryUnits) {
  EXPECT_EQ(parsed("0"), 0u);
  EXPECT_EQ(parsed("4096"), 4096u);
  EXPECT_EQ(parsed("7 B"), 7u);
  EXPECT_EQ(parsed("3kB"), 3'000u);
  EXPECT_EQ(parsed("64GB"), 64'000'000'000u);
  EXPECT_EQ(parsed("64 GB"), 64'000'000'000u);
  EXPECT_EQ(parsed("2TB"), 2'000'000'000'000u);
  EXPECT_EQ(parsed("512MiB"), 512ull << 20);
  EXPECT_EQ(parsed("16 MiB"), 16ull << 20);
  EXPECT_EQ(parsed("1TiB"), 1ull << 40);
}

TEST(ParseSize, AcceptsFractionsOfAUnit) {
  EXPECT_EQ(parsed("1.5GiB"), 3ull << 29);
  EXPECT_EQ(parsed("0.000001TB"), 1'000'000u);
  EXPECT_EQ(parsed("0.0001 kB"), 0u);
  EXPECT_EQ(parsed("0.999999TiB"), 1'099'510'528'264u);
}

TEST(ParseSize, ReachesTheEndOfTheRangeAndNoFurther) {
  EXPECT_EQ(parsed("18446744073709551615"), ~0ull);
  EXPECT_EQ(parsed("16777215.999999TiB"), 18'446'744'073'708'452'104u);
  for (const auto text : {"18446744073709551616", "16777216TiB", "99999999999999999999999GB"}) {
    const auto size = parse_size(text, "key");
    ASSERT_FALSE(size.has_value()) << text;
    EXPECT_NE(size.error().context.find("too large"), std::string::npos);
  }
}

TEST(ParseSize, RefusesWhatIsNotASize) {
  for (const auto text :
       {"",     " ",    "GB",   "64 GB of flash", "64  GB", " 64GB", "64GB ",   "64 ",
        "-5GB", "+5GB", "1.5",  "1.GB",           ".5GB",   "1.5B",  "1,5GB",   "1.2345678GB",
        "64G",  "64gb", "64Gb", "0x40",           "1e9",    "auto",  "1.5.5GB", "64GB\n"}) {
    EXPECT_FALSE(parse_size(text, "key").has_value()) << '"' << text << '"';
  }
}

TEST(ParseSize, NamesKeyValueAndWhatIsAccepted) {
  EXPECT_EQ(parse_size("64 GB of flash", "flash_cache_size").error().context,
            "flash_cache_size: \"64 GB of flash\" is not a size; accepted are whole bytes, or a "
            "number (up to 6 decimals) with kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 64GB or "
            "1.5GiB");
}

TEST(FormatSize, PicksTheUnit) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.0 KiB");
  EXPECT_EQ(format_size(16 << 20), "16.0 MiB");
  EXPECT_EQ(format_size(3ull << 39), "1.5 TiB");
  EXPECT_EQ(format_size((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_size(~0ull), "16.0 EiB");
}

}  // namespace
}  // namespace hifc
