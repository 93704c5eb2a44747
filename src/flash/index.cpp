#include "flash/index.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace hifc::flash {
namespace {

// A part that is full is cleared of dead entries; if it is then still above kCrowdedPercent it gets
// a capacity in which its live entries are kFittingPercent, and also if it is below kSparsePercent.
// 24 bytes / 0.64 = 37.5 bytes a value at worst; the rest of the 40 is for dead entries that have
// not been met yet. Above 85 % probing takes too long.
constexpr uint32_t kFullPercent = 85;
constexpr uint32_t kCrowdedPercent = 75;
constexpr uint32_t kFittingPercent = 68;
constexpr uint32_t kSparsePercent = 64;
constexpr uint32_t kCapacityMin = 16;  // the least in which a part that is not crowded is not full

// Live entries from which a part splits instead of growing: moving them takes some 30 us.
constexpr size_t kSplitEntries = 1024;
// Hashes fill parts evenly, so that the directory has about two slots for each part. Fingerprints
// that begin alike could make it huge; then their part grows instead.
constexpr size_t kDirectorySlotsPerPartMax = 4;

// Looked at by each change, in search of dead entries: once round the table takes as many changes
// as 9 % of its values, or 15 % when all of them are dead.
constexpr uint32_t kSlotsPerSweep = 16;

uint32_t percent_of(uint32_t percent, size_t capacity) {
  return static_cast<uint32_t>(capacity * percent / 100);
}

uint32_t next_slot(uint32_t slot, size_t capacity) {
  return slot + 1 == capacity ? 0 : slot + 1;
}

uint32_t fitting_capacity(size_t live) {
  return std::max(kCapacityMin, static_cast<uint32_t>(live * 100 / kFittingPercent + 1));
}

// The slot at which probing begins. Parts are chosen by word 0.
uint32_t home_slot(uint32_t word_1, size_t capacity) {
  return static_cast<uint32_t>(uint64_t{word_1} * capacity >> 32);
}

}  // namespace

Index::Index(Alive alive, uint64_t seed) : alive_(std::move(alive)), seed_(seed) {
  HIFC_CHECK(alive_ != nullptr);
  parts_.resize(1);
  directory_.assign(1, 0);
  refill(parts_[0], kCapacityMin, {});
}

std::optional<Location> Index::find(const Key& key) const {
  const Entry& entry = entry_at(place_of(fingerprint(key)));
  if (!is_live(entry)) return std::nullopt;
  return location_of(entry);
}

std::optional<Location> Index::hit(const Key& key) {
  Entry& entry = entry_at(place_of(fingerprint(key)));
  if (!is_live(entry)) return std::nullopt;
  if (entry.hits < std::numeric_limits<uint8_t>::max()) ++entry.hits;
  return location_of(entry);
}

uint8_t Index::hits(const Key& key) const {
  const Entry& entry = entry_at(place_of(fingerprint(key)));
  return is_live(entry) ? entry.hits : 0;
}

std::optional<Location> Index::insert(const Key& key, const Location& location) {
  const Fingerprint print = fingerprint(key);
  const Place place = place_of(print);
  const Part& part = parts_[place.part];
  if (is_empty(entry_at(place)) && part.used >= percent_of(kFullPercent, part.entries.size())) {
    make_room(place.part);
  } else {
    sweep();
  }

  const Place target = place_of(print);  // the entries may have moved
  Entry& entry = entry_at(target);
  std::optional<Location> previous;
  if (is_live(entry)) previous = location_of(entry);
  if (is_empty(entry)) ++parts_[target.part].used;
  entry = {.key = print,
           .segment = location.segment,
           .batch_page = location.batch_page,
           .value = location.value,
           .header_pages = location.header_pages,
           .hits = 0};
  HIFC_DCHECK(parts_[target.part].used < parts_[target.part].entries.size());
  return previous;
}

bool Index::erase(const Key& key, const Location& location) {
  const Place place = place_of(fingerprint(key));
  const Entry& entry = entry_at(place);
  if (!is_live(entry) || location_of(entry) != location) return false;
  remove_entry(parts_[place.part], place.slot);
  sweep();
  return true;
}

uint64_t Index::memory_bytes() const {
  return entry_capacity_ * sizeof(Entry) + parts_.capacity() * sizeof(Part) +
         directory_.capacity() * sizeof(uint32_t);
}

bool Index::is_empty(const Entry& entry) {
  return entry.key == Fingerprint{};
}

Location Index::location_of(const Entry& entry) {
  return {.segment = entry.segment,
          .batch_page = entry.batch_page,
          .value = entry.value,
          .header_pages = entry.header_pages};
}

// Where the entry with this fingerprint is, or else the empty slot where it belongs.
uint32_t Index::slot_of(const Part& part, const Fingerprint& key) {
  const size_t capacity = part.entries.size();
  uint32_t slot = home_slot(key[1], capacity);
  while (!is_empty(part.entries[slot]) && part.entries[slot].key != key) {
    slot = next_slot(slot, capacity);
  }
  return slot;
}

// Moves entries behind it forward into the hole, so that no probe ends early at it.
void Index::remove_entry(Part& part, uint32_t slot) {
  const size_t capacity = part.entries.size();
  const auto distance = [capacity](size_t from, size_t to) {
    return to >= from ? to - from : to + capacity - from;
  };
  uint32_t hole = slot;
  for (uint32_t next = next_slot(hole, capacity); !is_empty(part.entries[next]);
       next = next_slot(next, capacity)) {
    const uint32_t home = home_slot(part.entries[next].key[1], capacity);
    if (distance(home, next) < distance(hole, next)) continue;
    part.entries[hole] = part.entries[next];
    hole = next;
  }
  part.entries[hole] = {};
  --part.used;
}

Index::Fingerprint Index::fingerprint(const Key& key) const {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(key.data(), key.size(), seed_);
  Fingerprint print = {static_cast<uint32_t>(hash.low64 >> 32), static_cast<uint32_t>(hash.low64),
                       static_cast<uint32_t>(hash.high64)};
  if (print == Fingerprint{}) print[2] = 1;
  return print;
}

Index::Place Index::place_of(const Fingerprint& key) const {
  const uint32_t part = directory_[uint64_t{key[0]} >> (32 - depth_)];
  return {.part = part, .slot = slot_of(parts_[part], key)};
}

bool Index::is_live(const Entry& entry) const {
  return !is_empty(entry) && alive_(entry.segment);
}

std::vector<Index::Entry> Index::live_entries(const Part& part) const {
  std::vector<Entry> live;
  live.reserve(part.used);
  for (const Entry& entry : part.entries) {
    if (is_live(entry)) live.push_back(entry);
  }
  return live;
}

// Makes room for one more entry in a part that is full.
void Index::make_room(uint32_t number) {
  Part& part = parts_[number];
  const size_t capacity = part.entries.size();
  std::vector<Entry> live = live_entries(part);
  const bool crowded = live.size() > percent_of(kCrowdedPercent, capacity);
  const bool sparse = live.size() < percent_of(kSparsePercent, capacity);
  if (crowded && live.size() >= kSplitEntries && can_split(part)) {
    split(number, std::move(live));
  } else {
    refill(part, crowded || sparse ? fitting_capacity(live.size()) : capacity, live);
  }
}

// Clears the dead entries among the next few slots, and at the end of a part what memory the part
// has too much.
void Index::sweep() {
  Part& part = parts_[swept_part_];
  for (uint32_t i = 0; i < kSlotsPerSweep && swept_slot_ < part.entries.size(); ++i) {
    const Entry& entry = part.entries[swept_slot_];
    if (is_empty(entry) || alive_(entry.segment)) {
      ++swept_slot_;
    } else {
      remove_entry(part, swept_slot_);  // brings another entry here, or none
    }
  }
  if (swept_slot_ < part.entries.size()) return;
  const size_t capacity = part.entries.size();
  if (capacity > kCapacityMin && part.used < percent_of(kSparsePercent, capacity)) {
    const std::vector<Entry> live = live_entries(part);
    refill(part, fitting_capacity(live.size()), live);
  }
  swept_slot_ = 0;
  swept_part_ = swept_part_ + 1 < parts_.size() ? swept_part_ + 1 : 0;
}

// Makes these all the entries of the part.
void Index::refill(Part& part, size_t capacity, std::span<const Entry> entries) {
  HIFC_CHECK(entries.size() < capacity);
  if (capacity == part.entries.size()) {
    std::ranges::fill(part.entries, Entry{});
  } else {
    entry_capacity_ = entry_capacity_ - part.entries.size() + capacity;
    part.entries = std::vector<Entry>(capacity);
  }
  for (const Entry& entry : entries) part.entries[slot_of(part, entry.key)] = entry;
  part.used = static_cast<uint32_t>(entries.size());
}

bool Index::can_split(const Part& part) const {
  if (part.depth < depth_) return true;
  return depth_ < 31 && directory_.size() <= kDirectorySlotsPerPartMax * parts_.size();
}

// Moves the entries whose next leading bit is set to a new part.
void Index::split(uint32_t number, std::vector<Entry> live) {
  const uint32_t bit = 31 - parts_[number].depth;
  const auto upper = std::ranges::partition(
      live, [bit](const Entry& entry) { return (entry.key[0] >> bit & 1) == 0; });
  const std::span<const Entry> lower(live.begin(), upper.begin());

  const auto added = static_cast<uint32_t>(parts_.size());
  point_upper_half(number, added);
  const uint32_t depth = ++parts_[number].depth;
  parts_.push_back({.entries = {}, .used = 0, .depth = depth});
  refill(parts_[number], fitting_capacity(lower.size()), lower);
  refill(parts_[added], fitting_capacity(upper.size()), upper);
}

// Lets the upper half of the directory slots that name part `source` name part `target`.
void Index::point_upper_half(uint32_t source, uint32_t target) {
  if (parts_[source].depth == depth_) {
    std::vector<uint32_t> doubled(directory_.size() * 2);
    for (size_t i = 0; i < doubled.size(); ++i) doubled[i] = directory_[i / 2];
    directory_ = std::move(doubled);
    ++depth_;
  }
  const size_t count = size_t{1} << (depth_ - parts_[source].depth);
  const auto first = std::ranges::find(directory_, source);
  std::fill_n(first + static_cast<ptrdiff_t>(count / 2), count / 2, target);
}

}  // namespace hifc::flash
