// The free pieces of a region: the lowest that is long enough is taken, neighbours are joined.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace hifc::tier {

class FreeRanges {
 public:
  FreeRanges() = default;
  explicit FreeRanges(uint64_t bytes);

  // The offset of `bytes` that were free.
  std::optional<uint64_t> take(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes);

 private:
  std::map<uint64_t, uint64_t> length_;  // [offset]
};

}  // namespace hifc::tier
