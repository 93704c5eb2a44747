// Every instruction set against a double-precision reference, and the bits of one row against the
// bits of the same row computed in other company.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec.h"

namespace hifc::kernels {
namespace {

constexpr uint32_t kPage = kv::kPageTokens;

uint16_t to_half(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
double from_half(uint16_t bits) {
  return static_cast<double>(std::bit_cast<_Float16>(bits));
}

// Memory at a 64-byte boundary that ends with its last element, so that ASan sees every overrun.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count, T value = T{})
      : data_(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64))),
        count_(count) {
    std::fill_n(data_, count, value);
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  ~Buffer() { std::free(data_); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_;
  size_t count_;
};

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> all;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx})
    if (auto kernels = kernels_for(isa)) all.push_back(*kernels);
  return all;
}

// With the algorithm for prompts in the place of the other one.
std::vector<Kernels> available_algorithms() {
  std::vector<Kernels> all;
  for (const Kernels* kernels : available_kernels()) {
    all.push_back(*kernels);
    if (!kernels->prompts_differ) continue;
    all.push_back(*kernels);
    all.back().scratch_bytes = kernels->prompt_scratch_bytes;
    all.back().attend_split = kernels->attend_split_prompt;
  }
  return all;
}

// Of what available_algorithms() returns, the second of one instruction set.
bool is_for_prompts(const Kernels& kernels) {
  return kernels.prompts_differ && kernels.attend_split == kernels.attend_split_prompt;
}

using kv::Codec;

struct Coding {
  Codec k = Codec::kF16;
  Codec v = Codec::kF16;
};

// How the pages of a split are encoded, and whether the first one has exact tokens.
struct Codings {
  std::array<Coding, kSplitPages> pages = {};
  bool sinks = false;
};

Codings all_of(Codec k, Codec v, bool sinks = false) {
  Codings codings{.sinks = sinks};
  codings.pages.fill({k, v});
  return codings;
}

std::vector<Codings> all_codings() {
  const Coding exact, mixed{Codec::kI4, Codec::kI3};
  return {all_of(Codec::kI8, Codec::kI8),
          all_of(Codec::kI4, Codec::kI4),
          all_of(Codec::kI3, Codec::kI2, true),
          all_of(Codec::kI2, Codec::kI8, true),
          {{mixed, {Codec::kF16, Codec::kI2}, {Codec::kI8, Codec::kF16}, exact}, true},
          {{exact, mixed, exact, mixed}, true}};  // exact tokens are for encoded pages
}

std::string describe(const Codings& codings) {
  std::string text = codings.sinks ? "sinks," : "";
  for (const Coding& page : codings.pages)
    text += " k" + std::to_string(code_bits(page.k)) + " v" + std::to_string(code_bits(page.v));
  return text;
}

// A page of K or V in its own allocation, and the numbers it stands for.
class TestPage {
 public:
  TestPage(const PageFormat& format, std::mt19937& random)
      : format_(format),
        halves_(size_t{format.rows} * format.columns),
        bytes_(page_bytes(format)),
        numbers_(halves_.size()) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < halves_.size(); ++i) halves_[i] = to_half(normal(random));
    encode();
  }
  Page view() const { return {bytes_.data(), format_.codec}; }
  double number(uint32_t row, uint32_t column) const {
    return static_cast<double>(numbers_[size_t{row} * format_.columns + column]);
  }
  void set(uint32_t row, uint32_t column, uint16_t half) {
    halves_[size_t{row} * format_.columns + column] = half;
    encode();
  }

 private:
  void encode() {
    if (format_.codec == Codec::kF16) {
      std::memcpy(bytes_.data(), halves_.data(), bytes_.size());
      for (size_t i = 0; i < numbers_.size(); ++i)
        numbers_[i] = static_cast<float>(from_half(halves_[i]));
    } else {
      const Codecs& codecs = **codecs_for(Isa::kPortable);
      codecs.encode(format_, halves_.data(), bytes_.data());
      codecs.decode(format_, {0, format_.rows}, bytes_.data(), numbers_.data());
    }
  }
  PageFormat format_;
  Buffer<uint16_t> halves_;
  Buffer<std::byte> bytes_;
  std::vector<float> numbers_;
};

// One split's K and V.
struct Pages {
  Pages(uint32_t channels, uint32_t seed, const Codings& split_codings = {})
      : head_dim(channels),
        codings(split_codings),
        sink_k(size_t{kv::kSinkTokens} * channels),
        sink_v(sink_k.size()) {
    std::mt19937 random(seed);
    for (const Coding& coding : codings.pages) {
      k.emplace_back(PageFormat{coding.k, head_dim, kPage}, random);
      v.emplace_back(PageFormat{coding.v, kPage, head_dim}, random);
    }
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < sink_k.size(); ++i) {
      sink_k[i] = to_half(normal(random));
      sink_v[i] = to_half(normal(random));
    }
  }
  SplitPages view() const {
    SplitPages pages;
    for (uint32_t page = 0; page < kSplitPages; ++page) {
      pages.k[page] = k[page].view();
      pages.v[page] = v[page].view();
    }
    if (codings.sinks) pages.sink_k = sink_k.data(), pages.sink_v = sink_v.data();
    return pages;
  }
  bool is_sink(uint32_t token, Codec codec) const {
    return codings.sinks && token < kv::kSinkTokens && codec != Codec::kF16;
  }
  double key(uint32_t token, uint32_t d) const {
    if (is_sink(token, codings.pages[0].k)) return from_half(sink_k[token * head_dim + d]);
    return k[token / kPage].number(d, token % kPage);
  }
  double value(uint32_t token, uint32_t d) const {
    if (is_sink(token, codings.pages[0].v)) return from_half(sink_v[token * head_dim + d]);
    return v[token / kPage].number(token % kPage, d);
  }
  uint32_t head_dim;
  Codings codings;
  std::vector<TestPage> k, v;
  Buffer<uint16_t> sink_k, sink_v;
};

struct Rows {
  std::vector<float> q;
  std::vector<uint32_t> begin, end;
  uint32_t count() const { return static_cast<uint32_t>(begin.size()); }
  QueryRows view() const { return {count(), q.data(), begin.data(), end.data()}; }
};

struct State {
  State(uint32_t rows, uint32_t head_dim)
      : max(rows, -7.0f), sum(rows, -7.0f), o(size_t{rows} * head_dim, -7.0f) {}
  Partials view() { return {max.data(), sum.data(), o.data()}; }
  std::vector<float> max, sum, o;
};

State attend(const Kernels& kernels, const HeadParameters& head, const SplitPages& pages,
             const Rows& rows) {
  State state(rows.count(), head.head_dim);
  Buffer<std::byte> scratch(kernels.scratch_bytes(head, rows.count()), std::byte{0xff});
  kernels.attend_split(head, pages, rows.view(), scratch.data(), state.view());
  return state;
}

std::vector<float> finish(const Kernels& kernels, const HeadParameters& head, State& state) {
  std::vector<float> out(state.o.size());
  kernels.finish(head.head_dim, static_cast<uint32_t>(state.max.size()), state.view(), out.data(),
                 head.head_dim);
  return out;
}

std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<uint32_t>(value));
  return result;
}

// The ranges that rows of one call may have.
enum class Visible { kFull, kCausal, kWindow, kSomeEmpty, kOneToken };
constexpr Visible kAllVisible[] = {Visible::kFull, Visible::kCausal, Visible::kWindow,
                                   Visible::kSomeEmpty, Visible::kOneToken};

void add_range(Visible visible, uint32_t row, Rows& rows) {
  uint32_t begin = 0, end = kSplitTokens;
  switch (visible) {
    case Visible::kFull: break;
    case Visible::kCausal: end = std::min(kSplitTokens, 3 * row + 1); break;
    case Visible::kWindow:
      begin = 2 * row + 5;
      end = std::min(kSplitTokens, begin + 63);
      break;
    case Visible::kSomeEmpty: end = row % 3 == 0 ? 0 : 40 + row; break;
    case Visible::kOneToken:
      begin = (37 * row) % kSplitTokens;
      end = begin + 1;
      break;
  }
  rows.begin.push_back(begin);
  rows.end.push_back(end);
}

Rows make_rows(uint32_t count, uint32_t head_dim, Visible visible, uint32_t seed = 1) {
  Rows rows;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < size_t{count} * head_dim; ++i) rows.q.push_back(normal(random));
  for (uint32_t row = 0; row < count; ++row) add_range(visible, row, rows);
  return rows;
}

struct Reference {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  std::vector<double> o;  // divided by sum
};

Reference reference(const HeadParameters& head, const Pages& pages, const Rows& rows,
                    uint32_t row) {
  Reference result;
  result.o.resize(head.head_dim);
  std::vector<double> scores(kSplitTokens);
  for (uint32_t t = rows.begin[row]; t < rows.end[row]; ++t) {
    for (uint32_t d = 0; d < head.head_dim; ++d)
      scores[t] += static_cast<double>(rows.q[row * head.head_dim + d]) * pages.key(t, d);
    scores[t] *= static_cast<double>(head.scale);
    const double cap = static_cast<double>(head.softcap);
    if (cap > 0) scores[t] = cap * std::tanh(scores[t] / cap);
    result.max = std::max(result.max, scores[t]);
  }
  for (uint32_t t = rows.begin[row]; t < rows.end[row]; ++t) {
    const double p = std::exp(scores[t] - result.max);
    result.sum += p;
    for (uint32_t d = 0; d < head.head_dim; ++d) result.o[d] += p * pages.value(t, d);
  }
  for (double& o : result.o) o = result.sum > 0 ? o / result.sum : 0;
  return result;
}

// A group so large that AMX takes tiles for encoded pages.
HeadParameters head_of(uint32_t head_dim, float softcap = 0.0f) {
  return {.head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .softcap = softcap,
          .group_size = 8};
}

// Scores are of order 1..10 with errors of some 1e-6; weights and outputs inherit these.
constexpr double kTolerance = 2e-5;

std::vector<Reference> references(const HeadParameters& head, const Pages& pages,
                                  const Rows& rows) {
  std::vector<Reference> all;
  for (uint32_t row = 0; row < rows.count(); ++row)
    all.push_back(reference(head, pages, rows, row));
  return all;
}

void expect_matches(const std::vector<Reference>& references, const Kernels& kernels,
                    const HeadParameters& head, const Pages& pages, const Rows& rows) {
  State state = attend(kernels, head, pages.view(), rows);
  const std::vector<float> out = finish(kernels, head, state);
  for (uint32_t row = 0; row < rows.count(); ++row) {
    const Reference& expected = references[row];
    if (expected.sum == 0) {
      EXPECT_EQ(state.max[row], -std::numeric_limits<float>::infinity());
      EXPECT_EQ(state.sum[row], 0.0f);
    } else {
      EXPECT_NEAR(static_cast<double>(state.max[row]), expected.max, kTolerance);
      EXPECT_NEAR(static_cast<double>(state.sum[row]) / expected.sum, 1.0, kTolerance);
    }
    double worst = 0;
    for (uint32_t d = 0; d < head.head_dim; ++d)
      worst = std::max(worst,
                       std::abs(static_cast<double>(out[row * head.head_dim + d]) - expected.o[d]));
    EXPECT_LE(worst, kTolerance) << "row " << row << " of " << rows.count();
  }
}

// What each page has of a row's weights.
std::vector<float> page_sums(const Kernels& kernels, const HeadParameters& head,
                             const SplitPages& pages, const Rows& rows, float* o, State& state) {
  std::vector<float> sums(size_t{rows.count()} * kSplitPages, -7.0f);
  Partials out = state.view();
  out.o = o, out.page_sum = sums.data();
  Buffer<std::byte> scratch(kernels.scratch_bytes(head, rows.count()), std::byte{0xff});
  kernels.attend_split(head, pages, rows.view(), scratch.data(), out);
  return sums;
}

double reference_page_sum(const HeadParameters& head, const Pages& pages, const Rows& rows,
                          uint32_t row, uint32_t page) {
  const Reference all = reference(head, pages, rows, row);
  Rows part = rows;
  part.begin[row] = std::max(rows.begin[row], page * kPage);
  part.end[row] = std::min(rows.end[row], (page + 1) * kPage);
  const Reference some = reference(head, pages, part, row);
  return some.sum == 0 ? 0 : some.sum * std::exp(some.max - all.max);
}

TEST(AttentionKernels, TellWhatEachPageHasOfTheWeights) {
  for (const Kernels* kernels : available_kernels())
    for (const Codings& codings : {Codings{}, all_of(Codec::kI2, Codec::kI2)})
      for (const Visible visible : kAllVisible)
        for (const uint32_t count : {1u, 3u, 8u}) {
          SCOPED_TRACE(std::string(to_string(kernels->isa)) + describe(codings));
          const HeadParameters head = head_of(64);
          const Pages pages(64, 5, codings);
          const Rows rows = make_rows(count, 64, visible);
          State state(count, 64);
          const auto sums = page_sums(*kernels, head, pages.view(), rows, state.o.data(), state);
          for (uint32_t row = 0; row < count; ++row)
            for (uint32_t page = 0; page < kSplitPages; ++page)
              EXPECT_NEAR(static_cast<double>(sums[row * kSplitPages + page]),
                          reference_page_sum(head, pages, rows, row, page), 1e-4);
        }
}

TEST(AttentionKernels, WeighWithoutV) {
  for (const Kernels* kernels : available_kernels())
    for (const Codings& codings : all_codings())
      for (const Visible visible : kAllVisible) {
        SCOPED_TRACE(std::string(to_string(kernels->isa)) + describe(codings));
        const HeadParameters head = head_of(96);
        const Pages pages(96, 5, codings);
        const Rows rows = make_rows(3, 96, visible);
        State whole(3, 96), weights(3, 96);
        const auto expected = page_sums(*kernels, head, pages.view(), rows, whole.o.data(), whole);
        SplitPages k_only = pages.view();
        k_only.v.fill({}), k_only.sink_v = nullptr;
        const auto sums = page_sums(*kernels, head, k_only, rows, nullptr, weights);
        EXPECT_EQ(bits(sums), bits(expected));
        EXPECT_EQ(bits(weights.max), bits(whole.max));
        EXPECT_EQ(bits(weights.sum), bits(whole.sum));
      }
}

// Every algorithm on rows of some ranges.
void expect_all_match(const HeadParameters& head, const Pages& pages, uint32_t count,
                      Visible visible) {
  const Rows rows = make_rows(count, head.head_dim, visible);
  const std::vector<Reference> expected = references(head, pages, rows);
  for (const Kernels& kernels : available_algorithms()) {
    SCOPED_TRACE(testing::Message()
                 << to_string(kernels.isa) << (is_for_prompts(kernels) ? " for prompts" : "")
                 << " head_dim " << head.head_dim << " ranges " << static_cast<int>(visible)
                 << " softcap " << head.softcap << " " << describe(pages.codings));
    expect_matches(expected, kernels, head, pages, rows);
  }
}

TEST(AttentionKernels, MatchTheReference) {
  for (const uint32_t head_dim : {16u, 48u, 64u, 80u, 96u, 128u, 256u, 512u}) {
    const Pages pages(head_dim, head_dim);
    for (const uint32_t count : {1u, 2u, 3u, 4u, 6u, 7u, 9u, 16u, 96u})
      for (const Visible visible : kAllVisible)
        for (const float softcap : {0.0f, 30.0f})
          expect_all_match(head_of(head_dim, softcap), pages, count, visible);
  }
}

// Any query heads per KV head, tokens and codecs.
TEST(AttentionKernels, MatchTheReferenceOnEncodedPages) {
  for (const uint32_t head_dim : {16u, 48u, 64u, 80u, 96u, 128u, 256u, 512u})
    for (const Codings& codings : all_codings()) {
      const Pages pages(head_dim, head_dim, codings);
      for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 16u, 50u})
        for (const Visible visible : kAllVisible)
          expect_all_match(head_of(head_dim, count == 5 ? 30.0f : 0.0f), pages, count, visible);
    }
}

TEST(AttentionKernels, SoftcapAltersLargeScores) {
  const Pages pages(64, 5);
  Rows rows = make_rows(2, 64, Visible::kFull);
  for (float& q : rows.q) q *= 20.0f;
  for (const Kernels& kernels : available_algorithms()) {
    const State state = attend(kernels, head_of(64, 5.0f), pages.view(), rows);
    const Reference expected = reference(head_of(64, 5.0f), pages, rows, 0);
    EXPECT_LE(state.max[0], 5.0f);
    EXPECT_NEAR(static_cast<double>(state.max[0]), expected.max, 1e-4);
    EXPECT_NEAR(static_cast<double>(state.sum[0]) / expected.sum, 1.0, 1e-4);
  }
}

// Takes rows [first, first + count) out of `rows`.
Rows slice(const Rows& rows, uint32_t first, uint32_t count, uint32_t head_dim) {
  Rows part;
  part.q.assign(rows.q.begin() + first * head_dim, rows.q.begin() + (first + count) * head_dim);
  part.begin.assign(rows.begin.begin() + first, rows.begin.begin() + first + count);
  part.end.assign(rows.end.begin() + first, rows.end.begin() + first + count);
  return part;
}

// Pages that no row sees are null.
SplitPages visible_pages(const Pages& pages, const Rows& rows) {
  const SplitPages all = pages.view();
  SplitPages seen{.sink_k = all.sink_k, .sink_v = all.sink_v};
  for (uint32_t page = 0; page < kSplitPages; ++page)
    for (uint32_t row = 0; row < rows.count(); ++row)
      if (std::max(rows.begin[row], page * kPage) < std::min(rows.end[row], (page + 1) * kPage)) {
        seen.k[page] = all.k[page];
        seen.v[page] = all.v[page];
      }
  return seen;
}

// Some rows of `rows` alone against the same rows among all.
void expect_bits_of_all(const Kernels& kernels, const Pages& pages, const Rows& rows) {
  const HeadParameters head = head_of(pages.head_dim);
  State whole = attend(kernels, head, pages.view(), rows);
  const std::vector<float> expected = finish(kernels, head, whole);
  for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 6u, 9u, 16u, 48u})
    for (uint32_t first = 0; first + count <= rows.count(); first += count * 2 + 1) {
      const Rows part = slice(rows, first, count, pages.head_dim);
      State state = attend(kernels, head, visible_pages(pages, part), part);
      const std::vector<float> out = finish(kernels, head, state);
      EXPECT_EQ(bits(state.max), bits(std::span(whole.max).subspan(first, count)));
      EXPECT_EQ(bits(state.sum), bits(std::span(whole.sum).subspan(first, count)));
      EXPECT_EQ(bits(out), bits(std::span(expected).subspan(first * head.head_dim, out.size())));
    }
}

TEST(AttentionKernels, BitsOfARowDoNotDependOnItsCompany) {
  std::vector<Codings> every_coding = all_codings();
  every_coding.emplace_back();  // F16
  for (const uint32_t head_dim : {16u, 64u, 80u, 128u, 256u})
    for (const Codings& codings : every_coding) {
      const Pages pages(head_dim, 3, codings);
      for (const Kernels& kernels : available_algorithms())
        for (const Visible visible : kAllVisible) {
          SCOPED_TRACE(testing::Message()
                       << to_string(kernels.isa) << " head_dim " << head_dim << " ranges "
                       << static_cast<int>(visible) << " " << describe(codings));
          expect_bits_of_all(kernels, pages, make_rows(96, head_dim, visible));
        }
    }
}

TEST(AttentionKernels, HiddenTokensHaveNoInfluence) {
  constexpr uint32_t kHeadDim = 64;
  const HeadParameters head = head_of(kHeadDim);
  Pages pages(kHeadDim, 4), zeroed(kHeadDim, 4);
  for (uint32_t t = 100; t < 128; ++t)
    for (uint32_t d = 0; d < kHeadDim; ++d) {
      zeroed.k[1].set(d, t % kPage, 0);
      zeroed.v[1].set(t % kPage, d, 0);
    }
  for (const Kernels& kernels : available_algorithms())
    for (const uint32_t count : {1u, 96u}) {
      Rows rows = make_rows(count, kHeadDim, Visible::kFull);
      rows.end.assign(count, 100);
      State a = attend(kernels, head, pages.view(), rows);
      State b = attend(kernels, head, visible_pages(zeroed, rows), rows);
      EXPECT_EQ(bits(a.sum), bits(b.sum));
      EXPECT_EQ(bits(finish(kernels, head, a)), bits(finish(kernels, head, b)));
    }
}

TEST(AttentionKernels, NotANumberStaysVisible) {
  const Pages exact(64, 4), encoded(64, 4, all_of(Codec::kI4, Codec::kI4));
  Rows rows = make_rows(2, 64, Visible::kFull);
  // The usual one, what x86 makes of 0 / 0, and F16 numbers widened.
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fffe000u, 0xffffe000u}) {
    rows.q[70] = std::bit_cast<float>(bits);
    for (const Pages* pages : {&exact, &encoded})
      for (const Kernels& kernels : available_algorithms()) {
        State state = attend(kernels, head_of(64), pages->view(), rows);
        const std::vector<float> out = finish(kernels, head_of(64), state);
        EXPECT_FALSE(std::isnan(out[0])) << to_string(kernels.isa);
        EXPECT_TRUE(std::isnan(out[64])) << to_string(kernels.isa);
      }
  }
}

// A damaged number makes the group NaN in which it is encoded: of a V page 64 channels of one
// token.
TEST(AttentionKernels, DamageOfAPageStaysVisible) {
  constexpr uint32_t kHeadDim = 128;
  for (const Codec codec : {Codec::kF16, Codec::kI8, Codec::kI4, Codec::kI3, Codec::kI2}) {
    const auto damaged = [&](uint32_t channel) {
      return codec == Codec::kF16 ? channel == 77 : channel >= 64;
    };
    Pages damaged_k(kHeadDim, 1, all_of(codec, Codec::kF16));
    damaged_k.k[2].set(77, 9, to_half(std::numeric_limits<float>::quiet_NaN()));
    Pages damaged_v(kHeadDim, 1, all_of(Codec::kF16, codec));
    damaged_v.v[2].set(9, 77, to_half(std::numeric_limits<float>::quiet_NaN()));
    for (const Kernels& kernels : available_algorithms())
      for (const uint32_t count : {1u, 6u, 16u, 48u}) {
        SCOPED_TRACE(testing::Message() << to_string(kernels.isa) << " rows " << count);
        const Rows rows = make_rows(count, kHeadDim, Visible::kFull);
        State of_k = attend(kernels, head_of(kHeadDim), damaged_k.view(), rows);
        State of_v = attend(kernels, head_of(kHeadDim), damaged_v.view(), rows);
        const std::vector<float> out_k = finish(kernels, head_of(kHeadDim), of_k);
        const std::vector<float> out_v = finish(kernels, head_of(kHeadDim), of_v);
        for (uint32_t i = 0; i < out_k.size(); ++i) {
          EXPECT_TRUE(std::isnan(out_k[i])) << i;
          EXPECT_EQ(std::isnan(out_v[i]), damaged(i % kHeadDim)) << i;
        }
      }
  }
}

// Of a single visible token the weight is 1, on AMX tiles nearly so: its V comes out unchanged.
TEST(AttentionKernels, SinkTokensAreExact) {
  constexpr uint32_t kHeadDim = 96;
  const Pages pages(kHeadDim, 1, all_of(Codec::kI2, Codec::kI2, true));
  for (const Kernels& kernels : available_algorithms())
    for (const uint32_t count : {4u, 64u}) {
      const double tolerance = is_for_prompts(kernels) ? kTolerance : 0;
      const Rows rows = make_rows(count, kHeadDim, Visible::kOneToken);
      Rows sinks = rows;
      for (uint32_t row = 0; row < count; ++row)
        sinks.begin[row] = row % kv::kSinkTokens, sinks.end[row] = sinks.begin[row] + 1;
      State state = attend(kernels, head_of(kHeadDim), pages.view(), sinks);
      const std::vector<float> out = finish(kernels, head_of(kHeadDim), state);
      for (uint32_t i = 0; i < out.size(); ++i) {
        const uint32_t token = i / kHeadDim % kv::kSinkTokens;
        const double exact = from_half(pages.sink_v[token * kHeadDim + i % kHeadDim]);
        EXPECT_NEAR(static_cast<double>(out[i]), exact, tolerance);
      }
    }
}

TEST(AttentionKernelsDeathTest, AnUnknownCodecIsNeverReadAsData) {
  const Pages pages(64, 1);
  for (const Kernels& kernels : available_algorithms())
    for (const uint32_t count : {1u, 64u}) {
      const Rows rows = make_rows(count, 64, Visible::kFull);
      for (const uint8_t codec : {uint8_t{0}, uint8_t{6}, uint8_t{255}}) {
        SplitPages unknown = pages.view();
        unknown.k[2].codec = static_cast<Codec>(codec);
        EXPECT_DEATH(attend(kernels, head_of(64), unknown, rows), "codec");
        unknown = pages.view();
        unknown.v[2].codec = static_cast<Codec>(codec);
        EXPECT_DEATH(attend(kernels, head_of(64), unknown, rows), "codec");
      }
    }
}

// Goal: splits merged in order give the softmax over their concatenation, whichever of them a row
// sees. Method: the reference weighs the splits' own references in double precision.
TEST(AttentionKernels, MergeJoinsSplits) {
  constexpr uint32_t kHeadDim = 80, kRows = 7, kSplits = 3;
  const HeadParameters head = head_of(kHeadDim);
  for (const Kernels& kernels : available_algorithms()) {
    State into(kRows, kHeadDim);
    std::vector<Reference> expected(kRows);
    for (uint32_t split = 0; split < kSplits; ++split) {
      const Pages pages(kHeadDim, split);
      Rows rows = make_rows(kRows, kHeadDim, Visible::kFull);
      rows.end[0] = 0;                     // sees nothing anywhere
      rows.end[1] = split == 0 ? 0 : 256;  // starts late
      rows.end[2] = split == 1 ? 0 : 256;  // a gap
      rows.end[3] = split == 2 ? 0 : 256;  // ends early
      State next = attend(kernels, head, pages.view(), rows);
      if (split == 0) into = next;
      if (split != 0) kernels.merge(kHeadDim, kRows, into.view(), next.view());
      for (uint32_t row = 0; row < kRows; ++row) {
        const Reference part = reference(head, pages, rows, row);
        if (part.sum == 0) continue;
        Reference& sum = expected[row];
        sum.o.resize(kHeadDim);
        const double weight = part.sum * std::exp(part.max);
        for (uint32_t d = 0; d < kHeadDim; ++d) sum.o[d] += weight * part.o[d];
        sum.sum += weight;
      }
    }
    const std::vector<float> out = finish(kernels, head, into);
    for (uint32_t row = 0; row < kRows; ++row)
      for (uint32_t d = 0; d < kHeadDim; ++d) {
        const double o = row == 0 ? 0.0 : expected[row].o[d] / expected[row].sum;
        EXPECT_NEAR(static_cast<double>(out[row * kHeadDim + d]), o, kTolerance);
      }
  }
}

TEST(AttentionKernels, MergeWithAnEmptySideCopiesExactly) {
  for (const Kernels& kernels : available_algorithms()) {
    const Pages pages(64, 1);
    const Rows rows = make_rows(9, 64, Visible::kCausal);
    Rows none = rows;
    none.end.assign(9, 0);
    const State full = attend(kernels, head_of(64), pages.view(), rows);
    const State empty = attend(kernels, head_of(64), SplitPages{}, none);
    for (const bool full_first : {false, true}) {
      State into = full_first ? full : empty, next = full_first ? empty : full;
      kernels.merge(64, 9, into.view(), next.view());
      EXPECT_EQ(bits(into.max), bits(full.max));
      EXPECT_EQ(bits(into.sum), bits(full.sum));
      EXPECT_EQ(bits(into.o), bits(full.o));
    }
  }
}

TEST(AttentionKernels, FinishNeverWritesNegativeZeroAndKeepsToItsStride) {
  for (const Kernels* kernels : available_kernels()) {
    State state(2, 16);
    state.max = {1.0f, -std::numeric_limits<float>::infinity()};
    state.sum = {2.0f, 0.0f};
    state.o.assign(32, -0.0f);
    state.o[3] = 5.0f;
    std::vector<float> out(20 + 16, 9.0f);
    kernels->finish(16, 2, state.view(), out.data(), 20);
    for (size_t i = 0; i < out.size(); ++i) {
      const float expected = i == 3 ? 2.5f : i >= 16 && i < 20 ? 9.0f : 0.0f;
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

TEST(AttentionKernels, StoreWritesExactlyTheGivenTokens) {
  for (const Kernels* kernels : available_kernels())
    for (const uint32_t head_dim : {16u, 80u, 128u})
      for (const auto& [first, count] :
           {std::pair{0u, 64u}, {0u, 1u}, {63u, 1u}, {5u, 19u}, {8u, 8u}}) {
        const size_t stride = head_dim + 24;
        Buffer<uint16_t> tokens((count - 1) * stride + head_dim);
        for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint16_t>(i + 1);
        Buffer<uint16_t> k(size_t{head_dim} * kPage), v(size_t{head_dim} * kPage);
        kernels->store_k(head_dim, tokens.data(), stride, first, count, k.data());
        kernels->store_v(head_dim, tokens.data(), stride, first, count, v.data());
        for (uint32_t t = 0; t < kPage; ++t)
          for (uint32_t d = 0; d < head_dim; ++d) {
            const bool written = t >= first && t < first + count;
            const uint16_t expected = written ? tokens[(t - first) * stride + d] : uint16_t{0};
            ASSERT_EQ(k[d * kPage + t], expected) << to_string(kernels->isa);
            ASSERT_EQ(v[size_t{t} * head_dim + d], expected) << to_string(kernels->isa);
          }
      }
}

TEST(AttentionKernels, PromptsOfOtherKernelsHaveTheSameBits) {
  for (const Kernels* kernels : available_kernels()) {
    EXPECT_GT(kernels->tile_rows, 0u);
    if (kernels->prompts_differ) continue;
    EXPECT_EQ(kernels->attend_split_prompt, kernels->attend_split);
    EXPECT_EQ(kernels->prompt_scratch_bytes, kernels->scratch_bytes);
  }
}

class ForcedIsa : public testing::Test {
 protected:
  void TearDown() override { unsetenv("HIFC_FORCE_ISA"); }
  static void force(const char* isa) { setenv("HIFC_FORCE_ISA", isa, 1); }
};

TEST_F(ForcedIsa, SelectsWhatItNames) {
  for (const Kernels* kernels : available_kernels()) {
    force(std::string(to_string(kernels->isa)).c_str());
    const auto selected = select_kernels();
    ASSERT_TRUE(selected);
    EXPECT_EQ(*selected, kernels);
  }
}

TEST_F(ForcedIsa, IsTheBestAvailableByDefault) {
  unsetenv("HIFC_FORCE_ISA");
  const auto unset = select_kernels();
  ASSERT_TRUE(unset);
  EXPECT_EQ(*unset, available_kernels().back());
  force("");
  EXPECT_EQ(select_kernels().value(), *unset);
}

TEST_F(ForcedIsa, OneRoundingNeverTellsPromptsApart) {
  for (const Kernels* kernels : available_kernels()) {
    force(std::string(to_string(kernels->isa)).c_str());
    const auto selected = select_kernels(Rounding::kOne);
    ASSERT_TRUE(selected);
    EXPECT_FALSE((*selected)->prompts_differ);
    if (!kernels->prompts_differ) EXPECT_EQ(*selected, kernels);
  }
}

TEST_F(ForcedIsa, RejectsUnknownNames) {
  for (const char* name : {"AVX2", "sse", "avx512 "}) {
    force(name);
    const auto selected = select_kernels();
    ASSERT_FALSE(selected) << name;
    EXPECT_EQ(selected.error().code, Code::kInvalid);
  }
}

}  // namespace
}  // namespace hifc::kernels
