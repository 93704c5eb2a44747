// Small helpers for sentences that quote what a user wrote.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hifc {

// `text` in double quotes, control characters escaped, cut after 60 bytes: safe in a one-line
// error.
std::string quote(std::string_view text);

// The candidate that `word` most likely misspells (edit distance, case ignored), or "" when none is
// close enough to suggest.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace hifc
