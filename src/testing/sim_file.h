// One file of a SimDisk: contents in memory and, per page, what the medium had before writes that
// are not synced yet.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "io/ring.h"
#include "testing/sim_random.h"

namespace hifc::testing {

class SimFile {
 public:
  static constexpr size_t kPageBytes = io::kAlignment;
  static constexpr size_t kSectorBytes = 512;  // what a power failure tears pages into

  explicit SimFile(uint64_t size_bytes);
  ~SimFile();
  SimFile(const SimFile&) = delete;
  SimFile& operator=(const SimFile&) = delete;

  // A file that reads and writes this one until renew(); `path` is for messages.
  io::File open(io::File::Options options, const std::string& path);
  ino_t number() const;  // of every handle from open(), as fstat() gives it
  // Leaves what open() has given out so far with a copy of its own.
  void renew();

  uint64_t size_bytes() const;
  uint64_t allocated_bytes() const { return allocated_pages_ * kPageBytes; }
  // What a write of this range would allocate.
  uint64_t missing_bytes(uint64_t offset, uint64_t bytes) const;

  // Goes before every write of whole pages; `sequence` rises from write to write.
  void before_write(uint64_t offset, uint64_t bytes, uint64_t sequence);
  // Writes some of the pages, as when the machine stops while it writes.
  void write_part(uint64_t offset, std::span<const iovec> vectors, uint64_t sequence,
                  SimRandom& random);

  // A sync covers the writes before it began; begin_sync() takes the sequence of the last one,
  // which end_sync() then gets. `durable` may leave pages out.
  void begin_sync(uint64_t sequence) { sync_begun_ = sequence; }
  void end_sync(uint64_t sequence, FunctionRef<bool()> durable);
  // As Linux does: the pages of a sync that failed are not tried again by a later one, which
  // succeeds, until they are written again.
  void fail_sync(uint64_t sequence);
  // Each page that is not synced is kept, reverted or torn between the two; so is the size. How
  // likely each is differs from call to call.
  void lose_volatile(SimRandom& random);

  // The whole file, durable at once.
  std::vector<std::byte> read() const;
  void replace(std::span<const std::byte> contents);

 private:
  using Page = std::array<std::byte, kPageBytes>;
  struct Version {
    uint64_t sequence = 0;            // of the write that replaced it
    std::unique_ptr<Page> page = {};  // null: zeros, never written
  };

  bool allocated(uint64_t page) const { return page < allocated_.size() && allocated_[page]; }
  void set_allocated(uint64_t page, bool allocated);
  Version save(uint64_t page, uint64_t sequence) const;
  void read_at(uint64_t offset, std::span<std::byte> target) const;
  void write_at(uint64_t offset, std::span<const std::byte> source);
  void resize(uint64_t size_bytes);
  void tear(uint64_t page, const Version& old, SimRandom& random);

  int descriptor_ = -1;
  bool given_out_ = false;
  uint64_t durable_size_ = 0;
  uint64_t sync_begun_ = 0;
  std::vector<bool> allocated_;  // [pages]; may be shorter than the file
  uint64_t allocated_pages_ = 0;
  // Oldest first. A later version exists where a sync began between the writes: it is what that
  // sync will make durable.
  std::map<uint64_t, std::vector<Version>> volatile_;
  std::set<uint64_t> abandoned_;  // pages of failed syncs
};

}  // namespace hifc::testing
