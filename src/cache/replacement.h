// Which items stay in memory, where an item is what is read back as a whole: the groups of stored
// conversations. Placement (placement.h) decides inside the one sequence that attention runs over.
//
// Every policy gives each item it holds a rank. One that is used and not held displaces those of
// the lowest rank, as long as each has a lower rank than its own:
//   kLru   time of the last use; whatever is used displaces.
//   kFifo  time of coming in; whatever is used displaces.
//   kScan  the sooner the next use is expected, the higher: the last use and the time between uses
//          before it. In a cyclic scan that is longest for what was just used, so the first
//          items stay and hit, where LRU and FIFO hit nothing.
//   kCost  chance of use x reload time / bytes. The chance is a count of uses that decays. What is
//          not held counts without its present use, so one scan displaces nothing, and in a cyclic
//          one nothing displaces what is as old.
//
// Pure data, no I/O: the caller frees what is evicted and reads what has come in. Each use costs
// O(log items), amortised. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hifc::cache {

enum class ReplacementPolicy : uint8_t { kLru, kFifo, kScan, kCost };
std::string_view to_string(ReplacementPolicy policy);

struct ReplacementOptions {
  ReplacementPolicy policy = ReplacementPolicy::kCost;
  uint64_t capacity_bytes = 0;
  // Items that are remembered though not held; of more, those used longest ago are forgotten.
  uint32_t history_max = 1u << 16;
  // kCost: a use counts half once so many capacities have been used since.
  double half_life_capacities = 16;
};

class Replacement {
 public:
  using ItemId = uint64_t;
  struct Item {
    ItemId id = 0;
    uint64_t bytes = 0;   // > 0, and the same at every use
    double reload_s = 0;  // > 0: what not holding it costs at its next use
  };
  struct Use {
    bool hit = false;   // it was held
    bool held = false;  // it is now
    std::vector<ItemId> evicted = {};
  };

  explicit Replacement(const ReplacementOptions& options);

  Use use(const Item& item);
  bool holds(ItemId id) const;
  // The item is no more: it is neither held nor remembered.
  void forget(ItemId id);

  uint64_t held_bytes() const { return held_bytes_; }
  size_t remembered() const { return entries_.size(); }  // items, held or not

 private:
  struct Entry {
    uint64_t bytes = 0;
    double reload_s = 0;
    bool held = false;
    double rank = 0;       // while held
    uint64_t came_at = 0;  // came in
    uint64_t used_at = 0;  // last use; 0: none
    uint64_t gap = 0;      // kScan: expected between uses; 0: unknown
    double count = 0;      // kCost: of uses, as of used_at
  };
  struct Place {  // lowest rank first, and of equal ones the one used longest ago
    double rank = 0;
    uint64_t used_at = 0;
    ItemId id = 0;
    auto operator<=>(const Place&) const = default;
  };

  static Place place_of(ItemId id, const Entry& entry) {
    return {.rank = entry.rank, .used_at = entry.used_at, .id = id};
  }
  bool make_room(const Entry& entry, double rank, std::vector<ItemId>& evicted);
  double rank_before(const Entry& entry) const;
  double rank_after(const Entry& entry) const;
  double cost_rank(const Entry& entry) const;
  double half_life() const;
  uint64_t next_gap(const Entry& entry) const;
  void count_use(Entry& entry);
  void expect_overdue_later();
  void evict(ItemId id);
  void remember(ItemId id, const Entry& entry);

  const ReplacementOptions options_;
  uint64_t now_ = 0;  // bytes used so far: the clock
  uint64_t held_bytes_ = 0;
  std::unordered_map<ItemId, Entry> entries_;
  std::set<Place> ranking_;             // of what is held
  std::map<uint64_t, ItemId> history_;  // [used_at] of what is not
};

}  // namespace hifc::cache
