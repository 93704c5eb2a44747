// The free pieces of a region: first fit from either end, neighbours joined.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace hifc::tier {

class FreeRanges {
 public:
  FreeRanges() = default;
  explicit FreeRanges(uint64_t bytes);

  // The offset of `bytes` that were free, at the low end of the lowest piece that is as long, or at
  // the high end of the highest.
  std::optional<uint64_t> take_low(uint64_t bytes);
  std::optional<uint64_t> take_high(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes);

  uint64_t largest() const;

 private:
  std::map<uint64_t, uint64_t> length_;  // [offset]
};

}  // namespace hifc::tier
