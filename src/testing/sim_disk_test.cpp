#include "testing/sim_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "io/memory.h"
#include "testing/sim_ring.h"

namespace hifc::testing {
namespace {

using io::Operation;
constexpr size_t kPage = SimFile::kPageBytes;
constexpr size_t kSectors = kPage / SimFile::kSectorBytes;

// A disk with a directory and a ring on it.
class Machine {
 public:
  explicit Machine(SimDisk::Options options, FaultPlan plan = {}) : disk(std::move(options)) {
    EXPECT_TRUE(disk.create_directory("/d"));
    start(std::move(plan));
  }

  void start(FaultPlan plan = {}) { ring.emplace(std::move(plan), SimRingOptions{.disk = &disk}); }

  // A crash, after which the old ring's requests come to nothing and a new one begins.
  void crash(Crash kind) {
    disk.crash(kind);
    start();
  }

  // A file that is durable with its name and size.
  io::File create(const std::string& path, uint64_t pages) {
    io::File file = *disk.create(path, pages * kPage, true);
    EXPECT_TRUE(sync(file));
    EXPECT_TRUE(disk.sync_directory("/d"));
    return file;
  }

  void submit(Operation operation, const io::File& file, uint64_t page, uint64_t pages) {
    std::vector<iovec> vectors;
    if (pages > 0) vectors.push_back({memory.data(), pages * kPage});
    EXPECT_TRUE(ring->submit({.operation = operation,
                              .file = &file,
                              .offset_bytes = page * kPage,
                              .vectors = vectors,
                              .done = [this](Result<void> result) { outcome = result; }}));
  }

  Result<void> transfer(Operation operation, const io::File& file, uint64_t page, uint64_t pages) {
    outcome = failure(Code::kInternal, "not completed");
    submit(operation, file, page, pages);
    while (ring->in_flight() > 0) ring->wait();
    return outcome;
  }

  Result<void> write(const io::File& file, uint64_t page, uint64_t pages, int value) {
    std::memset(memory.data(), value, memory.size_bytes());
    return transfer(Operation::kWrite, file, page, pages);
  }
  Result<void> sync(const io::File& file) { return transfer(Operation::kSync, file, 0, 0); }

  SimDisk disk;
  io::AlignedMemory memory = *io::AlignedMemory::allocate(64 * kPage);
  std::optional<SimRing> ring;
  Result<void> outcome;
};

// The values of a page's sectors, each of which must be of one value.
std::array<int, kSectors> sectors_of(const std::vector<std::byte>& contents, uint64_t page) {
  std::array<int, kSectors> values = {};
  for (size_t sector = 0; sector < kSectors; ++sector) {
    const auto bytes = std::span(contents).subspan(page * kPage + sector * SimFile::kSectorBytes,
                                                   SimFile::kSectorBytes);
    EXPECT_TRUE(std::ranges::all_of(bytes, [&](std::byte b) { return b == bytes[0]; }));
    values[sector] = std::to_integer<int>(bytes[0]);
  }
  return values;
}

// How pages that were `before` and had `after` written over them came back.
struct Fates {
  int kept = 0, reverted = 0, torn = 0;
  void add(const std::array<int, kSectors>& sectors, int before, int after) {
    const auto olds = std::ranges::count(sectors, before);
    EXPECT_EQ(olds + std::ranges::count(sectors, after), kSectors);
    ++(olds == 0 ? kept : olds == kSectors ? reverted : torn);
  }
};

TEST(SimDiskTest, PowerFailureKeepsRevertsOrTearsWhatWasNotSynced) {
  Fates overwritten, fresh;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Machine machine({.seed = seed});
    const io::File file = machine.create("/d/a", 16);
    ASSERT_TRUE(machine.write(file, 0, 8, 1));
    ASSERT_TRUE(machine.sync(file));
    ASSERT_TRUE(machine.write(file, 4, 8, 2));
    machine.crash(Crash::kPower);
    const auto contents = machine.disk.read("/d/a");
    ASSERT_EQ(contents.size(), 16 * kPage);
    for (uint64_t page = 0; page < 4; ++page) EXPECT_EQ(sectors_of(contents, page)[0], 1);
    for (uint64_t page = 4; page < 8; ++page) overwritten.add(sectors_of(contents, page), 1, 2);
    for (uint64_t page = 8; page < 12; ++page) fresh.add(sectors_of(contents, page), 0, 2);
    for (uint64_t page = 12; page < 16; ++page) EXPECT_EQ(sectors_of(contents, page)[0], 0);
  }
  for (const Fates& fates : {overwritten, fresh}) {
    EXPECT_GT(fates.kept, 20);
    EXPECT_GT(fates.reverted, 20);
    EXPECT_GT(fates.torn, 20);
  }
}

TEST(SimDiskTest, WhatAPowerFailureLeftIsDurable) {
  Machine machine({.seed = 5});
  const io::File file = machine.create("/d/a", 16);
  ASSERT_TRUE(machine.write(file, 0, 16, 1));
  machine.crash(Crash::kPower);
  const auto contents = machine.disk.read("/d/a");
  for (int again = 0; again < 5; ++again) {
    machine.crash(Crash::kPower);
    EXPECT_EQ(machine.disk.read("/d/a"), contents);
  }
}

TEST(SimDiskTest, AKilledProcessKeepsWhatCompletedAndAPowerFailureMayStillTakeIt) {
  int lost = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Machine machine({.seed = seed});
    const io::File file = machine.create("/d/a", 4);
    ASSERT_TRUE(machine.disk.create("/d/b", kPage, true));
    ASSERT_TRUE(machine.write(file, 0, 4, 1));
    machine.crash(Crash::kProcess);
    EXPECT_EQ(machine.disk.paths(), (std::vector<std::string>{"/d/a", "/d/b"}));
    EXPECT_EQ(machine.disk.read("/d/a"), std::vector(4 * kPage, std::byte{1}));
    machine.crash(Crash::kPower);
    lost += machine.disk.read("/d/a") != std::vector(4 * kPage, std::byte{1});
  }
  EXPECT_GT(lost, 0);
}

TEST(SimDiskTest, WhatIsInFlightInACrashIsWrittenInPart) {
  Fates fates;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Machine machine({.seed = seed}, {.choose = [](const io::Request& request) {
                      return request.offset_bytes > 0 ? Fault::kHang : Fault::kNone;
                    }});
    const io::File file = machine.create("/d/a", 32);
    std::memset(machine.memory.data(), 3, machine.memory.size_bytes());
    machine.submit(Operation::kWrite, file, 16, 16);
    EXPECT_EQ(machine.ring->wait_for(1'000'000), 0u);  // hangs
    machine.submit(Operation::kWrite, file, 0, 16);    // waits
    machine.crash(Crash::kProcess);
    EXPECT_FALSE(machine.outcome);
    const auto contents = machine.disk.read("/d/a");
    for (uint64_t page = 0; page < 32; ++page) fates.add(sectors_of(contents, page), 0, 3);
  }
  EXPECT_GT(fates.kept, 50);
  EXPECT_GT(fates.reverted, 50);
  EXPECT_EQ(fates.torn, 0) << "pages in memory are whole";
}

TEST(SimDiskTest, NamesAreVolatileUntilTheirDirectoryIsSynced) {
  int created = 0, removed = 0, shrunk = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Machine machine({.seed = seed});
    machine.create("/d/old", 1);
    machine.create("/d/synced", 1);
    ASSERT_TRUE(machine.disk.create("/d/new", kPage, true));
    ASSERT_TRUE(machine.disk.remove("/d/old"));
    machine.crash(Crash::kPower);
    EXPECT_TRUE(machine.disk.exists("/d/synced"));
    created += machine.disk.exists("/d/new");
    removed += !machine.disk.exists("/d/old");
    if (machine.disk.exists("/d/new")) shrunk += machine.disk.size_bytes("/d/new") == 0;
  }
  for (const int count : {created, removed}) {
    EXPECT_GT(count, 10);
    EXPECT_LT(count, 50);
  }
  EXPECT_GT(shrunk, 0);
  EXPECT_LT(shrunk, created);
}

TEST(SimDiskTest, ASyncedDirectoryRemembersRemovalAndCreationOfOneName) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Machine machine({.seed = seed});
    machine.create("/d/a", 1);
    ASSERT_TRUE(machine.disk.remove("/d/a"));
    ASSERT_TRUE(machine.disk.create("/d/a", 2 * kPage, true));
    ASSERT_TRUE(machine.disk.sync_directory("/d"));
    ASSERT_TRUE(machine.disk.remove("/d/a"));
    machine.crash(Crash::kPower);
    // The last removal may have happened; the first file must not come back.
    const bool exists = machine.disk.exists("/d/a");
    EXPECT_TRUE(!exists || machine.disk.size_bytes("/d/a") != kPage);
  }
}

// A write that runs while a sync is on its way is not covered by it, and what it covers is what was
// there when it began.
TEST(SimFileTest, ASyncCoversTheWritesBeforeItBegan) {
  Fates fates;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SimFile file(kPage);
    const io::File handle = file.open({}, "a");
    const auto write = [&](uint64_t sequence) {
      const std::vector page(kPage, static_cast<std::byte>(sequence));
      file.before_write(0, kPage, sequence);
      ASSERT_EQ(pwrite(handle.descriptor(), page.data(), kPage, 0), ssize_t{kPage});
    };
    write(1);
    write(2);
    file.begin_sync(2);
    write(3);
    write(4);
    file.end_sync(2, [] { return true; });
    SimRandom random(seed);
    file.lose_volatile(random);
    fates.add(sectors_of(file.read(), 0), 2, 4);
  }
  EXPECT_GT(fates.kept, 0);
  EXPECT_GT(fates.reverted, 0);
}

TEST(SimDiskTest, ASyncAfterAFailedOneDoesNotBringItsPagesBack) {
  int lost = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Machine machine({.seed = seed});
    const io::File file = machine.create("/d/a", 2);
    ASSERT_TRUE(machine.write(file, 0, 2, 1));
    machine.ring->set_plan({.sync_error = 1});
    EXPECT_FALSE(machine.sync(file));
    machine.ring->set_plan({});
    ASSERT_TRUE(machine.write(file, 1, 1, 2));
    EXPECT_TRUE(machine.sync(file));
    machine.crash(Crash::kPower);
    const auto contents = machine.disk.read("/d/a");
    EXPECT_EQ(sectors_of(contents, 1)[0], 2);
    lost += sectors_of(contents, 0)[0] == 0;
  }
  EXPECT_GT(lost, 0);
}

TEST(SimDiskTest, WithoutPowerEverythingFailsAndNothingChanges) {
  Machine machine({});
  const io::File file = machine.create("/d/a", 2);
  auto lock = machine.disk.lock("/d/lock");
  ASSERT_TRUE(lock);
  ASSERT_TRUE(machine.write(file, 0, 2, 1));
  const uint64_t operations = machine.disk.operations();
  machine.disk.power_off();
  EXPECT_FALSE(machine.disk.powered());
  EXPECT_EQ(machine.write(file, 0, 2, 2).error().system_errno, EIO);
  EXPECT_EQ(machine.transfer(Operation::kRead, file, 0, 2).error().system_errno, EIO);
  EXPECT_EQ(machine.sync(file).error().system_errno, EIO);
  EXPECT_EQ(machine.disk.create("/d/b", 0, true).error().system_errno, EIO);
  EXPECT_EQ(machine.disk.open("/d/a", {}).error().system_errno, EIO);
  EXPECT_EQ(machine.disk.remove("/d/a").error().system_errno, EIO);
  EXPECT_EQ(machine.disk.list("/d").error().system_errno, EIO);
  EXPECT_EQ(machine.disk.sync_directory("/d").error().system_errno, EIO);
  EXPECT_EQ(machine.disk.create_directory("/e").error().system_errno, EIO);
  EXPECT_EQ(machine.disk.lock("/d/lock2").error().system_errno, EIO);
  lock->reset();
  EXPECT_EQ(machine.disk.operations(), operations);
  EXPECT_EQ(machine.disk.paths(), (std::vector<std::string>{"/d/a", "/d/lock"}));
  EXPECT_EQ(machine.disk.read("/d/a"), std::vector(2 * kPage, std::byte{1}));
}

TEST(SimDiskTest, ACrashCutsOffOpenFilesAndFreesLocks) {
  Machine machine({});
  const io::File file = machine.create("/d/a", 1);
  const auto lock = machine.disk.lock("/d/lock");
  ASSERT_TRUE(lock);
  EXPECT_EQ(machine.disk.lock("/d/lock").error().code, Code::kBusy);
  machine.crash(Crash::kProcess);

  EXPECT_EQ(machine.write(file, 0, 1, 7).error().system_errno, EIO);
  ASSERT_EQ(pwrite(file.descriptor(), "stale", 5, 0), 5);
  EXPECT_EQ(machine.disk.read("/d/a"), std::vector(kPage, std::byte{0}));
  EXPECT_TRUE(machine.disk.exists("/d/lock")) << "a killed owner leaves its file";
  EXPECT_TRUE(machine.disk.lock("/d/lock"));

  const auto again = machine.disk.open("/d/a", {});
  ASSERT_TRUE(again);
  EXPECT_TRUE(machine.write(*again, 0, 1, 8));
  EXPECT_EQ(machine.disk.read("/d/a"), std::vector(kPage, std::byte{8}));
}

// A few operations of every kind; stops at the first that fails.
Result<void> work(Machine& machine) {
  HIFC_ASSIGN(const io::File file, machine.disk.create("/d/a", 8 * kPage, true));
  HIFC_TRY(machine.write(file, 0, 8, 1));
  HIFC_TRY(machine.sync(file));
  HIFC_TRY(machine.disk.sync_directory("/d"));
  HIFC_TRY(machine.write(file, 2, 2, 2));
  HIFC_TRY(machine.disk.create("/d/b", kPage, true));
  HIFC_TRY(machine.disk.remove("/d/b"));
  return machine.disk.sync_directory("/d");
}

TEST(SimDiskTest, ACountedCrashComesInThatOperation) {
  Machine whole({});
  ASSERT_TRUE(work(whole));
  ASSERT_EQ(whole.disk.operations(), 8u);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (uint64_t last = 1; last <= 9; ++last) {
      Machine machine({.seed = seed});
      machine.disk.crash_after(last);
      EXPECT_EQ(work(machine).has_value(), last == 9);
      EXPECT_EQ(machine.disk.powered(), last == 9);
      EXPECT_EQ(machine.disk.operations(), std::min<uint64_t>(last, 8));
      machine.crash(Crash::kPower);
      if (last > 4) {
        EXPECT_EQ(sectors_of(machine.disk.read("/d/a"), 0)[7], 1) << "synced with its name";
      }
      if (last > 8) {
        EXPECT_EQ(machine.disk.paths(), std::vector<std::string>{"/d/a"});
      }
      ASSERT_TRUE(machine.disk.create("/d/c", 0, true)) << "the count is over";
    }
  }
}

TEST(SimDiskTest, TheOperationOfTheCrashHappensInPart) {
  Fates fates;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Machine machine({.seed = seed});
    const io::File file = machine.create("/d/a", 16);
    machine.disk.crash_after(1);
    EXPECT_FALSE(machine.write(file, 0, 16, 1));
    machine.crash(Crash::kProcess);
    const auto contents = machine.disk.read("/d/a");
    for (uint64_t page = 0; page < 16; ++page) fates.add(sectors_of(contents, page), 0, 1);
  }
  EXPECT_GT(fates.kept, 20);
  EXPECT_GT(fates.reverted, 20);
}

TEST(SimDiskTest, TheSameSeedLeavesTheSameDisk) {
  const auto run = [](uint64_t seed) {
    Machine machine({.seed = seed});
    EXPECT_TRUE(work(machine));
    machine.crash(Crash::kPower);
    return machine.disk.read("/d/a");
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(run(seed), run(seed));
  int different = 0;
  for (uint64_t seed = 2; seed <= 20; ++seed) different += run(seed) != run(1);
  EXPECT_GT(different, 0);
}

TEST(SimDiskTest, AFullDiskTakesNothingMoreUntilAFileIsRemoved) {
  Machine machine({.capacity_bytes = 10 * kPage});
  const io::File file = machine.create("/d/a", 100);
  EXPECT_EQ(machine.disk.free_bytes("/d").value(), 10 * kPage) << "files begin without blocks";
  ASSERT_TRUE(machine.write(file, 0, 8, 1));
  ASSERT_TRUE(machine.write(file, 4, 6, 1));
  EXPECT_EQ(machine.disk.free_bytes("/d").value(), 0u);
  EXPECT_EQ(machine.write(file, 9, 2, 1).error().system_errno, ENOSPC);
  EXPECT_TRUE(machine.write(file, 8, 2, 1));
  ASSERT_TRUE(machine.disk.remove("/d/a"));
  EXPECT_EQ(machine.disk.free_bytes("/d").value(), 10 * kPage);
  machine.disk.set_capacity_bytes(kPage);
  EXPECT_EQ(machine.disk.free_bytes("/d").value(), kPage);
}

TEST(SimDiskTest, ChosenOperationsFailAndChangeNothing) {
  Machine machine({});
  machine.create("/d/a", 1);
  const uint64_t operations = machine.disk.operations();
  int reason = ENOSPC;
  machine.disk.set_choose(
      [&](DiskOperation, const std::string& path) { return path == "/d/free" ? 0 : reason; });
  EXPECT_EQ(machine.disk.create("/d/b", 0, true).error().code, Code::kFull);
  reason = EACCES;
  EXPECT_EQ(machine.disk.remove("/d/a").error().system_errno, EACCES);
  EXPECT_EQ(machine.disk.list("/d").error().code, Code::kIo);
  EXPECT_EQ(machine.disk.sync_directory("/d").error().system_errno, EACCES);
  EXPECT_EQ(machine.disk.operations(), operations);
  EXPECT_TRUE(machine.disk.create("/d/free", 0, true));
  EXPECT_EQ(machine.disk.paths(), (std::vector<std::string>{"/d/a", "/d/free"}));
}

TEST(SimDiskTest, TestsReadAndDamageFiles) {
  Machine machine({});
  const std::vector contents = {std::byte{1}, std::byte{2}, std::byte{3}};
  machine.disk.write("/d/a", contents);
  machine.disk.flip_byte("/d/a", 1);
  EXPECT_EQ(machine.disk.read("/d/a")[1], std::byte{2 ^ 0xff});
  machine.disk.truncate("/d/a", 1);
  EXPECT_EQ(machine.disk.size_bytes("/d/a"), 1u);
  machine.disk.truncate("/d/a", 2 * kPage);
  machine.crash(Crash::kPower);
  EXPECT_EQ(machine.disk.size_bytes("/d/a"), 2 * kPage);
  EXPECT_EQ(machine.disk.read("/d/a")[0], std::byte{1});
  EXPECT_EQ(machine.disk.read("/d/a")[1], std::byte{0});
}

TEST(SimDiskTest, ARemovedFileWorksWhileItIsOpenAndThenCostsNothing) {
  Machine machine({});
  for (int round = 0; round < 2000; ++round) {
    const auto file = machine.disk.create("/d/a", kPage, true);
    ASSERT_TRUE(file);
    ASSERT_TRUE(machine.disk.remove("/d/a"));
    ASSERT_TRUE(round % 2 == 0 || machine.disk.sync_directory("/d"));
    ASSERT_TRUE(machine.write(*file, 0, 1, 5));
    ASSERT_TRUE(machine.sync(*file));
    ASSERT_TRUE(machine.transfer(Operation::kRead, *file, 0, 1));
  }
}

}  // namespace
}  // namespace hifc::testing
