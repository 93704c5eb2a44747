#include "cache/replacement.h"

#include <cmath>
#include <limits>

#include "base/check.h"

namespace hifc::cache {
namespace {

constexpr double kHighest = std::numeric_limits<double>::infinity();
constexpr double kLowest = -kHighest;

}  // namespace

std::string_view to_string(ReplacementPolicy policy) {
  switch (policy) {
    case ReplacementPolicy::kLru: return "lru";
    case ReplacementPolicy::kFifo: return "fifo";
    case ReplacementPolicy::kScan: return "scan";
    case ReplacementPolicy::kCost: return "cost";
  }
  return "unknown";
}

Replacement::Replacement(const ReplacementOptions& options) : options_(options) {
  HIFC_CHECK(options.half_life_capacities > 0);
}

Replacement::Use Replacement::use(const Item& item) {
  HIFC_CHECK(item.bytes > 0);
  HIFC_CHECK(item.reload_s > 0);
  now_ += item.bytes;
  if (options_.policy == ReplacementPolicy::kScan) expect_overdue_later();
  Entry& entry = entries_[item.id];
  HIFC_CHECK(!entry.held || entry.bytes == item.bytes);
  Use use{.hit = entry.held};
  entry.bytes = item.bytes;
  entry.reload_s = item.reload_s;
  const double rank = rank_before(entry);
  if (use.hit)
    ranking_.erase(place_of(item.id, entry));
  else if (entry.used_at > 0)
    history_.erase(entry.used_at);
  use.held = use.hit || make_room(entry, rank, use.evicted);
  count_use(entry);
  if (!use.held) {
    remember(item.id, entry);
    return use;
  }
  if (!use.hit) entry.came_at = now_, held_bytes_ += item.bytes;
  entry.held = true;
  entry.rank = rank_after(entry);
  ranking_.insert(place_of(item.id, entry));
  return use;
}

bool Replacement::holds(ItemId id) const {
  const auto found = entries_.find(id);
  return found != entries_.end() && found->second.held;
}

void Replacement::forget(ItemId id) {
  if (holds(id)) evict(id);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  history_.erase(found->second.used_at);
  entries_.erase(found);
}

// Evicts nothing where the room does not suffice in the end.
bool Replacement::make_room(const Entry& entry, double rank, std::vector<ItemId>& evicted) {
  if (entry.bytes > options_.capacity_bytes) return false;
  uint64_t free = options_.capacity_bytes - held_bytes_;
  for (auto place = ranking_.begin(); free < entry.bytes; ++place) {
    if (place->rank >= rank) {
      evicted.clear();
      return false;
    }
    free += entries_.at(place->id).bytes;
    evicted.push_back(place->id);
  }
  for (const ItemId id : evicted) evict(id);
  return true;
}

void Replacement::evict(ItemId id) {
  Entry& entry = entries_.at(id);
  ranking_.erase(place_of(id, entry));
  entry.held = false;
  held_bytes_ -= entry.bytes;
  remember(id, entry);
}

void Replacement::remember(ItemId id, const Entry& entry) {
  history_.emplace(entry.used_at, id);
  if (history_.size() <= options_.history_max) return;
  entries_.erase(history_.begin()->second);
  history_.erase(history_.begin());
}

// What an item that is not held has to show when it is used.
double Replacement::rank_before(const Entry& entry) const {
  switch (options_.policy) {
    case ReplacementPolicy::kLru:
    case ReplacementPolicy::kFifo: return kHighest;
    case ReplacementPolicy::kScan:
      if (entry.used_at == 0) return kLowest;
      return -static_cast<double>(now_ + next_gap(entry));
    case ReplacementPolicy::kCost: return cost_rank(entry);
  }
  return kLowest;
}

double Replacement::rank_after(const Entry& entry) const {
  switch (options_.policy) {
    case ReplacementPolicy::kLru: return static_cast<double>(entry.used_at);
    case ReplacementPolicy::kFifo: return static_cast<double>(entry.came_at);
    case ReplacementPolicy::kScan:
      return entry.gap == 0 ? kLowest : -static_cast<double>(entry.used_at + entry.gap);
    case ReplacementPolicy::kCost: return cost_rank(entry);
  }
  return kLowest;
}

double Replacement::half_life() const {
  return options_.half_life_capacities * static_cast<double>(options_.capacity_bytes);
}

// The logarithm of count x reload / bytes as it would have been at time 0: all counts decay alike,
// so that ranks hold however late they are compared.
double Replacement::cost_rank(const Entry& entry) const {
  const double saved_s_per_byte = entry.reload_s / static_cast<double>(entry.bytes);
  return std::log2(entry.count * saved_s_per_byte) +
         static_cast<double>(entry.used_at) / half_life();
}

// With the use that is now. Early and late uses must not decide alone.
uint64_t Replacement::next_gap(const Entry& entry) const {
  const uint64_t gap = now_ - entry.used_at;
  return entry.gap == 0 ? gap : (entry.gap + gap) / 2;
}

void Replacement::count_use(Entry& entry) {
  if (entry.used_at > 0) {
    entry.gap = next_gap(entry);
    entry.count *= std::exp2(-static_cast<double>(now_ - entry.used_at) / half_life());
  }
  entry.count += 1;
  entry.used_at = now_;
}

// What was expected before now and has not come is expected after twice the time, and so on: what
// is used no more sinks.
void Replacement::expect_overdue_later() {
  while (!ranking_.empty()) {
    const Place place = *ranking_.rbegin();
    Entry& entry = entries_.at(place.id);
    if (entry.gap == 0 || entry.used_at + entry.gap >= now_) return;
    ranking_.erase(place);
    entry.gap *= 2;
    entry.rank = rank_after(entry);
    ranking_.insert(place_of(place.id, entry));
  }
}

}  // namespace hifc::cache
