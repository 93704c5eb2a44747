// Which pages sparse attention attends to and reads, and what it left out.
//
// In each layer without a window, every KV head has a set of its own:
//   - the first page and the newest ones;
//   - pages that held most of the attention of the steps before, which have been read ahead
//     (page_predictor.h);
//   - where these leave out more than `mass` allows of this step's attention, by its query and all
//     pages' sketches: the heaviest of the others, until they do not.
// Attention is meant as the mean over the head's queries.
//
// So budgets adapt to layer, head and text. With SparseOptions::bound, more are taken until what is
// left out surely holds less than that of every query's attention.
//
// A selection follows from the sequence and the options alone, never from where blocks are.
// Thread-compatible; pure computation.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "cache/page_predictor.h"
#include "cache/page_sketches.h"
#include "cache/sequence.h"
#include "cache/tiered_attention.h"
#include "kv/shape.h"

namespace hifc::cache {

struct SparseOptions {
  bool enabled = false;
  double mass = 0.98;
  uint32_t page_budget = 0;  // of a layer and KV head, those always taken besides; 0: no limit
  double bound = 1.0;        // what surely is not left out; 1: no such promise
  PredictorKind predictor = PredictorKind::kDecayedMean;
  OnMiss on_miss = OnMiss::kFetch;
  uint64_t miss_deadline_ns = 0;  // of a layer, from when its query is known
};

// What attention left out, as shares of the attention of a token: mean over layers and query heads.
struct SkippedMass {
  std::vector<float> estimate;  // [token]
  std::vector<float> bound;     // [token] what it surely is not more than
};

struct SparseStatistics {
  uint64_t pages_selected = 0;  // over steps, layers and KV heads
  uint64_t pages_seen = 0;      // exact attention would have taken
  uint64_t pages_missed = 0;    // were left out because they had not come in time
};

class PageSelector {
 public:
  static constexpr uint32_t kNewestPages = 2;
  // Of what `mass` leaves out, predictions leave out so much, since not all of them come true: a
  // step that misses more has to wait for pages, which costs a read's latency in each layer
  // (measured: docs/measurements.md).
  static constexpr double kPredicted = 0.5;
  // Of statistics for so many pages, sketches included.
  static uint64_t bytes(const kv::ModelShape& shape, uint32_t pages);

  PageSelector(const kv::ModelShape& shape, SparseOptions options, const kernels::Codecs& codecs);

  const SparseOptions& options() const { return options_; }
  PageSketches& sketches() { return sketches_; }
  bool applies_to(uint32_t layer) const { return shape_.window[layer] == 0; }

  // Whether all pages that may be left out have a sketch, in a step that sees `pages`.
  bool knows(uint32_t layer, uint32_t pages) const;

  // In this order, for each layer of a step:
  void begin_layer(uint32_t layer, uint32_t pages);
  const PageList& always() const { return always_; }      // the first and the newest pages
  const PageList& sketched() const { return sketched_; }  // all others
  // `exact`: weights of always(); `sketched`: estimates of sketched(). Pages in their order.
  struct Weights {
    const PageWeights* exact = nullptr;
    const PageWeights* sketched = nullptr;
    std::vector<float> norms;  // [kv_head][row] length of the query * scale of scores
  };
  void select(const Weights& weights);
  // always() among them.
  const PageList& selected(uint32_t kv_head) const { return selected_[kv_head]; }
  PageList selected() const;  // by any KV head
  // Without pages that have not come.
  void keep_only(FunctionRef<bool(uint32_t page)> came);
  // After attention: weights of each head's selected pages, in their order.
  void observe(const PageWeights& attended);
  // Once per step, after its last layer.
  void end_step();

  // The KV heads whose part of a page is to be in memory when the layer is computed next.
  HeadSet reads(uint32_t layer, uint32_t page) const;
  // All of every page's, until the next selection.
  void read_everything(uint32_t layer);
  // How often it was selected lately: the share of steps, of which the latest count most.
  float heat(uint32_t layer, uint32_t page) const;

  void truncate(uint32_t pages);
  // Pages [first, last) are computed again.
  void forget(uint32_t first, uint32_t last);

  const SkippedMass& skipped() const { return skipped_; }
  SparseStatistics statistics;

 private:
  struct Head {
    std::unique_ptr<PagePredictor> predictor;
    std::vector<float> mass;  // [page] of this step, estimated
  };
  struct Layer {
    std::vector<Head> heads;
    std::vector<float> heat;     // [page]
    std::vector<HeadSet> reads;  // [page]
  };
  void estimate(uint32_t kv_head);
  PageList choose(uint32_t kv_head) const;
  double weight_bound(uint32_t kv_head, uint32_t row, size_t index, double max) const;
  double bound(uint32_t kv_head, uint32_t row, const PageWeights& attended) const;
  void add_until_bound(uint32_t kv_head);
  HeadSet reader(uint32_t kv_head) const;
  // `pages(kv_head)` are what each head reads besides always().
  void read_next(FunctionRef<PageList(uint32_t kv_head)> pages);

  kv::ModelShape shape_;
  SparseOptions options_;
  PageSketches sketches_;
  std::vector<Layer> layers_;

  // Of the running layer.
  uint32_t layer_ = 0, pages_ = 0;
  PageList always_, sketched_;
  Weights weights_;
  std::vector<PageList> selected_;  // [kv_head]

  SkippedMass skipped_;
  double step_estimate_ = 0, step_bound_ = 0;
  uint32_t step_rows_ = 0;
};

}  // namespace hifc::cache
