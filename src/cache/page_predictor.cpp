#include "cache/page_predictor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace hifc::cache {
namespace {

// Halves a maximum in 7 steps and a mean in 3 (measured: docs/measurements.md).
constexpr float kMaxDecay = 0.9f;
constexpr float kMeanDecay = 0.8f;

// One number of each page.
class Decayed : public PagePredictor {
 public:
  explicit Decayed(double share) : share_(share) {}

  PageList predict(std::span<const uint32_t> candidates) const override {
    return heaviest(value_, candidates, share_);
  }
  std::span<const float> expected() const override { return value_; }
  void truncate(uint32_t pages) override { value_.resize(std::min<size_t>(value_.size(), pages)); }
  uint64_t bytes(uint32_t pages) const override { return pages * sizeof(float); }

 protected:
  // The next value of a page that has had values before.
  virtual float next(float value, float mass) const = 0;

  void observe(std::span<const float> mass) override {
    const size_t known = std::min(value_.size(), mass.size());
    for (size_t page = 0; page < known; ++page) value_[page] = next(value_[page], mass[page]);
    // New pages start with what they have.
    if (mass.size() > known) value_.insert(value_.end(), mass.begin() + known, mass.end());
  }

 private:
  double share_;
  std::vector<float> value_;  // [page]
};

class DecayedMean final : public Decayed {
 public:
  using Decayed::Decayed;
  float next(float value, float mass) const override {
    return kMeanDecay * value + (1 - kMeanDecay) * mass;
  }
};

class DecayedMax final : public Decayed {
 public:
  using Decayed::Decayed;
  float next(float value, float mass) const override { return std::max(kMaxDecay * value, mass); }
};

// The masses of the last steps, and what is told from their mean.
class Recent : public PagePredictor {
 public:
  explicit Recent(double share) : share_(share) {}

  void observe(std::span<const float> mass) override {
    std::vector<float>& oldest = steps_[next_];
    next_ = (next_ + 1) % kHistorySteps;
    for (size_t page = 0; page < oldest.size(); ++page)
      sum_[page] = std::max(0.0f, sum_[page] - oldest[page]);
    sum_.resize(std::max(sum_.size(), mass.size()));
    for (size_t page = 0; page < mass.size(); ++page) sum_[page] += mass[page];
    oldest.assign(mass.begin(), mass.end());
  }
  PageList predict(std::span<const uint32_t> candidates) const override {
    return heaviest(sum_, candidates, share_);
  }
  std::span<const float> expected() const override { return sum_; }
  void truncate(uint32_t pages) override {
    const auto cut = [&](std::vector<float>& of) { of.resize(std::min<size_t>(of.size(), pages)); };
    cut(sum_);
    for (std::vector<float>& step : steps_) cut(step);
  }
  uint64_t bytes(uint32_t pages) const override {
    return (kHistorySteps + 1) * uint64_t{pages} * sizeof(float);
  }

 private:
  double share_;
  std::array<std::vector<float>, kHistorySteps> steps_;  // [step][page]
  uint32_t next_ = 0;
  std::vector<float> sum_;  // [page]
};

class HotSpan final : public Recent {
 public:
  using Recent::Recent;

  PageList predict(std::span<const uint32_t> candidates) const override {
    const PageList hot = Recent::predict(candidates);
    if (hot.empty()) return hot;
    const double length = hot.back() - hot.front() + 1;
    const double first = hot.front() - std::ceil(0.10 * length);
    const double last = hot.back() + std::ceil(0.15 * length);
    PageList span;
    std::ranges::copy_if(candidates, std::back_inserter(span),
                         [&](uint32_t page) { return page >= first && page <= last; });
    return span;
  }
};

}  // namespace

PageList heaviest(std::span<const float> mass, std::span<const uint32_t> candidates, double share) {
  if (share >= 1) return {candidates.begin(), candidates.end()};  // whatever sums round to
  std::vector<std::pair<float, uint32_t>> order;  // heaviest first; ties by position
  order.reserve(candidates.size());
  double total = 0, held = 0;
  for (const float each : mass) total += each;
  held = total;
  for (const uint32_t page : candidates) {
    const float each = page < mass.size() ? mass[page] : 0.0f;
    held -= each;
    order.emplace_back(-each, page);
  }
  // Most are never asked for: a heap gives them one by one.
  std::ranges::make_heap(order, std::ranges::greater());
  PageList list;
  for (auto end = order.end(); end != order.begin() && held < share * total; --end) {
    std::ranges::pop_heap(order.begin(), end, std::ranges::greater());
    held -= (end - 1)->first;
    list.push_back((end - 1)->second);
  }
  std::ranges::sort(list);
  return list;
}

std::unique_ptr<PagePredictor> make_predictor(PredictorKind kind, double share) {
  HIFC_CHECK(share > 0 && share <= 1);
  switch (kind) {
    case PredictorKind::kDecayedMean: return std::make_unique<DecayedMean>(share);
    case PredictorKind::kDecayedMax: return std::make_unique<DecayedMax>(share);
    case PredictorKind::kMean: return std::make_unique<Recent>(share);
    case PredictorKind::kHotSpan: return std::make_unique<HotSpan>(share);
  }
  HIFC_CHECK(false);
  return nullptr;
}

}  // namespace hifc::cache
