#include "apps/page_cache.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "testing/temp_directory.h"

namespace hifc::apps {
namespace {

constexpr uint64_t kBytes = 1u << 20;

TEST(PageCache, HoldsWhatWasWrittenUntilItIsForgotten) {
  const testing::TempDirectory directory;
  const std::string path = directory.file("data");
  std::ofstream(path) << std::string(kBytes, 'x');
  EXPECT_EQ(cached_share(path, 0, kBytes).value(), 1);
  ASSERT_TRUE(forget_pages(path));
  const double left = cached_share(path, 0, kBytes).value();
  if (left == 1) GTEST_SKIP() << "this file system lives in memory";
  EXPECT_EQ(left, 0);
  std::ifstream file(path);
  file.seekg(kBytes / 2);
  ASSERT_EQ(file.get(), 'x');
  EXPECT_GT(cached_share(path, kBytes / 2, kBytes).value(), 0);
}

TEST(PageCache, NamesAFileThatIsNotThere) {
  const testing::TempDirectory directory;
  const std::string path = directory.file("absent");
  EXPECT_EQ(cached_share(path, 0, kBytes).error().code, Code::kIo);
  EXPECT_NE(forget_pages(path).error().message().find("absent"), std::string::npos);
}

}  // namespace
}  // namespace hifc::apps
