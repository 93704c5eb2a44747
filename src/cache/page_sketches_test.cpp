#include "cache/page_sketches.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kv/layout.h"

namespace hifc::cache {
namespace {

using kv::kPageTokens;

// How a page of K is there: exact pages of layers whose codec rotates are rotated too.
struct Form {
  kv::Codec codec;
  bool rotated;
};

std::vector<Form> forms() {
  std::vector<Form> all = {{kv::Codec::kF16, true}};
  for (const kv::Codec codec : kv::kCodecs) all.push_back({codec, kv::rotates(codec)});
  return all;
}

class PageSketchesTest : public ::testing::TestWithParam<Form> {
 protected:
  static constexpr uint32_t kHeadDim = 80;
  PageSketchesTest()
      : kernels_(**kernels::select_kernels()),
        codecs_(**kernels::codecs_for(kernels_.isa)),
        sketches_(
            {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = kHeadDim, .window = {0, 0}},
            codecs_) {}

  // A page of K whose channels differ in size, in the codec under test, and as numbers
  // [channel][token].
  kernels::Page make_page(float outlier) {
    std::normal_distribution<float> normal;
    const kv::PageFormat format{GetParam().codec, kHeadDim, kPageTokens};
    std::vector<uint16_t> half(size_t{kHeadDim} * kPageTokens);
    for (size_t i = 0; i < half.size(); ++i)
      half[i] = std::bit_cast<uint16_t>(
          static_cast<_Float16>(normal(random_) * (i / kPageTokens == 7 ? outlier : 1.0f)));
    bytes_.resize(kv::page_bytes(format));
    codecs_.encode(format, half.data(), bytes_.data());
    codecs_.decode_f16(format, bytes_.data(), half.data());
    k_.clear();
    for (const uint16_t value : half)
      k_.push_back(static_cast<double>(std::bit_cast<_Float16>(value)));
    return {bytes_.data(), GetParam().codec};
  }

  std::mt19937 random_{17};
  const kernels::Kernels& kernels_;
  const kernels::Codecs& codecs_;
  PageSketches sketches_;
  std::vector<std::byte> bytes_;
  std::vector<double> k_;
};

// What sparse attention concludes from a sketch: the page's weight, and the most it can be.
TEST_P(PageSketchesTest, EstimateAndBoundWeights) {
  std::normal_distribution<float> normal;
  for (const float outlier : {1.0f, 8.0f})
    for (uint32_t round = 0; round < 20; ++round) {
      const kernels::Page page = make_page(outlier);
      sketches_.prepare(1, 3);
      sketches_.set(1, 3, 1, page, GetParam().rotated);
      sketches_.complete(1, 3);
      std::vector<float> q(kHeadDim);
      double norm = 0;
      for (float& value : q) norm += std::pow(value = normal(random_), 2);
      // The weight in the basis that K is in.
      double weight = 0;
      for (uint32_t t = 0; t < kPageTokens; ++t) {
        double score = 0;
        for (uint32_t d = 0; d < kHeadDim; ++d)
          score += static_cast<double>(q[d]) * k_[d * kPageTokens + t];
        weight += std::exp(score * 0.1);
      }
      if (!GetParam().rotated) codecs_.rotate(kHeadDim, 1, q.data());
      const kernels::Page sketch = sketches_.at(1, 3, 1);
      std::vector<float> coarse(size_t{kHeadDim} * kPageTokens);
      codecs_.decode({sketch.codec, kHeadDim, kPageTokens}, {0, kHeadDim}, sketch.data,
                     coarse.data());
      double estimate = 0;
      for (uint32_t t = 0; t < kPageTokens; ++t) {
        double score = 0;
        for (uint32_t d = 0; d < kHeadDim; ++d) score += q[d] * coarse[d * kPageTokens + t];
        estimate += std::exp(score * 0.1);
      }
      const double slack = 0.1 * std::sqrt(norm) * sketches_.radius(1, 3, 1);
      EXPECT_LE(weight, estimate * std::exp(slack) * 1.001);
      EXPECT_GE(weight, estimate * std::exp(-slack) * 0.999);
      EXPECT_NEAR(std::log(weight / estimate), 0, 0.5 * outlier / 2);
    }
}

TEST_P(PageSketchesTest, KnowWhatTheyHave) {
  const kernels::Page page = make_page(1);
  EXPECT_FALSE(sketches_.has(0, 0));
  for (const uint32_t index : {2u, 5u}) {
    sketches_.prepare(0, index);
    for (uint32_t head = 0; head < 2; ++head)
      sketches_.set(0, index, head, page, GetParam().rotated);
    EXPECT_FALSE(sketches_.has(0, index));
    sketches_.complete(0, index);
    EXPECT_TRUE(sketches_.has(0, index));
  }
  EXPECT_FALSE(sketches_.has(0, 3));
  EXPECT_FALSE(sketches_.has(1, 2));
  sketches_.truncate(5);
  EXPECT_TRUE(sketches_.has(0, 2));
  EXPECT_FALSE(sketches_.has(0, 5));
  sketches_.prepare(0, 7);
  EXPECT_FALSE(sketches_.has(0, 5));
  sketches_.forget(0, 2);
  EXPECT_FALSE(sketches_.has(0, 2));
}

INSTANTIATE_TEST_SUITE_P(OfEveryForm, PageSketchesTest, ::testing::ValuesIn(forms()),
                         [](const auto& form) {
                           return std::string(kv::to_string(form.param.codec)) +
                                  (form.param.rotated ? "_rotated" : "");
                         });

}  // namespace
}  // namespace hifc::cache
