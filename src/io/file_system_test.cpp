// What every file system must do, on the real one and on the simulated disk, and what only the real
// one knows.
#include "io/file_system.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "testing/sim_disk.h"
#include "testing/temp_directory.h"

namespace hifc::io {
namespace {

class FileSystemTest : public ::testing::TestWithParam<bool> {
 protected:
  FileSystemTest() { EXPECT_TRUE(files_.create_directory(directory_.path())); }
  std::string path(const std::string& name) const { return directory_.file(name); }

  testing::TempDirectory directory_;
  testing::SimDisk disk_{{}};
  FileSystem& files_ = GetParam() ? static_cast<FileSystem&>(disk_) : system_files();
};

TEST_P(FileSystemTest, CreatesADirectoryWithItsParents) {
  EXPECT_EQ(files_.create_directory(path("a/b/c")).value(), true);
  EXPECT_EQ(files_.create_directory(path("a/b/c/")).value(), false);
  EXPECT_TRUE(files_.sync_directory(path("a/b")));
}

TEST_P(FileSystemTest, AFileInTheWayOfADirectoryIsNamed) {
  ASSERT_TRUE(files_.create(path("file"), kAlignment, false));
  for (const char* name : {"file", "file/inside"}) {
    const auto created = files_.create_directory(path(name));
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().code, Code::kIo);
    EXPECT_EQ(created.error().system_errno, ENOTDIR);
    EXPECT_NE(created.error().message().find(path(name)), std::string::npos);
  }
  EXPECT_FALSE(files_.create_directory(""));
}

TEST_P(FileSystemTest, OnlyAnEmptyDirectoryIsRemoved) {
  ASSERT_TRUE(files_.create_directory(path("a/b")));
  EXPECT_FALSE(files_.remove_directory(path("a")));
  EXPECT_TRUE(files_.remove_directory(path("a/b")));
  EXPECT_TRUE(files_.remove_directory(path("a")));
  EXPECT_EQ(files_.remove_directory(path("a")).error().code, Code::kNotFound);
}

TEST_P(FileSystemTest, ListsFilesWithSizes) {
  ASSERT_TRUE(files_.create(path("file"), 3 * kAlignment, false));
  ASSERT_TRUE(files_.create_directory(path("folder")));
  const auto listed = files_.list(directory_.path());
  ASSERT_TRUE(listed);
  std::map<std::string, DirectoryEntry> entries;
  for (const DirectoryEntry& entry : *listed) entries[entry.name] = entry;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_TRUE(entries["file"].regular);
  EXPECT_EQ(entries["file"].size_bytes, 3 * kAlignment);
  EXPECT_FALSE(entries["folder"].regular);
  EXPECT_EQ(files_.list(path("absent")).error().code, Code::kNotFound);
}

TEST_P(FileSystemTest, ANewFileIsEmptyOfBlocksAndItsNameMustBeFree) {
  for (const bool direct : {true, false}) {
    const std::string name = direct ? "direct" : "buffered";
    const auto file = files_.create(path(name), 64 * kAlignment, direct);
    ASSERT_TRUE(file) << file.error().message();
    EXPECT_EQ(file->size_bytes().value(), 64 * kAlignment);
    EXPECT_TRUE(direct || !file->direct());
    const auto again = files_.create(path(name), kAlignment, direct);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().system_errno, EEXIST);
    EXPECT_EQ(file->size_bytes().value(), 64 * kAlignment);
  }
}

TEST_P(FileSystemTest, OpensWhatExistsAndCreatesNothing) {
  ASSERT_TRUE(files_.create(path("file"), kAlignment, true));
  EXPECT_TRUE(files_.open(path("file"), {.mode = File::Mode::kReadOnly}));
  EXPECT_EQ(files_.open(path("absent"), {}).error().code, Code::kNotFound);
  EXPECT_TRUE(files_.remove(path("file")));
  EXPECT_EQ(files_.remove(path("file")).error().code, Code::kNotFound);
}

TEST_P(FileSystemTest, FreeSpaceIsKnownWhereTheDirectoryIs) {
  EXPECT_TRUE(files_.free_bytes(directory_.path()));
  EXPECT_EQ(files_.free_bytes(path("absent")).error().code, Code::kNotFound);
}

TEST_P(FileSystemTest, OneOwnerAtATimeAndTheFileGoesWithIt) {
  auto lock = files_.lock(path("lock"));
  ASSERT_TRUE(lock) << lock.error().message();
  EXPECT_EQ(files_.list(directory_.path())->at(0).name, "lock");
  const auto second = files_.lock(path("lock"));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_EQ(second.error().context,
            "the flash directory " + directory_.path().string() + " is in use by another process");
  lock->reset();
  EXPECT_TRUE(files_.list(directory_.path())->empty());
  EXPECT_TRUE(files_.lock(path("lock")));
}

TEST_P(FileSystemTest, ALockFileLeftByAKilledOwnerIsTakenOver) {
  ASSERT_TRUE(files_.create(path("lock"), 0, false));
  EXPECT_TRUE(files_.lock(path("lock")));
}

TEST_P(FileSystemTest, AFileWithContentIsNoLockFile) {
  ASSERT_TRUE(files_.create(path("lock"), kAlignment, false));
  const auto lock = files_.lock(path("lock"));
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().context, path("lock") +
                                      " is not HiFC's, for it is not empty; move it away "
                                      "or choose another directory");
  EXPECT_EQ(files_.list(directory_.path())->at(0).size_bytes, kAlignment);
}

INSTANTIATE_TEST_SUITE_P(Systems, FileSystemTest, ::testing::Bool(), [](const auto& parameter) {
  return std::string(parameter.param ? "simulated" : "real");
});

class SystemFilesTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.file(name); }
  mode_t mode(const std::string& name) const {
    struct stat status = {};
    EXPECT_EQ(stat(path(name).c_str(), &status), 0);
    return status.st_mode & 0777;
  }

  testing::TempDirectory directory_;
  FileSystem& files_ = system_files();
};

TEST_F(SystemFilesTest, WhatItCreatesIsForTheOwnerOnly) {
  ASSERT_TRUE(files_.create_directory(path("a/b")));
  ASSERT_TRUE(files_.create(path("file"), 64 * kAlignment, true));
  const auto lock = files_.lock(path("lock"));
  EXPECT_EQ(mode("a"), 0700u);
  EXPECT_EQ(mode("a/b"), 0700u);
  EXPECT_EQ(mode("file"), 0600u);
  EXPECT_EQ(mode("lock"), 0600u);
}

TEST_F(SystemFilesTest, LinksAreNotFollowed) {
  std::ofstream(path("victim")) << "kept";
  std::filesystem::create_symlink(path("victim"), path("link"));
  const auto listed = files_.list(directory_.path());
  ASSERT_TRUE(listed);
  for (const DirectoryEntry& entry : *listed) EXPECT_EQ(entry.regular, entry.name == "victim");
  EXPECT_FALSE(files_.lock(path("link")));
  EXPECT_FALSE(files_.create(path("link"), 0, true));
  EXPECT_EQ(std::filesystem::file_size(path("victim")), 4u);
}

TEST_F(SystemFilesTest, AFileThatCannotGetItsSizeDoesNotStay) {
  EXPECT_FALSE(files_.create(path("huge"), uint64_t{1} << 63, true));
  EXPECT_TRUE(files_.list(directory_.path())->empty());
}

// Owners that come and go leave nobody locked out and never two at once.
TEST_F(SystemFilesTest, ALockThatIsGivenUpWhileOthersTryHasOneOwner) {
  std::atomic<int> owners = 0, taken = 0;
  const auto compete = [&] {
    for (int i = 0; i < 300; ++i) {
      const auto lock = files_.lock(path("lock"));
      if (!lock) {
        EXPECT_EQ(lock.error().code, Code::kBusy);
        continue;
      }
      EXPECT_EQ(++owners, 1);
      ++taken;
      --owners;
    }
  };
  {
    const std::jthread other(compete);
    compete();
  }
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace hifc::io
