// The store's segments: the map from logical segments to files, room for batches within the byte
// limit, and retirement to make it.
//
// Batches fill the active segment one after the other. When it is full, the next one is, in this
// order: a free file (the one overwritten least), a new file, or the file of the oldest logical
// segment that may go. Its values become unfindable because its number leaves the map; the file is
// overwritten in place, which flash and file system do faster than writing into new blocks.
//
// The next segment is chosen while the active one still has room, so that its header is durable
// before a batch needs it. Its number is the newest, whatever is written to the active one.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "flash/directory.h"
#include "flash/segment.h"

namespace hifc::flash {

class SegmentPool {
 public:
  struct Options {
    uint64_t capacity_bytes = 0;
    uint64_t segment_bytes = 0;
    uint64_t free_space_floor_bytes = 0;
    uint64_t seed = 0;  // of the nonces
    bool direct = true;
  };
  struct Place {
    Segment* segment = nullptr;
    uint64_t offset_bytes = 0;
    bool opened = false;        // `segment` is new: its header has to be written before anything
    Segment* filled = nullptr;  // was active until now and takes no more
  };

  SegmentPool(Options options, Directory& directory);

  // Segments found when opening, in any order, and bytes of ours that are not to be touched;
  // `numbers_lost`: some had numbers that cannot be read any more. Then
  // fit() retires the oldest and removes files until all of it is within the capacity.
  struct Found {
    std::vector<std::unique_ptr<Segment>> segments;
    uint64_t untouchable_bytes = 0;
    bool numbers_lost = false;
  };
  void adopt(Found found);
  struct Removed {
    uint64_t segments = 0, size_bytes = 0;
  };
  Result<Removed> fit();
  // kFull when there is no segment and no room for one on the file system.
  Result<void> check_usable() const;

  // The segment that holds a logical one at present, if it still exists.
  Segment* find(uint32_t number) const;

  // Whether place() would have to find another segment.
  bool needs_segment(uint64_t size_bytes, uint64_t records) const;
  // kFull or kBusy where place() would fail for lack of room; else it still may.
  Result<void> check_room(uint64_t size_bytes, uint64_t records) const;
  // Room for a batch; counts it as a write in flight. kFull or kBusy as Store::put().
  Result<Place> place(uint64_t size_bytes, uint64_t records);
  // Whether it is time to choose the segment after the active one.
  bool wants_next() const;
  // Chooses it, for batches of this size; right after place(), so that the active one does not go.
  // kFull or kBusy where there is no room, or only in a segment of unusual size.
  Result<Segment*> choose_next(uint64_t size_bytes, uint64_t records);
  // The batch could not be written: its space is free again, at once if it is the segment's last.
  void give_back(Segment& segment, uint64_t offset_bytes, uint64_t size_bytes, uint64_t records);

  // No more batches into this segment.
  void deactivate(Segment& segment);
  // The segment's values are lost; nothing of it is in flight.
  void release(Segment& segment);
  // The newest of the segments that were found, as long as they are unused: their files are free
  // again.
  void release_unused();
  // Continues to fill a segment that was found when opening.
  void activate(Segment& segment) { active_ = &segment; }
  // Removes all files.
  void remove_all();

  Segment* active() const { return active_; }
  Segment* next() const { return next_; }  // after the active one; nullptr: not chosen yet
  // Which segment goes when the active one is full; nullptr while there is other room.
  Segment* next_to_retire() const;
  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  std::vector<Segment*> by_number() const;  // those that are not free, the oldest first
  uint64_t bytes_on_disk() const { return bytes_on_disk_; }
  uint64_t peak_bytes_on_disk() const { return peak_bytes_on_disk_; }
  uint64_t retired_values() const { return retired_values_; }

 private:
  // Whether retiring can make so much room.
  Result<void> check_capacity(uint64_t needed_bytes) const;
  Result<Segment*> acquire(uint64_t needed_bytes);
  Result<Segment*> grow(uint64_t needed_bytes);
  struct NewFile {
    uint32_t id;
    io::File file;
  };
  Result<NewFile> create_file(uint64_t size_bytes);
  Result<void> check_free_space(uint64_t size_bytes) const;
  void begin(Segment& segment);
  void drop_next();
  Segment* best_free(uint64_t needed_bytes) const;
  bool may_retire(const Segment& segment) const;
  Segment* oldest_retirable() const;
  uint64_t unretirable_bytes() const;
  void retire(Segment& segment);
  Result<void> remove(Segment& segment);
  uint64_t unallocated_bytes() const;
  Error no_room(uint64_t needed_bytes) const;

  const Options options_;
  Directory& directory_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::unordered_map<uint32_t, Segment*> map_;  // by number
  uint32_t last_number_ = 0;
  Segment* active_ = nullptr;
  Segment* next_ = nullptr;
  uint64_t bytes_on_disk_ = 0;
  uint64_t untouchable_bytes_ = 0;  // of them
  uint64_t peak_bytes_on_disk_ = 0;
  uint64_t retired_values_ = 0;
};

}  // namespace hifc::flash
