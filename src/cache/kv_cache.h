// The KV cache of one sequence over the tiers: what the engine talks to.
//
//   begin_step(position, tokens, kind)
//   attend(layer 0) ... attend(layer n-1)     in layer order, each exactly once
//   end_step()                                 or abort_step() after a failure
//
// attend() appends the step's K and V to the layer's blocks and computes exact attention over all
// tokens up to each query, wherever their blocks are; results never depend on where that is.
//
// Sealing: where a layer's codecs are lossy, a page is encoded once, when it ends kExactTokens or
// more before a step's first position, wherever its block is then. That depends on positions alone.
// A sequence's first kv::kSinkTokens tokens stay exact for ever. A group is written once all its
// pages are sealed.
//
// A block on flash that cannot be read or fails verification makes attend() fail with kCorrupt. The
// step is then aborted, and each first_lost_group() computed again: begin_step on exactly that
// group's tokens, against the groups before it. Then the step is repeated.
//
// A new sequence may begin with a prefix that an earlier one left on flash:
//
//   find_stored(tokens), load() where a group should be in memory at once, adopt()
//
// and save() leaves everything there for later ones.
//
// Thread-compatible: one thread calls everything; work is spread over the given Parallel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/function_ref.h"
#include "base/parallel.h"
#include "base/result.h"
#include "base/trace.h"
#include "cache/group_format.h"
#include "cache/group_writer.h"
#include "cache/page_selector.h"
#include "cache/placement.h"
#include "cache/prefetcher.h"
#include "cache/residency.h"
#include "cache/resume.h"
#include "cache/sequence.h"
#include "cache/tiered_attention.h"
#include "kernels/codec.h"
#include "kv/key.h"
#include "kv/layout.h"
#include "kv/shape.h"
#include "tier/tiers.h"

namespace hifc::cache {

// The newest tokens are never encoded.
inline constexpr uint32_t kExactTokens = 128;

// Is told, on the thread that drives the cache, about the attention of each layer of a step.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  // It begins. It sees `tokens` tokens, the step's own among them; a window hides the others. The
  // cache's Parallel is free until this returns.
  virtual void attending(uint32_t /*layer*/, uint32_t /*tokens*/) {}
  // Whether weighed() is to be called: weights take time.
  virtual bool wants_weights() const { return false; }
  // Exact attention of a generated token: what each page has of it, from `first_page` on.
  virtual void weighed(uint32_t /*layer*/, uint32_t /*first_page*/, const PageWeights&) {}
  // Sparse attention: what it attended to.
  virtual void selected(uint32_t /*layer*/, uint32_t /*kv_head*/, const PageList&) {}
};

struct CacheOptions {
  kv::ModelShape shape;
  uint32_t block_tokens = 256;  // 64, 128 or a multiple of 256
  kv::CodecPolicy codecs = {};  // [layer]; none: all F16
  kv::Fingerprint fingerprint = {};
  PrefetchOptions prefetch;
  SparseOptions sparse;
  LayerObserver* layer_observer = nullptr;
  const std::atomic<bool>* cancelled = nullptr;  // attend() fails with kCancelled once it is true
  Trace* trace = nullptr;                        // outlives the tiers: late reads are recorded too
};

struct CacheStatistics {
  PrefetchStatistics prefetch;
  SparseStatistics sparse;
  uint64_t stall_ns = 0;     // attention waited for flash
  uint64_t lost_groups = 0;  // damaged or unreadable on flash, begun to be computed again
  uint64_t kv_bytes = 0;     // K and V of all tokens now held, as they are encoded
};

class KvCache {
 public:
  // Memory that lets chunks of at most `ubatch` tokens run over a cold tier: the groups being
  // filled or sealed, a group being recomputed and the blocks in flight of one layer. No chunk goes
  // past a multiple of `ubatch`.
  static uint64_t bytes_for_ubatch(const kv::GroupLayout& layout, uint32_t ubatch);
  // The least of that.
  static uint64_t bytes_min(const kv::GroupLayout& layout);
  // What holds `tokens` tokens without a cold tier.
  static uint64_t bytes_for_all(const kv::GroupLayout& layout, uint32_t tokens, uint32_t ubatch);
  // Of all these, what the tiers have to keep for exact blocks of lossy layers.
  static uint64_t exact_bytes(const kv::GroupLayout& layout, uint32_t ubatch, bool cold_tier);

  // kInvalid when block_tokens is not one the attention splits allow, or when the tiers hold less
  // than bytes_min(); all arguments must outlive the cache.
  static Result<std::unique_ptr<KvCache>> create(CacheOptions options, tier::Tiers& tiers,
                                                 const kernels::Kernels& kernels,
                                                 Parallel& parallel, const Clock& clock);
  ~KvCache();

  // Tokens whose KV is complete.
  uint32_t length() const { return sequence_.length(); }
  std::span<const int32_t> tokens() const { return sequence_.tokens; }
  uint32_t block_tokens() const { return format_.block_tokens(); }

  // The step computes `tokens` at [position, position + tokens): either the next ones (position ==
  // length(), and there is no first_lost_group(): ask before each step, since reading ahead may
  // lose a group between steps), or tokens of the first lost group in order.
  // `kind`: of tokens that are computed again kPrompt.
  void begin_step(uint32_t position, std::span<const int32_t> tokens, StepKind kind);
  Result<void> attend(const LayerInput& input);
  void end_step();
  void abort_step();

  // The earliest group that has to be computed again, if any.
  std::optional<uint32_t> first_lost_group() const;

  // Everything complete is on flash (the open group stays in memory).
  Result<void> flush();
  // As flush(), with what is still exact on flash too, and all of it durable: complete groups are
  // sealed, the last one is parked as it is.
  Result<void> save();

  // What flash has of these tokens; nothing is read but metadata.
  StoredPrefix find_stored(std::span<const int32_t> tokens, const Patience& patience);
  // Reads group `index` of a stored prefix, or its tail, which is the group after the others.
  Result<LoadedGroup> load(const StoredPrefix& prefix, uint32_t index, const Patience& patience);
  // What of a stored prefix is in memory already.
  struct Loaded {
    std::optional<LoadedGroup> first;
    std::optional<LoadedGroup> tail;  // where the prefix has one
  };
  // Makes the prefix the beginning of this sequence, which is empty: length() is its length. Its
  // groups are read when attention asks for them.
  void adopt(std::span<const int32_t> tokens, StoredPrefix prefix, Loaded loaded);

  // Bytes of the prefix that the step after it reads: layers with a window read less than all.
  uint64_t bytes_to_read(const StoredPrefix& prefix) const;

  // attend() fails with kTimeout once steps from now on have waited longer than this for flash;
  // reads that are still on their way are given up. UINT64_MAX: never.
  void limit_stall(uint64_t limit_ns) { stall_limit_ns_ = limit_ns, limited_stall_ns_ = 0; }

  // Forgets tokens from `length` on. Where that is inside a group that is not wholly in memory, all
  // of the group's. Returns the new length.
  uint32_t truncate(uint32_t length);
  // Forgets everything after the first group that is not wholly in memory. Returns the new length.
  uint32_t keep_memory();

  CacheStatistics statistics() const;
  // What sparse attention left out of each token since the cache was made; empty where it is exact.
  const SkippedMass* skipped() const { return selector_ ? &selector_->skipped() : nullptr; }

 private:
  struct Sealing {
    uint32_t group = 0;
    uint32_t pages = 0;  // so many of its pages are to be sealed
  };
  struct Step {
    uint32_t position = 0;
    std::vector<int32_t> tokens;
    StepKind kind = StepKind::kGeneration;
    bool recompute = false;
    bool seals_all_before = false;
    std::vector<Sealing> sealing = {};
    uint32_t end() const { return position + static_cast<uint32_t>(tokens.size()); }
  };
  KvCache(CacheOptions options, kv::GroupLayout layout, tier::Tiers& tiers,
          const kernels::Kernels& kernels, Parallel& parallel, const Clock& clock);

  uint32_t group_of(uint32_t position) const { return position / block_tokens(); }
  uint32_t groups_end() const { return group_of(step_.end() - 1) + 1; }
  // A unit is the span that attention takes as a whole: a block, or the blocks of one split.
  uint32_t groups_per_unit() const;
  uint32_t splits_per_unit() const;
  // That the running step sees.
  uint32_t first_token(uint32_t layer) const;
  uint32_t first_split(uint32_t layer) const;
  const kv::GroupLayout& layout() const { return format_.layout; }
  void plan();
  void plan_sealing();
  void make_room_for_recomputing(uint32_t group);
  uint64_t bytes_to_open() const;

  bool cancelled() const {
    return options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed);
  }
  Result<void> append(const LayerInput& input);
  // Takes frames for what is to be filled, waiting for them where others are on their way.
  Result<void> take_frame(uint32_t layer, FunctionRef<bool()> take);
  void count_stall(const TraceKind& kind, uint32_t layer, uint64_t start_ns);
  Result<void> open_block(uint32_t group, uint32_t layer);
  void store_page(const LayerInput& input, uint32_t page, uint32_t kv_head);
  Result<void> seal(uint32_t layer, const Sealing& sealing);
  void seal_page(uint32_t layer, uint32_t group, uint32_t page, uint32_t kv_head);
  Result<void> seal_complete();
  void restore_pages(uint32_t layer, uint32_t group, const Block& block, uint32_t first_page) const;
  void restore_last_group();
  bool reopen_block(uint32_t layer, uint32_t group, Block& block, uint32_t pages);

  Result<void> stream(const LayerInput& input);
  void advance_reads(uint32_t layer);
  // What a wait for flash is over for.
  struct Awaited {
    FunctionRef<bool()> enough;
    std::span<const uint32_t> first;  // groups without which nothing goes on
    uint64_t patience_ns = UINT64_MAX;
  };
  std::vector<uint32_t> take_ready(uint32_t layer, std::vector<uint32_t>& pending);
  // The groups of units that the step sees in `layer`, ascending.
  std::vector<uint32_t> groups_of(uint32_t layer, uint32_t unit) const;
  std::vector<uint32_t> groups_of(uint32_t layer, std::span<const uint32_t> units) const;
  bool ready(uint32_t layer, uint32_t unit) const;
  bool ready(uint32_t layer, std::span<const uint32_t> groups) const;
  bool worth_computing(uint32_t layer, std::span<const uint32_t> pending) const;
  Result<void> wait_for_reads(uint32_t layer, const Awaited& awaited);
  bool force_read(uint32_t layer, std::span<const uint32_t> groups);
  Result<void> check_lost(uint32_t layer) const;
  Result<void> verify(uint32_t layer, std::span<const uint32_t> groups);
  bool verify_block(uint32_t layer, uint32_t group) const;
  void compute(uint32_t layer, std::span<const uint32_t> units);
  // Puts a page where `slot` is in `pages`.
  void add_page(uint32_t layer, uint32_t page, uint32_t kv_head, uint32_t slot,
                kernels::SplitPages& pages) const;
  void release(uint32_t layer, std::span<const uint32_t> groups);

  // Sparse attention (kv_cache_sparse.cpp).
  void begin_sparse_step();
  void pin_hot_pages();
  bool sparse(uint32_t layer) const;
  uint32_t pages_end() const { return (step_.end() - 1) / kv::kPageTokens + 1; }
  std::vector<uint32_t> groups_of_pages(std::span<const uint32_t> pages) const;
  uint32_t gathered_tokens(std::span<const uint32_t> pages) const;
  kernels::SplitPages gathered_pages(uint32_t layer, std::span<const uint32_t> pages,
                                     uint32_t split, uint32_t kv_head) const;
  Result<void> stream_selected(const LayerInput& input);
  Result<void> bring(uint32_t layer, std::span<const uint32_t> groups,
                     uint64_t patience_ns = UINT64_MAX);
  void select(const LayerInput& input);
  void weigh(const LayerInput& input);
  Result<void> skip_missing(uint32_t layer);
  // A KV head's part of a split of gathered pages, and the groups these are in.
  struct GatheredPart {
    TieredAttention::Part part;
    std::vector<uint32_t> groups;
  };
  std::vector<GatheredPart> gathered_parts() const;
  Result<void> attend_to_selection(const LayerInput& input);
  std::vector<GatheredPart> take_ready(uint32_t layer, std::vector<GatheredPart>& pending) const;
  Result<void> wait_for_parts(uint32_t layer, std::span<const GatheredPart> pending);
  Result<void> compute(uint32_t layer, std::span<const GatheredPart> wave);
  void release_done(uint32_t layer, std::span<const GatheredPart> pending,
                    std::vector<uint32_t>& unreleased);
  void drop_unselected(uint32_t layer);
  void sketch_pages(uint32_t layer, std::span<const uint32_t> groups);

  Error out_of_frames() const;
  bool in_memory(const Group& group) const;
  bool reopen(uint32_t group, uint32_t tokens);
  void lose(uint32_t group);
  void drop_read_ahead();
  void drop_lost();
  void drop_groups_from(uint32_t first);

  CacheOptions options_;
  GroupFormat format_;
  tier::Tiers& tiers_;
  const kernels::Kernels& kernels_;
  const kernels::Codecs& codecs_;
  Parallel& parallel_;
  const Clock& clock_;

  Sequence sequence_;
  Placement placement_;
  Residency residency_;
  Prefetcher prefetcher_;
  GroupWriter writer_;
  TieredAttention attention_;
  std::optional<PageSelector> selector_;  // where attention may be sparse
  PageWeights exact_weights_, sketch_weights_;
  bool sparse_step_ = false;
  uint32_t sparse_steps_ = 0;  // before the running one, without another in between
  Step step_;
  uint64_t stall_limit_ns_ = UINT64_MAX, limited_stall_ns_ = 0;
  CacheStatistics statistics_;
};

}  // namespace hifc::cache
