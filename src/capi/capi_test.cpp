// libhifc as its users see it, on both backends.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hifc/hifc.h"
#include "io/memory.h"
#include "testing/temp_directory.h"

namespace {

using Bytes = std::vector<unsigned char>;

constexpr uint64_t kMiB = 1u << 20;

hifc_key key_of(uint64_t id) {
  hifc_key key = {};
  std::memcpy(key.bytes, &id, sizeof(id));
  return key;
}

Bytes value_of(uint64_t id, size_t size) {
  Bytes value(size);
  std::mt19937 random(static_cast<uint32_t>(id * 7919 + size));
  for (unsigned char& byte : value) byte = static_cast<unsigned char>(random());
  return value;
}

class CApiTest : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (GetParam() != HIFC_BACKEND_URING) return;
    const hifc_status status = open(64 * kMiB);
    if (status == HIFC_UNSUPPORTED) GTEST_SKIP() << hifc_last_error();
    close();
  }
  void TearDown() override {
    if (store_ != nullptr) close();
  }

  hifc_store_options options(uint64_t capacity_bytes) {
    hifc_store_options options;
    hifc_store_options_init(&options, sizeof(options));
    options.directory = path_.c_str();
    options.capacity_bytes = capacity_bytes;
    options.backend = GetParam();
    return options;
  }
  hifc_status open(uint64_t capacity_bytes) {
    const hifc_store_options with = options(capacity_bytes);
    return hifc_store_open(&with, &store_, nullptr);
  }
  void close() { EXPECT_EQ(hifc_close(std::exchange(store_, nullptr)), HIFC_OK); }
  void reopen(uint64_t capacity_bytes) {
    close();
    ASSERT_EQ(open(capacity_bytes), HIFC_OK) << hifc_last_error();
  }

  hifc_status put(uint64_t id, const Bytes& value) {
    const hifc_key key = key_of(id);
    return hifc_put(store_, &key, value.data(), value.size());
  }
  // Empty where there is none: values are not.
  Bytes get(uint64_t id, size_t room = 8 * kMiB) {
    const hifc_key key = key_of(id);
    Bytes value(room);
    size_t size = 0;
    const hifc_status status = hifc_get(store_, &key, value.data(), value.size(), &size);
    EXPECT_TRUE(status == HIFC_OK || status == HIFC_MISS) << hifc_last_error();
    value.resize(size);
    return value;
  }
  hifc_store_stat stat() {
    hifc_store_stat stat;
    stat.struct_size = sizeof(stat);
    EXPECT_EQ(hifc_stat(store_, &stat), HIFC_OK);
    return stat;
  }

  // Flips a byte of everything on flash that begins with these bytes.
  int damage(const Bytes& value, size_t offset) {
    int places = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() != ".seg") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const std::string all{std::istreambuf_iterator<char>(file), {}};
      const std::string begin(value.begin(), value.begin() + 64);
      for (size_t at = all.find(begin); at != std::string::npos; at = all.find(begin, at + 1)) {
        file.clear();
        file.seekp(static_cast<std::streamoff>(at + offset));
        file.put(static_cast<char>(~all[at + offset]));
        ++places;
      }
    }
    return places;
  }

  hifc::testing::TempDirectory directory_;
  const std::string path_ = directory_.file("store");
  hifc_store* store_ = nullptr;
};

TEST_P(CApiTest, ValuesOfEverySizeComeBackFromMemoryFromFlashAndAfterReopening) {
  const std::vector<size_t> sizes = {1,        4095,         4096,     4097,         100'000,
                                     kMiB + 1, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 8 * kMiB};
  ASSERT_EQ(open(256 * kMiB), HIFC_OK) << hifc_last_error();
  const auto check = [&](const char* where) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const hifc_key key = key_of(i);
      uint64_t size = 0;
      EXPECT_EQ(hifc_size(store_, &key, &size), HIFC_OK) << where;
      EXPECT_EQ(size, sizes[i]) << where;
      EXPECT_EQ(get(i), value_of(i, sizes[i])) << where << ": " << sizes[i];
      EXPECT_EQ(hifc_contains(store_, &key), HIFC_OK) << where;
    }
  };
  for (size_t i = 0; i < sizes.size(); ++i)
    ASSERT_EQ(put(i, value_of(i, sizes[i])), HIFC_OK) << hifc_last_error();
  EXPECT_GT(stat().buffered_values, 0u);
  check("in memory");
  ASSERT_EQ(hifc_flush(store_), HIFC_OK) << hifc_last_error();
  EXPECT_EQ(stat().buffered_values, 0u);
  EXPECT_EQ(stat().values, sizes.size());
  check("on flash");
  reopen(256 * kMiB);
  EXPECT_EQ(stat().recovered_values, sizes.size());
  check("reopened");
}

TEST_P(CApiTest, ManySmallValuesAreWrittenInFewRequests) {
  constexpr uint64_t kCount = 20'000;
  ASSERT_EQ(open(512 * kMiB), HIFC_OK);
  const Bytes value = value_of(1, 2000);
  for (uint64_t id = 0; id < kCount; ++id) ASSERT_EQ(put(id, value), HIFC_OK);
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);
  const hifc_store_stat now = stat();
  EXPECT_EQ(now.values, kCount);
  EXPECT_LT(now.writes, 60u) << "80 MiB in requests of about 4 MiB";
  EXPECT_EQ(get(0), value);
  EXPECT_EQ(get(kCount - 1), value);
}

TEST_P(CApiTest, ManyValuesAreReadTogetherEachWithItsOwnStatus) {
  constexpr uint64_t kCount = 3000;
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  std::vector<Bytes> values;
  std::vector<hifc_put_item> items;
  for (uint64_t id = 0; id < kCount; ++id) values.push_back(value_of(id, 1 + id * 5));
  for (uint64_t id = 0; id < kCount; ++id)
    items.push_back({key_of(id), values[id].data(), values[id].size(), HIFC_INTERNAL});
  items[7].size = 0;
  EXPECT_EQ(hifc_put_many(store_, items.data(), items.size()), HIFC_INVALID);
  EXPECT_STREQ(hifc_last_error(), "a value has at least one byte");
  EXPECT_EQ(items[7].status, HIFC_INVALID);
  EXPECT_EQ(items[8].status, HIFC_OK);
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);

  std::vector<Bytes> targets(kCount);
  std::vector<hifc_get_request> requests;
  for (uint64_t id = 0; id < kCount; ++id) {
    targets[id].resize(values[id].size() - (id == 9));
    requests.push_back({key_of(id), targets[id].data(), targets[id].size(), 0, HIFC_INTERNAL});
  }
  EXPECT_EQ(hifc_get_many(store_, requests.data(), requests.size()), HIFC_OK);
  for (uint64_t id = 0; id < kCount; ++id) {
    if (id == 7) {
      EXPECT_EQ(requests[id].status, HIFC_MISS);
    } else if (id == 9) {
      EXPECT_EQ(requests[id].status, HIFC_TOO_SMALL);
      EXPECT_EQ(requests[id].size, values[id].size());
    } else {
      ASSERT_EQ(requests[id].status, HIFC_OK) << id;
      ASSERT_TRUE(targets[id] == values[id]) << id;
    }
  }
}

TEST_P(CApiTest, RangesAtAnyOffsetIntoAnyMemoryAreThoseOfTheValue) {
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  const Bytes small = value_of(1, 3 * kMiB + 17), large = value_of(2, 5 * kMiB + 4095);
  ASSERT_EQ(put(1, small), HIFC_OK);
  ASSERT_EQ(put(2, large), HIFC_OK);
  auto memory = *hifc::io::AlignedMemory::allocate(6 * kMiB);
  const auto check = [&] {
    std::mt19937_64 random(5);
    for (int round = 0; round < 150; ++round) {
      const Bytes& value = round % 2 == 0 ? small : large;
      uint64_t offset = random() % value.size();
      uint64_t size = random() % (value.size() - offset + 1);
      if (round % 3 == 0) offset = offset / 4096 * 4096;
      if (round % 5 == 0) size = std::min<uint64_t>(size, 5000);
      auto* target = reinterpret_cast<unsigned char*>(memory.data()) + (round % 4 == 0 ? 0 : 13);
      std::fill_n(target, size + 8, 0xEE);
      hifc_range_request request = {key_of(round % 2 == 0 ? 1 : 2), offset, target, size, 0, 0};
      ASSERT_EQ(hifc_get_ranges(store_, &request, 1), HIFC_OK) << hifc_last_error();
      EXPECT_EQ(request.value_size, value.size());
      ASSERT_TRUE(std::equal(target, target + size, value.begin() + static_cast<long>(offset)))
          << offset << " " << size;
      EXPECT_EQ(target[size], 0xEE) << "nothing beyond the range is touched";
    }
  };
  check();
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);
  check();
  hifc_range_request beyond = {key_of(1), small.size() - 1, memory.data(), 2, 0, 0};
  EXPECT_EQ(hifc_get_ranges(store_, &beyond, 1), HIFC_INVALID);
  EXPECT_EQ(beyond.status, HIFC_INVALID);
  EXPECT_NE(std::string(hifc_last_error()).find("range of 2 bytes"), std::string::npos);
  hifc_range_request absent = {key_of(3), 0, memory.data(), 2, 0, 0};
  EXPECT_EQ(hifc_get_ranges(store_, &absent, 1), HIFC_OK);
  EXPECT_EQ(absent.status, HIFC_MISS);
}

TEST_P(CApiTest, ASmallRangeReadsLittle) {
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  ASSERT_EQ(put(1, value_of(1, 3 * kMiB)), HIFC_OK);
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);
  unsigned char target[10];
  hifc_range_request request = {key_of(1), 4090, target, sizeof(target), 0, 0};
  const uint64_t before = stat().read_bytes;
  ASSERT_EQ(hifc_get_ranges(store_, &request, 1), HIFC_OK);
  EXPECT_EQ(stat().read_bytes - before, 2u * 4096);
}

TEST_P(CApiTest, TheNewestValueIsFoundWhicheverWayItWasWritten) {
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  const Bytes small = value_of(1, 1000), other = value_of(2, 2000), large = value_of(3, 5 * kMiB);
  const auto check = [&] {
    EXPECT_EQ(get(1), other);
    EXPECT_EQ(get(2), large);
    EXPECT_EQ(get(3), small);
  };
  ASSERT_EQ(put(1, small), HIFC_OK);
  ASSERT_EQ(put(1, other), HIFC_OK);
  ASSERT_EQ(put(2, small), HIFC_OK);
  ASSERT_EQ(put(2, large), HIFC_OK);
  ASSERT_EQ(put(3, large), HIFC_OK);
  ASSERT_EQ(put(3, small), HIFC_OK);
  check();
  reopen(256 * kMiB);
  check();
}

TEST_P(CApiTest, RemovedValuesStayGone) {
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  const hifc_key on_flash = key_of(1), in_memory = key_of(2), absent = key_of(3);
  ASSERT_EQ(put(1, value_of(1, 100)), HIFC_OK);
  ASSERT_EQ(put(4, value_of(4, 100)), HIFC_OK);
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);
  ASSERT_EQ(put(2, value_of(2, 100)), HIFC_OK);
  EXPECT_EQ(hifc_remove(store_, &on_flash), HIFC_OK);
  EXPECT_EQ(hifc_remove(store_, &in_memory), HIFC_OK);
  EXPECT_EQ(hifc_remove(store_, &absent), HIFC_MISS);
  EXPECT_EQ(hifc_remove(store_, &on_flash), HIFC_MISS);
  ASSERT_EQ(hifc_flush(store_), HIFC_OK);
  reopen(256 * kMiB);
  EXPECT_EQ(hifc_contains(store_, &on_flash), HIFC_MISS);
  EXPECT_EQ(hifc_contains(store_, &in_memory), HIFC_MISS);
  EXPECT_EQ(get(4), value_of(4, 100)) << "the others stay";
}

TEST_P(CApiTest, WhatWasFlushedSurvivesTheEndOfTheProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool good = open(256 * kMiB) == HIFC_OK;
    for (uint64_t id = 0; id < 500; ++id) good = good && put(id, value_of(id, 3000)) == HIFC_OK;
    good = good && hifc_flush(store_) == HIFC_OK;
    good = good && put(1000, value_of(1000, 10)) == HIFC_OK;  // which is lost
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ASSERT_EQ(open(256 * kMiB), HIFC_OK) << hifc_last_error();
  for (uint64_t id = 0; id < 500; ++id) ASSERT_EQ(get(id, 4096), value_of(id, 3000));
  EXPECT_TRUE(get(1000).empty());
}

TEST_P(CApiTest, DamagedBytesAreAMissAndNeverReachTheBuffer) {
  ASSERT_EQ(open(256 * kMiB), HIFC_OK);
  const Bytes bad = value_of(1, 2 * kMiB), good = value_of(2, 2 * kMiB);
  ASSERT_EQ(put(1, bad), HIFC_OK);
  ASSERT_EQ(put(2, good), HIFC_OK);
  reopen(256 * kMiB);
  ASSERT_EQ(damage(bad, kMiB + 5), 1);

  auto memory = *hifc::io::AlignedMemory::allocate(2 * kMiB);
  const hifc_key key = key_of(1);
  hifc_range_request elsewhere = {key, 100, memory.data(), 1000, 0, 0};
  EXPECT_EQ(hifc_get_ranges(store_, &elsewhere, 1), HIFC_OK);
  EXPECT_EQ(elsewhere.status, HIFC_OK) << "other chunks are whole";
  size_t size = 1;
  EXPECT_EQ(hifc_get(store_, &key, memory.data(), 2 * kMiB, &size), HIFC_MISS);
  EXPECT_EQ(size, 0u);
  EXPECT_TRUE(
      std::ranges::all_of(memory.span(), [](std::byte byte) { return byte == std::byte{}; }));
  EXPECT_EQ(stat().corrupt_chunks, 1u);
  EXPECT_EQ(stat().quarantined_values, 1u);
  EXPECT_EQ(hifc_contains(store_, &key), HIFC_MISS);
  EXPECT_EQ(get(2), good);
}

TEST_P(CApiTest, TheOldestValuesGoWhenTheCapacityIsReached) {
  constexpr uint64_t kCapacity = 32 * kMiB;
  ASSERT_EQ(open(kCapacity), HIFC_OK);
  for (uint64_t id = 0; id < 1000; ++id)
    ASSERT_EQ(put(id, value_of(id, 100'000)), HIFC_OK) << hifc_last_error();
  ASSERT_EQ(hifc_flush(store_), HIFC_OK) << hifc_last_error();
  const hifc_store_stat now = stat();
  EXPECT_LE(now.peak_bytes_on_disk, kCapacity);
  EXPECT_GT(now.retired_values, 600u);
  EXPECT_EQ(now.lost_values, 0u);
  EXPECT_GT(now.values, 200u) << "at least half of the capacity holds values";
  EXPECT_TRUE(get(0).empty());
  EXPECT_EQ(get(999), value_of(999, 100'000));
  EXPECT_EQ(put(5000, Bytes(33 * kMiB)), HIFC_FULL);
  EXPECT_EQ(put(5000, Bytes(10 * kMiB, 3)), HIFC_OK) << hifc_last_error();
  EXPECT_EQ(get(5000, 10 * kMiB), Bytes(10 * kMiB, 3));
}

TEST_P(CApiTest, ATemporaryStoreLeavesNothing) {
  hifc_store_options with = options(64 * kMiB);
  with.temporary = 1;
  ASSERT_EQ(hifc_store_open(&with, &store_, nullptr), HIFC_OK);
  ASSERT_EQ(put(1, value_of(1, 5 * kMiB)), HIFC_OK);
  ASSERT_EQ(put(2, value_of(2, 500)), HIFC_OK);
  reopen(64 * kMiB);
  EXPECT_TRUE(get(1).empty());
  EXPECT_TRUE(get(2).empty());
}

TEST_P(CApiTest, ThreadsPutGetRemoveAndFlushAtTheSameTime) {
  constexpr uint64_t kThreads = 4, kRounds = 250, kShared = 50;
  ASSERT_EQ(open(128 * kMiB), HIFC_OK);
  std::atomic<int> wrong = 0;
  const auto size_of = [](uint64_t id) {
    return id % 40 == 0 ? 4 * kMiB + id : 1 + id * 37 % 30'000;
  };
  const auto work = [&](uint64_t thread) {
    std::mt19937_64 random(thread);
    Bytes target(5 * kMiB);
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t id = random() % kShared;
      const hifc_key key = key_of(id);
      const Bytes value = value_of(id, size_of(id));
      size_t size = 0;
      hifc_status status = HIFC_OK;
      switch (random() % 8) {
        case 0: status = hifc_remove(store_, &key); break;
        case 1: status = round % 10 == 0 ? hifc_flush(store_) : hifc_contains(store_, &key); break;
        case 2:
        case 3:
        case 4: status = hifc_put(store_, &key, value.data(), value.size()); break;
        default:
          status = hifc_get(store_, &key, target.data(), target.size(), &size);
          const bool right =
              size == value.size() && std::equal(value.begin(), value.end(), target.begin());
          if (status == HIFC_OK && !right) ++wrong;
      }
      if (status < 0) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(hifc_flush(store_), HIFC_OK) << hifc_last_error();
  EXPECT_EQ(stat().lost_values, 0u);
}

TEST_P(CApiTest, MisuseIsRefusedWithTheArgumentNamed) {
  const hifc_key key = key_of(1);
  char byte = 0;
  size_t size = 0;
  const auto refused = [](hifc_status status, const char* message) {
    EXPECT_EQ(status, HIFC_INVALID) << message;
    EXPECT_STREQ(hifc_last_error(), message);
  };
  const hifc_store_options good = options(64 * kMiB);
  hifc_error error;
  refused(hifc_store_open(nullptr, &store_, &error), "options is NULL");
  EXPECT_STREQ(error.message, "options is NULL");
  EXPECT_EQ(error.status, HIFC_INVALID);
  refused(hifc_store_open(&good, nullptr, nullptr), "store is NULL");
  refused(hifc_put(nullptr, &key, &byte, 1), "store is NULL");
  refused(hifc_close(nullptr), "store is NULL");
  refused(hifc_flush(nullptr), "store is NULL");

  ASSERT_EQ(open(64 * kMiB), HIFC_OK);
  refused(hifc_put(store_, nullptr, &byte, 1), "key is NULL");
  refused(hifc_put(store_, &key, nullptr, 1), "data is NULL");
  refused(hifc_put(store_, &key, &byte, 0), "a value has at least one byte");
  refused(hifc_get(store_, &key, nullptr, 1, &size), "buffer is NULL");
  refused(hifc_get_many(store_, nullptr, 1), "requests is NULL");
  hifc_range_request request = {key, 0, nullptr, 1, 0, 0};
  refused(hifc_get_ranges(store_, &request, 1), "requests[].buffer is NULL");
  refused(hifc_size(store_, &key, nullptr), "size is NULL");
  refused(hifc_stat(store_, nullptr), "stat is NULL");
  EXPECT_EQ(hifc_get_many(store_, nullptr, 0), HIFC_OK);
  hifc_store_stat stat = {};
  EXPECT_EQ(hifc_stat(store_, &stat), HIFC_INVALID) << "struct_size is not set";
}

TEST_P(CApiTest, BadOptionsAreRefusedAndNewerOnesToo) {
  const auto status_with = [&](auto change) {
    hifc_store_options with = options(64 * kMiB);
    change(with);
    return hifc_store_open(&with, &store_, nullptr);
  };
  EXPECT_EQ(status_with([](auto& o) { o.struct_size = 0; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.directory = nullptr; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.capacity_bytes = 0; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.backend = 9; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.queue_depth = 0; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.deadline_ms = UINT64_MAX; }), HIFC_INVALID);
  EXPECT_EQ(status_with([](auto& o) { o.directory = "/proc/hifc"; }) < 0, true);
  EXPECT_EQ(store_, nullptr);

  struct Newer {
    hifc_store_options known;
    uint64_t unknown;
  } newer;
  hifc_store_options_init(&newer.known, sizeof(newer));
  newer.known.directory = path_.c_str();
  newer.known.capacity_bytes = 64 * kMiB;
  newer.unknown = 1;
  EXPECT_EQ(hifc_store_open(&newer.known, &store_, nullptr), HIFC_UNSUPPORTED);
  newer.unknown = 0;
  EXPECT_EQ(hifc_store_open(&newer.known, &store_, nullptr), HIFC_OK) << hifc_last_error();

  hifc_store* second = nullptr;
  hifc_error error;
  EXPECT_EQ(hifc_store_open(&newer.known, &second, &error), HIFC_BUSY) << error.message;
  EXPECT_EQ(second, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Backends, CApiTest,
                         ::testing::Values(HIFC_BACKEND_URING, HIFC_BACKEND_THREADS),
                         [](const auto& info) {
                           return info.param == HIFC_BACKEND_URING ? "uring" : "threads";
                         });

TEST(CApi, EveryStatusHasAText) {
  for (hifc_status status = HIFC_INTERNAL; status <= HIFC_TOO_SMALL; ++status)
    EXPECT_STRNE(hifc_error_text(status), "unknown status") << status;
  EXPECT_STREQ(hifc_error_text(77), "unknown status");
  EXPECT_STRNE(hifc_version(), "");
}

TEST(CApi, TheLastErrorIsOfThisThread) {
  EXPECT_EQ(hifc_flush(nullptr), HIFC_INVALID);
  std::thread([] { EXPECT_STREQ(hifc_last_error(), ""); }).join();
  EXPECT_STREQ(hifc_last_error(), "store is NULL");
}

}  // namespace
