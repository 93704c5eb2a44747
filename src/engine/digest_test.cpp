// Golden values made with Python's hashlib.blake2b (digest_size=32): pieces of 16 MiB unkeyed, then
// key=b"hifc/file" over the length (8 bytes, little-endian) and the pieces' digests.
#include "engine/digest.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

#include "kv/key_fixture.h"
#include "testing/temp_directory.h"
#include "testing/thread_parallel.h"

namespace hifc::engine {
namespace {

constexpr size_t kPiece = 16 << 20;

class DigestFile : public ::testing::Test {
 protected:
  // 0, 1, ... 250, 0, 1, ...
  std::string write(const std::string& name, size_t size_bytes) {
    std::string content(size_bytes, '\0');
    for (size_t i = 0; i < size_bytes; ++i) content[i] = static_cast<char>(i % 251);
    const std::string path = directory_.file(name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string digest_of(const std::string& path) {
    const auto done = digest_file(path, serial_);
    EXPECT_TRUE(done) << done.error().message();
    return done ? kv::hex(done->digest) : "";
  }
  // One byte of a file, where it is; size and mtime stay as they were.
  static void change_in_place(const std::string& path, size_t offset) {
    struct stat before = {};
    ASSERT_EQ(::stat(path.c_str(), &before), 0);
    const int file = ::open(path.c_str(), O_WRONLY);
    ASSERT_GE(file, 0);
    EXPECT_EQ(::pwrite(file, "\xff", 1, static_cast<off_t>(offset)), 1);
    const timespec times[2] = {before.st_atim, before.st_mtim};
    EXPECT_EQ(::futimens(file, times), 0);
    ::close(file);
  }

  testing::TempDirectory directory_;
  SerialParallel serial_;
};

TEST_F(DigestFile, EqualsTheGoldenValues) {
  EXPECT_EQ(digest_of(write("empty", 0)),
            "4b38d9e3d7fe888e60f3d1af5af6c6a074353769b68006c3c86b239550015837");
  EXPECT_EQ(digest_of(write("small", 1000)),
            "2d9a9ae6f3d42a2b6163a3e98d3ef3661636a4d1fa88938addbcd0b59714788b");
  EXPECT_EQ(digest_of(write("piece", kPiece)),
            "613e623ac6f5bb02f34911f2aec708905ee1b17ba916667a06873544067bb927");
  EXPECT_EQ(digest_of(write("large", 2 * kPiece + 5)),
            "93b8b9d6ae37a3cfa1c6bedee2f57bbd5e05516d25f61e7603af53b417607aa2");
}

TEST_F(DigestFile, DoesNotDependOnTheThreads) {
  const std::string path = write("model", 4 * kPiece - 1);
  const std::string expected = digest_of(path);
  for (const uint32_t threads : {2u, 3u, 8u}) {
    testing::ThreadParallel parallel(threads);
    EXPECT_EQ(kv::hex(digest_file(path, parallel)->digest), expected) << threads;
  }
}

TEST_F(DigestFile, NoticesAnyByteChangedInPlaceOrInACopy) {
  const std::string path = write("model", kPiece + 100);
  const CachedDigest original = *digest_file(path, serial_);
  for (const size_t offset : {size_t{0}, kPiece - 1, kPiece, kPiece + 99}) {
    const std::string copy = directory_.file("copy");
    std::filesystem::copy_file(path, copy);
    change_in_place(copy, offset);
    EXPECT_NE(digest_file(copy, serial_)->digest, original.digest) << offset;
    EXPECT_FALSE(trustworthy(original, *identify_file(copy)));
    std::filesystem::remove(copy);
  }
  change_in_place(path, 500);
  EXPECT_NE(digest_file(path, serial_)->digest, original.digest);
  EXPECT_FALSE(trustworthy(original, *identify_file(path)));
}

TEST_F(DigestFile, CountsProgressUpToTheFilesSize) {
  const std::string path = write("model", 5 * kPiece + 1);
  uint64_t last = 0, calls = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 5 * kPiece + 1);
    EXPECT_GT(done, last);
    last = done;
    ++calls;
  };
  ASSERT_TRUE(digest_file(path, serial_, {.progress = progress}));
  EXPECT_EQ(last, 5 * kPiece + 1);
  EXPECT_EQ(calls, 3u);
}

TEST_F(DigestFile, StopsWhenCancelled) {
  const std::string path = write("model", 5 * kPiece);
  std::atomic<bool> cancelled = false;
  uint64_t calls = 0;
  const auto progress = [&](uint64_t, uint64_t) {
    cancelled = true;
    ++calls;
  };
  const auto outcome = digest_file(path, serial_, {.progress = progress, .cancelled = &cancelled});
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCancelled);
  EXPECT_EQ(calls, 1u);
}

TEST_F(DigestFile, IsThatOfTheFileAfterAChangeWhileItIsRead) {
  const std::string path = write("model", 3 * kPiece);
  bool changed = false;
  const auto append_once = [&](uint64_t, uint64_t) {
    if (!std::exchange(changed, true)) std::ofstream(path, std::ios::app) << "more";
  };
  const auto outcome = digest_file(path, serial_, {.progress = append_once});
  ASSERT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(outcome->file.size_bytes, 3 * kPiece + 4);
  EXPECT_EQ(kv::hex(outcome->digest), digest_of(path));
}

TEST_F(DigestFile, RefusesAFileThatKeepsChanging) {
  const std::string path = write("model", 3 * kPiece);
  const auto append = [&](uint64_t, uint64_t) { std::ofstream(path, std::ios::app) << "more"; };
  const auto cut = [&](uint64_t, uint64_t) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 10);
  };
  for (const std::function<void(uint64_t, uint64_t)>& change : {std::function(append), {cut}}) {
    const auto outcome = digest_file(path, serial_, {.progress = change});
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kBusy);
    EXPECT_EQ(outcome.error().message(), "'" + path + "' changes while it is read");
  }
}

TEST_F(DigestFile, FailuresNameThePath) {
  const auto refusal = [&](const std::string& path) {
    const Error error = digest_file(path, serial_).error();
    EXPECT_NE(error.message().find(path), std::string::npos) << error.message();
    EXPECT_EQ(identify_file(path).error().code, error.code);
    return error.code;
  };
  EXPECT_EQ(refusal(directory_.file("none")), Code::kNotFound);
  EXPECT_EQ(refusal(directory_.path()), Code::kInvalid);
  EXPECT_EQ(refusal("/dev/zero"), Code::kInvalid);
  const std::string pipe = directory_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(refusal(pipe), Code::kInvalid);
}

TEST(CombinedDigest, DependsOnEveryFileAndTheirOrder) {
  const std::vector<kv::Fingerprint> files = {kv::counting(), kv::counting(1), kv::counting(2)};
  EXPECT_EQ(combine_digests(std::span(files).first(1)), files[0]);
  const kv::Fingerprint all = combine_digests(files);
  EXPECT_NE(all, combine_digests(std::span(files).first(2)));
  EXPECT_NE(all, combine_digests(std::vector{files[1], files[0], files[2]}));
  EXPECT_EQ(all, combine_digests(files));
}

CachedDigest example() {
  constexpr int64_t kSecond = 1'000'000'000;
  return {.file = {.device = 1,
                   .inode = 2,
                   .size_bytes = 3,
                   .mtime_ns = -5 * kSecond,
                   .ctime_ns = 1000 * kSecond},
          .hashed_at_ns = 2000 * kSecond,
          .digest = kv::counting()};
}

TEST(Trustworthy, OnlyWhileTheFilesIdentityIsTheSame) {
  const CachedDigest cached = example();
  EXPECT_TRUE(trustworthy(cached, cached.file));
  const std::vector<std::function<void(FileIdentity&)>> changes = {
      [](FileIdentity& file) { ++file.device; }, [](FileIdentity& file) { ++file.inode; },
      [](FileIdentity& file) { --file.size_bytes; }, [](FileIdentity& file) { ++file.mtime_ns; },
      [](FileIdentity& file) { ++file.ctime_ns; }};
  for (const auto& change : changes) {
    FileIdentity now = cached.file;
    change(now);
    EXPECT_FALSE(trustworthy(cached, now));
    EXPECT_NE(digest_record_key(now), digest_record_key(cached.file));
  }
}

TEST(Trustworthy, NotWhereTheFileHadJustBeenChanged) {
  CachedDigest cached = example();
  const int64_t changed_ns = cached.file.ctime_ns;
  const auto trusted = [&](int64_t hashed_at_ns) {
    cached.hashed_at_ns = hashed_at_ns;
    return trustworthy(cached, cached.file);
  };
  EXPECT_FALSE(trusted(changed_ns));
  EXPECT_FALSE(trusted(changed_ns + 2'000'000'000));
  EXPECT_TRUE(trusted(changed_ns + 2'000'000'001));
  EXPECT_FALSE(trusted(changed_ns - 3'000'000'000));  // the file is from the future
  EXPECT_FALSE(trusted(std::numeric_limits<int64_t>::min()));
}

TEST(DigestRecord, GivesBackWhatWasEncoded) {
  const auto record = encode(example());
  EXPECT_EQ(decode_digest(record), example());
  EXPECT_EQ(decode_digest(encode({})), CachedDigest{});
}

TEST(DigestRecord, KeyEqualsTheGoldenValue) {
  // key=b"file-digest", person=b"hifc/kv/record" over the five fields, 8 bytes each.
  EXPECT_EQ(kv::hex(digest_record_key(example().file)),
            "14dea871cd8e95c8f9b711ef4e206898f78eeeaba5a984a4f06af3c22fb49891");
}

TEST(DigestRecord, RefusesOtherBytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::vector<std::byte> bytes(i % 2 == 0 ? kDigestRecordBytes : random() % 10000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(decode_digest(bytes));
  }
  const auto record = encode(example());
  for (const size_t size : {size_t{0}, size_t{95}, size_t{96}, kDigestRecordBytes - 1})
    EXPECT_FALSE(decode_digest(std::span(record).first(size)));
}

// A changed bit is refused or is another record; what is accepted is always canonical.
TEST(DigestRecord, AnyChangedBitIsNoticed) {
  auto record = encode(example());
  for (size_t bit = 0; bit < 8 * record.size(); ++bit) {
    record[bit / 8] ^= std::byte{1} << bit % 8;
    const auto decoded = decode_digest(record);
    EXPECT_NE(decoded, example()) << bit;
    if (decoded) {
      EXPECT_EQ(encode(*decoded), record) << bit;
      EXPECT_LT(bit, 8u * 96) << bit;
    }
    record[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

}  // namespace
}  // namespace hifc::engine
