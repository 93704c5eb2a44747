// KvCache without faults. The cache's promise is that where blocks are, how the tokens are cut into
// steps and how many threads work never shows: outputs are compared bit by bit with those of a
// cache that holds everything in memory, and those with attention in double precision.
#include "cache/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"

namespace hifc::cache {
namespace {

// Inputs are below 2 in magnitude, sums are in F32 over at most 1,700 tokens.
constexpr double kTolerance = 2e-5;

// Attention of one query head in double precision over plain vectors.
std::vector<double> reference(const Inputs& in, uint32_t layer, uint32_t position, uint32_t head) {
  const uint32_t dim = in.shape.head_dim, window = in.shape.window[layer];
  const uint32_t kv_head = head / (in.shape.query_heads / in.shape.kv_heads);
  const uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
  const float* q = &in.q[in.out_offset(layer, position) + size_t{head} * dim];
  const auto kv_at = [&](uint32_t token) {
    return (size_t{layer} * in.length + token) * in.kv_row() + size_t{kv_head} * dim;
  };
  std::vector<double> scores, out(dim);
  for (uint32_t token = first; token <= position; ++token) {
    double score = 0;
    for (uint32_t d = 0; d < dim; ++d)
      score += static_cast<double>(q[d]) * from_half(in.k[kv_at(token) + d]);
    score *= in.scale();
    scores.push_back(in.softcap == 0.0f ? score : in.softcap * std::tanh(score / in.softcap));
  }
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (uint32_t token = first; token <= position; ++token)
    for (uint32_t d = 0; d < dim; ++d)
      out[d] += scores[token - first] / sum * from_half(in.v[kv_at(token) + d]);
  return out;
}

void expect_close_to_reference(const Inputs& in, const Outputs& outputs) {
  for (uint32_t layer = 0; layer < in.shape.layers; ++layer)
    for (uint32_t position = 0; position < in.length; position += position < 200 ? 13 : 101)
      for (uint32_t head = 0; head < in.shape.query_heads; ++head) {
        const std::vector<double> expected = reference(in, layer, position, head);
        for (uint32_t d = 0; d < in.shape.head_dim; ++d)
          ASSERT_NEAR(outputs[in.out_offset(layer, position) + head * in.shape.head_dim + d],
                      expected[d], kTolerance)
              << "layer " << layer << " position " << position << " head " << head;
      }
}

void expect_same(const Inputs& in, const Outputs& expected, const CacheSetup& setup, uint32_t until,
                 uint32_t chunk) {
  SCOPED_TRACE(
      fmt::format("block_tokens {}, {} frames, flash {}, backend {}, {} threads, chunks {}",
                  setup.block_tokens, setup.hot_frames + setup.warm_frames, setup.flash,
                  static_cast<int>(setup.ring.backend), setup.threads, chunk));
  Session session(in, setup);
  const auto opened = session.open();
  ASSERT_TRUE(opened) << opened.error().message();
  // Prefill in chunks, then decode.
  for (const auto& [end, step] : {std::pair(until - 12, chunk), std::pair(until, 1u)}) {
    const auto outcome = session.advance(end, step);
    ASSERT_TRUE(outcome) << outcome.error().message() << " at " << session.cache->length();
  }
  EXPECT_TRUE(same_bits(in, expected, session.outputs, until));
  for (const auto tier : {tier::Tier::kHot, tier::Tier::kWarm}) {
    const tier::TierCounters counters = session.tiers->counters(tier);
    EXPECT_LE(counters.peak_bytes, counters.capacity_bytes);
  }
}

// Tokens after which even the minimum of memory holds only a part.
uint32_t length_for(uint32_t block_tokens) {
  return block_tokens <= 128 ? 450 : 2 * block_tokens + 117;
}

void expect_same_everywhere(kv::ModelShape shape, float softcap = 0.0f,
                            uint32_t generated_from = 0) {
  const Inputs in(std::move(shape), length_for(512), 11, softcap);
  const Outputs expected = undamaged(in, generated_from);
  expect_close_to_reference(in, expected);
  uint32_t turn = 0;
  for (const uint32_t block_tokens : {64u, 128u, 256u, 512u})
    for (const uint32_t chunk : {1u, 37u, 64u, 200u, 256u}) {
      const uint32_t until = length_for(block_tokens);
      CacheSetup setup = minimum(in.shape, block_tokens, chunk);
      setup.generated_from = generated_from;
      setup.ring.backend =
          turn % 2 == 0 ? io::RingOptions::Backend::kAutomatic : io::RingOptions::Backend::kThreads;
      setup.threads = 1 + turn % 3;
      setup.prefetch.window_layers = turn % 4;
      expect_same(in, expected, setup, until, chunk);
      ++turn;
      if (turn % 2 == 0) continue;
      // Ample: half of it stays, partly in hot memory.
      const uint32_t groups = (until + block_tokens - 1) / block_tokens;
      setup.hot_frames = groups * in.shape.layers / 2;
      expect_same(in, expected, setup, until, chunk);
      setup = in_memory(in.shape, until, block_tokens);
      setup.generated_from = generated_from;
      setup.threads = 1 + (turn + 1) % 3;
      expect_same(in, expected, setup, until, chunk);
    }
}

TEST(KvCache, GivesTheSameBitsWhereverBlocksAre) {
  expect_same_everywhere(
      {.layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 64, .window = {0, 0, 0}});
}

TEST(KvCache, GivesTheSameBitsWithGroupedQueriesAndWindows) {
  expect_same_everywhere(
      {.layers = 4, .query_heads = 3, .kv_heads = 1, .head_dim = 80, .window = {0, 96, 0, 300}});
}

// Whose kernels may be others than those of generated tokens.
TEST(KvCache, GivesTheSameBitsForPrompts) {
  expect_same_everywhere(
      {.layers = 4, .query_heads = 6, .kv_heads = 2, .head_dim = 80, .window = {0, 96, 0, 300}},
      0.0f, UINT32_MAX);
}

TEST(KvCache, GivesTheSameBitsWithSoftcap) {
  expect_same_everywhere({.layers = 5,
                          .query_heads = 4,
                          .kv_heads = 1,
                          .head_dim = 128,
                          .window = {200, 0, 200, 0, 200}},
                         3.0f);
}

TEST(KvCache, GivesTheSameBitsWhereEveryLayerHasAWindow) {
  expect_same_everywhere(
      {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .window = {100, 700, 40}});
}

TEST(KvCache, TakesTensorsByTheirStrides) {
  const kv::ModelShape shape{
      .layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .window = {0}};
  const Inputs in(shape, 300, 5);
  const Outputs expected = undamaged(in);
  // The same numbers, head by head instead of token by token, as libllama gives them.
  Inputs turned = in;
  for (uint32_t token = 0; token < in.length; ++token) {
    for (uint32_t head = 0; head < 4; ++head)
      std::copy_n(&in.q[(token * 4 + head) * 64], 64, &turned.q[(head * in.length + token) * 64]);
    for (uint32_t head = 0; head < 2; ++head) {
      const size_t from = (token * 2 + head) * 64, to = (head * in.length + token) * 64;
      std::copy_n(&in.k[from], 64, &turned.k[to]);
      std::copy_n(&in.v[from], 64, &turned.v[to]);
    }
  }
  Session session(in, in_memory(shape, in.length));
  ASSERT_TRUE(session.open());
  LayerInput input = turned.at(0, 0, session.outputs.data());
  input.q_token_stride = input.k_token_stride = input.v_token_stride = 64;
  input.q_head_stride = input.k_head_stride = input.v_head_stride = in.length * size_t{64};
  session.cache->begin_step(0, in.tokens, StepKind::kGeneration);
  ASSERT_TRUE(session.cache->attend(input));
  session.cache->end_step();
  EXPECT_TRUE(same_bits(in, expected, session.outputs, in.length));
}

const kv::ModelShape kPlain{.layers = 6,
                            .query_heads = 2,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .window = std::vector<uint32_t>(6)};

TEST(KvCache, HitsItsShareInDecodeAndReadsNeighboursTogether) {
  const Inputs in(kPlain, 32 * 64 + 28, 3);
  constexpr uint32_t kBlocks = 32 * 6;
  // 60 % of the blocks, the groups being filled, and three layers of what is left to be read.
  Session session(in, {.block_tokens = 64,
                       .hot_frames = kBlocks * 6 / 10,
                       .warm_frames = 2 * 6 + 3 * 13,
                       .flash = true});
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(32 * 64, 256));
  ASSERT_TRUE(session.cache->flush());
  ASSERT_TRUE(session.advance(32 * 64 + 12, 1));  // settles

  const auto hits = [&](tier::Tier tier) { return session.tiers->counters(tier).hits; };
  const auto memory_hits = [&] { return hits(tier::Tier::kHot) + hits(tier::Tier::kWarm); };
  const uint64_t memory_before = memory_hits(), cold_before = hits(tier::Tier::kCold);
  const flash::StoreStatistics before = session.tiers->store().statistics();
  ASSERT_TRUE(session.advance(in.length, 1));
  const flash::StoreStatistics after = session.tiers->store().statistics();
  const auto memory = static_cast<double>(memory_hits() - memory_before);
  const auto cold = static_cast<double>(hits(tier::Tier::kCold) - cold_before);
  EXPECT_GE(memory / (memory + cold), 0.6);
  EXPECT_LE(memory / (memory + cold), 0.7);  // staging stays what it is for
  ASSERT_GT(after.reads, before.reads);
  EXPECT_GE((after.read_bytes - before.read_bytes) / (after.reads - before.reads), 128u << 10);
  EXPECT_EQ(session.cache->statistics().prefetch.read_errors, 0u);
}

TEST(KvCache, WritesFourMebibytesAtATime) {
  const Inputs in(kPlain, 64 * 64, 3);
  Session session(in,
                  {.block_tokens = 64, .hot_frames = 40 * 6, .warm_frames = 20 * 6, .flash = true});
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(in.length, 256));
  const flash::StoreStatistics statistics = session.tiers->store().statistics();
  // Each segment has a header, which is written alone.
  const uint64_t batches = statistics.writes - statistics.segments;
  ASSERT_GE(batches, 2u);
  EXPECT_GE(statistics.written_bytes / batches, 4u << 20);
}

TEST(KvCache, WritesEveryTokenOnceWhenGrownOneByOne) {
  const kv::ModelShape shape{
      .layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 64, .window = {0, 0, 0}};
  const Inputs in(shape, 8 * 256, 8);
  CacheSetup setup = minimum(shape, 256, 1);
  setup.hot_frames = 3 * 3;
  Session session(in, setup);
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(in.length, 1));
  ASSERT_TRUE(session.cache->flush());
  const auto written = static_cast<double>(session.tiers->store().statistics().written_bytes);
  const auto kv_bytes = static_cast<double>(session.cache->statistics().kv_bytes);
  EXPECT_EQ(kv_bytes, 8.0 * 256 * 3 * 2 * 2 * 64 * 2);
  // Header pages, and a batch header for each write.
  EXPECT_GE(written / kv_bytes, 1.0);
  EXPECT_LE(written / kv_bytes, 1.1);
  EXPECT_TRUE(same_bits(in, undamaged(in), session.outputs, in.length));
}

TEST(KvCache, TruncatesAndGrowsAgain) {
  const Inputs in(kPlain, 700, 4);
  const Outputs expected = undamaged(in);
  for (const bool flash : {false, true}) {
    SCOPED_TRACE(flash);
    Session session(in, flash ? minimum(kPlain, 64, 64) : in_memory(kPlain, 700, 64));
    ASSERT_TRUE(session.open());
    for (const uint32_t keep : {640u, 64u, 320u, 0u}) {
      ASSERT_TRUE(session.advance(in.length, 64));
      EXPECT_TRUE(same_bits(in, expected, session.outputs, in.length));
      session.cache->truncate(keep);
      EXPECT_EQ(session.cache->length(), keep);
      EXPECT_EQ(session.cache->tokens().size(), keep);
      // What is kept is not computed again: only the rest may change from here on.
      std::ranges::fill(session.outputs, 0.0f);
      for (uint32_t layer = 0; layer < kPlain.layers; ++layer)
        std::copy_n(&expected[in.out_offset(layer, 0)], keep * in.q_row(),
                    &session.outputs[in.out_offset(layer, 0)]);
    }
    EXPECT_TRUE(session.idle());
  }
}

// A sequence larger than memory, and then one prompt after the other: the budgets hold throughout,
// and no frame stays behind.
TEST(KvCache, AThousandPromptSwitchesStayWithinTheBudgets) {
  const Inputs in(kPlain, 700, 9);
  Session session(in, minimum(kPlain, 64, 64));
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(in.length, 64));
  const auto within = [&](tier::Tier tier) {
    const tier::TierCounters counters = session.tiers->counters(tier);
    return counters.peak_bytes <= counters.capacity_bytes;
  };
  for (uint32_t prompt = 0; prompt < 1000; ++prompt) {
    session.cache->truncate(0);
    ASSERT_TRUE(session.idle());
    ASSERT_TRUE(session.advance(1 + prompt % 130, 64));
    ASSERT_TRUE(within(tier::Tier::kHot) && within(tier::Tier::kWarm) && within(tier::Tier::kCold));
  }
}

TEST(KvCache, FreesEveryFrameWhenDestroyed) {
  const Inputs in(kPlain, 700, 4);
  Session session(in, minimum(kPlain, 64, 64));
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(in.length, 64));
  session.cache.reset();
  EXPECT_TRUE(session.idle());
}

TEST(KvCache, RefusesWhatItCannotRun) {
  const Inputs in(kPlain, 64, 1);
  for (const uint32_t block_tokens : {192u, 320u, 384u, 4096u + 256u}) {
    CacheSetup setup = in_memory(kPlain, 5000);
    setup.block_tokens = block_tokens;
    const auto outcome = Session(in, setup).open();
    ASSERT_FALSE(outcome) << block_tokens;
    EXPECT_EQ(outcome.error().code, Code::kInvalid);
    EXPECT_NE(outcome.error().message().find(std::to_string(block_tokens)), std::string::npos);
  }
  CacheSetup setup = minimum(kPlain, 256, 1);
  const uint64_t least = KvCache::bytes_min(kv::GroupLayout::make(kPlain, 256).value());
  --setup.warm_frames;
  const auto outcome = Session(in, setup).open();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kInvalid);
  EXPECT_NE(outcome.error().message().find(std::to_string(least)), std::string::npos);
}

TEST(KvCache, SaysWhenMemoryAloneIsTooSmall) {
  const Inputs in(kPlain, 300, 1);
  const Outputs expected = undamaged(in);
  Session session(in, in_memory(kPlain, 256, 64));
  ASSERT_TRUE(session.open());
  const auto outcome = session.advance(in.length, 64);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, Code::kFull);
  EXPECT_NE(outcome.error().message().find("hot_cache_size"), std::string::npos);
  // What was there stays good.
  EXPECT_EQ(session.cache->length(), 256u);
  EXPECT_TRUE(same_bits(in, expected, session.outputs, 256));
}

TEST(KvCache, TellsWhatTheAttentionOfEachLayerSees) {
  class Recorder : public LayerObserver {
   public:
    explicit Recorder(bool weights) : weights_(weights) {}
    void attending(uint32_t layer, uint32_t tokens) override { seen.emplace_back(layer, tokens); }
    bool wants_weights() const override { return weights_; }
    void weighed(uint32_t layer, uint32_t, const PageWeights&) override {
      weighed_in |= 1u << layer;
    }
    std::vector<std::pair<uint32_t, uint32_t>> seen;
    uint32_t weighed_in = 0;

   private:
    bool weights_;
  };
  const kv::ModelShape shape{
      .layers = 2, .query_heads = 2, .kv_heads = 1, .head_dim = 64, .window = {0, 96}};
  const Inputs in(shape, 301, 6);
  for (const bool weights : {false, true}) {
    Recorder recorder(weights);
    CacheSetup setup = in_memory(shape, in.length);
    setup.layer_observer = &recorder;
    Session session(in, setup);
    ASSERT_TRUE(session.open());
    ASSERT_TRUE(session.advance(300, 256));
    ASSERT_TRUE(session.advance(301, 1));
    const std::vector<std::pair<uint32_t, uint32_t>> expected = {{0, 256}, {1, 256}, {0, 300},
                                                                 {1, 139}, {0, 301}, {1, 96}};
    EXPECT_EQ(recorder.seen, expected);
    EXPECT_EQ(recorder.weighed_in, weights ? 3u : 0u);
    EXPECT_TRUE(same_bits(in, undamaged(in), session.outputs, in.length));
  }
}

TEST(KvCache, TwoOverTwoTiersDoNotDisturbEachOther) {
  const Inputs a(kPlain, 520, 1), b(kPlain, 520, 2);
  Session first(a, minimum(kPlain, 64, 64)), second(b, minimum(kPlain, 64, 64));
  ASSERT_TRUE(first.open());
  ASSERT_TRUE(second.open());
  for (uint32_t until = 40; until <= 520; until += 40) {
    ASSERT_TRUE(first.advance(until, 40));
    ASSERT_TRUE(second.advance(until, 40));
  }
  EXPECT_TRUE(same_bits(a, undamaged(a), first.outputs, 520));
  EXPECT_TRUE(same_bits(b, undamaged(b), second.outputs, 520));
}

}  // namespace
}  // namespace hifc::cache
