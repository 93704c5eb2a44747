// The cold tier's store: opaque values under 256-bit keys in a log of segment files on flash.
//
// A value is a number of lanes, each of its own length. Values put together in one batch have
// equally many and are laid out lane by lane (lane 0 of every value, then lane 1, ...), so that the
// same lane of neighbouring values is one contiguous read. Every chunk_bytes of a lane has a
// checksum; read() gives back the bytes and verify() says whether they are the ones that were put.
// To the store a lane is opaque; the cache puts one layer's block into each.
//
// Keys are content addresses: values put under one key are expected to be interchangeable. The
// newest one is found; after damage on the device a restart may find an older one.
//
// Durability (docs/flash-format.md): what put() has completed survives the end of the process;
// what flush() has completed also survives a power failure. Opening a directory finds everything
// that an earlier process left in it.
//
// Thread-compatible: one thread calls everything, and completions run on it inside poll(), wait()
// and the Ring's own. verify() alone may be called from several threads at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "io/file_system.h"
#include "io/ring.h"

namespace hifc::flash {

using Key = std::array<std::byte, 32>;

// Good for keys that are not digests too.
struct KeyHash {
  size_t operator()(const Key& key) const noexcept;
};

struct StoreOptions {
  std::string directory;        // created with mode 0700 if missing; one owner at a time
  uint64_t capacity_bytes = 0;  // hard limit on everything this store keeps in the directory
  uint64_t segment_bytes = 256u << 20;  // 16-256 MiB; smaller where capacity_bytes asks for it
  bool direct = true;                   // O_DIRECT where possible
  bool temporary = false;               // drop the values, and all files, when closing
  uint64_t free_space_floor_bytes = 64u << 20;  // stays free on the file system
  // A transfer that takes longer fails with kTimeout; 0: never.
  uint64_t deadline_ns = 10'000'000'000;
  // Values found this often since they were written are written again when their segment retires,
  // in all at most this share of what is put, so that write amplification stays bounded.
  uint32_t reinsert_hits = 2;
  double reinsert_share = 0.012;
  uint64_t seed = 0;                      // of the segments' nonces; 0: from the system
  io::FileSystem* file_system = nullptr;  // nullptr: the system's
  const Clock* clock = nullptr;           // nullptr: the system's
};

// How large the segments of such a store are.
uint64_t segment_bytes(const StoreOptions& options);

struct BatchShape {
  uint32_t lanes = 0;        // of every value
  uint32_t chunk_bytes = 0;  // multiple of io::kAlignment; the last chunk of a lane may be shorter
};

// One value to put.
struct PutValue {
  Key key = {};
  // [shape.lanes]: the memory of each, aligned to io::kAlignment, its size a multiple of that but
  // not 0.
  std::vector<std::span<const std::byte>> lanes;
  // What of the value counts, lane after lane; Handle::size_bytes() gives it back. 0: all of it.
  uint64_t size_bytes = 0;
};

struct StoreStatistics {
  uint64_t values = 0;         // findable
  uint64_t bytes_on_disk = 0;  // everything of ours in the directory
  uint64_t peak_bytes_on_disk = 0;
  uint64_t index_bytes = 0;  // memory of the index
  uint64_t segments = 0;     // segment files
  uint64_t payload_bytes_put = 0;
  uint64_t writes = 0, written_bytes = 0;  // write requests issued and their bytes
  uint64_t reads = 0, read_bytes = 0;
  uint64_t syncs = 0;
  uint64_t hits = 0, misses = 0;    // pin()
  uint64_t corrupt_chunks = 0;      // of values
  uint64_t corrupt_headers = 0;     // metadata records, when opening or pinning
  uint64_t retired_values = 0;      // forgotten with their segment, to make room
  uint64_t quarantined_values = 0;  // forgotten because their bytes were damaged
  uint64_t removed_values = 0;
  uint64_t unsynced_values = 0;  // forgotten because the device could not make them durable
  uint64_t reinserted_values = 0, reinserted_bytes = 0;
  uint64_t failed_puts = 0;                         // batches
  uint64_t timeouts = 0;                            // transfers
  uint64_t overwrites_min = 0, overwrites_max = 0;  // how often segment files were rewritten
  uint64_t recovered_values = 0;                    // found when opening
};

class Store;
struct Batch;  // batch.h

// A stored value, pinned: its segment is not retired while a Handle to it lives. Holds the
// checksums of its batch. Must not outlive the store.
class Handle {
 public:
  Handle() = default;
  explicit operator bool() const { return batch_ != nullptr; }

  // Of a Handle that is not empty:
  uint32_t lanes() const;
  uint64_t lane_bytes(uint32_t lane) const;
  uint64_t bytes() const;  // of all lanes
  uint32_t chunk_bytes() const;
  uint64_t size_bytes() const;  // as put

  // True when every lane of this value begins on flash where the same lane of `previous` ends, so
  // that one read can bring both.
  bool follows(const Handle& previous) const;

 private:
  friend class Store;
  Handle(std::shared_ptr<Batch> batch, uint32_t value) : batch_(std::move(batch)), value_(value) {}
  std::shared_ptr<Batch> batch_;
  uint32_t value_ = 0;  // index within the batch
};

// A part of one lane: begins at a multiple of chunk_bytes; ends at one, or at the lane's end.
struct Range {
  uint32_t lane = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// One lane of one value to read, or a part of it as a Range has it, and the memory that goes to:
// aligned, and as long.
struct LaneRead {
  const Handle* handle = nullptr;
  std::byte* memory = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;  // 0: to the end of the lane
};

class Store {
 public:
  using PutDone = std::move_only_function<void(Result<std::vector<Handle>>)>;
  using PinDone = std::move_only_function<void(Handle)>;
  using ReadDone = std::move_only_function<void(Result<void>)>;
  using FlushDone = std::move_only_function<void(Result<void>)>;
  // After a read failed with kTimeout its memory still belongs to the device, until this runs.
  using Released = std::move_only_function<void()>;

  // Recovers what is in the directory: segment by segment, from each one's checkpoint and from the
  // batches written after it, which are verified. Retires the oldest segments where capacity_bytes
  // is less than what is there. Files that are not this store's are left alone and named in one
  // warning. kBusy when another process owns the directory, kIo with the path when it cannot be
  // used, kFull when the file system has less room than one segment and nothing is there,
  // kUnsupported when a newer HiFC wrote what is there (it is left untouched). The ring must
  // outlive the store.
  static Result<std::unique_ptr<Store>> open(StoreOptions options, io::Ring& ring);
  // Waits for what is in flight, runs its completions, and leaves a checkpoint and durable values.
  ~Store();

  // Writes the values as one batch, asynchronously, in coalesced writes of 4 MiB or more where the
  // batch has that much; they become findable together when the whole batch is on the device, and
  // `done` gets their handles in order, and batches complete in the order of their calls. The
  // memory must stay unchanged until then; what `done` captures lives until the device no longer
  // uses the memory, which after kTimeout is later. Fails at once
  // (and `done` never runs) with kFull when no segment can be freed for it, kInvalid on a bad
  // shape or lane, which it names. ENOSPC and other write errors arrive in `done`; nothing of the
  // batch is then findable. A value under a key that is there already replaces it. A value whose
  // key was quarantined several times gets a handle, but is not findable. kBusy, to be tried again
  // after poll() or wait(): 128 writes are waiting for the ring, others have filled the ring, or
  // the segments to be freed are still being written.
  Result<void> put(const BatchShape& shape, std::vector<PutValue> values, PutDone done);

  // Whether a value is findable, as far as memory knows: pin() may still find it damaged.
  bool contains(const Key& key) const;

  // Finds a value and brings what reading it needs into memory. `done` gets an empty Handle when it
  // is absent, damaged or unreadable, which are misses; it may run before pin() returns. kBusy as
  // for read(). Pins of values of one batch cost one read.
  Result<void> pin(const Key& key, PinDone done);

  // Reads lane `lane` of the run's values, each of its own length, as one transfer. Each value of
  // the run must follow() the one before it; only of the first one the beginning may be left out,
  // and only of the last one the end. The bytes are NOT verified: call verify() on each before
  // using any. Reads go before waiting writes. kBusy as for put(), with 1,024 waiting reads.
  Result<void> read(uint32_t lane, std::span<const LaneRead> run, ReadDone done,
                    Released released = {});
  // Reads part of one lane to `memory` (aligned).
  Result<void> read(const Handle& handle, const Range& range, std::byte* memory, ReadDone done,
                    Released released = {});

  // True when `bytes` are what was put as that lane (lane_bytes(lane) of them), or as that part of
  // it.
  // Thread-safe.
  bool verify(const Handle& handle, uint32_t lane, std::span<const std::byte> bytes) const;
  bool verify(const Handle& handle, const Range& range, std::span<const std::byte> bytes) const;

  // Forgets a value whose bytes turned out to be damaged, and counts it.
  void quarantine(const Handle& handle);

  // Forgets a value; durably once flush() has completed. False if there was none.
  bool remove(const Key& key);

  // `done` runs when everything put and removed before this call survives a power failure. Values
  // that the device cannot make durable are forgotten and make it an error. kBusy as for put().
  Result<void> flush(FlushDone done);

  // Runs the completions that have arrived, and fails what is over its deadline.
  uint32_t poll();
  // As poll(), but sleeps until there was one; 0 only if nothing is in flight.
  uint32_t wait();
  // As wait(), but no longer than this; 0 also where nothing has happened yet.
  uint32_t wait_for(uint64_t timeout_ns);

  uint64_t capacity_bytes() const;
  const StoreStatistics& statistics() const;

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hifc::flash
