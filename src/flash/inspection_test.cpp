// Every kind of damage is found, and nothing else.
#include "flash/inspection.h"

#include <gtest/gtest.h>

#include "flash/format_fixture.h"
#include "flash/inspection_fixture.h"

namespace hifc::flash {
namespace {

using Part = DamagedRecord::Part;
using State = InspectedSegment::State;

class InspectionTest : public DamageTest {
 protected:
  void expect_only(Part part, const std::string& file, uint64_t offset) {
    const Inspection found = look();
    ASSERT_EQ(found.damaged_records.size(), 1u);
    EXPECT_EQ(found.damaged_records[0].part, part);
    EXPECT_EQ(path_of(found.damaged_records[0].file), file);
    EXPECT_EQ(found.damaged_records[0].offset_bytes, offset);
    EXPECT_FALSE(found.damaged_records[0].problem.empty());
  }
};

TEST_F(InspectionTest, AnUntouchedStoreIsIntact) {
  fill();
  close();
  const Inspection found = look();
  EXPECT_TRUE(found.intact());
  EXPECT_TRUE(found.foreign.empty());
  EXPECT_EQ(found.segments.size(), (kValues + 5) / 6);
  uint64_t values = 0, bytes = 0, number = 0;
  for (const InspectedSegment& segment : found.segments) {
    EXPECT_GT(segment.context.number, number) << "oldest first";
    number = segment.context.number;
    EXPECT_EQ(segment.size_bytes, kSegmentBytes);
    EXPECT_EQ(segment.scanned_bytes(), 0u);
    EXPECT_EQ(segment.state, &segment == &found.segments.back() ? State::kOpen : State::kSealed);
    values += segment.values(Fate::kCurrent);
    bytes += segment.value_bytes();
  }
  EXPECT_EQ(values, kValues);
  EXPECT_EQ(bytes, kValues * kShape.lanes * kShape.lane_bytes);
  EXPECT_EQ(found.size_bytes(), found.segments.size() * kSegmentBytes);
}

TEST_F(InspectionTest, RecordsAloneSayTheSame) {
  fill();
  kill();
  auto found = try_look({.depth = Depth::kRecords});
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->intact());
  uint64_t values = 0;
  for (const InspectedSegment& segment : found->segments) {
    values += segment.values(Fate::kCurrent);
    EXPECT_EQ(segment.value_bytes() > 0, segment.values(Fate::kCurrent) > 0);
  }
  EXPECT_EQ(values, kValues);
  EXPECT_GT(found->segments.back().scanned_bytes(), 0u);
}

TEST_F(InspectionTest, NothingIsWritten) {
  fill();
  kill();
  const Files before = files();
  disk_.flip_byte(place_of(3).path, place_of(3).lane_offset_bytes(1));
  EXPECT_FALSE(look().intact());
  disk_.flip_byte(place_of(3).path, place_of(3).lane_offset_bytes(1));
  EXPECT_TRUE(files() == before);
}

TEST_F(InspectionTest, ADamagedPayloadByteNamesValueAndLane) {
  fill();
  close();
  for (const uint64_t id : {0u, 7u, 38u}) {
    for (const uint32_t lane : {0u, 1u}) {
      const Place place = place_of(id);
      const uint64_t offset = place.lane_offset_bytes(lane) + 5000;
      disk_.flip_byte(place.path, offset);
      const Inspection found = look();
      EXPECT_TRUE(found.damaged_records.empty());
      ASSERT_EQ(found.damaged_values.size(), 1u);
      const DamagedValue& value = found.damaged_values[0];
      EXPECT_EQ(value.key, key_of(id));
      EXPECT_EQ(value.fate, Fate::kCurrent);
      EXPECT_EQ(path_of(value.file), place.path);
      EXPECT_EQ(value.offset_bytes, place.lane_offset_bytes(lane));
      EXPECT_EQ(value.lanes, std::vector<uint32_t>{lane});
      disk_.flip_byte(place.path, offset);
    }
  }
}

TEST_F(InspectionTest, ADamagedByteOfALaneOfAnyLengthNamesThatLane) {
  constexpr ValueShape kUneven{
      .lanes = 4, .lane_bytes = 4096, .chunk_bytes = 8192, .lane_bytes_max = 28672};
  open();
  ASSERT_TRUE(h_.put(TestBatch(kUneven, {0, 1, 2})));
  close();
  for (const uint64_t id : {0u, 1u, 2u}) {
    const Place place = place_of(id);
    for (uint32_t lane = 0; lane < kUneven.lanes; ++lane)
      for (const uint64_t at : {uint64_t{0}, kUneven.length(id, 0, lane) - 1}) {
        SCOPED_TRACE(fmt::format("byte {} of lane {} of value {}", at, lane, id));
        disk_.flip_byte(place.path, place.lane_offset_bytes(lane) + at);
        const Inspection found = look();
        ASSERT_EQ(found.damaged_values.size(), 1u);
        EXPECT_EQ(found.damaged_values[0].key, key_of(id));
        EXPECT_EQ(found.damaged_values[0].lanes, std::vector<uint32_t>{lane});
        EXPECT_EQ(found.damaged_values[0].offset_bytes, place.lane_offset_bytes(lane));
        disk_.flip_byte(place.path, place.lane_offset_bytes(lane) + at);
      }
  }
  EXPECT_TRUE(look().intact());
}

TEST_F(InspectionTest, ADamagedBatchHeaderLosesItsValues) {
  fill();
  close();
  const Place place = place_of(7);
  const Files before = files();
  for (uint64_t byte = 0; byte < place.batch.header_bytes; byte += byte < 256 ? 1 : 97) {
    SCOPED_TRACE(byte);
    disk_.flip_byte(place.path, place.offset_bytes + byte);
    expect_only(Part::kBatchHeader, place.path, place.offset_bytes);
    EXPECT_EQ(damaged_ids(look()), (Ids{6, 7}));
    EXPECT_TRUE(look().damaged_values[0].lanes.empty());
    restore(before);
  }
}

TEST_F(InspectionTest, ADamagedBatchHeaderIsFoundWithoutACheckpoint) {
  fill();
  kill();
  const Place place = place_of(38);
  const Files before = files();
  for (uint64_t byte = 0; byte < place.batch.header_bytes; byte += byte < 256 ? 1 : 97) {
    SCOPED_TRACE(byte);
    disk_.flip_byte(place.path, place.offset_bytes + byte);
    expect_only(Part::kBatchHeader, place.path, place.offset_bytes);
    restore(before);
  }
}

TEST_F(InspectionTest, ADamagedCheckpointLosesNothing) {
  fill();
  close();
  const Place place = place_of(7);
  const Files before = files();
  for (uint64_t byte = kSegmentBytes - 2 * sizeof(CheckpointTrailer); byte < kSegmentBytes;
       ++byte) {
    SCOPED_TRACE(byte);
    disk_.flip_byte(place.path, byte);
    expect_only(Part::kCheckpoint, place.path, kSegmentBytes - kPageBytes);
    EXPECT_TRUE(look().damaged_values.empty());
    restore(before);
  }
}

TEST_F(InspectionTest, ADamagedSegmentHeaderIsOursAllTheSame) {
  fill();
  close();
  const Place place = place_of(7);
  const Files before = files();
  for (uint64_t byte = 0; byte < kPageBytes; byte += byte < 64 ? 1 : 97) {
    SCOPED_TRACE(byte);
    disk_.flip_byte(place.path, byte);
    expect_only(Part::kSegmentHeader, place.path, 0);
    EXPECT_TRUE(look().foreign.empty());
    restore(before);
  }
}

TEST_F(InspectionTest, ADamagedSegmentHeaderWithoutACheckpointIsOurs) {
  fill();
  kill();
  disk_.flip_byte(place_of(38).path, 3);
  EXPECT_EQ(look().damaged_records.size(), 1u);
  EXPECT_TRUE(look().foreign.empty());
}

// What is left of it belongs to a number that no later segment has.
TEST_F(InspectionTest, AStoreThatGoesOnAfterALostSegmentHeaderIsIntact) {
  fill();
  close();
  disk_.flip_byte(place_of(kValues - 1).path, 8);
  open();
  for (uint64_t id = 0; id < kValues; id += 2) put({id, id + 1});
  close();
  EXPECT_TRUE(look().intact());
  EXPECT_EQ(found_by_store(), all_ids());
}

// Segment 2 cannot be read at one opening, and can at the next: what was written and removed in the
// meantime is newer all the same, so segment 1 must not be filled on.
TEST_F(InspectionTest, ASegmentThatCannotBeReadOnceIsNotTakenForUnused) {
  open();
  put({0, 1});
  put({2, 3, 4, 5, 6, 7});
  kill();
  const std::string first = place_of(0).path;
  const Place second = place_of(6);
  ASSERT_NE(first, second.path);
  disk_.flip_byte(first, disk_.size_bytes(first) - 4000);  // its checkpoint
  disk_.flip_byte(second.path, second.offset_bytes + 200);
  open();
  put({6}, 1);
  ASSERT_TRUE(h_.store->remove(key_of(6)));
  ASSERT_TRUE(h_.flush());
  kill();
  disk_.flip_byte(second.path, second.offset_bytes + 200);
  open();
  EXPECT_FALSE(h_.contains(6));
  close();
}

TEST_F(InspectionTest, ACutOffSegmentLosesWhatIsBehindTheCut) {
  fill();
  close();
  const Place place = place_of(6);  // 6 to 11 are in this one, 36 KiB for two
  for (const uint64_t percent : {10u, 50u, 90u}) {
    SCOPED_TRACE(percent);
    const Files before = files();
    disk_.truncate(place.path, kSegmentBytes * percent / 100);
    const Inspection found = look();
    ASSERT_EQ(found.damaged_records.size(), 1u);
    EXPECT_EQ(found.damaged_records[0].part, Part::kFile);
    const Ids cut = damaged_ids(found);
    EXPECT_EQ(cut.contains(6), percent == 10);
    restore(before);
  }
}

TEST_F(InspectionTest, ASegmentCutOffInItsHeaderIsOurs) {
  fill();
  close();
  const std::string file = place_of(6).path;
  const Files before = files();
  for (const uint64_t size : {8u, 100u, 4095u}) {
    SCOPED_TRACE(size);
    disk_.truncate(file, size);
    expect_only(Part::kSegmentHeader, file, 0);
    EXPECT_TRUE(look().foreign.empty());
    EXPECT_EQ(found_by_store(), without(all_ids(), {6, 7, 8, 9, 10, 11}));
    restore(before);
  }
}

TEST_F(InspectionTest, AnEmptyFileIsDamageAndOneNeverWrittenIsFree) {
  fill();
  close();
  disk_.truncate(place_of(6).path, 0);
  disk_.write(path_of("hifc-00000077.seg"), std::vector<std::byte>(kSegmentBytes));
  const Inspection found = look();
  ASSERT_EQ(found.damaged_records.size(), 1u);
  EXPECT_EQ(found.damaged_records[0].problem, "the file is empty");
  EXPECT_EQ(std::ranges::count(found.segments, State::kFree, &InspectedSegment::state), 1);
}

TEST_F(InspectionTest, FilesOfOthersAreNamed) {
  fill();
  close();
  disk_.write(path_of("notes.txt"), std::vector<std::byte>(10, std::byte{1}));
  disk_.write(path_of("hifc-00000099.seg"), std::vector<std::byte>(9000, std::byte{1}));
  disk_.write(path_of("hifc-00000100.seg"), std::vector<std::byte>(90, std::byte{1}));
  const Inspection found = look();
  EXPECT_TRUE(found.intact());
  EXPECT_EQ(found.foreign,
            (std::vector<std::string>{"hifc-00000099.seg", "hifc-00000100.seg", "notes.txt"}));
}

TEST_F(InspectionTest, ANewerLayoutIsRefusedInOneSentence) {
  fill();
  close();
  const std::string file = place_of(12).path;
  auto bytes = disk_.read(file);
  set_layout_version(bytes, kLayoutVersion + 1);
  for (const size_t size : {bytes.size(), size_t{100}}) {
    bytes.resize(size);
    disk_.write(file, bytes);
    const Files before = files();
    for (const auto& error : {try_look().error(), try_mend().error(), try_cut(0).error()}) {
      EXPECT_EQ(error.code, Code::kUnsupported);
      EXPECT_NE(error.message().find("newer HiFC"), std::string::npos) << error.message();
    }
    EXPECT_TRUE(files() == before);
  }
}

TEST_F(InspectionTest, ValuesThatDoNotCountAnyMoreAreToldApart) {
  fill();
  put({4}, 1);
  ASSERT_TRUE(h_.store->remove(key_of(5)));
  ASSERT_TRUE(h_.flush());
  close();
  uint64_t current = 0, replaced = 0, removed = 0, removals = 0;
  for (const InspectedSegment& segment : look().segments) {
    current += segment.values(Fate::kCurrent);
    replaced += segment.values(Fate::kReplaced);
    removed += segment.values(Fate::kRemoved);
    removals += segment.removals();
  }
  EXPECT_EQ(current, kValues - 1);
  EXPECT_EQ(replaced, 1u);
  EXPECT_EQ(removed, 1u);
  EXPECT_EQ(removals, 1u);
  const Place place = place_of(5);
  disk_.flip_byte(place.path, place.lane_offset_bytes(0));
  const Inspection found = look();
  ASSERT_EQ(found.damaged_values.size(), 1u);
  EXPECT_EQ(found.damaged_values[0].fate, Fate::kRemoved);
}

TEST_F(InspectionTest, ADirectoryInUseIsRefused) {
  fill();
  const auto found = try_look();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kBusy);
}

TEST_F(InspectionTest, AMissingDirectoryIsNotCreated) {
  const auto found = try_look();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kNotFound);
  EXPECT_FALSE(disk_.list(path()));
}

TEST_F(InspectionTest, AnInterruptionEndsIt) {
  fill();
  close();
  const std::atomic<bool> cancelled = true;
  const auto found = try_look({.depth = Depth::kPayload, .cancelled = &cancelled});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kCancelled);
}

TEST_F(InspectionTest, ProgressGoesUpToTheEnd) {
  fill();
  close();
  uint64_t last = 0;
  ASSERT_TRUE(try_look({.depth = Depth::kPayload, .progress = [&](uint64_t done, uint64_t total) {
                          EXPECT_GE(done, last);
                          EXPECT_LE(done, total);
                          last = done;
                        }}));
  EXPECT_EQ(last, look().size_bytes());
}

TEST_F(InspectionTest, AnUnreadablePageIsDamageToItsValuesOnly) {
  fill();
  close();
  const Place place = place_of(9);
  const uint64_t bad = place.lane_offset_bytes(1);
  ring_.set_plan({.choose = [&](const io::Request& request) {
    uint64_t bytes = 0;
    for (const iovec& vector : request.vectors) bytes += vector.iov_len;
    const bool hit = request.operation == io::Operation::kRead &&
                     request.file->path() == place.path && request.offset_bytes <= bad &&
                     bad < request.offset_bytes + bytes;
    return hit ? testing::Fault::kIoError : testing::Fault::kNone;
  }});
  const Inspection found = look();
  EXPECT_TRUE(found.damaged_records.empty());
  EXPECT_EQ(damaged_ids(found), Ids{9});
}

TEST_F(InspectionTest, ADeviceThatDoesNotAnswerIsNoDamage) {
  fill();
  close();
  for (const uint64_t answered : {0u, 1u, 2u, 3u, 5u}) {
    uint64_t reads = 0;
    ring_.set_plan({.choose = [&](const io::Request&) {
      return ++reads > answered ? testing::Fault::kHang : testing::Fault::kNone;
    }});
    for (const Depth depth : {Depth::kRecords, Depth::kPayload}) {
      const auto found = try_look({.depth = depth});
      ASSERT_FALSE(found);
      EXPECT_EQ(found.error().code, Code::kTimeout);
    }
  }
}

}  // namespace
}  // namespace hifc::flash
