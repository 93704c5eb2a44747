// Writes full groups to flash behind the computation: batches of 4 MiB and more, straight from the
// groups' frames, which are freed or kept by the placement once the batch is on the device. A group
// whose key the store has already is not written again: the first writer wins.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/result.h"
#include "base/trace.h"
#include "cache/group_format.h"
#include "cache/residency.h"
#include "cache/sequence.h"
#include "kv/key.h"
#include "kv/layout.h"
#include "tier/tiers.h"

namespace hifc::cache {

class GroupWriter {
 public:
  GroupWriter(tier::Tiers& tiers, Sequence& sequence, Residency& residency,
              const GroupFormat& format, Trace* trace);

  // The group's blocks are as they will be on flash, but for their headers: closes it (headers,
  // key) and queues it. The queue is bounded by the frames that its groups hold.
  void add(uint32_t group);

  // Key of the group's predecessor, which is closed.
  kv::GroupKey previous_key(uint32_t group) const;

  // Stores the last group, which is open, as the tail of its sequence, from where its tokens are in
  // F16, and waits for it. Its blocks may be filled on afterwards.
  Result<void> park();

  // Starts the writes that are worth starting.
  void pump();
  // Starts writing everything queued, however little. True if a write is in flight afterwards, or
  // a group turned out to be stored.
  bool push();
  // Everything queued is on flash, or the reason why not.
  Result<void> flush();

  // Takes groups from `first` on out of the queue; none of them may be in flight.
  void forget_from(uint32_t first);

  uint32_t in_flight() const { return in_flight_; }
  // The latest failure since a write succeeded.
  const std::optional<Error>& error() const { return error_; }

 private:
  bool may_write() const;
  void reuse_stored();
  void reuse(uint32_t group);
  void write(uint32_t count);
  void finish(const std::vector<uint32_t>& batch, Result<std::vector<flash::Handle>> outcome);
  void finish_group(uint32_t group, flash::Handle handle);
  void fail(const std::vector<uint32_t>& batch, Error error);
  void requeue(uint32_t group);
  uint32_t groups_per_write_min() const;
  uint32_t groups_per_write_max() const;
  void close(uint32_t group);

  tier::Tiers& tiers_;
  Sequence& sequence_;
  Residency& residency_;
  const GroupFormat& format_;
  Trace* trace_;
  std::vector<uint32_t> queue_;
  std::set<uint32_t> unusable_;      // groups whose stored value could not be pinned
  uint32_t in_flight_ = 0;           // writes, and groups about to be found on flash
  uint32_t failures_ = 0;            // in a row
  uint32_t batch_max_ = UINT32_MAX;  // groups of one write
  std::optional<Error> error_;
};

}  // namespace hifc::cache
