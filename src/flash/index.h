// Which values are findable, and where: a compact hash table in memory, at most 40 bytes a value.
//
// An entry holds 96 bits of a hash of the key: whoever reads the value compares the whole key with
// the one on flash, so that two keys that agree in them, of which the table keeps the newer one,
// cost a miss and never give wrong data. Entries of segments that are gone are dead: they are taken
// for absent when met and cleared later, so that forgetting a segment costs nothing.
//
// The table consists of parts that grow one by one and split at some thousand entries (extendible
// hashing): no call moves more than one part. Besides, each change clears the dead among a few
// entries; changes that number a tenth of the values (15 % if all are dead) go once round the
// table, and so give back the memory of what is gone. Parts are never merged: a table that was once
// full keeps about a byte for each value it had.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "flash/store.h"

namespace hifc::flash {

// Where a value is: the batch's header and the value's number in it.
struct Location {
  uint32_t segment = 0;      // logical number, never reused
  uint32_t batch_page = 0;   // of the batch header in the segment file, in units of io::kAlignment
  uint16_t value = 0;        // index within the batch
  uint8_t header_pages = 0;  // length of the batch header; 255: that or more
  // The same value; header_pages only helps to read it.
  friend bool operator==(const Location& a, const Location& b) {
    return a.segment == b.segment && a.batch_page == b.batch_page && a.value == b.value;
  }
};

// Whether `a` comes after `b` in the log.
inline bool newer(const Location& a, const Location& b) {
  return std::tuple(a.segment, a.batch_page, a.value) >
         std::tuple(b.segment, b.batch_page, b.value);
}

class Index {
 public:
  // Whether a logical segment still exists; asked often, so it should be quick. A segment that is
  // gone must not come back.
  using Alive = std::function<bool(uint32_t segment)>;

  // `seed` is of the keys' hash: drawn at random, it keeps whoever chooses keys from choosing
  // colliding ones.
  explicit Index(Alive alive, uint64_t seed = 0);

  // Where the value is, if it is findable.
  std::optional<Location> find(const Key& key) const;
  // As find(), and counts one more hit (up to 255).
  std::optional<Location> hit(const Key& key);
  uint8_t hits(const Key& key) const;  // 0 if absent

  // The value is findable at `location` from now on, with no hits. Gives the place where it was
  // findable before, if it was.
  std::optional<Location> insert(const Key& key, const Location& location);
  // Forgets the value if it is findable at `location`; false otherwise.
  bool erase(const Key& key, const Location& location);

  // Bytes of memory the table takes, unused entries included.
  uint64_t memory_bytes() const;

 private:
  using Fingerprint = std::array<uint32_t, 3>;  // of a key; all zeros in an empty entry
  struct Entry {
    Fingerprint key;
    uint32_t segment;
    uint32_t batch_page;
    uint16_t value;
    uint8_t header_pages;
    uint8_t hits;
  };
  static_assert(sizeof(Entry) == 24);
  struct Part {
    std::vector<Entry> entries;  // open addressing with linear probing; never all in use
    uint32_t used = 0;           // entries that are not empty, dead ones included
    uint32_t depth = 0;          // leading bits that all its fingerprints share
  };
  struct Place {
    uint32_t part;
    uint32_t slot;
  };

  static bool is_empty(const Entry& entry);
  static Location location_of(const Entry& entry);
  static uint32_t slot_of(const Part& part, const Fingerprint& key);
  static void remove_entry(Part& part, uint32_t slot);

  Fingerprint fingerprint(const Key& key) const;
  Place place_of(const Fingerprint& key) const;
  const Entry& entry_at(Place place) const { return parts_[place.part].entries[place.slot]; }
  Entry& entry_at(Place place) { return parts_[place.part].entries[place.slot]; }
  bool is_live(const Entry& entry) const;
  std::vector<Entry> live_entries(const Part& part) const;

  void make_room(uint32_t number);
  void sweep();
  void refill(Part& part, size_t capacity, std::span<const Entry> entries);
  bool can_split(const Part& part) const;
  void split(uint32_t number, std::vector<Entry> live);
  void point_upper_half(uint32_t source, uint32_t target);

  Alive alive_;
  uint64_t seed_;
  std::vector<Part> parts_;
  std::vector<uint32_t> directory_;  // [1 << depth_], by leading bits: which part
  uint32_t depth_ = 0;
  uint64_t entry_capacity_ = 0;  // of all parts
  uint32_t swept_part_ = 0;      // where the next sweep begins
  uint32_t swept_slot_ = 0;
};

}  // namespace hifc::flash
