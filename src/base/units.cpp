#include "base/units.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "base/text.h"

namespace hifc {
namespace {

struct Unit {
  std::string_view name;
  uint64_t size_bytes;
};

constexpr std::array<Unit, 11> kUnits = {{
    {"", 1},
    {"B", 1},
    {"kB", 1000},
    {"KB", 1000},
    {"MB", 1000'000},
    {"GB", 1000'000'000},
    {"TB", 1000'000'000'000},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
}};

// With six decimals, fraction x TiB (10^6 x 2^40 = 2^59.9) still fits 64 bits, so sums are exact.
constexpr size_t kDecimalsMax = 6;
static_assert(std::numeric_limits<uint64_t>::max() / (1ull << 40) > 1'000'000);

std::unexpected<Error> not_a_size(std::string_view text, std::string_view name) {
  return failure(
      Code::kInvalid,
      fmt::format("{}: {} is not a size; accepted are whole bytes, or a number (up to {} decimals) "
                  "with kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 64GB or 1.5GiB",
                  name, quote(text), kDecimalsMax));
}

std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

const Unit* find_unit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

// The bytes in `decimals` (0.<decimals> of the unit), rounded down.
uint64_t fraction_bytes(std::string_view decimals, uint64_t unit_bytes) {
  uint64_t fraction = 0, scale = 1;
  for (const char digit : decimals) {
    fraction = fraction * 10 + static_cast<uint64_t>(digit - '0');
    scale *= 10;
  }
  return fraction * unit_bytes / scale;
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text, std::string_view name) {
  std::string_view rest = text;
  const std::string_view whole = take_digits(rest);
  if (whole.empty()) return not_a_size(text, name);
  std::string_view decimals;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    decimals = take_digits(rest);
    if (decimals.empty() || decimals.size() > kDecimalsMax) return not_a_size(text, name);
  }
  if (rest.size() > 1 && rest.starts_with(' ')) rest.remove_prefix(1);
  const Unit* unit = find_unit(rest);
  const bool fraction_of_byte = unit != nullptr && unit->size_bytes == 1 && !decimals.empty();
  if (unit == nullptr || fraction_of_byte) return not_a_size(text, name);

  const auto number = to_number<uint64_t>(whole);
  uint64_t value = 0;
  if (!number || __builtin_mul_overflow(*number, unit->size_bytes, &value) ||
      __builtin_add_overflow(value, fraction_bytes(decimals, unit->size_bytes), &value)) {
    return failure(Code::kInvalid,
                   fmt::format("{}: {} is too large; accepted are sizes up to {} "
                               "bytes (16 EiB)",
                               name, quote(text), std::numeric_limits<uint64_t>::max()));
  }
  return value;
}

std::string format_size(uint64_t size_bytes) {
  constexpr std::array<std::string_view, 6> kNames = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (size_bytes < 1024) return fmt::format("{} B", size_bytes);
  double value = static_cast<double>(size_bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (value >= 1023.95 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

}  // namespace hifc
