// KvCache with lossy codecs: what attention computes, against double precision over pages that were
// encoded and decoded here; and that where blocks are never shows.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "kernels/codec.h"
#include "testing/sim_ring.h"

namespace hifc::cache {
namespace {

using kv::Codec;
using kv::kPageTokens;
using kv::kSinkTokens;

constexpr uint32_t kLength = 900;

kv::ModelShape shape_of(std::vector<uint32_t> window, uint32_t head_dim = 64) {
  return {.layers = static_cast<uint32_t>(window.size()),
          .query_heads = 4,
          .kv_heads = 2,
          .head_dim = head_dim,
          .window = std::move(window)};
}

// A layer of every kind.
kv::CodecPolicy mixed() {
  return {{.k = Codec::kI4, .v = Codec::kI3},
          {},
          {.k = Codec::kI8},
          {.k = Codec::kI2, .v = Codec::kI8},
          {.v = Codec::kI4}};
}

// K and V of one head in one layer, as floats and turned where the layer's codecs rotate: exact,
// and as sealed pages have them.
class Pages {
 public:
  Pages(const Inputs& in, uint32_t layer, uint32_t kv_head, kv::LayerCodecs codecs)
      : dim_(in.shape.head_dim), codecs_(**kernels::codecs_for(kernels::Isa::kPortable)) {
    const size_t from = size_t{layer} * in.length * in.kv_row() + size_t{kv_head} * dim_;
    k_ = turned(in.k.data() + from, in.kv_row(), in.length, codecs.k);
    v_ = turned(in.v.data() + from, in.kv_row(), in.length, codecs.v);
    sealed_k_ = seal_k(codecs.k);
    sealed_v_ = seal_v(codecs.v);
  }

  // Tokens before `sealed` are sealed, but for the sinks.
  const float* k(uint32_t token, uint32_t sealed) const { return at(k_, sealed_k_, token, sealed); }
  const float* v(uint32_t token, uint32_t sealed) const { return at(v_, sealed_v_, token, sealed); }

 private:
  using Rows = std::vector<float>;  // [token][head_dim]
  const float* at(const Rows& exact, const Rows& sealed, uint32_t token, uint32_t before) const {
    const bool is_sealed = token < before && token >= kSinkTokens;
    return (is_sealed ? sealed : exact).data() + size_t{token} * dim_;
  }
  Rows turned(const uint16_t* rows, size_t stride, uint32_t count, Codec codec) const {
    std::vector<uint16_t> half(size_t{count} * dim_);
    if (kv::rotates(codec))
      codecs_.rotate_f16(dim_, count, rows, stride, half.data());
    else
      for (uint32_t t = 0; t < count; ++t) std::copy_n(rows + t * stride, dim_, &half[t * dim_]);
    Rows floats(half.size());
    std::ranges::transform(half, floats.begin(),
                           [](uint16_t bits) { return static_cast<float>(from_half(bits)); });
    return floats;
  }
  Rows seal_k(Codec codec) const {
    Rows sealed = k_;
    const kv::PageFormat format{codec, dim_, kPageTokens};
    for (size_t first = 0; codec != Codec::kF16 && first + kPageTokens <= k_.size() / dim_;
         first += kPageTokens) {
      std::vector<uint16_t> page(size_t{dim_} * kPageTokens);
      for (uint32_t t = 0; t < kPageTokens; ++t) {
        const size_t token = first + t < kSinkTokens ? kSinkTokens : first + t;
        for (uint32_t d = 0; d < dim_; ++d)
          page[d * kPageTokens + t] = to_half(k_[token * dim_ + d]);
      }
      const Rows decoded = through(format, page);
      for (uint32_t t = 0; t < kPageTokens; ++t)
        for (uint32_t d = 0; d < dim_; ++d)
          sealed[(first + t) * dim_ + d] = decoded[d * kPageTokens + t];
    }
    return sealed;
  }
  Rows seal_v(Codec codec) const {
    Rows sealed = v_;
    const kv::PageFormat format{codec, kPageTokens, dim_};
    for (size_t first = 0; codec != Codec::kF16 && first + kPageTokens <= v_.size() / dim_;
         first += kPageTokens) {
      std::vector<uint16_t> page(size_t{dim_} * kPageTokens);
      for (size_t i = 0; i < page.size(); ++i) page[i] = to_half(v_[first * dim_ + i]);
      std::ranges::copy(through(format, page),
                        sealed.begin() + static_cast<ptrdiff_t>(first * dim_));
    }
    return sealed;
  }
  Rows through(const kv::PageFormat& format, const std::vector<uint16_t>& page) const {
    std::vector<std::byte> encoded(kv::page_bytes(format));
    codecs_.encode(format, page.data(), encoded.data());
    Rows decoded(page.size());
    codecs_.decode(format, {.first = 0, .count = format.rows}, encoded.data(), decoded.data());
    return decoded;
  }

  uint32_t dim_;
  const kernels::Codecs& codecs_;
  Rows k_, v_, sealed_k_, sealed_v_;
};

// `step`: the first position of the step that computed `position`.
std::vector<float> reference(const Inputs& in, const Pages& pages, kv::LayerCodecs codecs,
                             uint32_t layer, uint32_t position, uint32_t head, uint32_t step) {
  const auto& table = **kernels::codecs_for(kernels::Isa::kPortable);
  const uint32_t dim = in.shape.head_dim, window = in.shape.window[layer];
  const uint32_t first = window != 0 && position + 1 > window ? position + 1 - window : 0;
  const uint32_t sealed =
      step < kExactTokens ? 0 : (step - kExactTokens) / kPageTokens * kPageTokens;
  const float* query = &in.q[in.out_offset(layer, position) + size_t{head} * dim];
  std::vector<float> q(query, query + dim);
  if (kv::rotates(codecs.k)) table.rotate(dim, 1, q.data());
  std::vector<double> scores, out(dim);
  for (uint32_t token = first; token <= position; ++token) {
    double score = 0;
    for (uint32_t d = 0; d < dim; ++d)
      score += static_cast<double>(q[d]) * pages.k(token, sealed)[d];
    scores.push_back(score * in.scale());
  }
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (uint32_t token = first; token <= position; ++token)
    for (uint32_t d = 0; d < dim; ++d)
      out[d] += scores[token - first] / sum * pages.v(token, sealed)[d];
  std::vector<float> turned(out.begin(), out.end());
  if (kv::rotates(codecs.v)) table.rotate(dim, 1, turned.data());
  return turned;
}

// Chunks begin at multiples of `chunk` up to `generated_from`, then tokens come one by one.
void expect_close_to_reference(const Inputs& in, const Outputs& outputs,
                               const kv::CodecPolicy& codecs, uint32_t chunk,
                               uint32_t generated_from) {
  const uint32_t group = in.shape.query_heads / in.shape.kv_heads, dim = in.shape.head_dim;
  for (uint32_t layer = 0; layer < in.shape.layers; ++layer)
    for (uint32_t kv_head = 0; kv_head < in.shape.kv_heads; ++kv_head) {
      const Pages pages(in, layer, kv_head, codecs[layer]);
      for (uint32_t position = 0; position < in.length; position += 17)
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const uint32_t step = position < generated_from ? position / chunk * chunk : position;
          const auto expected = reference(in, pages, codecs[layer], layer, position, head, step);
          for (uint32_t d = 0; d < dim; ++d)
            ASSERT_NEAR(outputs[in.out_offset(layer, position) + head * dim + d], expected[d], 5e-5)
                << "layer " << layer << " position " << position << " head " << head;
        }
    }
}

Outputs all_in_memory(const Inputs& in, const kv::CodecPolicy& codecs, uint32_t chunk,
                      uint32_t generated_from) {
  Session session(in, in_memory(in.shape, in.length, 256, codecs, chunk));
  EXPECT_TRUE(session.open());
  EXPECT_TRUE(session.advance(generated_from, chunk));
  EXPECT_TRUE(session.advance(in.length, 1));
  return std::move(session.outputs);
}

TEST(KvCacheSealing, AttendsToWhatTheCodecsLeave) {
  for (const uint32_t head_dim : {64u, 80u, 128u}) {
    SCOPED_TRACE("head_dim " + std::to_string(head_dim));
    const Inputs in(shape_of({0, 0, 0, 300, 0}, head_dim), kLength, 5);
    for (const uint32_t chunk : {64u, 200u, 256u})
      expect_close_to_reference(in, all_in_memory(in, mixed(), chunk, 800), mixed(), chunk, 800);
  }
}

TEST(KvCacheSealing, WhereBlocksAreNeverShows) {
  const Inputs in(shape_of({0, 0, 0, 300, 0}), kLength, 6);
  uint32_t turn = 0;
  for (const uint32_t chunk : {1u, 64u, 200u, 256u}) {
    const Outputs expected = all_in_memory(in, mixed(), chunk, 800);
    for (const uint32_t block_tokens : {64u, 128u, 256u, 512u}) {
      SCOPED_TRACE(fmt::format("block_tokens {}, chunks {}", block_tokens, chunk));
      CacheSetup setup = minimum(in.shape, block_tokens, chunk, mixed());
      setup.threads = 1 + turn % 3;
      setup.prefetch.window_layers = turn % 4;
      setup.hot_frames = turn % 2 == 0 ? 0 : 3 * in.shape.layers;
      ++turn;
      Session session(in, setup);
      const auto opened = session.open();
      ASSERT_TRUE(opened) << opened.error().message();
      ASSERT_TRUE(session.advance(800, chunk));
      const auto outcome = session.advance(in.length, 1);
      ASSERT_TRUE(outcome) << outcome.error().message();
      EXPECT_TRUE(same_bits(in, expected, session.outputs, in.length));
      // Larger chunks take so much memory that everything fits.
      const bool streams = block_tokens <= 128 && chunk <= 64 && setup.hot_frames == 0;
      if (streams) EXPECT_GT(session.cold_share(), 0.1);
      session.cache.reset();
      EXPECT_TRUE(session.idle());
    }
  }
}

// 75 % fewer bytes: what would not fit as F16 stays in memory.
TEST(KvCacheSealing, EveryTierHoldsMore) {
  const kv::CodecPolicy codecs(4, {.k = Codec::kI4, .v = Codec::kI3});
  const Inputs in(shape_of({0, 0, 0, 0}, 128), 4096, 7);
  CacheSetup setup = in_memory(in.shape, 2048);
  setup.codecs = codecs;
  Session session(in, setup);
  ASSERT_TRUE(session.open());
  const auto outcome = session.advance(in.length, 64);
  ASSERT_TRUE(outcome) << outcome.error().message();
  const double exact_bytes = 2.0 * 4 * 2 * 128 * 2 * in.length;
  EXPECT_LT(static_cast<double>(session.cache->statistics().kv_bytes), exact_bytes * 0.32);
}

// Largest difference of two runs' outputs over positions from `first` on.
double distance(const Inputs& in, const Outputs& a, const Outputs& b, uint32_t first) {
  double most = 0;
  for (uint32_t layer = 0; layer < in.shape.layers; ++layer)
    for (size_t i = in.out_offset(layer, first); i < in.out_offset(layer, in.length - 1); ++i)
      most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

// A resumed prefix was sealed early where it was parked, by one step of its codecs at the most.
constexpr double kResumedDistance = 0.05;

TEST(KvCacheSealing, ResumesWhatWasSaved) {
  const kv::CodecPolicy codecs(3, {.k = Codec::kI8, .v = Codec::kI8});
  const Inputs in(shape_of({0, 0, 0}), kLength, 8);
  const Outputs expected = all_in_memory(in, codecs, 64, kLength);
  const testing::TempDirectory directory;
  for (const uint32_t saved : {40u, 256u, 300u, 511u, 512u, 513u, 700u, 768u}) {
    SCOPED_TRACE("saved " + std::to_string(saved));
    CacheSetup setup = minimum(in.shape, 256, 64, codecs);
    setup.directory = (directory.path() / std::to_string(saved)).string();
    {
      Session first(in, setup);
      ASSERT_TRUE(first.open());
      ASSERT_TRUE(first.advance(saved, 64));
      const auto outcome = first.cache->save();
      ASSERT_TRUE(outcome) << outcome.error().message();
    }
    // All of what was saved, the most of it, and less than its last group.
    for (const uint32_t count : {saved + 5, saved, saved - 30}) {
      Session second(in, setup);
      ASSERT_TRUE(second.open());
      const uint32_t resumed = second.resume(count);
      if (count == saved + 5) EXPECT_EQ(resumed, saved);
      if (count == saved) EXPECT_EQ(resumed, saved - 1);
      const auto outcome = second.advance(in.length, 64);
      ASSERT_TRUE(outcome) << outcome.error().message();
      EXPECT_LT(distance(in, expected, second.outputs, resumed), kResumedDistance);
      EXPECT_EQ(second.recomputed_steps, 0u);
    }
  }
}

// Goes back into groups of every stage.
TEST(KvCacheSealing, TruncatesAnywhere) {
  const kv::CodecPolicy codecs(3, {.k = Codec::kI8, .v = Codec::kI8});
  const Inputs in(shape_of({0, 0, 0}), kLength, 9);
  const Outputs expected = all_in_memory(in, codecs, 64, kLength);
  Session session(in, in_memory(in.shape, in.length, 256, codecs));
  ASSERT_TRUE(session.open());
  std::mt19937_64 random(9);
  for (int turn = 0; turn < 30; ++turn) {
    ASSERT_TRUE(session.advance(in.length, 64));
    const auto to = static_cast<uint32_t>(random() % in.length);
    ASSERT_EQ(session.cache->truncate(to), to);
    std::ranges::fill(session.outputs, 9.0f);
    ASSERT_TRUE(session.advance(in.length, 64));
    EXPECT_LT(distance(in, expected, session.outputs, to), kResumedDistance) << "from " << to;
  }
}

// What reopening takes must not come from the group itself, nor may the cut leave anything else.
TEST(KvCacheSealing, TruncatesWithHardlyAnyMemory) {
  const kv::CodecPolicy codecs(12, {.k = Codec::kI8, .v = Codec::kI8});
  const Inputs in(shape_of(std::vector<uint32_t>(12)), 1300, 10);
  const Outputs expected = all_in_memory(in, codecs, 64, in.length);
  for (const uint32_t extra : {0u, 8u, 14u})
    for (const uint32_t to : {40u, 250u, 400u}) {
      SCOPED_TRACE(fmt::format("{} more frames, to {}", extra, to));
      CacheSetup setup = minimum(in.shape, 256, 64, codecs);
      setup.warm_frames += extra;
      Session session(in, setup);
      ASSERT_TRUE(session.open());
      ASSERT_TRUE(session.advance(in.length, 64));
      const uint32_t length = session.cache->truncate(to);
      EXPECT_LE(length, to);
      const auto outcome = session.advance(in.length, 64);
      ASSERT_TRUE(outcome) << outcome.error().message();
      EXPECT_LT(distance(in, expected, session.outputs, length), kResumedDistance);
    }
}

TEST(KvCacheSealing, ALoadedTailThatNobodyTakesGivesItsMemoryBack) {
  const kv::CodecPolicy codecs(3, {.k = Codec::kI8, .v = Codec::kI8});
  const Inputs in(shape_of({0, 0, 0}), kLength, 11);
  const testing::TempDirectory directory;
  CacheSetup setup = minimum(in.shape, 256, 64, codecs);
  setup.directory = directory.file("store");
  {
    Session first(in, setup);
    ASSERT_TRUE(first.open());
    ASSERT_TRUE(first.advance(700, 64));
    ASSERT_TRUE(first.cache->save());
  }
  Session second(in, setup);
  ASSERT_TRUE(second.open());
  const Patience patience{.clock = &second.clock(),
                          .until_ns = second.clock().now_ns() + 10'000'000'000};
  for (const uint32_t count : {705u, 512u}) {  // a parked tail, and a full group to be cut
    const StoredPrefix prefix =
        second.cache->find_stored(std::span(in.tokens).first(count), patience);
    ASSERT_TRUE(prefix.tail);
    ASSERT_TRUE(second.cache->load(prefix, prefix.groups(), patience));
    EXPECT_TRUE(second.idle());
  }
}

// Prefill, a few generated tokens, a lost group, and several at once, in no more memory than is
// said to be enough.
TEST(KvCacheSealing, TheMinimumIsEnough) {
  const std::vector<kv::LayerCodecs> uniform = {{.k = Codec::kI8, .v = Codec::kI8},
                                                {.k = Codec::kI4, .v = Codec::kI3}};
  for (const uint32_t layers : {4u, 12u}) {
    std::vector<kv::CodecPolicy> policies;
    for (const kv::LayerCodecs& codecs : uniform) policies.emplace_back(layers, codecs);
    kv::CodecPolicy mixed_layers;
    for (uint32_t layer = 0; layer < layers; ++layer)
      mixed_layers.push_back(mixed()[layer % mixed().size()]);
    policies.push_back(mixed_layers);
    const Inputs in(shape_of(std::vector<uint32_t>(layers), 32), 1400, 12);
    for (size_t policy = 0; policy < policies.size(); ++policy)
      for (const uint32_t block_tokens : {64u, 256u, 512u})
        for (const uint32_t chunk : {33u, 64u, 100u, 512u}) {
          SCOPED_TRACE(fmt::format("{} layers, policy {}, block_tokens {}, chunks {}", layers,
                                   policy, block_tokens, chunk));
          Session session(in, minimum(in.shape, block_tokens, chunk, policies[policy]));
          ASSERT_TRUE(session.open());
          auto outcome = session.advance(1380, chunk);
          ASSERT_TRUE(outcome) << outcome.error().message();
          session.damage(0, 1, kv::kHeaderBytes + 100);
          outcome = session.advance(1390, 1);
          ASSERT_TRUE(outcome) << outcome.error().message();
          // Those that are computed again are not sealed before the next ones are.
          for (uint32_t group = 0; group < 6 && (group + 1) * block_tokens < 1200; ++group)
            session.damage(group, 1, kv::kHeaderBytes + 100);
          outcome = session.advance(in.length, 1);
          ASSERT_TRUE(outcome) << outcome.error().message();
        }
  }
}

// Damage, truncations and late devices: nothing is lost for good, and outputs stay near.
TEST(KvCacheSealing, FaultsCostTimeOnly) {
  for (uint64_t seed = 1; seed <= 24 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
    const kv::CodecPolicy codecs(3,
                                 {.k = Codec::kI8, .v = below(2) == 0 ? Codec::kI8 : Codec::kF16});
    const Inputs in(shape_of({0, below(2) * 200, 0}), kLength, seed);
    const Outputs expected = all_in_memory(in, codecs, 64, kLength);
    CacheSetup setup = minimum(in.shape, 64u << below(3), 64, codecs);
    testing::FaultPlan plan{
        .read_error = 0.003, .short_read = 0.003, .bit_flip = 0.01, .torn_write = 0.01};
    plan.seed = seed;
    plan.delay_polls_max = below(2) * below(8);
    testing::SimRing ring(plan);
    setup.own_ring = &ring;
    Session session(in, setup);
    ASSERT_TRUE(session.open());
    for (int call = 0; call < 12; ++call) {
      const uint32_t length = session.cache->length();
      if (below(4) == 0) session.cache->truncate(below(length + 1));
      const auto outcome = session.advance(std::min(in.length, length + below(400)), 64, 2000);
      ASSERT_TRUE(outcome) << outcome.error().message();
    }
    const uint32_t from = session.cache->length();
    ASSERT_TRUE(session.advance(in.length, 64, 2000));
    if (from + 1 < in.length)
      EXPECT_LT(distance(in, expected, session.outputs, from), 2 * kResumedDistance);
    session.cache.reset();
    EXPECT_TRUE(session.idle());
  }
}

}  // namespace
}  // namespace hifc::cache
