// Sparse attention: what it selects, and that nothing about it depends on where blocks are.
#include <gtest/gtest.h>

#include <cmath>

#include "cache/cache_fixture.h"

namespace hifc::cache {
namespace {

constexpr uint32_t kPrompt = 1100, kTokens = 1180;

const kv::ModelShape kShape{
    .layers = 4, .query_heads = 6, .kv_heads = 2, .head_dim = 64, .window = {0, 0, 300, 0}};

// Of random queries, weights would be nearly even: these look for the keys of two tokens, which
// change every 25 positions.
Inputs peaked_inputs(uint64_t seed) {
  Inputs in(kShape, kTokens, seed);
  const uint32_t group = kShape.query_heads / kShape.kv_heads;
  for (uint32_t layer = 0; layer < kShape.layers; ++layer)
    for (uint32_t position = 100; position < kTokens; ++position)
      for (uint32_t head = 0; head < kShape.query_heads; ++head) {
        float* q = &in.q[in.out_offset(layer, position) + size_t{head} * kShape.head_dim];
        std::fill_n(q, kShape.head_dim, 0.0f);
        for (uint32_t topic = 0; topic < 2; ++topic) {
          const uint32_t token = (position / 25 * 37 + head * 101 + topic * 517) % (position - 50);
          const size_t k = (size_t{layer} * in.length + token) * in.kv_row() +
                           size_t{head / group} * kShape.head_dim;
          for (uint32_t d = 0; d < kShape.head_dim; ++d)
            q[d] += (1.2f - 0.2f * static_cast<float>(topic)) *
                    static_cast<float>(from_half(in.k[k + d]));
        }
      }
  return in;
}

SparseOptions with_mass(double mass) {
  return {.enabled = true, .mass = mass};
}

CacheSetup generating(CacheSetup setup, const SparseOptions& sparse) {
  setup.sparse = sparse;
  setup.generated_from = kPrompt;
  return setup;
}

// The prompt in chunks, the rest token by token.
void run(Session& session) {
  const auto opened = session.open();
  ASSERT_TRUE(opened) << opened.error().message();
  for (const auto& [end, chunk] : {std::pair(kPrompt, 256u), std::pair(kTokens, 1u)}) {
    const auto outcome = session.advance(end, chunk);
    ASSERT_TRUE(outcome) << outcome.error().message() << " at " << session.cache->length();
  }
}

Outputs outputs_of(const Inputs& in, const CacheSetup& setup) {
  Session session(in, setup);
  run(session);
  return std::move(session.outputs);
}

// |difference| / |expected|, of the generated tokens in one layer.
double error(const Inputs& in, const Outputs& expected, const Outputs& got, uint32_t layer) {
  double difference = 0, norm = 0;
  for (size_t i = in.out_offset(layer, kPrompt); i < in.out_offset(layer, kTokens); ++i) {
    difference += std::pow(static_cast<double>(expected[i] - got[i]), 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

TEST(SparseAttention, OverEveryPageIsExactAttention) {
  const Inputs in = peaked_inputs(1);
  for (const uint32_t block_tokens : {64u, 256u}) {
    const CacheSetup memory = in_memory(kShape, kTokens, block_tokens);
    const Outputs exact = outputs_of(in, generating(memory, {}));
    EXPECT_TRUE(same_bits(in, exact, outputs_of(in, generating(memory, with_mass(1))), kTokens));
    const CacheSetup flash = minimum(kShape, block_tokens, 256);
    EXPECT_TRUE(same_bits(in, exact, outputs_of(in, generating(flash, with_mass(1))), kTokens));
  }
}

TEST(SparseAttention, GivesTheSameBitsWhereverBlocksAre) {
  const Inputs in = peaked_inputs(2);
  for (const kv::CodecPolicy& codecs :
       {kv::CodecPolicy{}, kv::CodecPolicy(4, {.k = kv::Codec::kI4, .v = kv::Codec::kI2})})
    for (const uint32_t block_tokens : {64u, 128u, 256u, 512u}) {
      SCOPED_TRACE(block_tokens);
      const Outputs expected = outputs_of(
          in, generating(in_memory(kShape, kTokens, block_tokens, codecs), with_mass(0.6)));
      for (uint32_t more = 0; more <= 40; more += 20) {
        CacheSetup setup = generating(minimum(kShape, block_tokens, 256, codecs), with_mass(0.6));
        setup.hot_frames = more;
        setup.threads = 1 + more / 20;
        setup.prefetch.window_layers = more / 20;
        // Reads that cost nothing, so that none is longer than it must; little; and so much that
        // all is read through.
        if (more > 0)
          setup.prefetch.device = {.fixed_s = more == 20 ? 1e-5 : 1, .s_per_byte = 1e-9};
        Session session(in, setup);
        run(session);
        EXPECT_TRUE(same_bits(in, expected, session.outputs, kTokens));
      }
    }
}

TEST(SparseAttention, LeavesOutWhatWeighsLittle) {
  const Inputs in = peaked_inputs(3);
  for (const kv::CodecPolicy& codecs :
       {kv::CodecPolicy{}, kv::CodecPolicy(4, {.k = kv::Codec::kI4, .v = kv::Codec::kI3}),
        kv::CodecPolicy(4, {.k = kv::Codec::kI8, .v = kv::Codec::kI4})}) {
    const CacheSetup memory = in_memory(kShape, kTokens, 64, codecs);
    const Outputs exact = outputs_of(in, generating(memory, {}));
    double worse = 0;
    for (const double mass : {0.98, 0.9, 0.4}) {
      Session session(in, generating(memory, with_mass(mass)));
      run(session);
      const SparseStatistics statistics = session.cache->statistics().sparse;
      EXPECT_LT(statistics.pages_selected, statistics.pages_seen);
      EXPECT_EQ(statistics.pages_missed, 0u);
      const double now = error(in, exact, session.outputs, 0);
      EXPECT_GT(now, worse);
      EXPECT_LT(now, 3 * (1 - mass));
      worse = now;
      // Layers with a window have exact attention.
      EXPECT_EQ(error(in, exact, session.outputs, 2), 0.0);
      const SkippedMass& skipped = *session.cache->skipped();
      ASSERT_EQ(skipped.estimate.size(), kTokens - kPrompt);
      for (size_t i = 0; i < skipped.estimate.size(); ++i) {
        EXPECT_LE(skipped.estimate[i], 1 - mass + 1e-6);
        EXPECT_LE(skipped.estimate[i], skipped.bound[i] + 1e-6f);
      }
    }
  }
}

TEST(SparseAttention, TakesNoMoreThanThePageBudget) {
  const Inputs in = peaked_inputs(4);
  SparseOptions sparse = with_mass(0.99);
  sparse.page_budget = 5;
  Session session(in, generating(in_memory(kShape, kTokens, 64), sparse));
  run(session);
  const SparseStatistics statistics = session.cache->statistics().sparse;
  constexpr uint64_t kLayers = 3, kHeads = 2, kAlways = 3;
  EXPECT_EQ(statistics.pages_selected, (kTokens - kPrompt) * kLayers * kHeads * (5 + kAlways));
}

TEST(SparseAttention, FetchesUntilTheBoundHolds) {
  const Inputs in = peaked_inputs(5);
  for (const double bound : {0.5, 0.05}) {
    SparseOptions sparse = with_mass(0.5);
    sparse.bound = bound;
    Session session(in, generating(in_memory(kShape, kTokens, 64), sparse));
    run(session);
    for (const float skipped : session.cache->skipped()->bound) EXPECT_LE(skipped, bound + 1e-6);
    const SparseStatistics statistics = session.cache->statistics().sparse;
    EXPECT_GT(statistics.pages_selected, 0u);
  }
}

TEST(SparseAttention, GoesOnWithoutPagesThatDoNotComeInTime) {
  const Inputs in = peaked_inputs(6);
  SparseOptions sparse = with_mass(0.9);
  sparse.on_miss = OnMiss::kSkip;
  CacheSetup setup = generating(minimum(kShape, 64, 256), sparse);
  setup.prefetch.window_layers = 0;
  Session session(in, setup);
  run(session);
  EXPECT_GT(session.cache->statistics().sparse.pages_missed, 0u);
  // And waits for them where there is time.
  sparse.miss_deadline_ns = 60'000'000'000;
  Session patient(in, generating(in_memory(kShape, kTokens, 64), sparse));
  run(patient);
  EXPECT_EQ(patient.cache->statistics().sparse.pages_missed, 0u);
}

TEST(SparseAttention, ReadsLessThanExactAttention) {
  const Inputs in = peaked_inputs(7);
  const auto read = [&](const SparseOptions& sparse) {
    CacheSetup setup = generating(minimum(kShape, 64, 256), sparse);
    setup.hot_frames = 16;
    Session session(in, setup);
    EXPECT_TRUE(session.open());
    EXPECT_TRUE(session.advance(kPrompt, 256));
    const uint64_t before = session.tiers->counters(tier::Tier::kCold).bytes_read;
    EXPECT_TRUE(session.advance(kTokens, 1));
    return session.tiers->counters(tier::Tier::kCold).bytes_read - before;
  };
  EXPECT_LT(read(with_mass(0.5)), read({}) * 2 / 3);
}

TEST(SparseAttention, ReadsTheHeadsThatSelectAPage) {
  const Inputs in = peaked_inputs(7);
  CacheSetup setup = generating(minimum(kShape, 64, 256), with_mass(0.5));
  setup.hot_frames = 16;
  Session session(in, setup);
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(kPrompt + 1, 256));
  const auto before = session.tiers->counters(tier::Tier::kCold).bytes_read;
  const auto blocks_before = session.cache->statistics().prefetch.blocks_fetched;
  ASSERT_TRUE(session.advance(kTokens, 1));
  const auto bytes = session.tiers->counters(tier::Tier::kCold).bytes_read - before;
  const auto blocks = session.cache->statistics().prefetch.blocks_fetched - blocks_before;
  EXPECT_GT(blocks, 100u);
  EXPECT_LT(bytes, blocks * session.layout().exact.block_bytes() * 3 / 4);
}

TEST(SparseAttention, GoesOnAfterBeingCutOff) {
  const Inputs in = peaked_inputs(8);
  Session session(in, generating(minimum(kShape, 64, 256), with_mass(0.7)));
  run(session);
  const uint32_t length = session.cache->truncate(kPrompt + 10);
  EXPECT_TRUE(length % 64 == 0 || length == kPrompt + 10);
  const auto outcome = session.advance(kTokens, 1);
  EXPECT_TRUE(outcome) << outcome.error().message();
  EXPECT_TRUE(session.cache->skipped()->estimate.size() > kTokens - kPrompt);
}

TEST(SparseAttention, ComputesDamagedGroupsAgain) {
  const Inputs in = peaked_inputs(9);
  Session session(in, generating(minimum(kShape, 64, 256), with_mass(0.95)));
  ASSERT_TRUE(session.open());
  ASSERT_TRUE(session.advance(kPrompt, 256));
  ASSERT_TRUE(session.cache->flush());
  uint32_t damaged = 0;
  // One head's part of each: it is found when that is read.
  const size_t head = session.layout().exact.head_bytes();
  for (uint32_t group = 2; group < 12; group += 3)
    damaged += session.damage(group, 0, 5000 + group % 2 * head);
  EXPECT_GT(damaged, 0u);
  ASSERT_TRUE(session.advance(kTokens, 1));
  EXPECT_GT(session.cache->statistics().lost_groups, 0u);
  EXPECT_EQ(session.cache->statistics().lost_groups,
            session.tiers->store().statistics().quarantined_values);
}

}  // namespace
}  // namespace hifc::cache
