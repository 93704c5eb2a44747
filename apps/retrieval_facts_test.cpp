#include "apps/retrieval_facts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace hifc::apps {
namespace {

std::string repeated(std::string_view part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

// Where the facts of set 0 are, in bytes of the text without them; and that text.
struct Found {
  std::vector<size_t> at = {};
  std::string rest = {};
};
Found take_out(std::string placed, std::string_view separator) {
  Found found;
  for (const Fact& fact : fact_set(0)) {
    const std::string statement = statement_of(fact) + std::string(separator);
    const size_t at = placed.find(statement);
    EXPECT_NE(at, std::string::npos) << statement;
    if (at == std::string::npos) break;
    found.at.push_back(at);
    placed.erase(at, statement.size());
  }
  found.rest = placed;
  return found;
}

void expect_near_depths(const std::vector<size_t>& at, size_t length) {
  ASSERT_EQ(at.size(), kFactsPerSet);
  for (uint32_t index = 0; index < kFactsPerSet; ++index) {
    const size_t depth = length * depth_percent(index) / 100;
    EXPECT_LE(at[index], depth);
    EXPECT_GT(at[index] + length / 20, depth);
  }
}

TEST(RetrievalFacts, NoTwoShareASubjectOrAnAnswer) {
  std::set<std::string_view> beginnings, answers;
  for (uint32_t set = 0; set < kFactSets; ++set)
    for (const Fact& fact : fact_set(set)) {
      EXPECT_TRUE(beginnings.insert(fact.beginning).second) << fact.beginning;
      EXPECT_TRUE(answers.insert(fact.answer).second) << fact.answer;
      EXPECT_EQ(fact.answer.front(), ' ');
      EXPECT_NE(fact.beginning.back(), ' ');
    }
  EXPECT_EQ(answers.size(), kFactSets * kFactsPerSet);
}

TEST(RetrievalFacts, AQuestionLeadsToTheAnswerInTheWordsOfTheFact) {
  const Fact fact{.beginning = "The key is in the", .answer = " pot"};
  EXPECT_EQ(statement_of(fact), "The key is in the pot.");
  EXPECT_TRUE(question_about(fact).ends_with("\nAnswer: The key is in the"));
}

TEST(RetrievalFacts, DepthsAreTheMiddlesOfTenths) {
  EXPECT_EQ(depth_percent(0), 5u);
  EXPECT_EQ(depth_percent(9), 95u);
}

TEST(RetrievalFacts, TheyStandBetweenParagraphsAtTheirDepths) {
  const std::string text = repeated("One sentence. Another one.\n\n", 200);
  const Found found = take_out(place_facts(text, text.size(), fact_set(0)), "\n\n");
  EXPECT_EQ(found.rest, text);
  expect_near_depths(found.at, text.size());
  for (const size_t at : found.at) EXPECT_EQ(text.substr(at - 2, 2), "\n\n");
}

TEST(RetrievalFacts, WithoutParagraphsBetweenSentencesElseWords) {
  for (const std::string_view part : {"Some words make a sentence. ", "word "}) {
    const std::string text = repeated(part, 300);
    const Found found = take_out(place_facts(text, text.size(), fact_set(0)), " ");
    EXPECT_EQ(found.rest, text);
    expect_near_depths(found.at, text.size());
    for (const size_t at : found.at) EXPECT_EQ(at % part.size(), 0u);
  }
}

TEST(RetrievalFacts, WhatFollowsTheLengthHasNone) {
  const std::string text = repeated("word ", 400), rest = text.substr(1000);
  const std::string placed = place_facts(text, 1000, fact_set(0));
  EXPECT_TRUE(placed.ends_with(rest));
  expect_near_depths(take_out(placed, " ").at, 1000);
}

TEST(RetrievalFacts, NoCharacterIsCut) {
  const std::string text = repeated("語", 500);  // of three bytes
  const Found found = take_out(place_facts(text, text.size(), fact_set(0)), " ");
  EXPECT_EQ(found.rest, text);
  for (const size_t at : found.at) EXPECT_EQ(at % 3, 0u);
}

TEST(RetrievalFacts, AnEmptyTextBecomesTheFacts) {
  const Found found = take_out(place_facts("", 0, fact_set(0)), " ");
  EXPECT_EQ(found.rest, "");
  EXPECT_EQ(found.at, std::vector<size_t>(kFactsPerSet, 0));
}

}  // namespace
}  // namespace hifc::apps
