// What pages have of a step's attention, from the weights that cache::LayerObserver is told.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_predictor.h"
#include "cache/tiered_attention.h"

namespace hifc::apps {

// [page] shares of one query's attention, and the mean over a KV head's queries.
std::vector<float> page_shares(const cache::PageWeights& weights, uint32_t kv_head, uint32_t row);
std::vector<float> page_shares(const cache::PageWeights& weights, uint32_t kv_head);

// The pages that sparse attention may leave out: all but the first and the newest.
cache::PageList optional_pages(const cache::PageWeights& weights);

}  // namespace hifc::apps
