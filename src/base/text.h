// Small helpers for what a user wrote, and for sentences that quote it.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

namespace hifc {

// `text` in double quotes, control characters escaped, cut after 60 bytes: safe in a one-line
// error.
std::string quote(std::string_view text);

// "1 file", "2 files".
std::string plural(uint64_t count, std::string_view noun);

// The candidate that `word` most likely misspells (edit distance, case ignored), or "" when none is
// close enough to suggest.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates);

// The whole of `text` as a number; empty when it is not one or does not fit.
template <typename T>
std::optional<T> to_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace hifc
