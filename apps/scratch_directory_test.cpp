#include "apps/scratch_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "testing/temp_directory.h"

namespace hifc::apps {
namespace {

namespace fs = std::filesystem;

void touch(const fs::path& path) {
  std::ofstream(path) << "x";
}

TEST(ScratchDirectory, GoesWithAllThatIsInIt) {
  const testing::TempDirectory parent;
  fs::path path;
  {
    const auto scratch = ScratchDirectory::create(parent.path());
    ASSERT_TRUE(scratch);
    path = scratch->path();
    fs::create_directory(path / "store");
    touch(path / "store" / "segment");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(parent.path()));
}

TEST(ScratchDirectory, TakesTheParentAlongOnlyWhereItMadeItAndNothingElseIsThere) {
  const testing::TempDirectory directory;
  const std::string parent = directory.file("parent");
  {
    ASSERT_TRUE(ScratchDirectory::create(parent));
  }
  EXPECT_FALSE(fs::exists(parent));
  {
    const auto scratch = ScratchDirectory::create(parent);
    ASSERT_TRUE(scratch);
    touch(parent + "/foreign");
  }
  EXPECT_TRUE(fs::exists(parent + "/foreign"));
}

TEST(ScratchDirectory, MovedFromRemovesNothing) {
  const testing::TempDirectory parent;
  ScratchDirectory target;
  {
    auto source = ScratchDirectory::create(parent.path());
    ASSERT_TRUE(source);
    target = std::move(*source);
  }
  EXPECT_TRUE(fs::exists(target.path()));
}

TEST(ScratchDirectory, NamesTheParentThatCannotBeUsed) {
  const testing::TempDirectory directory;
  touch(directory.file("file"));
  const auto scratch = ScratchDirectory::create(directory.file("file"));
  ASSERT_FALSE(scratch);
  EXPECT_NE(scratch.error().context.find(directory.file("file")), std::string::npos);
}

}  // namespace
}  // namespace hifc::apps
