// Every instruction set's codecs against a decoder written from the documented layout, and against
// each other bit by bit.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace hifc::kernels {
namespace {

using kv::Codec;

constexpr Codec kCodecs[] = {Codec::kI8, Codec::kI4, Codec::kI3, Codec::kI2};
constexpr uint32_t kHeadDims[] = {16, 64, 80, 96, 128, 256};

uint16_t to_half(double value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}
double from_half(uint16_t bits) {
  return static_cast<double>(std::bit_cast<_Float16>(bits));
}

// The pages of K and V of all head dimensions with all codecs.
std::vector<PageFormat> all_formats() {
  std::vector<PageFormat> formats;
  for (const Codec codec : kCodecs)
    for (const uint32_t head_dim : kHeadDims) {
      formats.push_back({codec, head_dim, kv::kPageTokens});
      formats.push_back({codec, kv::kPageTokens, head_dim});
    }
  formats.push_back({Codec::kI3, 5, 48});   // the one width of a last group that is missing above
  formats.push_back({Codec::kI2, 1, 512});  // and the largest row
  return formats;
}

std::string describe(const Codecs& codecs, const PageFormat& format) {
  return std::string(codecs.name) + " bits " + std::to_string(code_bits(format.codec)) + " rows " +
         std::to_string(format.rows) + " columns " + std::to_string(format.columns);
}

// Vectors are allocated to the byte: ASan sees every overrun.
std::vector<std::byte> encode(const Codecs& codecs, const PageFormat& format,
                              const std::vector<uint16_t>& page) {
  std::vector<std::byte> encoded(page_bytes(format), std::byte{0xee});
  encoded.shrink_to_fit();
  codecs.encode(format, page.data(), encoded.data());
  return encoded;
}

std::vector<float> decode(const Codecs& codecs, const PageFormat& format,
                          const std::vector<std::byte>& encoded, RowRange rows) {
  std::vector<float> out(size_t{rows.count} * format.columns, -7.0f);
  codecs.decode(format, rows, encoded.data(), out.data());
  return out;
}
std::vector<float> decode(const Codecs& codecs, const PageFormat& format,
                          const std::vector<std::byte>& encoded) {
  return decode(codecs, format, encoded, {0, format.rows});
}

// All NaN are the same here.
std::vector<uint32_t> bits(std::span<const float> values) {
  std::vector<uint32_t> result;
  for (const float value : values)
    result.push_back(std::isnan(value) ? 0x7fc00000 : std::bit_cast<uint32_t>(value));
  return result;
}

enum class Data { kNormal, kOutliers, kSmallSteps, kFewLastPlaces, kAnyFinite };
constexpr Data kAllData[] = {Data::kNormal, Data::kOutliers, Data::kSmallSteps,
                             Data::kFewLastPlaces, Data::kAnyFinite};

std::vector<uint16_t> make_page(const PageFormat& format, Data data, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<uint16_t> page(size_t{format.rows} * format.columns);
  for (uint16_t& value : page) switch (data) {
      case Data::kNormal: value = to_half(normal(random)); break;
      case Data::kOutliers: value = to_half(normal(random) * (random() % 32 == 0 ? 50 : 1)); break;
      case Data::kSmallSteps: value = to_half(std::round(normal(random)) * 0x1p-24); break;
      case Data::kFewLastPlaces: value = random() % 16 == 0 ? 0x5403 : 0x5400; break;
      case Data::kAnyFinite:
        do value = static_cast<uint16_t>(random());
        while ((value & 0x7c00) == 0x7c00);
        break;
    }
  return page;
}

// One value by the layout in codec.h.
class ReferenceDecoder {
 public:
  ReferenceDecoder(const PageFormat& format, const std::vector<std::byte>& encoded)
      : format_(format), bits_(code_bits(format.codec)), encoded_(encoded) {}

  uint32_t width(uint32_t column) const {
    return std::min(kGroupColumns, format_.columns - column / kGroupColumns * kGroupColumns);
  }
  double scale(uint32_t row, uint32_t column) const { return parameter(row, column, 0); }
  double min(uint32_t row, uint32_t column) const { return parameter(row, column, 1); }

  uint32_t code(uint32_t row, uint32_t column) const {
    const uint32_t in_group = column % kGroupColumns, first = column - in_group;
    const size_t at = format_.rows * groups() * 4 +
                      (size_t{first} * format_.rows + row * width(column)) * bits_ / 8;
    if (bits_ != 3) return plane(at, bits_, width(column), in_group);
    return plane(at, 2, width(column), in_group) |
           plane(at + width(column) / 4, 1, width(column), in_group) << 2;
  }
  // Exact in double precision: one rounding makes it the float.
  float value(uint32_t row, uint32_t column) const {
    return static_cast<float>(min(row, column) + scale(row, column) * code(row, column));
  }

 private:
  size_t groups() const { return (format_.columns + kGroupColumns - 1) / kGroupColumns; }
  double parameter(uint32_t row, uint32_t column, size_t part) const {
    uint16_t half = 0;
    const size_t index = (part * groups() + column / kGroupColumns) * format_.rows + row;
    std::memcpy(&half, &encoded_.at(index * sizeof(half)), sizeof(half));
    return from_half(half);
  }
  uint32_t plane(size_t at, uint32_t plane_bits, uint32_t width, uint32_t column) const {
    const uint32_t word_bytes = width == kGroupColumns && plane_bits < 8 ? 4 : 1;
    const uint32_t words = width * plane_bits / 8 / word_bytes;
    uint32_t word = 0;
    for (uint32_t i = 0; i < word_bytes; ++i)
      word |= static_cast<uint32_t>(encoded_.at(at + column % words * word_bytes + i)) << 8 * i;
    return word >> column / words * plane_bits & ((1u << plane_bits) - 1);
  }
  const PageFormat format_;
  const uint32_t bits_;
  const std::vector<std::byte>& encoded_;
};

std::vector<float> reference(const PageFormat& format, const std::vector<std::byte>& encoded) {
  const ReferenceDecoder decoder(format, encoded);
  std::vector<float> out;
  for (uint32_t row = 0; row < format.rows; ++row)
    for (uint32_t column = 0; column < format.columns; ++column)
      out.push_back(decoder.value(row, column));
  return out;
}

// Calls visit(codecs, format) for all there are.
template <class Visit>
void for_all(const Visit& visit) {
  for (const Codecs* codecs : runnable_codecs())
    for (const PageFormat& format : all_formats()) {
      SCOPED_TRACE(describe(*codecs, format));
      visit(*codecs, format);
    }
}

TEST(Codecs, PagesHaveTheDocumentedSizes) {
  constexpr uint32_t kValues = 64 * 128;
  EXPECT_EQ(page_bytes({Codec::kF16, 64, 128}), kValues * 2);
  EXPECT_EQ(page_bytes({Codec::kI8, 64, 128}) * 8, kValues * 8.5);
  EXPECT_EQ(page_bytes({Codec::kI4, 64, 128}) * 8, kValues * 4.5);
  EXPECT_EQ(page_bytes({Codec::kI3, 128, 64}) * 8, kValues * 3.5);
  EXPECT_EQ(page_bytes({Codec::kI2, 128, 64}) * 8, kValues * 2.5);
  EXPECT_EQ(page_bytes({Codec::kI4, 64, 80}) * 8, 64 * 80 * 4.8);
}

TEST(Codecs, DecodeMatchesTheLayout) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    for (const Data data : kAllData) {
      const auto encoded = encode(codecs, format, make_page(format, data));
      EXPECT_EQ(bits(decode(codecs, format, encoded)), bits(reference(format, encoded)));
    }
  });
}

TEST(Codecs, ArbitraryBytesAreDecoded) {
  std::mt19937 random(7);
  for (const PageFormat& format : all_formats())
    for (int round = 0; round < 4; ++round) {
      std::vector<std::byte> encoded(page_bytes(format));
      for (std::byte& byte : encoded) byte = static_cast<std::byte>(random());
      for (const Codecs* codecs : runnable_codecs()) {
        SCOPED_TRACE(describe(*codecs, format));
        EXPECT_EQ(bits(decode(*codecs, format, encoded)), bits(reference(format, encoded)));
      }
    }
}

std::vector<uint16_t> decode_f16(const Codecs& codecs, const PageFormat& format,
                                 const std::vector<std::byte>& encoded) {
  std::vector<uint16_t> page(size_t{format.rows} * format.columns, 0xeeee);
  codecs.decode_f16(format, encoded.data(), page.data());
  return page;
}

TEST(Codecs, F16IsCopied) {
  const PageFormat format{Codec::kF16, 64, 80};
  for (const Codecs* codecs : runnable_codecs())
    for (const Data data : kAllData) {
      const std::vector<uint16_t> page = make_page(format, data);
      const auto encoded = encode(*codecs, format, page);
      EXPECT_EQ(std::memcmp(encoded.data(), page.data(), encoded.size()), 0);
      EXPECT_EQ(decode_f16(*codecs, format, encoded), page);
    }
}

TEST(Codecs, DecodingToF16RoundsToTheNearest) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    for (const Data data : kAllData) {
      const auto encoded = encode(codecs, format, make_page(format, data));
      std::vector<uint16_t> expected;
      for (const float value : reference(format, encoded))
        expected.push_back(to_half(std::clamp(value, -65504.0f, 65504.0f)));
      EXPECT_EQ(decode_f16(codecs, format, encoded), expected);
    }
  });
}

TEST(Codecs, DecodingToF16NeverOverflows) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    for (const double sign : {1.0, -1.0}) {
      // One step beyond the largest number: scale and min are changed after encoding.
      std::vector<uint16_t> page(size_t{format.rows} * format.columns, to_half(1));
      for (size_t i = 0; i < page.size(); i += 2) page[i] = to_half(0);
      auto encoded = encode(codecs, format, page);
      const uint16_t scale = to_half(sign * 32), min = to_half(sign * 65504);
      const size_t groups = (format.columns + kGroupColumns - 1) / kGroupColumns;
      for (size_t i = 0; i < groups * format.rows; ++i) {
        std::memcpy(encoded.data() + i * 2, &scale, 2);
        std::memcpy(encoded.data() + (groups * format.rows + i) * 2, &min, 2);
      }
      const std::vector<uint16_t> expected(page.size(), min);
      EXPECT_GT(std::abs(decode(codecs, format, encoded)[1]), 65504.0f);
      EXPECT_EQ(decode_f16(codecs, format, encoded), expected);
    }
  });
}

TEST(Codecs, DecodingToF16KeepsDamageVisible) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    auto page = make_page(format, Data::kNormal);
    page[0] = to_half(std::numeric_limits<double>::infinity());
    const auto encoded = encode(codecs, format, page);
    const auto decoded = decode(codecs, format, encoded);
    const auto halves = decode_f16(codecs, format, encoded);
    EXPECT_TRUE(std::isnan(decoded[0]));
    for (size_t i = 0; i < page.size(); ++i)
      ASSERT_EQ(std::isnan(from_half(halves[i])), std::isnan(decoded[i])) << i;
  });
}

TEST(Codecs, AllInstructionSetsEncodeToTheSameBytes) {
  const Codecs& portable = **codecs_for(Isa::kPortable);
  for_all([&](const Codecs& codecs, const PageFormat& format) {
    for (const Data data : kAllData)
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        const auto page = make_page(format, data, seed);
        EXPECT_EQ(encode(codecs, format, page), encode(portable, format, page));
      }
  });
}

TEST(Codecs, SomeRowsAreDecodedAsAmongAll) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    const auto encoded = encode(codecs, format, make_page(format, Data::kNormal));
    const auto all = decode(codecs, format, encoded);
    for (uint32_t first = 0; first <= format.rows; first += 13)
      for (const uint32_t count : {0u, 1u, 7u, format.rows}) {
        const RowRange rows{first, std::min(count, format.rows - first)};
        const auto part = decode(codecs, format, encoded, rows);
        const auto expected = std::span(all).subspan(first * format.columns, part.size());
        EXPECT_EQ(bits(part), bits(expected));
      }
  });
}

TEST(Codecs, RowsAreEncodedOnTheirOwn) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    const auto page = make_page(format, Data::kNormal);
    const auto all = decode(codecs, format, encode(codecs, format, page));
    const uint32_t row = format.rows / 2;
    const PageFormat one_row{format.codec, 1, format.columns};
    const auto begin = page.begin() + row * format.columns;
    const auto encoded = encode(codecs, one_row, {begin, begin + format.columns});
    EXPECT_EQ(bits(decode(codecs, one_row, encoded)),
              bits(std::span(all).subspan(row * format.columns, format.columns)));
  });
}

// Without a search the range is never clipped. Codes are computed by factors of 13 bits, hence the
// 1/40 of a step.
TEST(Codecs, EightBitsAreWithinHalfAStep) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    if (format.codec != Codec::kI8) return;
    for (const Data data : kAllData) {
      const auto page = make_page(format, data);
      const auto encoded = encode(codecs, format, page);
      const auto decoded = decode(codecs, format, encoded);
      const ReferenceDecoder decoder(format, encoded);
      for (uint32_t i = 0; i < page.size(); ++i) {
        const double step = decoder.scale(i / format.columns, i % format.columns);
        ASSERT_LE(std::abs(static_cast<double>(decoded[i]) - from_half(page[i])), 0.525 * step);
      }
    }
  });
}

// The scale of the full range, rounded up to F16 as the codecs do.
double full_range_scale(double span, double code_max) {
  uint16_t half = to_half(span / code_max);
  while (from_half(half) < span / code_max * (1 - 0x1p-22)) ++half;
  return from_half(half);
}

// Squared error of a group with the scale and min of its full range.
double full_range_error(std::span<const uint16_t> group, uint32_t code_bits) {
  std::vector<double> values;
  for (const uint16_t half : group) values.push_back(from_half(half));
  const auto [least, most] = std::ranges::minmax(values);
  const double code_max = (1 << code_bits) - 1;
  const double scale = full_range_scale(most - least, code_max);
  double error = 0;
  for (const double value : values) {
    const double code = scale == 0 ? 0 : std::min(std::round((value - least) / scale), code_max);
    const auto decoded = static_cast<float>(least + code * scale);
    error += std::pow(static_cast<double>(decoded) - value, 2);
  }
  return error;
}

double squared_error(std::span<const uint16_t> group, std::span<const float> decoded) {
  double error = 0;
  for (size_t i = 0; i < group.size(); ++i)
    error += std::pow(static_cast<double>(decoded[i]) - from_half(group[i]), 2);
  return error;
}

// Squared error of a group, relative to that with the full range.
double relative_error(std::span<const uint16_t> group, std::span<const float> decoded,
                      uint32_t code_bits) {
  const double error = squared_error(group, decoded);
  const double full_range = full_range_error(group, code_bits);
  if (full_range == 0) return error == 0 ? 1 : std::numeric_limits<double>::infinity();
  return error / full_range;
}

// The search knows values to a 64th of the range, so that single groups may lose. (8 bits lose a
// thousandth to the rounding of codes.)
TEST(Codecs, TheSearchGainsOnTheFullRange) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    for (const Data data : kAllData) {
      const auto page = make_page(format, data);
      const auto decoded = decode(codecs, format, encode(codecs, format, page));
      double sum = 0;
      uint32_t groups = 0;
      for (uint32_t row = 0; row < format.rows; ++row)
        for (uint32_t column = 0; column < format.columns; column += kGroupColumns, ++groups) {
          const size_t begin = size_t{row} * format.columns + column;
          const uint32_t width = std::min(kGroupColumns, format.columns - column);
          sum += relative_error(std::span(page).subspan(begin, width),
                                std::span(decoded).subspan(begin, width), code_bits(format.codec));
        }
      EXPECT_LE(sum / groups, 1.002);
    }
  });
}

// Squared errors on normal data, as shares of those with the full range: the search gains in groups
// of every width, less in narrow ones, where few values lie far out.
TEST(Codecs, TheSearchGainsInGroupsOfEveryWidth) {
  struct Gain {
    uint32_t width;
    double i4, i3, i2;
  };
  constexpr Gain kGains[] = {{16, 0.910, 0.905, 0.740},
                             {32, 0.882, 0.822, 0.623},
                             {48, 0.881, 0.799, 0.574},
                             {64, 0.876, 0.773, 0.535}};
  for (const Codecs* codecs : runnable_codecs())
    for (const Gain& gain : kGains)
      for (const auto& [codec, bound] :
           {std::pair{Codec::kI4, gain.i4}, {Codec::kI3, gain.i3}, {Codec::kI2, gain.i2}}) {
        const PageFormat format{codec, 4096, gain.width};
        const auto page = make_page(format, Data::kNormal);
        const auto decoded = decode(*codecs, format, encode(*codecs, format, page));
        double error = 0, full_range = 0;
        for (size_t i = 0; i < page.size(); i += gain.width) {
          const auto group = std::span(page).subspan(i, gain.width);
          error += squared_error(group, std::span(decoded).subspan(i, gain.width));
          full_range += full_range_error(group, code_bits(codec));
        }
        EXPECT_LE(error / full_range, bound) << describe(*codecs, format);
      }
}

// Relative root mean square errors on normal data, as stated beside the search.
TEST(Codecs, ErrorsOnNormalDataAreAsStated) {
  const std::pair<Codec, double> kErrors[] = {
      {Codec::kI8, 0.0054}, {Codec::kI4, 0.084}, {Codec::kI3, 0.169}, {Codec::kI2, 0.333}};
  for (const Codecs* codecs : runnable_codecs())
    for (const auto& [codec, bound] : kErrors) {
      const PageFormat format{codec, 256, 64};
      const auto page = make_page(format, Data::kNormal);
      const auto decoded = decode(*codecs, format, encode(*codecs, format, page));
      double error = 0, power = 0;
      for (size_t i = 0; i < page.size(); ++i) {
        error += std::pow(static_cast<double>(decoded[i]) - from_half(page[i]), 2);
        power += std::pow(from_half(page[i]), 2);
      }
      EXPECT_LE(std::sqrt(error / power), bound) << describe(*codecs, format);
    }
}

TEST(Codecs, ConstantRowsAreExact) {
  const double kValues[] = {0.0,     1.0,      -3.1406, 65504.0,    -65504.0,
                            0x1p-24, -0x1p-24, 0x1p-14, 0x1.ff8p-15};
  for_all([&](const Codecs& codecs, const PageFormat& format) {
    for (const double value : kValues) {
      const std::vector<uint16_t> page(size_t{format.rows} * format.columns, to_half(value));
      const std::vector<float> expected(page.size(), static_cast<float>(from_half(page[0])));
      EXPECT_EQ(bits(decode(codecs, format, encode(codecs, format, page))), bits(expected));
    }
  });
}

TEST(Codecs, ValuesThatAreCodesAreExact) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    const uint32_t codes = 1u << code_bits(format.codec);
    if (codes > 16) return;  // a group has too few columns
    for (const double scale : {1.0, 3.0, 0x1p-24, 0x1p11}) {
      std::vector<uint16_t> page(size_t{format.rows} * format.columns);
      for (size_t i = 0; i < page.size(); ++i)
        page[i] = to_half(scale * (static_cast<double>(i % codes) - 5));
      const auto decoded = decode(codecs, format, encode(codecs, format, page));
      for (size_t i = 0; i < page.size(); ++i)
        ASSERT_EQ(static_cast<double>(decoded[i]), from_half(page[i]));
    }
  });
}

TEST(Codecs, ZerosOfEitherSignBecomePositive) {
  for_all([](const Codecs& codecs, const PageFormat& format) {
    std::vector<uint16_t> page(size_t{format.rows} * format.columns, 0x8000);
    for (size_t i = 0; i < page.size(); i += 3) page[i] = 0;
    const std::vector<float> zeros(page.size(), 0.0f);
    EXPECT_EQ(bits(decode(codecs, format, encode(codecs, format, page))), bits(zeros));
  });
}

// Two values are the ends of the range, which every codec hits up to the rounding of the scale.
TEST(Codecs, TwoValuesOfAnySizeAreKept) {
  const std::pair<double, double> kPairs[] = {{-65504, 65504},     {0, 65504},    {-65504, 0x1p-24},
                                              {0, 0x1p-24},        {-1, 0x1p-24}, {65472, 65504},
                                              {-0x1p-14, 0x1p-24}, {-1, 1}};
  for_all([&](const Codecs& codecs, const PageFormat& format) {
    for (const auto& [least, most] : kPairs) {
      std::vector<uint16_t> page(size_t{format.rows} * format.columns, to_half(least));
      for (size_t i = 0; i < page.size(); i += 2) page[i] = to_half(most);
      const auto encoded = encode(codecs, format, page);
      const auto decoded = decode(codecs, format, encoded);
      const double step = ReferenceDecoder(format, encoded).scale(0, 0);
      for (size_t i = 0; i < page.size(); ++i) {
        ASSERT_TRUE(std::isfinite(decoded[i]));
        ASSERT_LE(std::abs(static_cast<double>(decoded[i]) - from_half(page[i])), 0.501 * step)
            << least << " and " << most;
      }
    }
  });
}

TEST(Codecs, WhatIsNotFiniteStaysVisible) {
  constexpr uint16_t kNotFinite[] = {0x7c00, 0xfc00, 0x7e00, 0xfe00, 0x7c01, 0xffff};
  for_all([&](const Codecs& codecs, const PageFormat& format) {
    for (const uint16_t value : kNotFinite)
      for (const uint32_t column : {0u, format.columns - 1}) {
        auto page = make_page(format, Data::kNormal);
        const uint32_t row = format.rows - 1;
        page[row * format.columns + column] = value;
        const auto encoded = encode(codecs, format, page);
        EXPECT_EQ(encoded, encode(**codecs_for(Isa::kPortable), format, page));
        const auto decoded = decode(codecs, format, encoded);
        for (uint32_t i = 0; i < page.size(); ++i) {
          const bool damaged = i / format.columns == row &&
                               i % format.columns / kGroupColumns == column / kGroupColumns;
          ASSERT_EQ(std::isfinite(decoded[i]), !damaged) << i;
        }
      }
  });
}

constexpr uint32_t kRotated[] = {16, 32, 48, 64, 80, 96, 112, 128, 176, 256, 368, 512};

std::vector<float> normal_vectors(uint32_t head_dim, uint32_t count) {
  std::mt19937 random(head_dim);
  std::normal_distribution<float> normal;
  std::vector<float> vectors(size_t{head_dim} * count);
  for (float& value : vectors) value = normal(random);
  return vectors;
}

// By the definition: entry (i, j) of a block is (-1)^(common bits of i and j) / sqrt(size).
std::vector<double> rotate_by_definition(std::span<const float> vector) {
  std::vector<double> out(vector.size());
  for (uint32_t begin = 0, size = 0; begin < vector.size(); begin += size) {
    size = std::bit_floor(static_cast<uint32_t>(vector.size()) - begin);
    for (uint32_t i = 0; i < size; ++i)
      for (uint32_t j = 0; j < size; ++j)
        out[begin + i] += (std::popcount(i & j) % 2 == 0 ? 1 : -1) / std::sqrt(size) *
                          static_cast<double>(vector[begin + j]);
  }
  return out;
}

// Calls visit(codecs, head_dim) for all there are.
template <class Visit>
void for_all_rotations(const Visit& visit) {
  for (const Codecs* codecs : runnable_codecs())
    for (const uint32_t head_dim : kRotated) {
      SCOPED_TRACE(testing::Message() << codecs->name << " head_dim " << head_dim);
      visit(*codecs, head_dim);
    }
}

TEST(Rotation, MatchesTheDefinition) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    const auto vectors = normal_vectors(head_dim, 3);
    auto rotated = vectors;
    codecs.rotate(head_dim, 3, rotated.data());
    for (uint32_t v = 0; v < 3; ++v) {
      const auto expected =
          rotate_by_definition(std::span(vectors).subspan(v * head_dim, head_dim));
      for (uint32_t d = 0; d < head_dim; ++d)
        EXPECT_NEAR(static_cast<double>(rotated[v * head_dim + d]), expected[d], 2e-6);
    }
  });
}

TEST(Rotation, HasTheSameBitsOnAllInstructionSets) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    auto vectors = normal_vectors(head_dim, 5), expected = vectors;
    codecs.rotate(head_dim, 5, vectors.data());
    (*codecs_for(Isa::kPortable))->rotate(head_dim, 5, expected.data());
    EXPECT_EQ(bits(vectors), bits(expected));
  });
}

TEST(Rotation, OfF16RoundsToTheNearestAndKeepsToItsStride) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    constexpr uint32_t kCount = 3;
    const uint32_t stride = head_dim + 24;
    std::mt19937 random(head_dim);
    std::normal_distribution<double> normal;
    std::vector<uint16_t> from((kCount - 1) * stride + head_dim);
    for (uint16_t& half : from) half = to_half(30 * normal(random));
    std::vector<float> rotated;
    for (uint32_t i = 0; i < kCount * head_dim; ++i)
      rotated.push_back(static_cast<float>(from_half(from[i / head_dim * stride + i % head_dim])));
    codecs.rotate(head_dim, kCount, rotated.data());
    std::vector<uint16_t> expected, to(kCount * head_dim);
    for (const float value : rotated) expected.push_back(to_half(static_cast<double>(value)));
    codecs.rotate_f16(head_dim, kCount, from.data(), stride, to.data());
    EXPECT_EQ(to, expected);
  });
}

TEST(Rotation, IsItsOwnInverse) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    const auto vectors = normal_vectors(head_dim, 5);
    auto twice = vectors;
    for (int i = 0; i < 2; ++i) codecs.rotate(head_dim, 5, twice.data());
    for (size_t i = 0; i < vectors.size(); ++i) EXPECT_NEAR(twice[i], vectors[i], 4e-6f);
  });
}

double dot(const float* a, const float* b, uint32_t count) {
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(Rotation, KeepsDotProducts) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    const auto vectors = normal_vectors(head_dim, 2);
    auto rotated = vectors;
    codecs.rotate(head_dim, 2, rotated.data());
    EXPECT_NEAR(dot(rotated.data(), rotated.data() + head_dim, head_dim),
                dot(vectors.data(), vectors.data() + head_dim, head_dim), 1e-4);
  });
}

TEST(Rotation, SpreadsAnOutlier) {
  for_all_rotations([](const Codecs& codecs, uint32_t head_dim) {
    auto vector = normal_vectors(head_dim, 1);
    vector[3] = 100.0f;
    codecs.rotate(head_dim, 1, vector.data());
    float largest = 0;
    for (const float value : vector) largest = std::max(largest, std::abs(value));
    EXPECT_LT(largest, 30.0f);
  });
}

TEST(Codecs, TheBestOfTheirInstructionSetAreTaken) {
  const std::vector<const Codecs*> all = runnable_codecs();
  EXPECT_EQ(all.front(), codecs_for(Isa::kPortable).value());
  for (size_t i = 0; i < all.size(); ++i) {
    const bool last = i + 1 == all.size() || all[i + 1]->isa != all[i]->isa;
    EXPECT_EQ(codecs_for(all[i]->isa).value() == all[i], last) << all[i]->name;
  }
}

TEST(Codecs, AmxHasThoseOfAvx512) {
  const auto avx512 = codecs_for(Isa::kAvx512), amx = codecs_for(Isa::kAmx);
  ASSERT_EQ(avx512.has_value(), amx.has_value());
  if (amx) EXPECT_EQ(*amx, *avx512);
}

}  // namespace
}  // namespace hifc::kernels
