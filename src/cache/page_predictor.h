// Which pages of a layer and KV head the next step's attention will need, told from what it needed
// in the steps before: what is read ahead where attention is sparse.
//
// A page's mass is its share of the attention of one step, mean over the query heads of the KV
// head. Pages that always belong to attention (the first, the newest) are no concern of predictors.
//
// Thread-compatible; no I/O, no clock: a prediction is a function of the masses observed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/attention_options.h"

namespace hifc::cache {

inline constexpr uint32_t kHistorySteps = 16;

// Pages in ascending order.
using PageList = std::vector<uint32_t>;

// The fewest of `candidates` that, with all pages that are none, hold `share` of the mass; in
// ascending order.
PageList heaviest(std::span<const float> mass, std::span<const uint32_t> candidates, double share);

// Of one layer and KV head.
class PagePredictor {
 public:
  virtual ~PagePredictor() = default;
  // One step's masses: [page]. Later pages are new and have no history.
  virtual void observe(std::span<const float> mass) = 0;
  // The candidates, ascending, that the next step will need.
  virtual PageList predict(std::span<const uint32_t> candidates) const = 0;
  // Forgets pages from `pages` on.
  virtual void truncate(uint32_t pages) = 0;
  // What it expects of each page: [page], as far as pages have been observed.
  virtual std::span<const float> expected() const = 0;
  // Of its state for so many pages.
  virtual uint64_t bytes(uint32_t pages) const = 0;
};

// `share`: of the observed mass that predicted pages hold.
std::unique_ptr<PagePredictor> make_predictor(PredictorKind kind, double share);

}  // namespace hifc::cache
