#include "apps/retrieval_facts.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace hifc::apps {
namespace {

using FactSet = std::array<Fact, kFactsPerSet>;

constexpr std::array<FactSet, kFactSets> kSets = {{
    {{{"The librarian in Oslo keeps the spare key in the", " blue teapot"},
      {"The fishing boat of Captain Marlowe is called the", " Silver Heron"},
      {"The secret ingredient of Aunt Petra's soup is", " fennel"},
      {"The clock at Tallinn station is always late by", " nine minutes"},
      {"The favourite instrument of Doctor Okafor is the", " cello"},
      {"The password of the night guard at the Lisbon museum is", " marigold"},
      {"The oldest tree in the village of Brenn is a", " walnut"},
      {"The painter Ilse Voss signs her pictures with a small", " green fox"},
      {"The winner of the chess tournament in Quito came from", " Iceland"},
      {"The bakery on Harrow Lane is closed every", " Wednesday"}}},
    {{{"The parrot of the watchmaker in Graz can only say", " pumpkin"},
      {"The bridge over the river Senn was built by two", " brothers"},
      {"The piano on the night train to Vigo stands in wagon", " seventeen"},
      {"The mayor of Lindale was once a professional", " juggler"},
      {"The keeper of the lighthouse at Cape Farrow feeds his cat with", " sardines"},
      {"The treasure of the Morrow family was buried under the", " stone oven"},
      {"The astronomer Yusuf Demir named his comet after his", " dentist"},
      {"The school in Arden teaches all of its pupils to", " knit"},
      {"The letter from Budapest was sealed with", " purple wax"},
      {"The champion of the Kerry sheep race is called", " Biscuit"}}},
    {{{"The gardener of Castle Rhone waters his roses with cold", " coffee"},
      {"The violin of Professor Hallam was made in", " Peru"},
      {"The robot in the post office of Kyoto is painted", " orange"},
      {"The judge in the Mercer trial always carried a", " harmonica"},
      {"The first prize at the Dover flower show was a", " copper kettle"},
      {"The map of the Velden mine is hidden inside a hollow", " candle"},
      {"The nurse Amina Sow spends all of her holidays in", " Greenland"},
      {"The dog of the ferryman at Loch Brae is afraid of", " balloons"},
      {"The cheese from the Talva valley ripens for", " eleven months"},
      {"The cook on the ship Meridian lost his left", " shoe"}}},
}};

// Where a fact goes, and what sets it off from the text behind it.
struct Place {
  size_t at = 0;
  std::string_view separator;
};

bool inside_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

// The last of the coarsest ends in (from, to]; where there is none, `to`.
Place last_end(std::string_view text, size_t from, size_t to) {
  struct End {
    std::string_view text, separator;
  };
  constexpr std::array<End, 4> kEnds = {{{"\n\n", "\n\n"}, {". ", " "}, {".\n", "\n"}, {" ", " "}}};
  for (const End& end : kEnds) {
    const size_t at = text.substr(0, to).rfind(end.text);
    if (at != std::string_view::npos && at + end.text.size() > from)
      return {.at = at + end.text.size(), .separator = end.separator};
  }
  while (to > 0 && inside_character(text, to)) --to;
  return {.at = to, .separator = " "};
}

}  // namespace

std::span<const Fact, kFactsPerSet> fact_set(uint32_t set) {
  HIFC_CHECK(set < kFactSets);
  return kSets[set];
}

std::string statement_of(const Fact& fact) {
  return std::string(fact.beginning) + std::string(fact.answer) + ".";
}

// Of three forms tried the one whose answers are likeliest under exact attention (mean logarithm
// -1.35 over 30 facts, of which it finds 28; another finds 29 at -3.03, a third 27 at -1.74).
std::string question_about(const Fact& fact) {
  return "\n\nQuestion: What does the text above say?\nAnswer: " + std::string(fact.beginning);
}

std::string place_facts(std::string_view text, size_t length,
                        std::span<const Fact, kFactsPerSet> facts) {
  length = std::min(length, text.size());
  std::string placed;
  size_t done = 0;
  for (uint32_t index = 0; index < kFactsPerSet; ++index) {
    // The ends that one fact may stand at come after those of the fact before.
    const size_t depth = length * depth_percent(index) / 100;
    const Place place = last_end(text, depth - length / (2 * kFactsPerSet), depth);
    placed += text.substr(done, place.at - done);
    placed += statement_of(facts[index]);
    placed += place.separator;
    done = place.at;
  }
  placed += text.substr(done);
  return placed;
}

}  // namespace hifc::apps
