// The whole cache against the outputs of one that holds everything in memory: random shapes, block
// sizes and budgets, random chunks, truncations and flushes, over a device that delays, reorders,
// loses, tears and flips. Every output ever given must have the right bits.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "testing/sim_ring.h"

namespace hifc::cache {
namespace {

constexpr uint32_t kLength = 900;

kv::ModelShape random_shape(std::mt19937_64& random) {
  kv::ModelShape shape{.layers = 3 + static_cast<uint32_t>(random() % 3),
                       .kv_heads = 1 + static_cast<uint32_t>(random() % 2),
                       .head_dim = 32};
  shape.query_heads = shape.kv_heads * (1 + static_cast<uint32_t>(random() % 3));
  for (uint32_t layer = 0; layer < shape.layers; ++layer)
    shape.window.push_back(random() % 2 == 0 ? 0 : 1 + static_cast<uint32_t>(random() % 400));
  return shape;
}

void run(uint64_t seed, testing::FaultPlan plan) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  const Inputs in(random_shape(random), kLength, seed);
  const Outputs expected = undamaged(in);

  constexpr std::array<uint32_t, 4> kBlockTokens = {64, 128, 256, 512};
  constexpr std::array<uint32_t, 6> kChunks = {1, 7, 64, 100, 200, 256};
  const uint32_t block_tokens = kBlockTokens[below(4)];
  const uint32_t chunk_max = kChunks[below(6)];
  CacheSetup setup = minimum(in.shape, block_tokens, chunk_max);
  for (const uint32_t chunk : kChunks)  // a smaller chunk may straddle one more group
    if (chunk < chunk_max)
      setup.warm_frames =
          std::max(setup.warm_frames, minimum(in.shape, block_tokens, chunk).warm_frames);
  setup.hot_frames = below(2) * below(6 * in.shape.layers);
  setup.threads = 1 + below(2);
  setup.prefetch = {.window_layers = below(6), .reads_in_flight = 1 + below(8)};
  plan.seed = seed;
  plan.delay_polls_max = below(2) * below(8);
  testing::SimRing ring(plan);
  setup.own_ring = &ring;
  Session session(in, setup);
  const auto opened = session.open();
  ASSERT_TRUE(opened) << opened.error().message();

  for (int call = 0; call < 40; ++call) {
    KvCache& cache = *session.cache;
    const uint32_t length = cache.length();
    const uint32_t choice = below(10);
    if (choice == 0) {
      cache.truncate(below(length / block_tokens + 1) * block_tokens);
    } else if (choice == 1) {
      if (plan.write_error == 0) ASSERT_TRUE(cache.flush());
    } else {
      const uint32_t chunk = choice < 5 ? 1 : kChunks[below(6)];
      const uint32_t count = choice < 5 ? 1 + below(6) : below(250);
      const auto outcome =
          session.advance(std::min(kLength, length + count), std::min(chunk, chunk_max), 2000);
      ASSERT_TRUE(outcome) << outcome.error().message() << ", call " << call << " at "
                           << session.cache->length() << ", block_tokens " << block_tokens;
    }
    const uint32_t to = session.cache->length();
    ASSERT_TRUE(same_bits(in, expected, session.outputs, to)) << "call " << call;
    for (const auto tier : {tier::Tier::kHot, tier::Tier::kWarm}) {
      const tier::TierCounters counters = session.tiers->counters(tier);
      ASSERT_LE(counters.peak_bytes, counters.capacity_bytes);
    }
  }
  session.cache.reset();
  EXPECT_TRUE(session.idle());
}

TEST(KvCacheModel, DelayedAndReorderedCompletionsChangeNothing) {
  for (uint64_t seed = 1; seed <= 8 && !::testing::Test::HasFailure(); ++seed) run(seed, {});
}

TEST(KvCacheModel, FaultyReadsChangeNothing) {
  for (uint64_t seed = 101; seed <= 108 && !::testing::Test::HasFailure(); ++seed)
    run(seed, {.read_error = 0.003, .short_read = 0.003, .bit_flip = 0.003, .torn_write = 0.01});
}

TEST(KvCacheModel, FaultyWritesChangeNothing) {
  for (uint64_t seed = 201; seed <= 206 && !::testing::Test::HasFailure(); ++seed)
    run(seed, {.write_error = 0.04, .no_space = 0.04, .torn_write = 0.02});
}

}  // namespace
}  // namespace hifc::cache
