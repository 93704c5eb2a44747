#include "tier/free_ranges.h"

#include <iterator>

#include "base/check.h"

namespace hifc::tier {

FreeRanges::FreeRanges(uint64_t bytes) {
  if (bytes > 0) length_[0] = bytes;
}

std::optional<uint64_t> FreeRanges::take(uint64_t bytes) {
  for (auto range = length_.begin(); range != length_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < bytes) continue;
    length_.erase(range);
    if (length > bytes) length_[offset + bytes] = length - bytes;
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

}  // namespace hifc::tier
