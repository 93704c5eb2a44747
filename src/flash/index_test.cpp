#include "flash/index.h"

#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <unordered_map>

namespace hifc::flash {
namespace {

constexpr uint64_t kBytesPerValueMax = 40;

// Keys of a number in the ways that users may choose them.
enum class Pattern { kRandom, kLastBytes, kFirstBytes, kEqualBeginning, kRepeated };

Key key_of(uint64_t number, Pattern pattern = Pattern::kRandom) {
  Key key = {};
  switch (pattern) {
    case Pattern::kRandom:
      for (size_t i = 0; i < key.size(); i += 8) {
        const uint64_t word = XXH3_64bits_withSeed(&number, sizeof number, i);
        std::memcpy(&key[i], &word, 8);
      }
      break;
    case Pattern::kLastBytes:
      for (size_t i = 0; i < 8; ++i) key[31 - i] = static_cast<std::byte>(number >> (8 * i));
      break;
    case Pattern::kFirstBytes: std::memcpy(&key[0], &number, 8); break;
    case Pattern::kEqualBeginning:
      key.fill(std::byte{0xff});
      std::memcpy(&key[12], &number, 8);
      break;
    case Pattern::kRepeated:
      for (size_t i = 0; i < key.size(); i += 8) std::memcpy(&key[i], &number, 8);
      break;
  }
  return key;
}

Location location_of(uint64_t number, uint32_t segment = 1) {
  return {.segment = segment,
          .batch_page = static_cast<uint32_t>(number * 2654435761u),
          .value = static_cast<uint16_t>(number * 40503u),
          .header_pages = static_cast<uint8_t>(number)};
}

bool always_alive(uint32_t) {
  return true;
}

// Keys whose hashes with seed 0 share their leading bits, found by trying.
std::vector<Key> keys_with_hash_beginning(uint64_t bits, uint32_t bit_count, size_t count) {
  std::vector<Key> keys;
  for (uint64_t number = 0; keys.size() < count; ++number) {
    const Key key = key_of(number, Pattern::kLastBytes);
    if (XXH3_128bits_withSeed(key.data(), key.size(), 0).low64 >> (64 - bit_count) == bits) {
      keys.push_back(key);
    }
  }
  return keys;
}

TEST(Index, IsEmptyAndSmallAtFirst) {
  Index index(always_alive);
  EXPECT_EQ(index.find(Key{}), std::nullopt);
  EXPECT_EQ(index.hit(Key{}), std::nullopt);
  EXPECT_EQ(index.hits(Key{}), 0);
  EXPECT_FALSE(index.erase(Key{}, Location{}));
  EXPECT_LE(index.memory_bytes(), 1024u);
}

TEST(Index, GivesBackEveryFieldOfALocation) {
  Index index(always_alive);
  const Location largest = {.segment = UINT32_MAX,
                            .batch_page = UINT32_MAX,
                            .value = UINT16_MAX,
                            .header_pages = UINT8_MAX};
  EXPECT_EQ(index.insert(key_of(1), largest), std::nullopt);
  EXPECT_EQ(index.insert(key_of(2), Location{}), std::nullopt);
  for (uint64_t number = 3; number < 300; ++number) {
    index.insert(key_of(number), location_of(number));
  }
  EXPECT_EQ(index.find(key_of(1)), largest);
  EXPECT_EQ(index.hit(key_of(1)), largest);
  EXPECT_EQ(index.find(key_of(2)), Location{});
  for (uint64_t number = 3; number < 300; ++number) {
    EXPECT_EQ(index.find(key_of(number)), location_of(number));
  }
}

TEST(Index, InsertReplacesAndGivesThePreviousLocation) {
  Index index(always_alive);
  EXPECT_EQ(index.insert(key_of(1), location_of(1)), std::nullopt);
  index.hit(key_of(1));
  EXPECT_EQ(index.insert(key_of(1), location_of(2)), location_of(1));
  EXPECT_EQ(index.find(key_of(1)), location_of(2));
  EXPECT_EQ(index.hits(key_of(1)), 0);
}

TEST(Index, EraseForgetsOnlyTheLocationItNames) {
  Index index(always_alive);
  const Location location = location_of(7, 3);
  index.insert(key_of(1), location);
  for (const Location& wrong :
       {Location{4, location.batch_page, location.value, location.header_pages},
        Location{3, location.batch_page + 1, location.value, location.header_pages},
        Location{3, location.batch_page, static_cast<uint16_t>(location.value + 1), 7}}) {
    EXPECT_FALSE(index.erase(key_of(1), wrong));
    EXPECT_EQ(index.find(key_of(1)), location);
  }
  EXPECT_FALSE(index.erase(key_of(2), location));
  EXPECT_TRUE(index.erase(key_of(1), location));
  EXPECT_EQ(index.find(key_of(1)), std::nullopt);
  EXPECT_FALSE(index.erase(key_of(1), location));
}

TEST(Index, HitsCountUpTo255AndSurviveGrowth) {
  Index index(always_alive);
  index.insert(key_of(0), location_of(0));
  index.insert(key_of(1), location_of(1));
  for (int i = 0; i < 300; ++i) index.hit(key_of(0));
  for (int i = 0; i < 5; ++i) index.hit(key_of(1));
  index.find(key_of(1));
  for (uint64_t number = 2; number < 20'000; ++number) {
    index.insert(key_of(number), location_of(number));
  }
  EXPECT_EQ(index.hits(key_of(0)), 255);
  EXPECT_EQ(index.hits(key_of(1)), 5);
  EXPECT_EQ(index.hits(key_of(2)), 0);
}

TEST(Index, ValuesOfAVanishedSegmentAreAbsent) {
  uint32_t oldest = 1;
  Index index([&oldest](uint32_t segment) { return segment >= oldest; });
  index.insert(key_of(1), location_of(1, 1));
  index.insert(key_of(2), location_of(2, 2));
  index.hit(key_of(1));
  oldest = 2;
  EXPECT_EQ(index.find(key_of(1)), std::nullopt);
  EXPECT_EQ(index.hit(key_of(1)), std::nullopt);
  EXPECT_EQ(index.hits(key_of(1)), 0);
  EXPECT_FALSE(index.erase(key_of(1), location_of(1, 1)));
  EXPECT_EQ(index.find(key_of(2)), location_of(2, 2));
  EXPECT_EQ(index.insert(key_of(1), location_of(1, 3)), std::nullopt);
  EXPECT_EQ(index.find(key_of(1)), location_of(1, 3));
  EXPECT_EQ(index.hits(key_of(1)), 0);
}

TEST(Index, TakesAtMost40BytesAValueWhateverTheKeys) {
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kLastBytes, Pattern::kFirstBytes,
                                Pattern::kEqualBeginning, Pattern::kRepeated}) {
    SCOPED_TRACE(static_cast<int>(pattern));
    constexpr uint64_t kValues = 300'000;
    Index index(always_alive);
    uint64_t over = 0;
    for (uint64_t number = 0; number < kValues; ++number) {
      index.insert(key_of(number, pattern), location_of(number));
      over += number >= 1000 && index.memory_bytes() > kBytesPerValueMax * (number + 1);
    }
    EXPECT_EQ(over, 0u);
    uint64_t wrong = 0;
    for (uint64_t number = 0; number < kValues; ++number) {
      wrong += index.find(key_of(number, pattern)) != location_of(number);
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(index.find(key_of(kValues, pattern)), std::nullopt);
  }
}

TEST(Index, StaysSmallWhileOldSegmentsMakeWayForNewOnes) {
  constexpr uint64_t kLive = 50'000, kPerSegment = 500;
  uint32_t oldest = 0;
  Index index([&oldest](uint32_t segment) { return segment >= oldest; });
  uint64_t over = 0;
  for (uint64_t number = 0; number < 6 * kLive; ++number) {
    const auto segment = static_cast<uint32_t>(number / kPerSegment);
    if (number >= kLive) oldest = segment - static_cast<uint32_t>(kLive / kPerSegment) + 1;
    index.insert(key_of(number), location_of(number, segment));
    const uint64_t live = number + 1 - oldest * kPerSegment;
    over += live >= 1000 && index.memory_bytes() > kBytesPerValueMax * live;
  }
  EXPECT_EQ(over, 0u);
}

TEST(Index, GivesMemoryBackWhenMostValuesAreGone) {
  uint32_t oldest = 0;
  Index index([&oldest](uint32_t segment) { return segment >= oldest; });
  for (uint64_t number = 0; number < 200'000; ++number) {
    index.insert(key_of(number), location_of(number, 0));
  }
  const uint64_t peak_bytes = index.memory_bytes();
  oldest = 1;
  for (uint64_t number = 0; number < 30'000; ++number) {
    index.insert(key_of(number), location_of(number, 1));
  }
  EXPECT_LT(index.memory_bytes(), peak_bytes / 4);
  for (uint64_t number = 0; number < 30'000; ++number) {
    ASSERT_TRUE(index.erase(key_of(number), location_of(number, 1)));
  }
  EXPECT_LT(index.memory_bytes(), peak_bytes / 30);
}

TEST(Index, HashesThatBeginAlikeAreFindableAndKeepTheTableSmall) {
  const std::vector<Key> keys = keys_with_hash_beginning(0x2a5, 10, 6000);
  Index index(always_alive);
  for (size_t i = 0; i < keys.size(); ++i) index.insert(keys[i], location_of(i));
  EXPECT_LE(index.memory_bytes(), kBytesPerValueMax * keys.size());
  for (uint64_t number = 0; number < 20'000; ++number) {
    index.insert(key_of(number), location_of(number));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(index.find(keys[i]), location_of(i));
  }
  for (uint64_t number = 0; number < 20'000; ++number) {
    ASSERT_EQ(index.find(key_of(number)), location_of(number));
  }
}

TEST(Index, TheSeedDecidesWhereEntriesGoAndNothingElse) {
  Index index(always_alive, 0x1234'5678'9abc'def0);
  for (uint64_t number = 0; number < 5000; ++number) {
    index.insert(key_of(number), location_of(number));
  }
  for (uint64_t number = 0; number < 5000; ++number) {
    ASSERT_EQ(index.find(key_of(number)), location_of(number));
  }
}

// Goal: whatever is done in whatever order, the index says what a plain map says.
// Method: random calls against both, all drawn from one seed, which failures print.
class ModelRun {
 public:
  ModelRun(uint64_t seed, uint64_t key_count)
      : random_(seed),
        key_count_(key_count),
        index_([this](uint32_t segment) { return alive_.contains(segment); }, seed) {}

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) step();
    for (uint64_t number = 0; number < key_count_; ++number) compare(number);
  }

 private:
  struct Stored {
    Location location;
    uint8_t hits = 0;
  };

  uint64_t draw(uint64_t below) { return random_() % below; }

  // What the model has under this number, if its segment lives.
  Stored* stored(uint64_t number) {
    const auto found = model_.find(number);
    if (found == model_.end() || !alive_.contains(found->second.location.segment)) return nullptr;
    return &found->second;
  }

  void compare(uint64_t number) {
    const Stored* expected = stored(number);
    const std::optional<Location> found = index_.find(key_of(number));
    ASSERT_EQ(found.has_value(), expected != nullptr) << number;
    ASSERT_EQ(index_.hits(key_of(number)), expected ? expected->hits : 0) << number;
    if (expected) {
      ASSERT_EQ(*found, expected->location) << number;
    }
  }

  void step() {
    const uint64_t number = draw(key_count_);
    const uint64_t what = draw(1000);
    if (what < 500) {
      insert(number);
    } else if (what < 650) {
      compare(number);
    } else if (what < 750) {
      hit(number);
    } else if (what < 998) {
      erase(number);
    } else {
      change_segments();
    }
  }

  void insert(uint64_t number) {
    if (alive_.empty() || draw(200) == 0) alive_.insert(next_segment_++);
    const Location location = location_of(random_(), *alive_.rbegin());
    const Stored* before = stored(number);
    const std::optional<Location> previous = index_.insert(key_of(number), location);
    ASSERT_EQ(previous.has_value(), before != nullptr);
    if (before) {
      ASSERT_EQ(*previous, before->location);
    }
    model_[number] = {.location = location};
  }

  void hit(uint64_t number) {
    Stored* expected = stored(number);
    const std::optional<Location> found = index_.hit(key_of(number));
    ASSERT_EQ(found.has_value(), expected != nullptr);
    if (!expected) return;
    ASSERT_EQ(*found, expected->location);
    if (expected->hits < 255) ++expected->hits;
  }

  void erase(uint64_t number) {
    const Stored* expected = stored(number);
    Location location = expected ? expected->location : location_of(number);
    const bool right = expected && draw(2) == 0;
    if (!right) ++location.batch_page;
    ASSERT_EQ(index_.erase(key_of(number), location), right);
    if (right) model_.erase(number);
  }

  // Mostly the oldest segments vanish, sometimes any, and rarely all.
  void change_segments() {
    if (alive_.empty()) return;
    const uint64_t what = draw(50);
    if (what == 0) {
      alive_.clear();
    } else if (what < 10) {
      alive_.erase(std::next(alive_.begin(), static_cast<ptrdiff_t>(draw(alive_.size()))));
    } else if (alive_.size() > 30) {
      alive_.erase(alive_.begin());
    }
  }

  std::mt19937_64 random_;
  uint64_t key_count_;
  std::set<uint32_t> alive_;
  uint32_t next_segment_ = 0;
  std::unordered_map<uint64_t, Stored> model_;
  Index index_;
};

TEST(Index, SaysWhatAMapSays) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    for (const uint64_t key_count : {12u, 700u, 20'000u}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", keys " << key_count);
      ModelRun(seed, key_count).run(60'000);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace hifc::flash
