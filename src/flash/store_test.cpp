// The store on real rings: every test runs on io_uring and on threads.
#include "flash/store.h"

#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "flash/format_fixture.h"
#include "flash/store_fixture.h"

namespace hifc::flash {
namespace {

using Backend = io::RingOptions::Backend;
namespace fs = std::filesystem;

constexpr ValueShape kSmall{.lanes = 3, .lane_bytes = 8192, .chunk_bytes = 4096};
// Lanes of 1 to 7 pages.
constexpr ValueShape kUneven{
    .lanes = 5, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 28672};
constexpr uint64_t kMiB = 1u << 20;

void overwrite(const fs::path& path, uint64_t offset, std::string_view bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class StoreTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    auto ring = io::Ring::create({.backend = GetParam(), .depth = 8});
    if (!ring && GetParam() == Backend::kUring) GTEST_SKIP() << ring.error().message();
    ring_ = std::move(*ring);
    harness_ = std::make_unique<StoreHarness>(*ring_);
  }
  StoreHarness& h() { return *harness_; }
  Store& store() { return *harness_->store; }

  std::unique_ptr<io::Ring> ring_;
  std::unique_ptr<StoreHarness> harness_;
};

TEST_P(StoreTest, WhatIsPutIsFoundReadAndVerified) {
  h().open(16 * kMiB);
  EXPECT_FALSE(h().contains(1));
  const TestBatch batch(kSmall, id_range(1, 10));
  const auto handles = h().put(batch);
  ASSERT_TRUE(handles) << handles.error().message();
  ASSERT_EQ(handles->size(), 10u);
  for (uint64_t id = 1; id <= 10; ++id) {
    EXPECT_TRUE(h().intact((*handles)[id - 1], kSmall, id));
    EXPECT_TRUE(h().findable_and_intact(kSmall, id));
  }
  EXPECT_FALSE(h().contains(11));
  EXPECT_EQ(store().statistics().values, 10u);
  EXPECT_EQ(store().statistics().payload_bytes_put, 10u * 3 * 8192);
  EXPECT_EQ(store().statistics().corrupt_chunks, 0u);
  h().check_bytes();
}

TEST_P(StoreTest, NothingIsFindableBeforeItsCompletion) {
  h().open(16 * kMiB);
  const TestBatch batch(kSmall, id_range(1, 2));
  bool completed = false;
  ASSERT_TRUE(store().put(kSmall.batch(), batch.values, [&](auto) {
    completed = true;
    EXPECT_TRUE(h().contains(2));
  }));
  EXPECT_FALSE(h().contains(1));
  EXPECT_FALSE(completed) << "completions run in the ring's poll() and wait() only";
  h().wait_all();
  EXPECT_TRUE(completed);
}

TEST_P(StoreTest, ARunOfNeighboursIsOneRead) {
  h().open(16 * kMiB);
  const auto handles = *h().put(TestBatch(kSmall, id_range(0, 6)));
  const auto others = *h().put(TestBatch(kSmall, id_range(6, 1)));
  auto memory = *io::AlignedMemory::allocate(6 * 8192);
  std::vector<LaneRead> run;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(handles[i].follows(handles[0]), i == 1);
    run.push_back({&handles[i], memory.data() + (5 - i) * 8192});
  }
  EXPECT_FALSE(others[0].follows(handles[5]));
  EXPECT_FALSE(handles[0].follows(Handle()));

  ASSERT_TRUE(store().read(2, run, [](Result<void> result) { EXPECT_TRUE(result); }));
  h().wait_all();
  for (const LaneRead& read : run)
    EXPECT_TRUE(store().verify(*read.handle, 2, {read.memory, 8192}));
  EXPECT_EQ(store().statistics().reads, 1u);
  EXPECT_EQ(store().statistics().read_bytes, 6u * 8192);

  std::swap(run[2], run[3]);
  EXPECT_EQ(store().read(2, run, [](auto) {}).error().code, Code::kInvalid);
}

TEST_P(StoreTest, ARunMayBeginAndEndInsideALane) {
  h().open(16 * kMiB);
  const auto handles = *h().put(TestBatch(kSmall, id_range(0, 3)));
  auto memory = *io::AlignedMemory::allocate(3 * 8192);
  const auto run_of = [&](LaneRead first, LaneRead middle, LaneRead last) {
    std::vector<LaneRead> run = {first, middle, last};
    for (size_t i = 0; i < 3; ++i) {
      run[i].handle = &handles[i];
      run[i].memory = memory.data() + i * 8192 + run[i].offset_bytes;
    }
    return run;
  };
  const LaneRead end{.offset_bytes = 4096}, begin{.size_bytes = 4096};
  ASSERT_TRUE(
      store().read(1, run_of(end, {}, begin), [](Result<void> result) { EXPECT_TRUE(result); }));
  h().wait_all();
  EXPECT_EQ(store().statistics().reads, 1u);
  EXPECT_EQ(store().statistics().read_bytes, 2u * 8192);
  const auto bytes = std::span<const std::byte>(memory.span());
  EXPECT_TRUE(store().verify(handles[0], {1, 4096, 4096}, bytes.subspan(4096, 4096)));
  EXPECT_TRUE(store().verify(handles[1], 1, bytes.subspan(8192, 8192)));
  EXPECT_TRUE(store().verify(handles[2], {1, 0, 4096}, bytes.subspan(16384, 4096)));

  const LaneRead odd{.offset_bytes = 512}, beyond{.offset_bytes = 8192},
      longer{.size_bytes = 12288};
  for (const auto& run :
       {run_of(begin, {}, {}), run_of({}, end, {}), run_of({}, begin, {}), run_of({}, {}, end),
        run_of(odd, {}, {}), run_of(beyond, {}, {}), run_of({}, {}, longer)})
    EXPECT_EQ(store().read(1, run, [](auto) {}).error().code, Code::kInvalid);
}

TEST_P(StoreTest, WritesAreAtLeastFourMebibytesWhereTheBatchIs) {
  h().open(256 * kMiB);
  const ValueShape shapes[] = {
      {.lanes = 4, .lane_bytes = 64 << 10, .chunk_bytes = 64 << 10},
      {.lanes = 2, .lane_bytes = 12 << 20, .chunk_bytes = 1 << 20},
      {.lanes = 32, .lane_bytes = 4096, .chunk_bytes = 4096},
  };
  for (const ValueShape& shape : shapes) {
    const uint64_t count = (16 * kMiB) / (shape.lanes * shape.lane_bytes) + 1;
    const StoreStatistics before = store().statistics();
    ASSERT_TRUE(h().put(TestBatch(shape, id_range(0, count))));
    const StoreStatistics& after = store().statistics();
    const uint64_t headers = after.segments - before.segments;
    const uint64_t writes = after.writes - before.writes - headers;
    const uint64_t bytes = after.written_bytes - before.written_bytes;
    EXPECT_LE(writes, bytes / (4 * kMiB) + 1) << "all but the last have 4 MiB";
    EXPECT_GE(writes, 2u) << "several are in flight together";
    EXPECT_TRUE(h().findable_and_intact(shape, count - 1));
  }
}

TEST_P(StoreTest, AValueOf128MebibytesFits) {
  const ValueShape shape{.lanes = 32, .lane_bytes = 4 << 20, .chunk_bytes = 64 << 10};
  h().open(512 * kMiB);
  const TestBatch batch(shape, {1});
  ASSERT_TRUE(h().put(batch));
  EXPECT_TRUE(h().findable_and_intact(shape, 1));
  h().check_bytes();
  h().store.reset();
  h().open(130 * kMiB);  // larger than a quarter of the capacity: a segment of its own size
  for (int round = 0; round < 2; ++round) ASSERT_TRUE(h().put(batch));
  EXPECT_TRUE(h().findable_and_intact(shape, 1));
  h().check_bytes();
}

TEST_P(StoreTest, ASegmentMadeForALargeBatchDoesNotStay) {
  h().open(256 * kMiB, 16 * kMiB);
  const ValueShape large{.lanes = 1, .lane_bytes = 48 << 20, .chunk_bytes = 1 << 20};
  const ValueShape small{.lanes = 1, .lane_bytes = 4 << 20, .chunk_bytes = 1 << 20};
  ASSERT_TRUE(h().put(TestBatch(large, {0})));
  for (uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(h().put(TestBatch(small, {id})));
  EXPECT_FALSE(h().contains(0));
  for (const auto& entry : std::filesystem::directory_iterator(h().path()))
    EXPECT_LE(entry.file_size(), 16 * kMiB) << entry.path();
  h().check_bytes();
}

TEST_P(StoreTest, NothingIsRetiredToOpenASegmentAheadInVain) {
  const ValueShape small{.lanes = 1, .lane_bytes = 1 << 20, .chunk_bytes = 64 << 10};
  const ValueShape large{.lanes = 1, .lane_bytes = 25 << 20, .chunk_bytes = 1 << 20};
  h().open(64 * kMiB, 16 * kMiB);
  for (uint64_t id = 1; id <= 40; ++id) ASSERT_TRUE(h().put(TestBatch(small, {id})));
  ASSERT_TRUE(h().put(TestBatch(large, {0})));
  uint32_t left = 0;
  for (uint64_t id = 1; id <= 40; ++id) left += h().contains(id) ? 1 : 0;
  EXPECT_GE(left, 24u) << "only what the large one needs goes";
  EXPECT_TRUE(h().findable_and_intact(large, 0));
  h().check_bytes();
}

TEST_P(StoreTest, TheNextSegmentIsOpenedBeforeTheActiveOneIsFull) {
  h().open(256 * kMiB, 16 * kMiB);
  const ValueShape shape{.lanes = 1, .lane_bytes = 1 << 20, .chunk_bytes = 64 << 10};
  for (uint64_t id = 0; id < 8; ++id) ASSERT_TRUE(h().put(TestBatch(shape, {id})));
  EXPECT_EQ(store().statistics().segments, 1u);
  for (uint64_t id = 8; id < 13; ++id) ASSERT_TRUE(h().put(TestBatch(shape, {id})));
  EXPECT_EQ(store().statistics().segments, 2u);
  // Nothing was written to the second one: the first goes on being filled.
  h().store.reset();
  h().open(256 * kMiB, 16 * kMiB);
  for (uint64_t id = 13; id < 15; ++id) ASSERT_TRUE(h().put(TestBatch(shape, {id})));
  for (uint64_t id = 15; id < 20; ++id) ASSERT_TRUE(h().put(TestBatch(shape, {id})));
  EXPECT_EQ(store().statistics().segments, 2u);
  h().store.reset();
  h().open(256 * kMiB, 16 * kMiB);
  for (uint64_t id = 0; id < 20; ++id) EXPECT_TRUE(h().findable_and_intact(shape, id)) << id;
}

// Flash for 64 small values, 1,000 put: the oldest go, segment by segment.
TEST_P(StoreTest, TheOldestValuesMakeRoomAndBytesStayBelowTheCapacity) {
  const ValueShape shape{.lanes = 2, .lane_bytes = 8192, .chunk_bytes = 8192};
  h().open(64 * 2 * 8192);
  for (uint64_t id = 0; id < 1000; ++id) {
    ASSERT_TRUE(h().put(TestBatch(shape, {id})));
    h().check_bytes();
    ASSERT_TRUE(h().contains(id));
  }
  uint64_t oldest = 0;
  while (!h().contains(oldest)) ++oldest;
  for (uint64_t id = oldest; id < 1000; ++id) EXPECT_TRUE(h().findable_and_intact(shape, id));
  const StoreStatistics& statistics = store().statistics();
  EXPECT_EQ(statistics.values, 1000 - oldest);
  EXPECT_EQ(statistics.retired_values, oldest);
  EXPECT_GE(statistics.values, 64u / 2);
}

TEST_P(StoreTest, PinnedSegmentsAreKeptAndFillTheStore) {
  h().open(kMiB);
  std::vector<Handle> pins;
  uint64_t id = 0;
  while (true) {
    auto handles = h().put(TestBatch(kSmall, id_range(id, 4)));
    if (!handles) {
      EXPECT_EQ(handles.error().code, Code::kFull);
      EXPECT_NE(handles.error().message().find("1.0 MiB"), std::string::npos);
      break;
    }
    pins.push_back(handles->front());
    id += 4;
    ASSERT_LT(id, 1000u);
  }
  for (uint64_t i = 0; i < id; ++i) EXPECT_TRUE(h().findable_and_intact(kSmall, i));
  pins.erase(pins.begin());  // its segment is still pinned by its neighbours
  EXPECT_FALSE(h().put(TestBatch(kSmall, id_range(id, 4))));
  pins.clear();
  EXPECT_TRUE(h().put(TestBatch(kSmall, id_range(id, 4))));
  EXPECT_FALSE(h().contains(0));
  h().check_bytes();
}

TEST_P(StoreTest, AReadPinsWhatItReads) {
  h().open(kMiB);
  auto memory = *io::AlignedMemory::allocate(8192);
  ASSERT_TRUE(h().put(TestBatch(kSmall, {0})));
  std::optional<Result<void>> outcome;
  {
    const Handle handle = h().find(0);
    const LaneRead run{&handle, memory.data()};
    ASSERT_TRUE(store().read(1, {&run, 1}, [&](Result<void> result) { outcome = result; }));
  }
  // Puts that would overwrite the value's segment if it were free.
  std::vector<std::unique_ptr<TestBatch>> batches;
  for (uint64_t id = 1; id < 60; ++id) {
    batches.push_back(std::make_unique<TestBatch>(kSmall, std::vector<uint64_t>{id}));
    if (!store().put(kSmall.batch(), batches.back()->values, [](auto) {})) break;
  }
  h().wait_all();
  ASSERT_TRUE(outcome && outcome->has_value());
  std::vector<std::byte> expected(8192);
  fill_lane(0, 0, 1, expected);
  EXPECT_EQ(std::memcmp(memory.data(), expected.data(), expected.size()), 0);
}

TEST_P(StoreTest, TheNewestValueUnderAKeyIsFoundAndTheOldHandleStillReads) {
  h().open(16 * kMiB);
  const auto old_handles = *h().put(TestBatch(kSmall, {5}, 1));
  ASSERT_TRUE(h().put(TestBatch(kSmall, {5}, 2)));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 5, 2));
  EXPECT_TRUE(h().intact(old_handles[0], kSmall, 5, 1));
  EXPECT_EQ(store().statistics().values, 1u);
  store().quarantine(old_handles[0]);
  EXPECT_TRUE(h().contains(5)) << "it is not the value that was damaged";
  EXPECT_EQ(store().statistics().quarantined_values, 0u);
}

TEST_P(StoreTest, AFlippedByteIsAMissAndOnlyForItsValue) {
  h().open(16 * kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(0, 8))));
  const uint64_t lane_1 = kSegmentHeaderBytes + kPageBytes + 8 * 8192;  // behind a header page
  overwrite(h().segment_file(), lane_1 + 3 * 8192 + 5000, "x");
  for (uint64_t id = 0; id < 8; ++id) EXPECT_EQ(h().findable_and_intact(kSmall, id), id != 3);
  EXPECT_EQ(store().statistics().corrupt_chunks, 1u);
  store().quarantine(h().find(3));
  EXPECT_FALSE(h().contains(3));
  EXPECT_EQ(store().statistics().quarantined_values, 1u);
  EXPECT_TRUE(h().put(TestBatch(kSmall, {3})));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 3));
}

TEST_P(StoreTest, DamagedHeadersDoNotTouchWhatIsInMemory) {
  h().open(16 * kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(0, 2))));
  overwrite(h().segment_file(), 0, std::string(kSegmentHeaderBytes + 100, 'x'));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 0));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 1));
}

TEST_P(StoreTest, ATruncatedSegmentIsAReadErrorAndTheRestWorks) {
  for (const int percent : {10, 50, 80}) {  // beyond that, it only loses its checkpoint
    h().open(64 * 2 * 8192);
    for (uint64_t id = 0; id < 30; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
    fs::resize_file(h().segment_file(0), fs::file_size(h().segment_file(0)) * percent / 100);
    int lost = 0;
    for (uint64_t id = 0; id < 30; ++id) {
      if (h().contains(id) && !h().findable_and_intact(kSmall, id)) ++lost;
    }
    EXPECT_GT(lost, 0);
    EXPECT_LT(lost, 15);
    for (uint64_t id = 30; id < 100; ++id) {
      ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
      EXPECT_TRUE(h().findable_and_intact(kSmall, id));
    }
    h().store.reset();
    fs::remove_all(h().path());
  }
}

TEST_P(StoreTest, ManyPutsAndReadsQueueBehindASmallRing) {
  h().open(64 * kMiB);
  std::vector<std::unique_ptr<TestBatch>> batches;
  int done = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    batches.push_back(std::make_unique<TestBatch>(kSmall, id_range(i * 4, 4)));
    ASSERT_TRUE(store().put(kSmall.batch(), batches.back()->values, [&](auto result) {
      EXPECT_TRUE(result);
      ++done;
    }));
  }
  h().wait_all();
  EXPECT_EQ(done, 40);
  auto memory = *io::AlignedMemory::allocate(160 * 8192);
  for (uint64_t id = 0; id < 160; ++id) {
    const Handle handle = h().find(id);
    const LaneRead run{&handle, memory.data() + id * 8192};
    ASSERT_TRUE(store().read(0, {&run, 1}, [&](auto result) { done += result.has_value(); }));
  }
  h().wait_all();
  EXPECT_EQ(done, 200);
  for (uint64_t id = 0; id < 160; ++id)
    EXPECT_TRUE(store().verify(h().find(id), 0, {memory.data() + id * 8192, 8192}));
}

TEST_P(StoreTest, TooManyWaitingPutsAreBusyAndTheOthersComplete) {
  h().open(64 * kMiB);
  const TestBatch batch(kSmall, {1});
  int accepted = 0, done = 0;
  while (true) {
    const auto result = store().put(kSmall.batch(), batch.values, [&](auto) { ++done; });
    if (!result) {
      EXPECT_EQ(result.error().code, Code::kBusy);
      break;
    }
    ASSERT_LT(++accepted, 1000);
  }
  EXPECT_GE(accepted, 128);
  h().wait_all();
  EXPECT_EQ(done, accepted);
  EXPECT_TRUE(h().put(batch));
}

TEST_P(StoreTest, ClosingRunsWhatIsInFlight) {
  h().open(16 * kMiB);
  const TestBatch batch(kSmall, id_range(0, 20));
  int done = 0;
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(store().put(kSmall.batch(), batch.values, [&](auto) { ++done; }));
  h().store.reset();
  EXPECT_EQ(done, 10);
}

TEST_P(StoreTest, VerifyMayRunOnManyThreads) {
  h().open(16 * kMiB);
  const TestBatch batch(kSmall, id_range(0, 4));
  const auto handles = *h().put(batch);
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t lane = 0; lane < kSmall.lanes; ++lane)
        for (size_t i = 0; i < 4; ++i)
          good += store().verify(handles[t], lane, batch.values[i].lanes[lane]);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 12);
  EXPECT_EQ(store().statistics().corrupt_chunks, 4u * 3 * 3 * 2);
}

TEST_P(StoreTest, WhatCannotBeStoredIsRefusedWithTheReason) {
  h().open(kMiB);
  const TestBatch batch(kSmall, {1});
  const auto code = [&](BatchShape shape, std::vector<PutValue> values) {
    return store().put(shape, std::move(values), [](auto) { FAIL(); }).error().code;
  };
  // Nobody looks at the memory of what is refused.
  const auto with_lanes_of = [&](uint64_t bytes) {
    std::vector<PutValue> values = batch.values;
    for (auto& lane : values[0].lanes) lane = {lane.data(), bytes};
    return values;
  };
  EXPECT_EQ(code(kSmall.batch(), {}), Code::kInvalid);
  EXPECT_EQ(code({.lanes = 0, .chunk_bytes = 4096}, batch.values), Code::kInvalid);
  EXPECT_EQ(code({.lanes = 3, .chunk_bytes = 0}, batch.values), Code::kInvalid);
  EXPECT_EQ(code({.lanes = 2, .chunk_bytes = 4096}, batch.values), Code::kInvalid);
  EXPECT_EQ(code(kSmall.batch(), with_lanes_of(uint64_t{1} << 62)), Code::kInvalid);
  EXPECT_EQ(code(kSmall.batch(), with_lanes_of(uint64_t{1} << 40)), Code::kFull);
  EXPECT_EQ(code(kSmall.batch(), with_lanes_of(344u << 10)), Code::kFull);
  std::vector<PutValue> too_long = batch.values;
  too_long[0].size_bytes = 3 * 8192 + 1;
  EXPECT_EQ(code(kSmall.batch(), too_long), Code::kInvalid);
  EXPECT_EQ(store().read(0, {}, [](auto) {}).error().code, Code::kInvalid);
  const LaneRead nothing{};
  EXPECT_EQ(store().read(0, {&nothing, 1}, [](auto) {}).error().code, Code::kInvalid);
  const auto handles = *h().put(batch);
  const LaneRead lane_9{&handles[0], batch.memory.data()};
  EXPECT_EQ(store().read(9, {&lane_9, 1}, [](auto) {}).error().code, Code::kInvalid);
  EXPECT_FALSE(store().verify(handles[0], 0, batch.memory.span().first(4096)));
  EXPECT_FALSE(store().verify(Handle(), 0, batch.memory.span().first(8192)));
}

TEST_P(StoreTest, ALaneThatCannotBeStoredIsNamed) {
  h().open(kMiB);
  const TestBatch batch(kUneven, {1, 2});
  const auto problem_with = [&](std::span<const std::byte> lane) {
    std::vector<PutValue> values = batch.values;
    values[1].lanes[3] = lane;
    const auto refused = store().put(kUneven.batch(), values, [](auto) { FAIL(); });
    EXPECT_EQ(refused.error().code, Code::kInvalid);
    return refused.error().context;
  };
  const std::byte* const memory = batch.memory.data();
  const std::string accepted = " bytes: accepted are multiples of 4096 from 4096 to 1099511627776";
  EXPECT_EQ(problem_with({}), "lane 3 of value 1 has 0" + accepted);
  EXPECT_EQ(problem_with({memory, size_t{0}}), "lane 3 of value 1 has 0" + accepted);
  EXPECT_EQ(problem_with({memory, 100}), "lane 3 of value 1 has 100" + accepted);
  EXPECT_EQ(problem_with({memory, 8192 + 512}), "lane 3 of value 1 has 8704" + accepted);
  const std::string unaligned = problem_with({memory + 8, 4096});
  EXPECT_TRUE(unaligned.starts_with("the memory of lane 3 of value 1, at 0x")) << unaligned;
  EXPECT_TRUE(unaligned.ends_with("8, is not aligned to 4096")) << unaligned;
  EXPECT_TRUE(h().put(batch));
}

// Lanes of different lengths

TEST_P(StoreTest, LanesKeepTheLengthsTheyWerePutWith) {
  h().open(16 * kMiB);
  const TestBatch batch(kUneven, id_range(0, 9));
  const auto handles = h().put(batch);
  ASSERT_TRUE(handles) << handles.error().message();
  std::set<uint64_t> lengths;
  for (uint64_t id = 0; id < 9; ++id) {
    const Handle& handle = (*handles)[id];
    EXPECT_EQ(handle.bytes(), kUneven.value_bytes(id));
    EXPECT_EQ(handle.size_bytes(), kUneven.value_bytes(id)) << "all of it counts";
    for (uint32_t lane = 0; lane < kUneven.lanes; ++lane) {
      EXPECT_EQ(handle.lane_bytes(lane), kUneven.length(id, 0, lane));
      lengths.insert(handle.lane_bytes(lane));
    }
    EXPECT_TRUE(h().intact(handle, kUneven, id));
    EXPECT_TRUE(h().findable_and_intact(kUneven, id));
  }
  EXPECT_EQ(lengths.size(), 7u) << "the test has lanes of all lengths";
  EXPECT_EQ(store().statistics().corrupt_chunks, 0u);
  h().check_bytes();
}

TEST_P(StoreTest, ARunOfLanesOfDifferentLengthsIsOneRead) {
  h().open(16 * kMiB);
  const auto handles = *h().put(TestBatch(kUneven, id_range(0, 9)));
  uint64_t reads = 0, bytes = 0;
  for (uint32_t lane = 0; lane < kUneven.lanes; ++lane)
    for (const auto& [begin, end] : {std::pair{0, 9}, std::pair{2, 5}, std::pair{8, 9}}) {
      std::vector<io::AlignedMemory> memory;
      std::vector<LaneRead> run;
      for (int i = begin; i < end; ++i) {
        memory.push_back(*io::AlignedMemory::allocate(handles[i].lane_bytes(lane)));
        run.push_back({&handles[i], memory.back().data()});
        bytes += handles[i].lane_bytes(lane);
      }
      ASSERT_TRUE(store().read(lane, run, [](Result<void> result) { EXPECT_TRUE(result); }));
      h().wait_all();
      for (size_t i = 0; i < run.size(); ++i)
        EXPECT_TRUE(store().verify(*run[i].handle, lane, memory[i].span()));
      EXPECT_EQ(store().statistics().reads, ++reads);
    }
  EXPECT_EQ(store().statistics().read_bytes, bytes);
}

TEST_P(StoreTest, ALaneIsVerifiedInItsOwnLengthOnly) {
  h().open(16 * kMiB);
  const TestBatch batch(kUneven, {1, 2});
  const Handle handle = h().put(batch)->back();
  for (uint32_t lane = 0; lane < kUneven.lanes; ++lane) {
    const auto bytes = batch.values[1].lanes[lane];
    EXPECT_TRUE(store().verify(handle, lane, bytes));
    EXPECT_FALSE(store().verify(handle, lane, {bytes.data(), bytes.size() + 4096}));
    EXPECT_FALSE(store().verify(handle, lane, bytes.first(bytes.size() - 4096)));
    EXPECT_FALSE(store().verify(handle, lane, batch.values[0].lanes[lane]));
    EXPECT_FALSE(store().verify(handle, (lane + 1) % kUneven.lanes, bytes));
  }
  EXPECT_FALSE(store().verify(handle, kUneven.lanes, batch.values[1].lanes[0]));
}

TEST_P(StoreTest, PartsOfALaneEndWhereThatLaneDoes) {
  h().open(16 * kMiB);
  const TestBatch batch(kUneven, {1, 2, 3});
  const Handle handle = (*h().put(batch))[1];
  const auto read = [&](const Range& range, std::span<std::byte> target) -> Result<void> {
    Result<void> outcome;
    HIFC_TRY(store().read(handle, range, target.data(), [&](auto result) { outcome = result; }));
    h().wait_all();
    return outcome;
  };
  auto memory = *io::AlignedMemory::allocate(kUneven.lane_bytes_max + 8192);
  for (uint32_t lane = 0; lane < kUneven.lanes; ++lane) {
    const auto expected = batch.values[1].lanes[lane];
    for (uint64_t begin = 0; begin < expected.size(); begin += 8192) {
      const uint64_t chunk = std::min<uint64_t>(8192, expected.size() - begin);
      for (const uint64_t size : {chunk, expected.size() - begin}) {
        const Range range{lane, begin, size};
        const auto bytes = memory.span().first(size);
        ASSERT_TRUE(read(range, bytes));
        EXPECT_TRUE(store().verify(handle, range, bytes));
        EXPECT_TRUE(std::ranges::equal(bytes, expected.subspan(begin, size)));
      }
    }
    const Range beyond{lane, 0, expected.size() + 8192};
    EXPECT_EQ(read(beyond, memory.span()).error().code, Code::kInvalid);
  }
}

TEST_P(StoreTest, LanesOfDifferentLengthsAreFoundByTheNextOwner) {
  h().open(16 * kMiB);
  ASSERT_TRUE(h().put(TestBatch(kUneven, id_range(0, 9))));
  ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(9, 2))));
  ASSERT_TRUE(h().put(TestBatch(kUneven, id_range(11, 3))));
  h().store.reset();
  h().open(16 * kMiB);
  EXPECT_EQ(store().statistics().recovered_values, 14u);
  for (uint64_t id = 0; id < 14; ++id)
    EXPECT_TRUE(h().findable_and_intact(id == 9 || id == 10 ? kSmall : kUneven, id)) << id;
}

TEST_P(StoreTest, WritingAgainKeepsTheLengthsOfLanes) {
  h().options.reinsert_share = 0.25;
  h().open(4 * kMiB, kMiB);
  ASSERT_TRUE(h().put(TestBatch(kUneven, id_range(0, 4))));
  for (uint64_t id = 100; id < 700; ++id) {
    ASSERT_TRUE(h().put(TestBatch(kUneven, {id})));
    for (int use = 0; use < 2; ++use) EXPECT_TRUE(h().find(2) && h().find(3)) << "after " << id;
  }
  EXPECT_FALSE(h().contains(1)) << "nobody asked for it";
  EXPECT_GE(store().statistics().reinserted_values, 6u);
  for (int round = 0; round < 2; ++round) {
    for (const uint64_t id : {2u, 3u}) EXPECT_TRUE(h().findable_and_intact(kUneven, id)) << id;
    h().store.reset();
    h().open(4 * kMiB, kMiB);
  }
}

// The first group of a sequence has longer blocks than those after it: 8 values of 20 lanes.
TEST_P(StoreTest, LanesOfDifferentLengthsAreWrittenInLargeRequests) {
  h().open(256 * kMiB);
  const ValueShape shape{
      .lanes = 20, .lane_bytes = 64 << 10, .chunk_bytes = 16384, .lane_bytes_max = 320 << 10};
  const StoreStatistics before = store().statistics();
  ASSERT_TRUE(h().put(TestBatch(shape, id_range(0, 8))));
  const StoreStatistics& after = store().statistics();
  const uint64_t bytes = after.written_bytes - before.written_bytes - kSegmentHeaderBytes;
  const uint64_t writes = after.writes - before.writes - 1;  // without the segment's header
  EXPECT_GE(bytes, 16 * kMiB);
  EXPECT_LE(writes, bytes / (4 * kMiB));
  for (uint64_t id = 0; id < 8; ++id) EXPECT_TRUE(h().findable_and_intact(shape, id));
}

// Opening again

TEST_P(StoreTest, WhatWasPutIsFoundByTheNextOwner) {
  for (int round = 0; round < 3; ++round) {
    h().open(16 * kMiB);
    EXPECT_EQ(store().statistics().values, round * 20u);
    EXPECT_EQ(store().statistics().recovered_values, round * 20u);
    for (uint64_t id = 0; id < round * 20u; ++id)
      EXPECT_TRUE(h().findable_and_intact(kSmall, id)) << id;
    ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(round * 20, 15))));
    ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(round * 20 + 15, 5))));
    h().check_bytes();
    h().store.reset();
  }
}

// Segments larger than what is read of them at a time.
TEST_P(StoreTest, LargeSegmentsAreFoundByTheNextOwner) {
  const ValueShape shape{.lanes = 4, .lane_bytes = 256 << 10, .chunk_bytes = 16 << 10};
  h().open(160 * kMiB, 40 * kMiB);
  for (uint64_t id = 0; id < 100; id += 4) ASSERT_TRUE(h().put(TestBatch(shape, id_range(id, 4))));
  h().store.reset();
  h().open(160 * kMiB, 40 * kMiB);
  EXPECT_EQ(store().statistics().recovered_values, 100u);
  for (uint64_t id = 0; id < 100; ++id) EXPECT_TRUE(h().findable_and_intact(shape, id)) << id;
}

TEST_P(StoreTest, ValuesOfAnySizeShareABatchAndKeepTheirSizes) {
  const ValueShape shape{.lanes = 1, .lane_bytes = 64 << 10, .chunk_bytes = 4096};
  h().open(16 * kMiB);
  const TestBatch batch(shape, id_range(0, 8));
  std::vector<PutValue> values = batch.values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i].lanes[0] = values[i].lanes[0].first((i + 1) * 8192);
    values[i].size_bytes = (i + 1) * 8192 - 100 * i - 1;
  }
  bool done = false;
  ASSERT_TRUE(store().put(shape.batch(), values, [&](auto result) { done = result.has_value(); }));
  h().wait_all();
  ASSERT_TRUE(done);
  h().store.reset();
  h().open(16 * kMiB);
  auto memory = *io::AlignedMemory::allocate(64 << 10);
  for (size_t i = 0; i < values.size(); ++i) {
    const Handle handle = h().find(i);
    ASSERT_TRUE(handle);
    EXPECT_EQ(handle.lane_bytes(0), (i + 1) * 8192);
    EXPECT_EQ(handle.size_bytes(), (i + 1) * 8192 - 100 * i - 1);
    const auto lane = memory.span().first(handle.lane_bytes(0));
    ASSERT_TRUE(h().read(handle, 0, lane));
    EXPECT_TRUE(store().verify(handle, 0, lane));
    EXPECT_TRUE(std::ranges::equal(lane, values[i].lanes[0]));
  }
}

TEST_P(StoreTest, ARangeIsReadAndVerifiedWithoutTheRest) {
  const ValueShape shape{.lanes = 2, .lane_bytes = 40960, .chunk_bytes = 16384};
  h().open(16 * kMiB);
  const auto handles = *h().put(TestBatch(shape, {1, 2}));
  std::vector<std::byte> expected(shape.lane_bytes);
  fill_lane(2, 0, 1, expected);
  auto memory = *io::AlignedMemory::allocate(shape.lane_bytes);
  const auto read = [&](Range range) -> Result<void> {
    Result<void> outcome;
    HIFC_TRY(
        store().read(handles[1], range, memory.data(), [&](auto result) { outcome = result; }));
    h().wait_all();
    return outcome;
  };
  for (const Range& range : {Range{1, 0, 16384}, Range{1, 16384, 16384}, Range{1, 32768, 8192},
                             Range{1, 16384, 24576}, Range{1, 0, 40960}}) {
    ASSERT_TRUE(read(range));
    const auto bytes = memory.span().first(range.size_bytes);
    EXPECT_TRUE(store().verify(handles[1], range, bytes));
    EXPECT_EQ(std::memcmp(bytes.data(), expected.data() + range.offset_bytes, bytes.size()), 0);
    bytes[range.size_bytes - 1] ^= std::byte{1};
    EXPECT_FALSE(store().verify(handles[1], range, bytes));
  }
  for (const Range& range : {Range{2, 0, 16384}, Range{1, 0, 0}, Range{1, 4096, 16384},
                             Range{1, 0, 4096}, Range{1, 40960, 16384}, Range{1, 32768, 16384}})
    EXPECT_EQ(read(range).error().code, Code::kInvalid);
}

TEST_P(StoreTest, RemovedValuesStayRemoved) {
  h().open(16 * kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(0, 10))));
  for (uint64_t id = 0; id < 10; id += 2) EXPECT_TRUE(store().remove(key_of(id)));
  EXPECT_FALSE(store().remove(key_of(0)));
  EXPECT_FALSE(h().contains(2));
  ASSERT_TRUE(h().put(TestBatch(kSmall, {4}, 7)));
  for (int round = 0; round < 2; ++round) {
    for (uint64_t id = 0; id < 10; ++id)
      EXPECT_EQ(h().findable_and_intact(kSmall, id, id == 4 ? 7 : 0), id % 2 == 1 || id == 4) << id;
    h().store.reset();
    h().open(16 * kMiB);
  }
}

TEST_P(StoreTest, ALowerCapacityDropsTheOldestValues) {
  h().open(8 * kMiB, kMiB);
  for (uint64_t id = 0; id < 300; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
  h().store.reset();
  h().open(3 * kMiB, kMiB);
  h().check_bytes();
  EXPECT_FALSE(h().contains(0));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 299));
  ASSERT_TRUE(h().put(TestBatch(kSmall, {300})));
  h().check_bytes();
}

TEST_P(StoreTest, ValuesThatAreFoundOftenOutliveTheirSegment) {
  h().options.reinsert_share = 0.25;
  h().open(4 * kMiB, kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, id_range(0, 8))));
  for (uint64_t id = 100; id < 1000; ++id) {
    ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
    for (int use = 0; use < 2; ++use) EXPECT_TRUE(h().find(3)) << "after " << id;
    h().check_bytes();
  }
  EXPECT_FALSE(h().contains(2)) << "nobody asked for it";
  EXPECT_TRUE(h().findable_and_intact(kSmall, 3));
  EXPECT_GE(store().statistics().reinserted_values, 5u);
  h().store.reset();
  h().open(4 * kMiB, kMiB);
  EXPECT_TRUE(h().findable_and_intact(kSmall, 3));
}

TEST_P(StoreTest, WritingAgainTakesAShareOfWhatIsPutAtMost) {
  h().open(8 * kMiB, 2 * kMiB);
  for (uint64_t id = 0; id < 3000; ++id) {
    ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
    for (uint64_t earlier = id > 20 ? id - 20 : 0; earlier < id; ++earlier) h().find(earlier);
  }
  const StoreStatistics& statistics = store().statistics();
  EXPECT_GT(statistics.reinserted_bytes, 0u);
  EXPECT_LE(
      static_cast<double>(statistics.reinserted_bytes),
      static_cast<double>(kMiB) / 2 + 0.012 * static_cast<double>(statistics.payload_bytes_put));
}

TEST_P(StoreTest, OverwritesAreCountedAndSpread) {
  h().open(4 * kMiB, kMiB);
  for (int round = 0; round < 2; ++round) {
    for (uint64_t id = 0; id < 1000; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
    const StoreStatistics& statistics = store().statistics();
    EXPECT_GE(statistics.overwrites_min, 5u * (round + 1));
    EXPECT_LE(statistics.overwrites_max, statistics.overwrites_min + 1);
    h().store.reset();
    h().open(4 * kMiB, kMiB);
  }
}

// Directory

TEST_P(StoreTest, TheDirectoryHasOneOwner) {
  h().open(kMiB);
  const auto second = h().try_open(kMiB);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(second.error().message().find(h().path().string()), std::string::npos);
  ASSERT_TRUE(h().put(TestBatch(kSmall, {1})));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 1)) << "the second open changed nothing";
  h().store.reset();
  EXPECT_TRUE(h().try_open(kMiB));
}

TEST_P(StoreTest, OnlyTheOwnerMayLook) {
  h().open(kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, {1})));
  EXPECT_EQ(static_cast<unsigned>(fs::status(h().path()).permissions()), 0700u);
  for (const auto& entry : fs::directory_iterator(h().path()))
    EXPECT_EQ(static_cast<unsigned>(entry.status().permissions()), 0600u) << entry.path();
}

TEST_P(StoreTest, ATemporaryStoreLeavesNothingBehind) {
  h().options.temporary = true;
  for (const char* suffix : {"", "/"}) {
    auto opened = Store::open(
        {.directory = h().path().string() + suffix, .capacity_bytes = kMiB, .temporary = true},
        *ring_);
    ASSERT_TRUE(opened);
    h().store = std::move(*opened);
    ASSERT_TRUE(h().put(TestBatch(kSmall, {1})));
    h().store.reset();
    EXPECT_FALSE(fs::exists(h().path()));
  }
  fs::create_directory(h().path());
  h().open(kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, {1})));
  h().store.reset();
  EXPECT_TRUE(fs::is_empty(h().path())) << "the directory was there before: it stays";
}

TEST_P(StoreTest, ClosingLeavesSegmentsAndNothingElse) {
  h().open(kMiB);
  ASSERT_TRUE(h().put(TestBatch(kSmall, {1})));
  h().store.reset();
  for (const auto& entry : fs::directory_iterator(h().path()))
    EXPECT_EQ(entry.path().extension(), ".seg");
}

TEST_P(StoreTest, FilesOfOthersAreLeftAlone) {
  const char* const names[] = {"notes.txt",         "hifc-1.seg",        "hifc-000000001.seg",
                               "hifc-0000000a.seg", "hifc-00000003.seg", "hifc-00000001.seg.bak"};
  fs::create_directories(h().path() / "hifc-00000000.seg");  // a directory
  for (const char* name : names) write_file(h().path() / name, name + std::string(5000, '.'));
  fs::create_symlink(h().path() / "notes.txt", h().path() / "hifc-00000001.seg");
  h().open(kMiB);
  for (uint64_t id = 0; id < 100; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
  EXPECT_LE(store().statistics().peak_bytes_on_disk, kMiB);
  h().store.reset();
  h().open(kMiB);
  EXPECT_GT(store().statistics().recovered_values, 0u);
  h().store.reset();
  for (const char* name : names)
    EXPECT_EQ(read_file(h().path() / name), name + std::string(5000, '.'));
  EXPECT_TRUE(fs::is_directory(h().path() / "hifc-00000000.seg"));
  EXPECT_TRUE(fs::is_symlink(h().path() / "hifc-00000001.seg"));
}

TEST_P(StoreTest, SegmentsOfANewerLayoutAreRefusedAndUntouched) {
  std::vector<std::byte> header(kSegmentHeaderBytes);
  encode_segment_header({.number = 1, .segment_bytes = kMiB, .nonce = 7}, header);
  std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
  fs::create_directories(h().path());
  write_file(h().segment_file(0), bytes);
  set_layout_version(std::as_writable_bytes(std::span(bytes)), kLayoutVersion + 1);
  write_file(h().segment_file(7), bytes);

  const auto refused = h().try_open(kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_NE(refused.error().message().find("hifc-00000007.seg"), std::string::npos);
  EXPECT_EQ(read_file(h().segment_file(7)), bytes);
  EXPECT_TRUE(fs::exists(h().segment_file(0)));
  EXPECT_FALSE(fs::exists(h().path() / "hifc.lock"));

  bytes[offsetof(LayoutTag, checksum)] ^= 1;  // a damaged tag is no newer version
  write_file(h().segment_file(7), bytes);
  EXPECT_TRUE(h().try_open(kMiB));
}

TEST_P(StoreTest, SegmentsOfAnOlderLayoutAreDroppedAndWrittenAnew) {
  h().open(4 * kMiB, kMiB);
  for (uint64_t id = 0; id < 60; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
  const uint64_t segments = store().statistics().segments;
  h().store.reset();
  std::string bytes = read_file(h().segment_file(0));
  set_layout_version(std::as_writable_bytes(std::span(bytes)), kLayoutVersion - 1);
  write_file(h().segment_file(0), bytes);
  h().open(4 * kMiB, kMiB);
  EXPECT_FALSE(h().contains(0));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 59)) << "the other segments are not touched";
  EXPECT_EQ(store().statistics().corrupt_headers, 0u);
  EXPECT_EQ(store().statistics().segments, segments);
  for (uint64_t id = 100; id < 200; ++id) ASSERT_TRUE(h().put(TestBatch(kSmall, {id})));
  EXPECT_TRUE(h().findable_and_intact(kSmall, 199));
  h().check_bytes();
}

TEST_P(StoreTest, ADirectoryThatCannotBeUsedIsNamed) {
  write_file(h().path(), "a file");
  const auto opened = h().try_open(kMiB);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kIo);
  EXPECT_NE(opened.error().message().find(h().path().string()), std::string::npos);
  EXPECT_EQ(Store::open({.directory = "", .capacity_bytes = kMiB}, *ring_).error().code,
            Code::kInvalid);
  EXPECT_EQ(h().try_open(0).error().code, Code::kInvalid);
  EXPECT_EQ(read_file(h().path()), "a file");
}

TEST_P(StoreTest, AFileSystemWithoutRoomIsFull) {
  struct statvfs status = {};
  ASSERT_EQ(statvfs(h().directory.path().c_str(), &status), 0);
  const uint64_t free_bytes = uint64_t{status.f_bavail} * status.f_frsize;
  const auto opened = h().try_open(16 * free_bytes, free_bytes);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kFull);
  EXPECT_FALSE(fs::exists(h().path()));
}

INSTANTIATE_TEST_SUITE_P(Backends, StoreTest, ::testing::Values(Backend::kUring, Backend::kThreads),
                         [](const auto& parameter) {
                           return parameter.param == Backend::kUring ? "uring" : "threads";
                         });

}  // namespace
}  // namespace hifc::flash
