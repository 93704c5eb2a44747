// Which tokens of a split, and so which pages, the query rows see.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_ROWS_INL_H_
#undef HIFC_KERNELS_GENERIC_ROWS_INL_H_
#else
#define HIFC_KERNELS_GENERIC_ROWS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/attention.h"
#include "kernels/generic/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

struct Range {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool empty() const { return begin >= end; }
};

inline Range row_range(const QueryRows& rows, uint32_t row) {
  HIFC_DCHECK(rows.end[row] <= kSplitTokens);
  return Range{rows.begin[row], rows.end[row]};
}

// The hull of what the rows see of one page, rounded outward to kDepthStep: weights of tokens that
// a row does not see are zero.
inline Range page_range(const QueryRows& rows, uint32_t first, uint32_t count, uint32_t page) {
  const uint32_t page_begin = page * kv::kPageTokens;
  Range hull = {kv::kPageTokens, 0};
  for (uint32_t row = first; row < first + count; ++row) {
    const Range range = row_range(rows, row);
    const uint32_t begin = std::max(range.begin, page_begin);
    const uint32_t end = std::min(range.end, page_begin + kv::kPageTokens);
    if (begin >= end) continue;
    hull.begin = std::min(hull.begin, begin - page_begin);
    hull.end = std::max(hull.end, end - page_begin);
  }
  hull.begin = hull.begin / kDepthStep * kDepthStep;
  hull.end = (hull.end + kDepthStep - 1) / kDepthStep * kDepthStep;
  return hull;
}

// The pages that some row sees, in ascending order.
struct SeenPages {
  explicit SeenPages(const QueryRows& rows) {
    for (uint32_t page = 0; page < kSplitPages; ++page)
      if (!page_range(rows, 0, rows.count, page).empty()) index[count++] = page;
  }
  uint32_t count = 0;
  std::array<uint32_t, kSplitPages> index = {};
};

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_ROWS_INL_H_
