#include "tier/free_ranges.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace hifc::tier {

FreeRanges::FreeRanges(uint64_t bytes) {
  if (bytes > 0) length_[0] = bytes;
}

std::optional<uint64_t> FreeRanges::take_low(uint64_t bytes) {
  for (auto range = length_.begin(); range != length_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < bytes) continue;
    length_.erase(range);
    if (length > bytes) length_[offset + bytes] = length - bytes;
    return offset;
  }
  return std::nullopt;
}

std::optional<uint64_t> FreeRanges::take_high(uint64_t bytes) {
  for (auto range = length_.end(); range != length_.begin();) {
    --range;
    if (range->second < bytes) continue;
    range->second -= bytes;
    const uint64_t offset = range->first + range->second;
    if (range->second == 0) length_.erase(range);
    return offset;
  }
  return std::nullopt;
}

void FreeRanges::give_back(uint64_t offset, uint64_t bytes) {
  HIFC_CHECK(bytes > 0);
  const auto next = length_.lower_bound(offset);
  HIFC_CHECK(next == length_.end() || offset + bytes <= next->first);
  if (next != length_.end() && next->first == offset + bytes) {
    bytes += next->second;
    length_.erase(next);
  }
  const auto after = length_.lower_bound(offset);
  if (after != length_.begin()) {
    const auto before = std::prev(after);
    HIFC_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  length_[offset] = bytes;
}

uint64_t FreeRanges::largest() const {
  uint64_t most = 0;
  for (const auto& [offset, length] : length_) most = std::max(most, length);
  return most;
}

}  // namespace hifc::tier
