// What the tests of inspection and repair share: a store on a simulated disk whose bytes are
// damaged by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "flash/repair.h"
#include "flash/store_fixture.h"
#include "testing/sim_disk.h"
#include "testing/sim_ring.h"

namespace hifc::flash {

class DamageTest : public ::testing::Test {
 protected:
  static constexpr ValueShape kShape{.lanes = 2, .lane_bytes = 8192, .chunk_bytes = 4096};
  static constexpr uint64_t kValues = 40;
  static constexpr uint64_t kCapacityBytes = 4u << 20;
  static constexpr uint64_t kSegmentBytes = 128u << 10;  // three batches of two values
  using Files = std::map<std::string, std::vector<std::byte>>;
  using Ids = std::set<uint64_t>;

  DamageTest() { h_.options.file_system = &disk_; }

  void open() { h_.open(kCapacityBytes, kSegmentBytes); }
  void put(std::vector<uint64_t> ids, uint64_t version = 0) {
    ASSERT_TRUE(h_.put(TestBatch(kShape, std::move(ids), version)));
  }
  // Values 0 to kValues - 1, two in a batch.
  void fill() {
    open();
    for (uint64_t id = 0; id < kValues; id += 2) put({id, id + 1});
  }
  void close() { h_.store.reset(); }
  // As after kill -9: without the last checkpoint.
  void kill() {
    h_.wait_all();
    disk_.crash(testing::Crash::kProcess);
    disk_.power_off();
    h_.store.reset();
    disk_.crash(testing::Crash::kProcess);
  }

  std::string path() const { return h_.path().string(); }
  std::string path_of(const std::string& file) const { return path() + "/" + file; }

  Result<Inspection> try_look(InspectionOptions options = {.depth = Depth::kPayload}) {
    HIFC_ASSIGN(auto directory, Directory::open(path(), disk_, Directory::Missing::kRefuse));
    return inspect(*directory, ring_, options);
  }
  Inspection look() {
    auto inspection = try_look();
    EXPECT_TRUE(inspection) << inspection.error().message();
    return inspection ? std::move(*inspection) : Inspection{};
  }
  Result<Repair> try_mend(Execution execution = Execution::kApply, InspectionOptions options = {}) {
    HIFC_ASSIGN(auto directory, Directory::open(path(), disk_, Directory::Missing::kRefuse));
    return repair(*directory, ring_, options, execution);
  }
  Repair mend(Execution execution = Execution::kApply) {
    auto outcome = try_mend(execution);
    EXPECT_TRUE(outcome) << outcome.error().message();
    return outcome ? std::move(*outcome) : Repair{};
  }
  Result<Trim> try_cut(uint64_t target_bytes, Execution execution = Execution::kApply) {
    HIFC_ASSIGN(auto directory, Directory::open(path(), disk_, Directory::Missing::kRefuse));
    return trim(*directory, ring_, target_bytes, {}, execution);
  }
  Trim cut(uint64_t target_bytes, Execution execution = Execution::kApply) {
    auto outcome = try_cut(target_bytes, execution);
    EXPECT_TRUE(outcome) << outcome.error().message();
    return outcome ? std::move(*outcome) : Trim{};
  }

  // Without the lock, which a process that was killed leaves behind.
  Files files() const {
    Files all;
    for (const std::string& name : disk_.paths())
      if (!name.ends_with(".lock")) all[name] = disk_.read(name);
    return all;
  }
  void restore(const Files& all) {
    for (const std::string& name : disk_.paths()) {
      if (!all.contains(name)) {
        EXPECT_TRUE(disk_.remove(name));
      }
    }
    for (const auto& [name, bytes] : all) disk_.write(name, bytes);
  }

  // The newest place of a value.
  struct Place {
    std::string path;
    SegmentContext context;
    uint64_t offset_bytes = 0;  // of its batch
    BatchContents batch;
    size_t value = 0;

    uint64_t lane_offset_bytes(uint32_t lane) const {
      return offset_bytes + batch.lane_offset_bytes(lane, value);
    }
  };
  Place place_of(uint64_t id) {
    Place place;
    for (const InspectedSegment& segment : look().segments)
      for (const InspectedEntry& entry : segment.entries)
        if (entry.entry.removal == 0 && entry.entry.key == key_of(id)) {
          place.path = path_of(segment.file);
          place.context = segment.context;
          place.offset_bytes = entry.entry.batch_page * kPageBytes;
          place.value = entry.entry.value;
        }
    EXPECT_FALSE(place.path.empty()) << id;
    const auto bytes = disk_.read(place.path);
    const auto at = std::span(bytes).subspan(place.offset_bytes);
    const auto length = batch_header_bytes(at, place.context, place.offset_bytes);
    place.batch =
        decode_batch_header(at.first(length.value()), place.context, place.offset_bytes).value();
    return place;
  }

  static Ids damaged_ids(const Inspection& inspection) {
    Ids ids;
    for (uint64_t id = 0; id < kValues; ++id)
      if (std::ranges::count(inspection.damaged_values, key_of(id), &DamagedValue::key) > 0)
        ids.insert(id);
    return ids;
  }
  static Ids all_ids() {
    const auto ids = id_range(0, kValues);
    return {ids.begin(), ids.end()};
  }
  static Ids without(Ids ids, const Ids& gone) {
    for (const uint64_t id : gone) ids.erase(id);
    return ids;
  }

  // What a store finds, each of it intact.
  Ids found_by_store(uint64_t version = 0) {
    open();
    Ids ids;
    for (uint64_t id = 0; id < kValues; ++id) {
      if (!h_.contains(id)) continue;
      EXPECT_TRUE(h_.findable_and_intact(kShape, id, version)) << id;
      ids.insert(id);
    }
    close();
    return ids;
  }
  void expect_mended(const Ids& intact) {
    const Repair outcome = mend();
    EXPECT_TRUE(outcome.unrepaired.empty());
    EXPECT_TRUE(look().intact());
    EXPECT_EQ(found_by_store(), intact);
    EXPECT_TRUE(look().intact()) << "after a store was there";
  }

  testing::SimDisk disk_{{}};
  testing::SimRing ring_{{}, {.disk = &disk_}};
  StoreHarness h_{ring_};
};

}  // namespace hifc::flash
