#include "cache/page_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace hifc::cache {
namespace {

// A page's heat is halved in 34 steps: what is pinned should not change from word to word.
constexpr float kHeatDecay = 0.98f;

double total(std::span<const float> weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

// The `count` heaviest of them, ascending.
void keep_heaviest(PageList& pages, std::span<const float> mass, size_t count) {
  if (pages.size() <= count) return;
  std::ranges::sort(pages, {}, [&](uint32_t page) { return std::pair(-mass[page], page); });
  pages.resize(count);
  std::ranges::sort(pages);
}

void insert(PageList& pages, uint32_t page) {
  pages.insert(std::ranges::lower_bound(pages, page), page);
}

}  // namespace

uint64_t PageSelector::bytes(const kv::ModelShape& shape, uint32_t pages) {
  const auto layers = static_cast<uint64_t>(std::ranges::count(shape.window, 0u));
  const uint64_t heads = shape.kv_heads;
  // Of each head the predictor's history at its largest and this step's masses.
  const uint64_t head = make_predictor(PredictorKind::kMean, 1.0)->bytes(1) + sizeof(float);
  return PageSketches::bytes(shape, pages) +
         layers * pages * (heads * head + sizeof(float) + sizeof(HeadSet));
}

PageSelector::PageSelector(const kv::ModelShape& shape, SparseOptions options,
                           const kernels::Codecs& codecs)
    : shape_(shape), options_(options), sketches_(shape, codecs), layers_(shape.layers) {
  for (Layer& layer : layers_) {
    layer.heads.resize(shape.kv_heads);
    for (Head& head : layer.heads)
      head.predictor = make_predictor(options_.predictor, 1 - kPredicted * (1 - options_.mass));
  }
}

bool PageSelector::knows(uint32_t layer, uint32_t pages) const {
  for (uint32_t page = 1; page + kNewestPages < pages; ++page)
    if (!sketches_.has(layer, page)) return false;
  return true;
}

void PageSelector::begin_layer(uint32_t layer, uint32_t pages) {
  HIFC_DCHECK(knows(layer, pages));
  layer_ = layer, pages_ = pages;
  always_.clear(), sketched_.clear();
  for (uint32_t page = 0; page < pages; ++page)
    (page == 0 || page + kNewestPages >= pages ? always_ : sketched_).push_back(page);
  std::vector<HeadSet>& reads = layers_[layer].reads;
  for (const uint32_t page : always_)
    if (page < reads.size()) reads[page] = kAllHeads;
}

// Shares of pages of each query's attention, mean over the head's queries.
void PageSelector::estimate(uint32_t kv_head) {
  std::vector<float>& mass = layers_[layer_].heads[kv_head].mass;
  mass.assign(pages_, 0.0f);
  const PageWeights &exact = *weights_.exact, &coarse = *weights_.sketched;
  for (uint32_t row = 0; row < exact.rows; ++row) {
    const size_t index = size_t{kv_head} * exact.rows + row;
    const float max = std::max(exact.max[index], coarse.max[index]);
    const double exact_scale = std::exp(exact.max[index] - max);
    const double coarse_scale = std::exp(coarse.max[index] - max);
    const auto exact_row = exact.of(kv_head, row), coarse_row = coarse.of(kv_head, row);
    const double all =
        (total(exact_row) * exact_scale + total(coarse_row) * coarse_scale) * exact.rows;
    for (size_t i = 0; i < always_.size(); ++i)
      mass[always_[i]] += static_cast<float>(exact_row[i] * exact_scale / all);
    for (size_t i = 0; i < sketched_.size(); ++i)
      mass[sketched_[i]] += static_cast<float>(coarse_row[i] * coarse_scale / all);
  }
}

// What has been read ahead; and more where this step's estimates say that it is not enough.
PageList PageSelector::choose(uint32_t kv_head) const {
  const Head& head = layers_[layer_].heads[kv_head];
  const size_t budget = options_.page_budget != 0 ? options_.page_budget : sketched_.size();
  PageList chosen = head.predictor->predict(sketched_), rest;
  keep_heaviest(chosen, head.predictor->expected(), budget);
  double left_out = 0;
  std::ranges::set_difference(sketched_, chosen, std::back_inserter(rest));
  for (const uint32_t page : rest) left_out += head.mass[page];
  if (left_out <= 1 - options_.mass) return chosen;
  PageList more = heaviest(head.mass, rest, options_.mass);
  keep_heaviest(more, head.mass, budget - chosen.size());
  chosen.insert(chosen.end(), more.begin(), more.end());
  std::ranges::sort(chosen);
  return chosen;
}

// What a sketched page may weigh at most, in units of exp(max).
double PageSelector::weight_bound(uint32_t kv_head, uint32_t row, size_t index, double max) const {
  const PageWeights& coarse = *weights_.sketched;
  const size_t at = size_t{kv_head} * coarse.rows + row;
  const double radius = sketches_.radius(layer_, sketched_[index], kv_head);
  return static_cast<double>(coarse.of(kv_head, row)[index]) *
         std::exp(coarse.max[at] + weights_.norms[at] * radius - max);
}

// What pages left out may have at most of one query's attention.
double PageSelector::bound(uint32_t kv_head, uint32_t row, const PageWeights& attended) const {
  const double max = attended.max[size_t{kv_head} * attended.rows + row];
  const PageList& selected = selected_[kv_head];
  double left_out = 0;
  auto next = selected.begin();
  for (size_t i = 0; i < sketched_.size(); ++i) {
    while (next != selected.end() && *next < sketched_[i]) ++next;
    if (next == selected.end() || *next != sketched_[i])
      left_out += weight_bound(kv_head, row, i, max);
  }
  return left_out == 0 ? 0 : left_out / (left_out + total(attended.of(kv_head, row)));
}

// The page that may weigh most first, until the worst of the head's queries is within the bound.
// Of what is attended to, always() alone counts: its weights are exact.
void PageSelector::add_until_bound(uint32_t kv_head) {
  const PageWeights& exact = *weights_.exact;
  const auto worst = [&](auto of_row) {
    double most = -std::numeric_limits<double>::infinity();
    for (uint32_t row = 0; row < exact.rows; ++row) most = std::max(most, of_row(row));
    return most;
  };
  std::vector<std::pair<double, uint32_t>> rest;
  for (size_t i = 0; i < sketched_.size(); ++i) {
    if (std::ranges::binary_search(selected_[kv_head], sketched_[i])) continue;
    const double most = worst([&](uint32_t row) {
      return weight_bound(kv_head, row, i, exact.max[size_t{kv_head} * exact.rows + row]);
    });
    rest.emplace_back(most, sketched_[i]);
  }
  std::ranges::sort(rest, std::ranges::greater());
  for (const auto& [most, page] : rest) {
    if (worst([&](uint32_t row) { return bound(kv_head, row, exact); }) <= options_.bound) return;
    insert(selected_[kv_head], page);
  }
}

void PageSelector::select(const Weights& weights) {
  weights_ = weights;
  selected_.resize(shape_.kv_heads);
  for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
    estimate(head);
    PageList& selected = selected_[head];
    selected = choose(head);
    selected.insert(selected.begin(), always_.front());
    selected.insert(selected.end(), always_.begin() + 1, always_.end());
    if (options_.bound < 1) add_until_bound(head);
    statistics.pages_selected += selected.size();
    statistics.pages_seen += pages_;
  }
  read_next([&](uint32_t head) { return selected_[head]; });
}

HeadSet PageSelector::reader(uint32_t kv_head) const {
  return shape_.kv_heads <= kHeadsMax ? head_bit(kv_head) : kAllHeads;
}

void PageSelector::read_next(FunctionRef<PageList(uint32_t kv_head)> pages) {
  std::vector<HeadSet>& reads = layers_[layer_].reads;
  reads.assign(pages_, 0);
  for (uint32_t head = 0; head < shape_.kv_heads; ++head)
    for (const uint32_t page : pages(head)) reads[page] |= reader(head);
  for (const uint32_t page : always_) reads[page] = kAllHeads;
}

void PageSelector::read_everything(uint32_t layer) {
  layers_[layer].reads.clear();
}

PageList PageSelector::selected() const {
  PageList all;
  for (const PageList& pages : selected_) all.insert(all.end(), pages.begin(), pages.end());
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

void PageSelector::keep_only(FunctionRef<bool(uint32_t page)> came) {
  for (PageList& pages : selected_)
    statistics.pages_missed += std::erase_if(pages, [&](uint32_t page) { return !came(page); });
}

void PageSelector::observe(const PageWeights& attended) {
  Layer& of = layers_[layer_];
  of.heat.resize(std::max<size_t>(of.heat.size(), pages_));
  for (float& heat : of.heat) heat *= kHeatDecay;
  for (const uint32_t page : selected()) of.heat[page] += 1 - kHeatDecay;
  for (uint32_t h = 0; h < shape_.kv_heads; ++h) {
    std::vector<float>& mass = of.heads[h].mass;
    double held = 0;
    for (const uint32_t page : selected_[h]) held += std::exchange(mass[page], 0.0f);
    // Of the pages attended to, what they really had takes the place of the estimate.
    for (uint32_t row = 0; row < attended.rows; ++row) {
      const auto weights = attended.of(h, row);
      const double share = held / (total(weights) * attended.rows);
      for (size_t i = 0; i < selected_[h].size(); ++i)
        mass[selected_[h][i]] += static_cast<float>(weights[i] * share);
      step_bound_ += bound(h, row, attended);
    }
    step_estimate_ += (1 - std::min(1.0, held)) * attended.rows;
    step_rows_ += attended.rows;
    of.heads[h].predictor->observe(mass);
  }
  read_next([&](uint32_t head) { return of.heads[head].predictor->predict(sketched_); });
}

void PageSelector::end_step() {
  if (step_rows_ == 0) return;
  skipped_.estimate.push_back(static_cast<float>(step_estimate_ / step_rows_));
  skipped_.bound.push_back(static_cast<float>(step_bound_ / step_rows_));
  step_estimate_ = step_bound_ = 0;
  step_rows_ = 0;
}

// What has no history is read: it has no sketch either, or is new.
HeadSet PageSelector::reads(uint32_t layer, uint32_t page) const {
  const std::vector<HeadSet>& reads = layers_[layer].reads;
  const bool known = page < reads.size() && (page == 0 || sketches_.has(layer, page));
  return known ? reads[page] : kAllHeads;
}

float PageSelector::heat(uint32_t layer, uint32_t page) const {
  const std::vector<float>& heat = layers_[layer].heat;
  return page < heat.size() ? heat[page] : 0.0f;
}

void PageSelector::truncate(uint32_t pages) {
  sketches_.truncate(pages);
  for (Layer& layer : layers_) {
    layer.heat.resize(std::min<size_t>(layer.heat.size(), pages));
    layer.reads.resize(std::min<size_t>(layer.reads.size(), pages));
    for (Head& head : layer.heads) head.predictor->truncate(pages);
  }
}

void PageSelector::forget(uint32_t first, uint32_t last) {
  for (uint32_t layer = 0; layer < shape_.layers; ++layer)
    for (uint32_t page = first; page < last; ++page) sketches_.forget(layer, page);
}

}  // namespace hifc::cache
