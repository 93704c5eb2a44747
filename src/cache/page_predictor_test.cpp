#include "cache/page_predictor.h"

#include <gtest/gtest.h>

#include <numeric>

namespace hifc::cache {
namespace {

PageList pages(uint32_t first, uint32_t last) {
  PageList list(last - first);
  std::iota(list.begin(), list.end(), first);
  return list;
}

TEST(PagePredictor, TakesTheFewestPagesThatHoldTheShare) {
  const std::vector<float> mass = {0.5f, 0.1f, 0.2f, 0.05f, 0.15f};
  EXPECT_EQ(heaviest(mass, pages(0, 5), 0.49), (PageList{0}));
  EXPECT_EQ(heaviest(mass, pages(0, 5), 0.69), (PageList{0, 2}));
  EXPECT_EQ(heaviest(mass, pages(0, 5), 0.84), (PageList{0, 2, 4}));
  EXPECT_EQ(heaviest(mass, pages(1, 5), 0.49), PageList{});
  EXPECT_EQ(heaviest(mass, pages(1, 5), 0.69), (PageList{2}));
  EXPECT_EQ(heaviest(mass, pages(3, 8), 0.99), (PageList{3, 4}));
  EXPECT_EQ(heaviest(std::vector<float>(4, 0.25f), pages(0, 4), 0.5), (PageList{0, 1}));
  EXPECT_TRUE(heaviest({}, pages(0, 4), 0.9).empty());
  EXPECT_EQ(heaviest(std::vector<float>{1, 0, 0}, pages(0, 4), 1.0), pages(0, 4));
}

TEST(PagePredictor, FollowsTheMean) {
  const auto predictor = make_predictor(PredictorKind::kDecayedMean, 0.9);
  predictor->observe(std::vector<float>{0.2f, 0.8f, 0});
  EXPECT_EQ(predictor->predict(pages(0, 3)), (PageList{0, 1}));
  for (int i = 0; i < 12; ++i) predictor->observe(std::vector<float>{0, 0, 1});
  EXPECT_EQ(predictor->predict(pages(0, 3)), (PageList{2}));
}

TEST(PagePredictor, RemembersWhatWasHeavyAFewStepsAgo) {
  const auto predictor = make_predictor(PredictorKind::kDecayedMax, 0.95);
  predictor->observe(std::vector<float>{0, 0, 1, 0});
  for (int i = 0; i < 5; ++i) predictor->observe(std::vector<float>{0, 1, 0, 0});
  EXPECT_EQ(predictor->predict(pages(0, 4)), (PageList{1, 2}));
  for (int i = 0; i < 40; ++i) predictor->observe(std::vector<float>{0, 1, 0, 0});
  EXPECT_EQ(predictor->predict(pages(0, 4)), (PageList{1}));
}

TEST(PagePredictor, TheMeanForgetsAStepAfterSixteen) {
  const auto predictor = make_predictor(PredictorKind::kMean, 0.9999);
  predictor->observe(std::vector<float>{0, 0.5f});
  for (uint32_t i = 1; i < kHistorySteps; ++i) {
    predictor->observe(std::vector<float>{0.5f, 0, 0});
    EXPECT_EQ(predictor->predict(pages(0, 3)), (PageList{0, 1}));
  }
  predictor->observe(std::vector<float>{0.5f, 0, 0});
  EXPECT_EQ(predictor->predict(pages(0, 3)), (PageList{0}));
}

TEST(PagePredictor, TheHotSpanIsContiguousAndWidened) {
  const auto predictor = make_predictor(PredictorKind::kHotSpan, 0.95);
  std::vector<float> mass(100);
  mass[40] = mass[59] = 0.5f;
  predictor->observe(mass);
  // 20 pages long: 2 before, 3 after.
  EXPECT_EQ(predictor->predict(pages(0, 100)), pages(38, 63));
  EXPECT_EQ(predictor->predict(pages(35, 61)), pages(38, 61));
}

TEST(PagePredictor, ForgetsWhatIsCutOff) {
  for (const auto kind : {PredictorKind::kDecayedMean, PredictorKind::kDecayedMax,
                          PredictorKind::kMean, PredictorKind::kHotSpan}) {
    const auto predictor = make_predictor(kind, 0.9);
    predictor->observe(std::vector<float>{0.1f, 0.1f, 0.9f});
    predictor->truncate(2);
    EXPECT_EQ(predictor->predict(pages(0, 2)), (PageList{0, 1}));
    EXPECT_EQ(predictor->expected().size(), 2u);
    predictor->observe(std::vector<float>{0.1f, 0.1f, 0.0f});
    EXPECT_EQ(predictor->predict(pages(2, 3)), PageList{});
    EXPECT_TRUE(make_predictor(kind, 0.9)->predict(pages(0, 3)).empty());
  }
}

}  // namespace
}  // namespace hifc::cache
