#include "apps/table.h"

#include <gtest/gtest.h>

namespace hifc::apps {
namespace {

TEST(Table, AlignsColumnsWithoutTrailingSpaces) {
  Table table({{"tier"}, {"peak", Table::Align::kRight}, {"note"}});
  table.add_row({"hot", "16.0 MiB", ""});
  table.add_row({"cold", "512 B", "no flash"});
  EXPECT_EQ(table.to_string(),
            "tier      peak  note\n"
            "hot   16.0 MiB\n"
            "cold     512 B  no flash\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({{"µs"}, {"x"}});
  table.add_row({"12", "y"});
  EXPECT_EQ(table.to_string(), "µs  x\n12  y\n");
}

TEST(Table, WithoutRowsShowsTheTitles) {
  EXPECT_EQ(Table({{"a"}, {"b"}}).to_string(), "a  b\n");
}

}  // namespace
}  // namespace hifc::apps
