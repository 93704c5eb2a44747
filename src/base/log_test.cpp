#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace hifc {
namespace {

// The level is read once in a process, so each test runs in a child of its own.
[[noreturn]] void log_in_child(const char* level) {
  level == nullptr ? unsetenv("HIFC_LOG") : setenv("HIFC_LOG", level, 1);
  log_debug("d{}", 1);
  log_info("i{}", 2);
  log_warn("w{}", 3);
  log_error("e{} {{}}", 4);
  std::exit(0);
}

class LogDeathTest : public testing::Test {
 protected:
  LogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LogDeathTest, ShowsWarningsAndErrorsByDefault) {
  EXPECT_EXIT(log_in_child(nullptr), testing::ExitedWithCode(0), "^hifc: w3\nhifc: e4 \\{\\}\n$");
}

TEST_F(LogDeathTest, LevelComesFromTheEnvironment) {
  EXPECT_EXIT(log_in_child("debug"), testing::ExitedWithCode(0),
              "^hifc: d1\nhifc: i2\nhifc: w3\nhifc: e4");
  EXPECT_EXIT(log_in_child("error"), testing::ExitedWithCode(0), "^hifc: e4 \\{\\}\n$");
}

TEST_F(LogDeathTest, NamesAnUnknownLevel) {
  EXPECT_EXIT(log_in_child("loud"), testing::ExitedWithCode(0),
              "^hifc: HIFC_LOG: \"loud\" is not a level; accepted are debug, info, warn and error\n"
              "hifc: w3");
}

}  // namespace
}  // namespace hifc
