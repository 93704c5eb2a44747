// What users of caches on disk really hit, each test named after what it provokes.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "flash/store_fixture.h"
#include "flash/store_simulation_fixture.h"
#include "testing/sim_disk.h"
#include "testing/sim_ring.h"

namespace hifc::flash {
namespace {

namespace fs = std::filesystem;

constexpr ValueShape kBlock{.lanes = 2, .lane_bytes = 8192, .chunk_bytes = 4096};
constexpr uint64_t kMiB = 1u << 20;

class StoreFaults : public ::testing::Test {
 protected:
  static std::unique_ptr<io::Ring> make_ring() { return *io::Ring::create({}); }
  std::unique_ptr<io::Ring> ring_ = make_ring();
  StoreHarness h_{*ring_};
};

// The child puts and flushes batches until it is killed, and says which ones it has flushed.
[[noreturn]] void put_until_killed(const fs::path& path, uint64_t first, int report) {
  auto ring = *io::Ring::create({});
  StoreHarness h(*ring);
  auto store =
      Store::open({.directory = path, .capacity_bytes = 64 * kMiB, .segment_bytes = kMiB}, *ring);
  if (!store) _exit(1);
  h.store = std::move(*store);
  for (uint64_t id = first;; ++id) {
    if (!h.put(TestBatch(kBlock, {id}))) _exit(2);
    if (id % 3 == 0 && !h.flush()) _exit(3);
    const uint64_t flushed = id % 3 == 0 ? id : id - id % 3;
    if (write(report, &flushed, sizeof flushed) != sizeof flushed) _exit(4);
  }
}

TEST_F(StoreFaults, KillNineDuringWritesTenTimes) {
  uint64_t flushed = 0;
  for (uint64_t round = 0; round < 10; ++round) {
    const uint64_t first = 1000 * round + 1;
    std::array<int, 2> ends = {};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) put_until_killed(h_.path(), first, ends[1]);
    close(ends[1]);
    for (uint64_t i = 0; i < 20 + 13 * round; ++i)
      ASSERT_EQ(read(ends[0], &flushed, sizeof flushed), ssize_t{sizeof flushed});
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    while (read(ends[0], &flushed, sizeof flushed) == sizeof flushed) continue;
    close(ends[0]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);

    h_.open(64 * kMiB, kMiB);
    for (uint64_t id = first; id <= flushed; ++id)
      EXPECT_TRUE(h_.findable_and_intact(kBlock, id)) << id << " was durable";
    EXPECT_EQ(h_.store->statistics().corrupt_headers, 0u);
    h_.check_bytes();
    h_.store.reset();
    for (const auto& entry : fs::directory_iterator(h_.path()))
      EXPECT_EQ(entry.path().extension(), ".seg") << "left behind: " << entry.path();
  }
}

TEST_F(StoreFaults, AByteFlippedAnywhereOfASegment) {
  constexpr uint64_t kValues = 40;
  h_.open(4 * kMiB, kMiB);
  for (uint64_t id = 0; id < kValues; ++id) ASSERT_TRUE(h_.put(TestBatch(kBlock, {id})));
  h_.store.reset();
  std::mt19937_64 random(7);
  const uint64_t size = fs::file_size(h_.segment_file());
  for (int round = 0; round < 60; ++round) {
    // Headers and the checkpoint are small against the payload: aimed at in turn.
    const uint64_t offset = round % 3 == 0   ? random() % 8192
                            : round % 3 == 1 ? size - 1 - random() % 4096
                                             : random() % size;
    std::fstream file(h_.segment_file(), std::ios::in | std::ios::out | std::ios::binary);
    const auto flip = [&] {
      file.seekg(static_cast<std::streamoff>(offset));
      const int byte = file.get();
      file.seekp(static_cast<std::streamoff>(offset));
      file.put(static_cast<char>(byte ^ 0x40));
      file.flush();
    };
    flip();
    h_.open(4 * kMiB, kMiB);
    uint64_t found = 0;
    for (uint64_t id = 0; id < kValues; ++id) found += h_.findable_and_intact(kBlock, id);
    EXPECT_TRUE(found >= kValues - 1 || offset < io::kAlignment) << offset;
    // The store goes on working, whatever was hit.
    ASSERT_TRUE(h_.put(TestBatch(kBlock, {1000})));
    EXPECT_TRUE(h_.findable_and_intact(kBlock, 1000));
    h_.store.reset();
    fs::remove_all(h_.path());
    h_.open(4 * kMiB, kMiB);
    for (uint64_t id = 0; id < kValues; ++id) ASSERT_TRUE(h_.put(TestBatch(kBlock, {id})));
    h_.store.reset();
  }
}

TEST_F(StoreFaults, ASegmentTruncatedAtTenFiftyAndNinetyPercentOrToNothing) {
  for (const int percent : {0, 10, 50, 90}) {
    h_.open(4 * kMiB, kMiB);
    for (uint64_t id = 0; id < 100; ++id) ASSERT_TRUE(h_.put(TestBatch(kBlock, {id})));
    h_.store.reset();
    fs::resize_file(h_.segment_file(), fs::file_size(h_.segment_file()) * percent / 100);
    h_.open(4 * kMiB, kMiB);
    uint64_t found = 0;
    for (uint64_t id = 0; id < 100; ++id) found += h_.findable_and_intact(kBlock, id);
    EXPECT_GE(found, 45u) << "the other segments";
    for (uint64_t id = 100; id < 400; ++id) {
      ASSERT_TRUE(h_.put(TestBatch(kBlock, {id})));
      EXPECT_TRUE(h_.findable_and_intact(kBlock, id));
      h_.check_bytes();
    }
    h_.store.reset();
    fs::remove_all(h_.path());
  }
}

TEST_F(StoreFaults, SixtyFourBlocksOfFlashAThousandPutsARestartAndALowerCap) {
  const uint64_t capacity = 64 * 2 * 8192;
  fs::create_directories(h_.path());
  std::ofstream(h_.path() / "weights.bin") << "somebody else's";
  const auto ours = [&] {
    uint64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(h_.path()))
      if (entry.path().filename() != "weights.bin") bytes += entry.file_size();
    return bytes;
  };
  h_.open(capacity);
  for (uint64_t id = 0; id < 1000; ++id) {
    ASSERT_TRUE(h_.put(TestBatch(kBlock, {id})));
    ASSERT_LE(ours(), capacity);
    ASSERT_EQ(ours(), h_.store->statistics().bytes_on_disk);
  }
  const uint64_t kept = h_.store->statistics().values;
  EXPECT_GE(kept, 32u);
  h_.store.reset();
  h_.open(capacity);
  EXPECT_EQ(h_.store->statistics().values, kept);
  h_.store.reset();
  h_.open(capacity / 2);
  EXPECT_LE(ours(), capacity / 2);
  EXPECT_GE(h_.store->statistics().values, kept / 4);
  EXPECT_TRUE(h_.findable_and_intact(kBlock, 999)) << "the newest stay";
  h_.store.reset();
  std::string text;
  std::getline(std::ifstream(h_.path() / "weights.bin"), text);
  EXPECT_EQ(text, "somebody else's");
}

TEST_F(StoreFaults, TheSamePrefixRestoredThreeTimes) {
  h_.open(4 * kMiB);
  ASSERT_TRUE(h_.put(TestBatch(kBlock, id_range(0, 5))));
  for (int round = 0; round < 3; ++round) {
    h_.store.reset();
    h_.open(4 * kMiB);
    for (uint64_t id = 0; id < 5; ++id) EXPECT_TRUE(h_.findable_and_intact(kBlock, id));
    EXPECT_EQ(h_.store->statistics().hits, 5u);
    EXPECT_EQ(h_.store->statistics().misses, 0u);
  }
}

TEST_F(StoreFaults, TwentyThousandTinyBlocksInFewFiles) {
  const ValueShape tiny{.lanes = 1, .lane_bytes = 4096, .chunk_bytes = 4096};
  h_.open(512 * kMiB);
  for (uint64_t id = 0; id < 20'000; id += 500)
    ASSERT_TRUE(h_.put(TestBatch(tiny, id_range(id, 500))));
  EXPECT_LE(h_.store->statistics().segments, 2u);
  EXPECT_LE(h_.store->statistics().index_bytes, 40u * 20'000);
  h_.store.reset();
  h_.open(512 * kMiB);
  EXPECT_EQ(h_.store->statistics().values, 20'000u);
  for (uint64_t id = 0; id < 20'000; id += 997) EXPECT_TRUE(h_.findable_and_intact(tiny, id));
}

// A simulation: ten thousand random puts, removals, overwrites, evictions and restarts.
TEST(StoreFaultsSimulated, TenThousandRandomStepsAccountForEveryByte) {
  Simulation simulation({.seed = 4711, .fault_chance = 0, .steps = 10'000});
  simulation.run();
  EXPECT_GT(simulation.reads_verified(), 1000u);
}

class StoreFaultsOnASimulatedDisk : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(io::Ring& ring) {
    auto store = Store::open({.directory = "/store",
                              .capacity_bytes = 4 * kMiB,
                              .segment_bytes = 256 << 10,
                              .free_space_floor_bytes = 0,
                              .deadline_ns = 1'000'000'000,
                              .seed = 1,
                              .file_system = &disk_,
                              .clock = &clock_},
                             ring);
    EXPECT_TRUE(store) << store.error().message();
    return std::move(*store);
  }
  testing::SimRingOptions ring_options() { return {.depth = 8, .disk = &disk_, .clock = &clock_}; }

  testing::SimDisk disk_{{.seed = 3}};
  testing::SimClock clock_;
};

// The device stops answering, and comes back.
TEST_F(StoreFaultsOnASimulatedDisk, ADeviceThatHangsIsAMissUntilItAnswers) {
  testing::SimRing ring({.seed = 1}, ring_options());
  StoreHarness h(ring);
  h.store = open(ring);
  ASSERT_TRUE(h.put(TestBatch(kBlock, id_range(0, 20))));
  const Handle handle = h.find(3);
  ring.set_plan({.seed = 2, .hang = 1});
  auto memory = *io::AlignedMemory::allocate(8192);
  int released = 0;
  std::optional<Result<void>> outcome;
  const LaneRead run{&handle, memory.data()};
  ASSERT_TRUE(h.store->read(
      0, {&run, 1}, [&](Result<void> result) { outcome = result; }, [&] { ++released; }));
  while (!outcome) h.store->wait();
  EXPECT_EQ(outcome->error().code, Code::kTimeout);
  EXPECT_EQ(released, 0) << "the device may still write to the memory";
  EXPECT_EQ(h.store->statistics().timeouts, 1u);
  const auto refused = h.store->put(kBlock.batch(), TestBatch(kBlock, {50}).values, [](auto) {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kTimeout);

  ring.set_plan({.seed = 3});
  ring.release_hung();
  while (released == 0) h.store->poll();
  EXPECT_TRUE(h.findable_and_intact(kBlock, 3)) << "late is not damaged";
  ASSERT_TRUE(h.put(TestBatch(kBlock, {50})));
  EXPECT_TRUE(h.findable_and_intact(kBlock, 50));
}

TEST_F(StoreFaultsOnASimulatedDisk, AWriteThatHangsIsACountedDrop) {
  testing::SimRing ring({.seed = 1}, ring_options());
  StoreHarness h(ring);
  h.store = open(ring);
  ASSERT_TRUE(h.put(TestBatch(kBlock, {1})));
  ring.set_plan({.seed = 2, .hang = 1});
  const auto late = h.put(TestBatch(kBlock, {2}));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kTimeout);
  EXPECT_FALSE(h.contains(2));
  EXPECT_EQ(h.store->statistics().failed_puts, 1u);
  ring.set_plan({.seed = 3});
  ring.release_hung();
  while (ring.in_flight() > 0) h.store->poll();
  for (uint64_t id = 3; id < 100; ++id) {
    ASSERT_TRUE(h.put(TestBatch(kBlock, {id})));
    EXPECT_TRUE(h.findable_and_intact(kBlock, id));
  }
  EXPECT_TRUE(h.findable_and_intact(kBlock, 1));
}

TEST_F(StoreFaultsOnASimulatedDisk, AGroupThatKeepsComingBackDamagedIsNotIndexedForEver) {
  testing::SimRing ring({.seed = 1}, ring_options());
  StoreHarness h(ring);
  h.store = open(ring);
  for (int round = 0; round < 5; ++round) {
    const auto handles = h.put(TestBatch(kBlock, {1}));
    ASSERT_TRUE(handles) << "a live sequence can always use what it has put";
    EXPECT_TRUE(h.intact(handles->front(), kBlock, 1));
    EXPECT_EQ(h.contains(1), round < 3);
    h.store->quarantine(handles->front());
    EXPECT_FALSE(h.contains(1));
  }
  EXPECT_EQ(h.store->statistics().quarantined_values, 3u);
  ASSERT_TRUE(h.put(TestBatch(kBlock, {2})));
  EXPECT_TRUE(h.findable_and_intact(kBlock, 2));
}

// ENOSPC, EACCES and EIO where a segment file is made or removed.
TEST_F(StoreFaultsOnASimulatedDisk, NoRoomNoPermissionAndErrorsOfTheFileSystem) {
  testing::SimRing ring({.seed = 1}, ring_options());
  StoreHarness h(ring);
  h.store = open(ring);
  ASSERT_TRUE(h.put(TestBatch(kBlock, {1})));
  for (const int reason : {ENOSPC, EACCES, EIO}) {
    disk_.set_choose([&](testing::DiskOperation operation, const std::string&) {
      return operation == testing::DiskOperation::kCreate ? reason : 0;
    });
    Result<std::vector<Handle>> last = std::vector<Handle>();
    for (uint64_t id = 100; last && id < 140; ++id) last = h.put(TestBatch(kBlock, {id}));
    // It makes do with the segments it has.
    EXPECT_TRUE(h.contains(1) || last) << reason;
    disk_.set_choose({});
    ASSERT_TRUE(h.put(TestBatch(kBlock, {2})));
    EXPECT_TRUE(h.findable_and_intact(kBlock, 2));
  }
}

}  // namespace
}  // namespace hifc::flash
