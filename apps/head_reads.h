// What reading only those KV heads' parts of blocks saves that need them. Pure computation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_predictor.h"
#include "kv/layout.h"
#include "tier/device_profile.h"

namespace hifc::apps {

// The pages that each KV head of a layer needs in one step.
using HeadPages = std::vector<cache::PageList>;  // [kv_head], ascending

struct ReadSum {
  uint64_t bytes = 0;
  uint64_t reads = 0;

  ReadSum& operator+=(const ReadSum& other) {
    bytes += other.bytes, reads += other.reads;
    return *this;
  }
  double seconds(const tier::DeviceProfile& device) const {
    return static_cast<double>(reads) * device.fixed_s +
           static_cast<double>(bytes) * device.s_per_byte;
  }
};

// Reads from blocks of one page each, one layer's side by side, planned as the cache plans them for
// this device (cache/read_plan.h); of an unknown one, no byte is read that is not wanted.
class HeadReads {
 public:
  HeadReads(const kv::BlockLayout& layout, const tier::DeviceProfile& device)
      : layout_(layout), device_(device) {}

  // Whole blocks of every page that a head needs.
  ReadSum whole(const HeadPages& needed) const;
  // Heads' parts of blocks, in which heads lie in this order: order[0] comes first.
  ReadSum by_head(const HeadPages& needed, std::span<const uint32_t> order) const;

 private:
  enum class Part : uint8_t { kWhole, kHeads };
  ReadSum sum(const HeadPages& needed, std::span<const uint32_t> order, Part part) const;

  kv::BlockLayout layout_;
  tier::DeviceProfile device_;
};

std::vector<uint32_t> natural_order(uint32_t heads);
// Heads that need the same pages next to each other: from the head with the most pages on, always
// the one most like the last. `steps`: of one layer.
std::vector<uint32_t> order_by_likeness(std::span<const HeadPages> steps);

}  // namespace hifc::apps
