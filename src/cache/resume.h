// Finding a prompt's stored prefix, and bringing single groups of it into memory as a whole.
//
// Both wait for the device, but no longer than they are told; what arrives later is dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/parallel.h"
#include "base/result.h"
#include "base/trace.h"
#include "cache/group_format.h"
#include "cache/residency.h"
#include "cache/sequence.h"
#include "flash/store.h"
#include "kv/key.h"
#include "kv/layout.h"
#include "tier/tiers.h"

namespace hifc::cache {

// The group after the full ones. It is either parked, or full with its last token left out because
// that one has to be computed.
struct StoredTail {
  flash::Handle handle;
  uint32_t stored_tokens = 0;
  uint32_t valid_tokens = 0;  // of them, those that the prompt may take over; at least 1
};

// Pins what it holds.
struct StoredPrefix {
  std::vector<flash::Key> keys;        // [full group]
  std::vector<flash::Handle> handles;  // [full group]
  std::optional<StoredTail> tail;

  uint32_t groups() const { return static_cast<uint32_t>(handles.size()); }
  // Of a full group, or of the tail, which is the group after them.
  const flash::Handle& handle(uint32_t index) const {
    return index == groups() ? tail->handle : handles[index];
  }
  uint32_t tokens(uint32_t block_tokens) const {
    return groups() * block_tokens + (tail ? tail->valid_tokens : 0);
  }
};

struct Patience {
  const Clock* clock = nullptr;
  uint64_t until_ns = 0;  // by that clock
  const std::atomic<bool>* cancelled = nullptr;

  bool over() const {
    return clock->now_ns() >= until_ns ||
           (cancelled != nullptr && cancelled->load(std::memory_order_relaxed));
  }
  uint64_t left_ns() const {
    const uint64_t now_ns = clock->now_ns();
    return now_ns < until_ns ? until_ns - now_ns : 0;
  }
};

// The longest stored prefix of `tokens` under `format`'s model, pinned: full groups up to the first
// that is missing, then the longest tail. At least one token is left to be computed, so that there
// are logits.
StoredPrefix find_stored_prefix(tier::Tiers& tiers, const GroupFormat& format,
                                std::span<const int32_t> tokens, const Patience& patience);

// Blocks of a group read from flash into frames of their own, all of them verified. Until take()
// they belong to this object, and no sequence knows of them.
class LoadedGroup {
 public:
  // `header_of` gives what the block of a layer must carry, `part_of` where it goes, `span_of` the
  // span of its read. kFull without frames, kCorrupt when the bytes are damaged (the value is then
  // quarantined), kIo, kTimeout, kCancelled.
  using HeaderOf = FunctionRef<kv::BlockHeader(uint32_t layer)>;
  using PartOf = FunctionRef<tier::Part(uint32_t layer)>;
  using SpanOf = FunctionRef<TraceAsync(uint32_t layer)>;
  static Result<LoadedGroup> load(tier::Tiers& tiers, const flash::Handle& handle,
                                  HeaderOf header_of, PartOf part_of, SpanOf span_of,
                                  uint32_t reads_in_flight, Parallel& parallel,
                                  const Patience& patience);
  LoadedGroup(LoadedGroup&& other) noexcept = default;
  LoadedGroup& operator=(LoadedGroup&&) = delete;
  ~LoadedGroup();

  std::vector<Block>& blocks() { return blocks_; }  // [layer], each in its `frame`
  std::vector<Block> take() { return std::move(blocks_); }
  uint64_t read_ns() const { return read_ns_; }  // what the drive took

 private:
  explicit LoadedGroup(tier::Tiers& tiers) : tiers_(tiers) {}
  Result<void> acquire(const flash::Handle& handle, PartOf part_of);
  Result<void> read(const flash::Handle& handle, SpanOf span_of, uint32_t reads_in_flight,
                    const Patience& patience);
  Result<void> verify(const flash::Handle& handle, HeaderOf header_of, Parallel& parallel);

  tier::Tiers& tiers_;
  std::vector<Block> blocks_;
  uint64_t read_ns_ = 0;
};

}  // namespace hifc::cache
