// What stands on the command line and is judged while it is parsed: numbers, and the names of
// commands. What is refused has one sentence that names the option as it was typed, the value and
// what is accepted; explain() (apps/options.h) puts it together.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/text.h"

namespace hifc::apps {

// Ends the parsing, whatever else is on the command line.
class UsageError : public CLI::ParseError {
 public:
  explicit UsageError(const std::string& sentence)
      : ParseError("UsageError", sentence, CLI::ExitCodes::ValidationError) {}
};
void require(const Result<void>& checked);

// A value that its option does not accept.
class BadValue : public UsageError {
 public:
  // `names` as add_option() takes them: "-n,--tokens".
  BadValue(std::string names, std::string_view value, std::string_view accepted);

  // With the one of `names` that stands in `arguments`, or the last where none does.
  std::string sentence(std::span<const std::string> arguments) const;

 private:
  std::string names_;
  std::string problem_;
};

template <typename T>
struct Accepted {
  std::function<bool(T)> test;  // of numbers that are finite
  std::string text;             // "a whole number from 1 to 4096"
};

template <typename T>
std::string_view number_noun() {
  return std::is_integral_v<T> ? "a whole number" : "a number";
}

template <typename T>
Accepted<T> between(T least, T most) {
  return {.test = [=](T number) { return number >= least && number <= most; },
          .text = fmt::format("{} from {} to {}", number_noun<T>(), least, most)};
}

template <typename T>
Accepted<T> at_least(T least) {
  return {.test = [=](T number) { return number >= least; },
          .text = fmt::format("{} of {} or more", number_noun<T>(), least)};
}

template <typename T>
T parse_number(const std::string& names, const std::string& text, const Accepted<T>& accepted) {
  const auto number = to_number<T>(text);
  bool fine = number && accepted.test(*number);
  // "nan" and "inf" are numbers to most parsers.
  if constexpr (std::is_floating_point_v<T>) fine = fine && std::isfinite(*number);
  if (!fine) throw BadValue(names, text, accepted.text);
  return *number;
}

template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& names, T& value, Accepted<T> accepted,
                        const std::string& help) {
  const std::string standard = fmt::to_string(value);
  const CLI::callback_t parse = [&value, names,
                                 accepted = std::move(accepted)](const CLI::results_t& words) {
    value = parse_number(names, words.back(), accepted);
    return true;
  };
  return app.add_option(names, parse, help)->type_name("N")->default_str(standard);
}

// Several stand in one word: --context 32,512.
template <typename T>
CLI::Option* add_numbers(CLI::App& app, const std::string& names, std::vector<T>& values,
                         Accepted<T> accepted, const std::string& help) {
  const std::string standard = fmt::format("{}", fmt::join(values, ","));
  const CLI::callback_t parse = [&values, names,
                                 accepted = std::move(accepted)](const CLI::results_t& words) {
    values.clear();
    for (const std::string& word : words) values.push_back(parse_number(names, word, accepted));
    return true;
  };
  return app.add_option(names, parse, help)
      ->delimiter(',')
      ->expected(-1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("N,...")
      ->default_str(standard);
}

// kInvalid where the first words name no command of `app`, or none of the command before them; with
// the one that was probably meant. --help of a command that does not exist is no help.
Result<void> check_commands(const CLI::App& app, std::span<const std::string> arguments);

}  // namespace hifc::apps
