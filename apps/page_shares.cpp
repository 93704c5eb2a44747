#include "apps/page_shares.h"

#include <algorithm>
#include <numeric>

#include "cache/page_selector.h"

namespace hifc::apps {
namespace {

// Splits end with pages that are not there yet.
uint32_t pages_of(const cache::PageWeights& weights) {
  uint32_t pages = weights.pages;
  while (pages > 0 && weights.of(0, 0)[pages - 1] == 0) --pages;
  return pages;
}

}  // namespace

std::vector<float> page_shares(const cache::PageWeights& weights, uint32_t kv_head, uint32_t row) {
  const auto of_row = weights.of(kv_head, row).first(pages_of(weights));
  const float total = std::accumulate(of_row.begin(), of_row.end(), 0.0f);
  std::vector<float> shares;
  for (const float weight : of_row) shares.push_back(weight / total);
  return shares;
}

std::vector<float> page_shares(const cache::PageWeights& weights, uint32_t kv_head) {
  std::vector<float> mean(pages_of(weights));
  for (uint32_t row = 0; row < weights.rows; ++row) {
    const std::vector<float> shares = page_shares(weights, kv_head, row);
    for (size_t page = 0; page < mean.size(); ++page)
      mean[page] += shares[page] / static_cast<float>(weights.rows);
  }
  return mean;
}

cache::PageList optional_pages(const cache::PageWeights& weights) {
  cache::PageList pages;
  for (uint32_t page = 1; page + cache::PageSelector::kNewestPages < pages_of(weights); ++page)
    pages.push_back(page);
  return pages;
}

}  // namespace hifc::apps
