#include "cache/replacement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hifc::cache {
namespace {

using enum ReplacementPolicy;
using ItemId = Replacement::ItemId;

constexpr auto kAll = {kLru, kFifo, kScan, kCost};
constexpr auto kAware = {kScan, kCost};

// Items of one byte and one second, of which `capacity` are held.
Replacement unit(ReplacementPolicy policy, uint64_t capacity) {
  return Replacement({.policy = policy, .capacity_bytes = capacity});
}
bool hits(Replacement& replacement, ItemId id) {
  return replacement.use({.id = id, .bytes = 1, .reload_s = 1}).hit;
}

// Share of hits of one pass over items [first, last).
double scan(Replacement& replacement, ItemId first, ItemId last) {
  double found = 0;
  for (ItemId id = first; id < last; ++id) found += hits(replacement, id) ? 1 : 0;
  return found / static_cast<double>(last - first);
}

TEST(Replacement, LruDropsWhatWasUsedLongestAgo) {
  auto lru = unit(kLru, 2);
  EXPECT_FALSE(hits(lru, 1));
  EXPECT_FALSE(hits(lru, 2));
  EXPECT_TRUE(hits(lru, 1));
  EXPECT_EQ(lru.use({.id = 3, .bytes = 1, .reload_s = 1}).evicted, std::vector<ItemId>{2});
}

TEST(Replacement, FifoDropsWhatCameFirstHoweverOftenItWasUsed) {
  auto fifo = unit(kFifo, 2);
  EXPECT_FALSE(hits(fifo, 1));
  EXPECT_FALSE(hits(fifo, 2));
  EXPECT_TRUE(hits(fifo, 1));
  EXPECT_EQ(fifo.use({.id = 3, .bytes = 1, .reload_s = 1}).evicted, std::vector<ItemId>{1});
}

TEST(Replacement, OnACyclicScanOnlyAwarePoliciesHit) {
  for (const auto policy : {kLru, kFifo}) {
    auto replacement = unit(policy, 60);
    for (int pass = 0; pass < 5; ++pass) EXPECT_EQ(scan(replacement, 0, 100), 0) << pass;
  }
  for (const auto policy : kAware) {
    SCOPED_TRACE(to_string(policy));
    auto replacement = unit(policy, 60);
    EXPECT_EQ(scan(replacement, 0, 100), 0);
    for (int pass = 1; pass < 5; ++pass) EXPECT_EQ(scan(replacement, 0, 100), 0.6) << pass;
  }
}

TEST(Replacement, WhatIsScannedOnceDisplacesNothingThatIsUsed) {
  for (const auto policy : kAware) {
    SCOPED_TRACE(to_string(policy));
    auto replacement = unit(policy, 10);
    for (int pass = 0; pass < 5; ++pass) scan(replacement, 0, 10);
    EXPECT_EQ(scan(replacement, 1000, 1100), 0);
    EXPECT_EQ(scan(replacement, 0, 10), 1);
  }
}

TEST(Replacement, WhatIsUsedMoreOftenDisplacesWhatIsUsedLess) {
  for (const auto policy : kAware) {
    SCOPED_TRACE(to_string(policy));
    auto replacement = unit(policy, 10);
    for (int pass = 0; pass < 3; ++pass) scan(replacement, 0, 30);  // 0 to 9 stay
    for (int pass = 0; pass < 20; ++pass) {
      scan(replacement, 20, 25);
      hits(replacement, static_cast<ItemId>(pass % 20));
    }
    EXPECT_EQ(scan(replacement, 20, 25), 1);
  }
}

// Whatever was popular once: the present decides in the end.
TEST(Replacement, AnotherWorkingSetTakesOver) {
  for (const auto policy : kAll) {
    SCOPED_TRACE(to_string(policy));
    auto replacement = unit(policy, 10);
    for (int pass = 0; pass < 100; ++pass) scan(replacement, 0, 10);
    for (int pass = 0; pass < 100; ++pass) scan(replacement, 50, 60);
    EXPECT_EQ(scan(replacement, 50, 60), 1);
  }
}

// Many uses of long ago and one of now are worth less than three of now.
TEST(Replacement, OfUsesOfLongAgoCostKeepsLittleCount) {
  Replacement cost({.capacity_bytes = 2, .half_life_capacities = 1});
  for (int i = 0; i < 50; ++i) hits(cost, 1);
  hits(cost, 2);
  scan(cost, 1000, 1040);
  EXPECT_TRUE(hits(cost, 1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(hits(cost, 2));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(hits(cost, 3));
  EXPECT_FALSE(cost.holds(1));
  EXPECT_TRUE(cost.holds(2));
}

TEST(Replacement, OfEquallyUsedItemsCostKeepsThoseThatTakeLongestToReadForTheirBytes) {
  auto cost = unit(kCost, 100);
  const auto pass = [&] {
    for (ItemId id = 0; id < 20; ++id) {
      // Small ones cost twice as much a byte.
      const bool small = id % 2 == 1;
      cost.use({.id = id, .bytes = small ? 10u : 40u, .reload_s = small ? 2.0 : 4.0});
    }
  };
  for (int i = 0; i < 4; ++i) pass();
  for (ItemId id = 0; id < 20; ++id) EXPECT_EQ(cost.holds(id), id % 2 == 1) << id;
}

TEST(Replacement, WhatCannotBeHeldEvictsNothing) {
  for (const auto policy : kAll) {
    auto replacement = unit(policy, 10);
    hits(replacement, 1);
    const auto use = replacement.use({.id = 2, .bytes = 11, .reload_s = 1});
    EXPECT_FALSE(use.held);
    EXPECT_TRUE(use.evicted.empty());
    EXPECT_TRUE(replacement.holds(1));
  }
}

// Item 1 alone would be displaced by item 3, but item 2 is worth more than it.
TEST(Replacement, EvictsAllThatIsNeededOrNothing) {
  auto cost = unit(kCost, 2);
  hits(cost, 1);
  for (int i = 0; i < 5; ++i) hits(cost, 2);
  for (int i = 0; i < 3; ++i) {
    const auto use = cost.use({.id = 3, .bytes = 2, .reload_s = 2});
    EXPECT_FALSE(use.held);
    EXPECT_TRUE(use.evicted.empty());
  }
  EXPECT_TRUE(cost.holds(1));
  EXPECT_TRUE(cost.holds(2));
}

TEST(Replacement, ForgottenItemsAreNeitherHeldNorRemembered) {
  for (const auto policy : kAll) {
    auto replacement = unit(policy, 1);
    hits(replacement, 1);
    hits(replacement, 2);
    EXPECT_EQ(replacement.remembered(), 2u);
    for (const ItemId id : {1, 2, 3}) replacement.forget(id);
    EXPECT_EQ(replacement.remembered(), 0u);
    EXPECT_EQ(replacement.held_bytes(), 0u);
    EXPECT_FALSE(hits(replacement, 2));
  }
}

TEST(Replacement, RemembersNoMoreThanItsLimit) {
  for (const auto policy : kAll) {
    Replacement replacement({.policy = policy, .capacity_bytes = 5, .history_max = 20});
    for (int pass = 0; pass < 3; ++pass) scan(replacement, 0, 1000);
    EXPECT_EQ(replacement.remembered(), 25u);
    EXPECT_EQ(replacement.held_bytes(), 5u);
  }
}

// The model keeps what it is told and nothing else: LRU in full, of the others what holds for all.
class Model {
 public:
  Model(ReplacementPolicy policy, uint64_t capacity) : policy_(policy), capacity_(capacity) {}

  void check(const Replacement::Item& item, const Replacement::Use& use, const Replacement& tried) {
    EXPECT_EQ(use.hit, held_.contains(item.id));
    for (const ItemId id : use.evicted) {
      EXPECT_EQ(held_.erase(id), 1u);
      EXPECT_NE(id, item.id);
      if (policy_ == kLru) expect_oldest(id);
      bytes_ -= bytes_of(id);
    }
    if (!use.hit && use.held) bytes_ += item.bytes;
    if (use.held) held_.insert(item.id);
    order_.remove(item.id);
    if (use.held) order_.push_back(item.id);
    EXPECT_EQ(use.held, held_.contains(item.id));
    EXPECT_EQ(tried.held_bytes(), bytes_);
    EXPECT_LE(bytes_, capacity_);
  }

  static uint64_t bytes_of(ItemId id) { return 1 + id % 7; }

 private:
  void expect_oldest(ItemId id) {
    ASSERT_FALSE(order_.empty());
    EXPECT_EQ(order_.front(), id);
    order_.pop_front();
  }

  ReplacementPolicy policy_;
  uint64_t capacity_, bytes_ = 0;
  std::set<ItemId> held_;
  std::list<ItemId> order_;  // of use
};

TEST(Replacement, RandomUsesKeepToTheBudgetAndSayWhatTheyEvict) {
  for (const auto policy : kAll) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(std::string(to_string(policy)) + " seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      const uint64_t capacity = 7 + random() % 60;
      Replacement replacement({.policy = policy, .capacity_bytes = capacity, .history_max = 16});
      Model model(policy, capacity);
      for (int i = 0; i < 1000; ++i) {
        const ItemId id = random() % (1 + random() % 40);
        const Replacement::Item item{
            .id = id, .bytes = Model::bytes_of(id), .reload_s = 1 + static_cast<double>(id % 3)};
        model.check(item, replacement.use(item), replacement);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace hifc::cache
