#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "io/ring.h"
#include "testing/temp_directory.h"

namespace hifc::io {
namespace {

using testing::TempDirectory;

TEST(FileTest, CreatesForTheOwnerOnlyAndResizes) {
  const TempDirectory directory;
  auto file = File::open(directory.file("a"), {.mode = File::Mode::kCreate});
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->truncate(3 * kAlignment));
  EXPECT_EQ(file->size_bytes().value(), 3 * kAlignment);
  EXPECT_EQ(std::filesystem::status(directory.file("a")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(FileTest, MissingFileIsNotFoundAndNamed) {
  const TempDirectory directory;
  for (const bool direct : {true, false}) {
    const auto file =
        File::open(directory.file("absent"), {.mode = File::Mode::kReadOnly, .direct = direct});
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, Code::kNotFound);
    EXPECT_NE(file.error().message().find("absent"), std::string::npos);
  }
}

TEST(FileTest, FallsBackToBufferedWhereDirectIsRefused) {
  const auto file = File::open("/proc/self/status", {.mode = File::Mode::kReadOnly});
  ASSERT_TRUE(file) << file.error().message();
  EXPECT_FALSE(file->direct());
}

TEST(FileTest, AnUnnamedFileHoldsBytesAndIsNowhere) {
  const TempDirectory directory;
  auto file = File::create_unnamed(directory.path());
  ASSERT_TRUE(file) << file.error().message();
  ASSERT_TRUE(file->truncate(3 * kAlignment));
  EXPECT_EQ(file->size_bytes().value(), 3 * kAlignment);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(FileTest, AnUnnamedFileNeedsADirectory) {
  const TempDirectory directory;
  const auto file = File::create_unnamed(directory.file("absent"));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().system_errno, ENOENT);
  EXPECT_NE(file.error().message().find("absent"), std::string::npos);
}

TEST(FileTest, MovingHandsTheDescriptorOver) {
  const TempDirectory directory;
  auto first = *File::open(directory.file("a"), {.mode = File::Mode::kCreate});
  const int descriptor = first.descriptor();
  File second = std::move(first);
  EXPECT_EQ(second.descriptor(), descriptor);
  EXPECT_EQ(first.descriptor(), -1);
  EXPECT_EQ(second.path(), directory.file("a"));
}

}  // namespace
}  // namespace hifc::io
