// Repair leaves a store that verifies and in which everything intact is found; trim keeps to its
// size; neither touches the files of others.
#include "flash/repair.h"

#include <gtest/gtest.h>

#include <random>

#include "flash/inspection_fixture.h"

namespace hifc::flash {
namespace {

class RepairTest : public DamageTest {};

TEST_F(RepairTest, NothingIsChangedWhereNothingIsDamaged) {
  fill();
  kill();
  const Files before = files();
  const Repair outcome = mend();
  EXPECT_TRUE(outcome.found.intact());
  EXPECT_TRUE(outcome.removed.empty() && outcome.rewritten.empty() && outcome.restored.empty());
  EXPECT_TRUE(files() == before);
}

TEST_F(RepairTest, DamagedValuesGoAndOthersStay) {
  fill();
  close();
  for (const uint64_t id : {0u, 7u, 38u}) {
    const Place place = place_of(id);
    disk_.flip_byte(place.path, place.lane_offset_bytes(1) + 4096);
  }
  EXPECT_EQ(damaged_ids(look()), (Ids{0, 7, 38}));
  expect_mended(without(all_ids(), {0, 7, 38}));
}

TEST_F(RepairTest, WithoutACheckpointToo) {
  fill();
  kill();
  for (const uint64_t id : {37u, 38u}) {
    const Place place = place_of(id);
    disk_.flip_byte(place.path, place.lane_offset_bytes(0));
  }
  expect_mended(without(all_ids(), {37, 38}));
}

// After a crash the batches are all that says where their lanes are.
TEST_F(RepairTest, LanesOfAnyLengthOutliveACrashAndDamageToOthers) {
  constexpr ValueShape kUneven{
      .lanes = 4, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 16384};
  const auto found = [&] {
    open();
    Ids ids;
    for (uint64_t id = 0; id < 12; ++id)
      if (h_.findable_and_intact(kUneven, id)) ids.insert(id);
    return ids;
  };
  open();
  for (uint64_t id = 0; id < 12; id += 2) ASSERT_TRUE(h_.put(TestBatch(kUneven, {id, id + 1})));
  kill();
  const Files before = files();
  Ids all = found();
  EXPECT_EQ(all.size(), 12u);
  close();
  restore(before);
  for (uint64_t id = 8; id < 12; ++id) {
    const auto lane = static_cast<uint32_t>(id % kUneven.lanes);
    const Place place = place_of(id);
    disk_.flip_byte(place.path, place.lane_offset_bytes(lane) + kUneven.length(id, 0, lane) - 1);
    all.erase(id);
    EXPECT_EQ(found(), all) << "a store leaves out what does not verify";
    close();
    restore(before);
    disk_.flip_byte(place.path, place.lane_offset_bytes(lane) + kUneven.length(id, 0, lane) - 1);
    const Repair outcome = mend();
    EXPECT_TRUE(outcome.unrepaired.empty());
    EXPECT_TRUE(look().intact());
    EXPECT_EQ(found(), all);
    close();
    restore(before);
    all.insert(id);
  }
}

TEST_F(RepairTest, ADryRunSaysTheSameAndChangesNothing) {
  fill();
  close();
  disk_.flip_byte(place_of(7).path, place_of(7).lane_offset_bytes(1));
  disk_.flip_byte(place_of(14).path, 20);
  const Files before = files();
  const Repair planned = mend(Execution::kDryRun);
  EXPECT_TRUE(files() == before);
  const Repair done = mend();
  EXPECT_EQ(planned.rewritten, done.rewritten);
  ASSERT_EQ(planned.removed.size(), 1u);
  ASSERT_EQ(done.removed.size(), 1u);
  EXPECT_EQ(planned.removed[0].file, done.removed[0].file);
  EXPECT_FALSE(files() == before);
}

TEST_F(RepairTest, BatchHeadersWithAndWithoutACheckpoint) {
  fill();
  kill();
  disk_.flip_byte(place_of(6).path, place_of(6).offset_bytes + 100);
  const Place last = place_of(38);
  disk_.flip_byte(last.path, last.offset_bytes + 40);
  expect_mended(without(all_ids(), {6, 7, 38, 39}));
}

TEST_F(RepairTest, ACheckpointIsWrittenAnew) {
  fill();
  close();
  disk_.flip_byte(place_of(6).path, kSegmentBytes - 1);
  disk_.flip_byte(place_of(38).path, kSegmentBytes - 200);
  expect_mended(all_ids());
}

TEST_F(RepairTest, SegmentsWithoutAHeaderGo) {
  fill();
  close();
  disk_.flip_byte(place_of(6).path, 30);
  disk_.truncate(place_of(12).path, 0);
  const auto before = files().size();
  expect_mended(without(all_ids(), {6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}));
  EXPECT_EQ(files().size(), before - 2);
}

TEST_F(RepairTest, WhatWentWithASegmentIsCountedWhereItIsKnown) {
  fill();
  close();
  disk_.flip_byte(place_of(6).path, 30);
  disk_.truncate(place_of(12).path, 0);
  const Repair outcome = mend();
  ASSERT_EQ(outcome.removed.size(), 2u);
  for (const RemovedSegment& removed : outcome.removed)
    EXPECT_EQ(removed.values, removed.size_bytes == 0 ? std::optional<uint64_t>(0) : std::nullopt);
  const Trim trimmed = cut(0);
  for (const RemovedSegment& removed : trimmed.removed) EXPECT_TRUE(removed.values);
}

TEST_F(RepairTest, SegmentsCutOffInTheirHeaderGo) {
  fill();
  close();
  const std::string file = place_of(6).path;
  for (const uint64_t size : {4095u, 100u}) {
    disk_.truncate(file, size);
    EXPECT_EQ(mend(Execution::kDryRun).removed.size(), 1u) << size;
  }
  expect_mended(without(all_ids(), {6, 7, 8, 9, 10, 11}));
  EXPECT_FALSE(disk_.exists(file));
}

TEST_F(RepairTest, CutOffSegmentsKeepWhatIsLeft) {
  fill();
  close();
  const std::string file = place_of(6).path;
  const Files before = files();
  const std::map<uint64_t, Ids> lost{
      {10, {6, 7, 8, 9, 10, 11}}, {50, {8, 9, 10, 11}}, {90, {}}, {200, {}}};
  for (const auto& [percent, ids] : lost) {
    SCOPED_TRACE(percent);
    auto bytes = before.at(file);
    bytes.resize(kSegmentBytes * percent / 100 - 1);
    disk_.write(file, bytes);
    expect_mended(without(all_ids(), ids));
    EXPECT_EQ(disk_.exists(file), percent > 10);
    restore(before);
  }
}

TEST_F(RepairTest, AFileTwiceGoesOnce) {
  fill();
  close();
  disk_.write(path_of("hifc-00000050.seg"), disk_.read(place_of(6).path));
  EXPECT_EQ(look().damaged_records.size(), 1u);
  expect_mended(all_ids());
  EXPECT_FALSE(disk_.exists(path_of("hifc-00000050.seg")));
}

TEST_F(RepairTest, AnOlderValueIsFoundAgainWhereTheNewestIsDamaged) {
  fill();
  put({4}, 1);
  close();
  const Place newest = place_of(4);
  disk_.flip_byte(newest.path, newest.lane_offset_bytes(0));
  expect_mended(all_ids());
}

TEST_F(RepairTest, ARemovedValueStaysRemovedWhenItsBytesAreDamaged) {
  fill();
  put({4}, 1);
  close();
  const Place middle = place_of(4);
  open();
  put({4}, 2);
  ASSERT_TRUE(h_.store->remove(key_of(4)));
  ASSERT_TRUE(h_.flush());
  close();
  const Files before = files();
  const Place newest = place_of(4);
  disk_.flip_byte(newest.path, newest.lane_offset_bytes(0));
  expect_mended(without(all_ids(), {4}));
  restore(before);
  disk_.flip_byte(newest.path, newest.lane_offset_bytes(0));
  disk_.flip_byte(middle.path, middle.lane_offset_bytes(0));
  expect_mended(without(all_ids(), {4}));
}

TEST_F(RepairTest, RemovalsOutliveTheirBatchHeader) {
  fill();
  ASSERT_TRUE(h_.store->remove(key_of(4)));
  put({39}, 0);
  close();
  const Place carrier = place_of(39);
  EXPECT_EQ(carrier.batch.removals.size(), 1u);
  disk_.flip_byte(carrier.path, carrier.offset_bytes + 70);
  // The value 39 of the first fill() is found again.
  expect_mended(without(all_ids(), {4}));
}

TEST_F(RepairTest, ForeignFilesStayAsTheyAre) {
  fill();
  close();
  const Files foreign{
      {path_of("notes.txt"), std::vector<std::byte>(10, std::byte{1})},
      {path_of("hifc-00000099.seg"), std::vector<std::byte>(9000, std::byte{1})},
      {path_of("hifc-00000098.seg"), std::vector<std::byte>(90, std::byte{1})},
  };
  for (const auto& [name, bytes] : foreign) disk_.write(name, bytes);
  disk_.flip_byte(place_of(6).path, 30);
  expect_mended(without(all_ids(), {6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(cut(0).size_bytes_after, 0u);
  EXPECT_TRUE(files() == foreign);
}

TEST_F(RepairTest, AnyFlippedByteIsFoundOrHarmless) {
  fill();
  put({4}, 0);
  ASSERT_TRUE(h_.store->remove(key_of(5)));
  put({6}, 0);
  kill();
  const Files before = files();
  std::mt19937_64 random(1);
  std::map<uint64_t, std::string> paths;
  for (const uint64_t id : without(all_ids(), {5})) paths[id] = place_of(id).path;
  for (int round = 0; round < 150; ++round) {
    auto file = before.begin();
    std::advance(file, random() % before.size());
    const uint64_t offset = random() % file->second.size();
    SCOPED_TRACE(fmt::format("{} at {}", file->first, offset));
    disk_.flip_byte(file->first, offset);
    if (look().intact()) {
      EXPECT_EQ(found_by_store(), without(all_ids(), {5}));
    } else {
      (void)mend();
      EXPECT_TRUE(look().intact());
      const Ids found = found_by_store();
      for (const auto& [id, path] : paths) EXPECT_TRUE(path == file->first || found.contains(id));
    }
    restore(before);
  }
}

// Goal: whenever the power fails, nothing that was intact is lost, and another repair succeeds.
TEST_F(RepairTest, APowerFailureWhileRepairingLosesNothing) {
  fill();
  kill();
  const Place seven = place_of(7), cut_off = place_of(13), headless = place_of(20);
  const Place scanned = place_of(39);
  disk_.flip_byte(seven.path, seven.lane_offset_bytes(1));
  disk_.truncate(cut_off.path, kSegmentBytes - 1);
  disk_.flip_byte(headless.path, 40);
  disk_.flip_byte(scanned.path, scanned.lane_offset_bytes(0));
  const Ids intact = without(all_ids(), {7, 18, 19, 20, 21, 22, 23, 39});
  const Files before = files();
  uint64_t complete = 0;
  for (uint64_t round = 0; complete < 3; ++round) {
    SCOPED_TRACE(round);
    ASSERT_LT(round, 200u) << "the repair never ends";
    disk_.crash_after(1 + round / 5);
    complete += try_mend().has_value() ? 1 : 0;
    disk_.crash(testing::Crash::kPower);
    open();
    for (const uint64_t id : intact) EXPECT_TRUE(h_.findable_and_intact(kShape, id)) << id;
    kill();
    expect_mended(intact);
    restore(before);
  }
}

// A checkpoint that is durable must not name values that are not.
TEST_F(RepairTest, AnotherCheckpointNamesOnlyWhatIsDurable) {
  for (uint64_t round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    if (round > 0) cut(0);
    fill();
    kill();
    const Place unread = place_of(38);
    ring_.set_plan({.choose = [&](const io::Request& request) {
      const bool hit =
          request.operation == io::Operation::kRead && request.file->path() == unread.path &&
          request.offset_bytes <= unread.lane_offset_bytes(1) &&
          unread.lane_offset_bytes(1) < request.offset_bytes + request.vectors.front().iov_len;
      return hit ? testing::Fault::kIoError : testing::Fault::kNone;
    }});
    disk_.crash_after(1 + round % 4);
    (void)try_mend();
    ring_.set_plan({});
    disk_.crash(testing::Crash::kPower);
    (void)found_by_store();
  }
}

TEST_F(RepairTest, ADeviceThatDoesNotAnswerEndsIt) {
  fill();
  close();
  const Place place = place_of(7);
  disk_.flip_byte(place.path, place.lane_offset_bytes(1));
  for (const io::Operation operation : {io::Operation::kSync, io::Operation::kWrite}) {
    ring_.set_plan({.choose = [&](const io::Request& request) {
      return request.operation == operation ? testing::Fault::kHang : testing::Fault::kNone;
    }});
    const auto outcome = try_mend();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, Code::kTimeout);
    ring_.set_plan({});
    ring_.release_hung();
    while (ring_.in_flight() > 0) ring_.wait();
  }
  expect_mended(without(all_ids(), {7}));
}

TEST_F(RepairTest, TheOldestSegmentsAreTrimmedFirst) {
  fill();
  close();
  const uint64_t segments = look().segments.size();
  const Files before = files();
  const Trim planned = cut(3 * kSegmentBytes, Execution::kDryRun);
  EXPECT_TRUE(files() == before);
  const Trim outcome = cut(3 * kSegmentBytes + 5);
  EXPECT_EQ(outcome.size_bytes_after, 3 * kSegmentBytes);
  EXPECT_EQ(outcome.removed.size(), segments - 3);
  EXPECT_EQ(planned.removed.size(), outcome.removed.size());
  EXPECT_EQ(outcome.removed[0].values, 6u);
  Ids left;
  for (uint64_t id = (segments - 3) * 6; id < kValues; ++id) left.insert(id);
  EXPECT_EQ(found_by_store(), left);
}

TEST_F(RepairTest, ATrimToNothingEmptiesTheDirectory) {
  fill();
  close();
  EXPECT_EQ(cut(0).size_bytes_after, 0u);
  EXPECT_TRUE(files().empty());
  EXPECT_TRUE(found_by_store().empty());
}

TEST_F(RepairTest, ATrimNeverBringsBackWhatWasReplacedOrRemoved) {
  fill();
  for (uint64_t id = 0; id < 12; ++id) put({id}, 1);
  ASSERT_TRUE(h_.store->remove(key_of(20)));
  ASSERT_TRUE(h_.flush());
  close();
  const uint64_t all = look().segments.size();
  for (uint64_t left = all; left > 0; --left) {
    cut((left - 1) * kSegmentBytes);
    open();
    EXPECT_FALSE(h_.contains(20)) << left;
    for (uint64_t id = 0; id < 12; ++id)
      EXPECT_EQ(h_.contains(id), h_.findable_and_intact(kShape, id, 1)) << id;
    close();
  }
}

// Segment 2 has a newer value 0 than segment 1, and segment 3 says that it has been removed.
class TrimTest : public DamageTest {
 protected:
  void SetUp() override {
    open();
    put({0, 1}), put({2, 3}), put({4, 5});
    put({0}, 1), put({6, 7}), put({8, 9});
    put({10, 11});
    for (const uint64_t id : {0u, 6u, 7u, 8u, 9u}) ASSERT_TRUE(h_.store->remove(key_of(id)));
    ASSERT_TRUE(h_.flush());
    close();
  }
};

TEST_F(TrimTest, ASegmentWithoutValuesStaysWhileItHidesOlderOnes) {
  ASSERT_EQ(look().segments.size(), 3u);
  ASSERT_EQ(look().segments[1].values(Fate::kCurrent), 0u);
  const Trim outcome = cut(2 * kSegmentBytes);
  ASSERT_EQ(outcome.removed.size(), 1u);
  EXPECT_EQ(outcome.removed[0].file, "hifc-00000000.seg");
  EXPECT_EQ(found_by_store(), (Ids{10, 11}));
}

TEST_F(TrimTest, APowerFailureBringsNothingBack) {
  const Files before = files();
  for (uint64_t round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    disk_.crash_after(1 + round % 6);
    (void)try_cut(0);
    disk_.crash(testing::Crash::kPower);
    open();
    EXPECT_FALSE(h_.contains(0));
    close();
    restore(before);
  }
}

TEST_F(RepairTest, AnInterruptionEndsBetweenTwoFiles) {
  fill();
  close();
  disk_.flip_byte(place_of(6).path, 30);
  disk_.flip_byte(place_of(12).path, 30);
  std::atomic<bool> cancelled = false;
  InspectionOptions options;
  options.cancelled = &cancelled;
  disk_.set_choose([&](testing::DiskOperation operation, const std::string&) {
    cancelled = cancelled || operation == testing::DiskOperation::kRemove;
    return 0;
  });
  const auto outcome = try_mend(Execution::kApply, options);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kCancelled);
  EXPECT_EQ(look().damaged_records.size(), 1u);
}

}  // namespace
}  // namespace hifc::flash
