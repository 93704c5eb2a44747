// What the store's tests share: values that can be told from each other, and calls that wait.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flash/store.h"
#include "io/memory.h"
#include "testing/temp_directory.h"

namespace hifc::flash {

inline Key key_of(uint64_t id) {
  Key key = {};
  std::mt19937_64 random(id);  // spread over the key as a hash would be
  for (size_t i = 0; i < key.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(key.data() + i, &word, sizeof(word));
  }
  return key;
}

// The bytes of one lane of the value that was put under a key for the `version`th time.
inline void fill_lane(uint64_t id, uint64_t version, uint32_t lane, std::span<std::byte> target) {
  std::mt19937_64 random(id * 1000003 + version * 1009 + lane);
  for (size_t i = 0; i < target.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(target.data() + i, &word, sizeof(word));
  }
}

struct ValueShape {
  uint32_t lanes = 0;
  uint64_t lane_bytes = 0;
  uint32_t chunk_bytes = 0;
  // Where larger than lane_bytes: each lane of each value has a length of its own between the two,
  // which follows from `seed`.
  uint64_t lane_bytes_max = 0;
  uint64_t seed = 0;

  BatchShape batch() const { return {.lanes = lanes, .chunk_bytes = chunk_bytes}; }
  // Of the value that was put under a key for the `version`th time.
  uint64_t length(uint64_t id, uint64_t version, uint32_t lane) const {
    if (lane_bytes_max <= lane_bytes) return lane_bytes;
    std::mt19937_64 random(seed * 7919 + id * 1000003 + version * 1009 + lane);
    return lane_bytes +
           random() % ((lane_bytes_max - lane_bytes) / io::kAlignment + 1) * io::kAlignment;
  }
  uint64_t value_bytes(uint64_t id, uint64_t version = 0) const {
    uint64_t bytes = 0;
    for (uint32_t lane = 0; lane < lanes; ++lane) bytes += length(id, version, lane);
    return bytes;
  }
};

// Values to put, and the memory of their lanes. Lanes of a value do not touch each other.
struct TestBatch {
  TestBatch(const ValueShape& batch_shape, std::vector<uint64_t> value_ids, uint64_t version = 0)
      : shape(batch_shape), ids(std::move(value_ids)) {
    const uint64_t stride = std::max(shape.lane_bytes, shape.lane_bytes_max) + io::kAlignment;
    memory = *io::AlignedMemory::allocate(ids.size() * shape.lanes * stride);
    std::byte* position = memory.data();
    for (const uint64_t id : ids) {
      values.push_back({.key = key_of(id), .lanes = {}});
      for (uint32_t lane = 0; lane < shape.lanes; ++lane, position += stride) {
        const std::span<std::byte> bytes(position, shape.length(id, version, lane));
        fill_lane(id, version, lane, bytes);
        values.back().lanes.push_back(bytes);
      }
    }
  }

  ValueShape shape;
  std::vector<uint64_t> ids;
  io::AlignedMemory memory;
  std::vector<PutValue> values;
};

inline std::vector<uint64_t> id_range(uint64_t first, uint64_t count) {
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

// A store in a directory of its own; `ring` comes from the test.
struct StoreHarness {
  explicit StoreHarness(io::Ring& test_ring) : ring(test_ring) {}

  void open(uint64_t capacity_bytes, uint64_t segment_bytes = 256u << 20) {
    auto opened = try_open(capacity_bytes, segment_bytes);
    ASSERT_TRUE(opened) << opened.error().message();
    store = std::move(*opened);
  }
  Result<std::unique_ptr<Store>> try_open(uint64_t capacity_bytes,
                                          uint64_t segment_bytes = 256u << 20) {
    StoreOptions store_options = options;
    store_options.directory = path().string();
    store_options.capacity_bytes = capacity_bytes;
    store_options.segment_bytes = segment_bytes;
    return Store::open(store_options, ring);
  }
  std::filesystem::path path() const { return directory.path() / "store"; }

  void wait_all() {
    while (ring.in_flight() > 0) store->wait();
  }

  // Empty on a miss.
  Handle find(uint64_t id) {
    std::optional<Handle> found;
    EXPECT_TRUE(store->pin(key_of(id), [&](Handle handle) { found = std::move(handle); }));
    while (!found) EXPECT_GT(store->wait(), 0u);
    return std::move(*found);
  }
  bool contains(uint64_t id) const { return store->contains(key_of(id)); }

  Result<void> flush() {
    std::optional<Result<void>> outcome;
    HIFC_TRY(store->flush([&](Result<void> result) { outcome = std::move(result); }));
    while (!outcome) EXPECT_GT(store->wait(), 0u);
    return std::move(*outcome);
  }

  Result<std::vector<Handle>> put(const TestBatch& batch) {
    std::optional<Result<std::vector<Handle>>> outcome;
    while (true) {
      const Result<void> accepted =
          store->put(batch.shape.batch(), batch.values,
                     [&](Result<std::vector<Handle>> result) { outcome = std::move(result); });
      if (accepted) break;
      const bool busy = accepted.error().code == Code::kBusy && store->wait() > 0;
      if (!busy) return std::unexpected(accepted.error());
    }
    while (!outcome) EXPECT_GT(store->wait(), 0u);
    return std::move(*outcome);
  }

  Result<void> read(const Handle& handle, uint32_t lane, std::span<std::byte> target) {
    std::optional<Result<void>> outcome;
    const LaneRead run{&handle, target.data()};
    HIFC_TRY(store->read(lane, {&run, 1}, [&](Result<void> result) { outcome = result; }));
    while (!outcome) EXPECT_GT(store->wait(), 0u);
    return *outcome;
  }

  // True when every lane comes back, verifies, and is what was put; false is a miss.
  bool intact(const Handle& handle, const ValueShape& shape, uint64_t id, uint64_t version = 0) {
    for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
      auto got = *io::AlignedMemory::allocate(handle.lane_bytes(lane));
      if (!read(handle, lane, got.span())) return false;
      if (!store->verify(handle, lane, got.span())) return false;
      std::vector<std::byte> expected(shape.length(id, version, lane));
      fill_lane(id, version, lane, expected);
      // What verifies must be right: a wrong byte here is worse than any miss.
      EXPECT_TRUE(std::ranges::equal(got.span(), expected)) << "lane " << lane << " of " << id;
    }
    return true;
  }
  bool findable_and_intact(const ValueShape& shape, uint64_t id, uint64_t version = 0) {
    const Handle handle = find(id);
    return handle && intact(handle, shape, id, version);
  }

  uint64_t bytes_in_directory() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path()))
      if (entry.is_regular_file()) bytes += entry.file_size();
    return bytes;
  }
  // The bound holds on disk, and the store says the truth about it.
  void check_bytes() const {
    EXPECT_EQ(store->statistics().bytes_on_disk, bytes_in_directory());
    EXPECT_LE(store->statistics().bytes_on_disk, store->capacity_bytes());
    EXPECT_LE(store->statistics().peak_bytes_on_disk, store->capacity_bytes());
  }

  // The one segment file, for tests that damage it.
  std::filesystem::path segment_file(uint32_t number = 0) const {
    return path() / fmt::format("hifc-{:08}.seg", number);
  }

  testing::TempDirectory directory;
  io::Ring& ring;
  StoreOptions options = {};     // besides directory and sizes
  std::unique_ptr<Store> store;  // last: closing runs completions
};

}  // namespace hifc::flash
