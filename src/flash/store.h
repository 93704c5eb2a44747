// The cold tier's store: opaque values under 256-bit keys in segment files on flash.
//
// A value is `lanes` equal lanes of `lane_bytes` bytes. Values put together in one batch are laid
// out lane by lane (lane 0 of every value, then lane 1, ...), so that the same lane of neighbouring
// values is one contiguous read. Every chunk_bytes of a lane has a checksum; read() gives back the
// bytes and verify() says whether they are the ones that were put. To the store a lane is opaque;
// the cache puts one layer's block into each.
//
// Thread-compatible: one thread calls everything, and completions run on it inside the Ring's
// poll() and wait(). verify() alone may be called from several threads at once.
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

#include "base/result.h"
#include "io/ring.h"

namespace hifc::flash {

using Key = std::array<std::byte, 32>;

struct StoreOptions {
  std::string directory;        // created with mode 0700 if missing; one owner at a time
  uint64_t capacity_bytes = 0;  // hard limit on everything this store keeps in the directory
  uint64_t segment_bytes = 256u << 20;  // 16-256 MiB; smaller where capacity_bytes asks for it
  bool direct = true;                   // O_DIRECT where possible
};

struct ValueShape {
  uint32_t lanes = 0;
  uint64_t lane_bytes = 0;   // multiple of io::kAlignment
  uint32_t chunk_bytes = 0;  // multiple of io::kAlignment; the last chunk of a lane may be shorter
};

// One value to put: the memory of each lane, aligned to io::kAlignment.
struct PutValue {
  Key key;
  std::vector<const std::byte*> lanes;  // [shape.lanes], each lane_bytes long
};

struct StoreStatistics {
  uint64_t values = 0;
  uint64_t bytes_on_disk = 0;  // everything of ours in the directory
  uint64_t peak_bytes_on_disk = 0;
  uint64_t payload_bytes_put = 0;
  uint64_t writes = 0, written_bytes = 0;  // write requests issued and their bytes
  uint64_t reads = 0, read_bytes = 0;
  uint64_t corrupt_chunks = 0;
  uint64_t retired_values = 0;      // forgotten with their segment, to make room
  uint64_t quarantined_values = 0;  // forgotten because their bytes were damaged
};

class Store;
struct StoredValue;  // segment.h

// A stored value, pinned: its segment is not retired while a Handle to it lives. Holds the value's
// checksums. Must not outlive the store.
class Handle {
 public:
  Handle() = default;
  explicit operator bool() const { return value_ != nullptr; }

  // True when every lane of this value begins on flash where the same lane of `previous` ends, so
  // that one read can bring both.
  bool follows(const Handle& previous) const;

 private:
  friend class Store;
  explicit Handle(std::shared_ptr<StoredValue> value) : value_(std::move(value)) {}
  std::shared_ptr<StoredValue> value_;
};

// One lane of one value to read, and the memory it goes to (lane_bytes, aligned).
struct LaneRead {
  const Handle* handle = nullptr;
  std::byte* memory = nullptr;
};

class Store {
 public:
  using PutDone = std::move_only_function<void(Result<std::vector<Handle>>)>;
  using ReadDone = std::move_only_function<void(Result<void>)>;

  // kBusy when another process owns the directory, kIo with the path when it cannot be used, kFull
  // when the file system has less room than one segment, kUnsupported when a newer HiFC wrote what
  // is there (it is left untouched). Files in the directory that are not this store's are left
  // alone. Values of an earlier process are dropped, and this one's when it closes (recovery is not
  // here yet). The ring must outlive the store.
  static Result<std::unique_ptr<Store>> open(StoreOptions options, io::Ring& ring);
  ~Store();  // waits for what is in flight and runs its completions

  // Writes the values as one batch, asynchronously, in coalesced writes of 4 MiB or more where the
  // batch has that much; they become findable together when the whole batch is on the device, and
  // `done` gets their handles in order. The memory must stay unchanged until then. Fails at once
  // (and `done` never runs) with kFull when no segment can be freed for it, kInvalid on a bad
  // shape. ENOSPC and other write errors arrive in `done`; nothing of the batch is then findable. A
  // value under a key that is there already replaces it. kBusy, to be tried again after the ring's
  // poll() or wait(): 128 writes are waiting for the ring, others have filled the ring, or the
  // segments to be freed are still being written.
  Result<void> put(const ValueShape& shape, std::vector<PutValue> values, PutDone done);

  Handle find(const Key& key) const;  // empty if absent

  // Reads lane `lane` of the run's values as one transfer. Each value of the run must follow() the
  // one before it. The bytes are NOT verified: call verify() on each before using any. Reads go
  // before waiting writes. kBusy as for put(), with 1,024 waiting reads.
  Result<void> read(uint32_t lane, std::span<const LaneRead> run, ReadDone done);

  // True when `bytes` (lane_bytes of them) are what was put as lane `lane`. Thread-safe.
  bool verify(const Handle& handle, uint32_t lane, std::span<const std::byte> bytes) const;

  // Forgets a value whose bytes turned out to be damaged, and counts it.
  void quarantine(const Handle& handle);

  uint64_t capacity_bytes() const;
  const StoreStatistics& statistics() const;

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hifc::flash
