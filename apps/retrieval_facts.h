// The facts that `hifc bench retrieval` puts into a text and asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hifc::apps {

// A sentence of which nothing but its place in the text tells how it ends.
struct Fact {
  std::string_view beginning;
  std::string_view answer;  // with the space before it, without the full stop
};

inline constexpr uint32_t kFactsPerSet = 10;
inline constexpr uint32_t kFactSets = 3;

// No two facts of any sets are about the same, or have the same answer.
std::span<const Fact, kFactsPerSet> fact_set(uint32_t set);

std::string statement_of(const Fact& fact);
// What the answer follows.
std::string question_about(const Fact& fact);

// How much of the text stands before fact `index` of a set.
constexpr uint32_t depth_percent(uint32_t index) {
  return (2 * index + 1) * 100 / (2 * kFactsPerSet);
}

// `text` with the facts of a set between its paragraphs: each where the last paragraph ends before
// the fact's depth of the first `length` bytes, or where that is far, the last sentence or word.
std::string place_facts(std::string_view text, size_t length,
                        std::span<const Fact, kFactsPerSet> facts);

}  // namespace hifc::apps
