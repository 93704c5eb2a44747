// How K and V are encoded, layer by layer; what that costs. kernels/codec.h has the bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace hifc::kv {

// kI8..kI2: the low-bit codecs of kernels/codec.h.
enum class Codec : uint8_t { kF16 = 1, kI8 = 2, kI4 = 3, kI3 = 4, kI2 = 5 };

// From the most bits to the fewest.
inline constexpr std::array kCodecs = {Codec::kF16, Codec::kI8, Codec::kI4, Codec::kI3, Codec::kI2};
inline constexpr std::array<std::string_view, kCodecs.size()> kCodecNames = {"f16", "i8", "i4",
                                                                             "i3", "i2"};

// A row of a page is encoded in groups of up to so many columns.
inline constexpr uint32_t kGroupColumns = 64;

struct PageFormat {
  Codec codec = Codec::kI8;
  uint32_t rows = 0;     // at least 1
  uint32_t columns = 0;  // multiple of 16, at most kHeadDimMax
};

// Bits of a code; 16 for kF16.
uint32_t code_bits(Codec codec);
// Bytes of an encoded page, scales and mins included; for kF16 those of the page itself.
size_t page_bytes(const PageFormat& format);
std::string_view to_string(Codec codec);  // one of kCodecNames
std::optional<Codec> find_codec(std::string_view name);

// Few bits need the channels' outliers spread first (Codecs::rotate); 8 do without (measured:
// docs/measurements.md).
constexpr bool rotates(Codec codec) {
  return codec == Codec::kI4 || codec == Codec::kI3 || codec == Codec::kI2;
}

struct LayerCodecs {
  Codec k = Codec::kF16;
  Codec v = Codec::kF16;

  bool lossy() const { return k != Codec::kF16 || v != Codec::kF16; }
  bool operator==(const LayerCodecs&) const = default;
};

using CodecPolicy = std::vector<LayerCodecs>;  // [layer]

inline bool lossy(const CodecPolicy& policy) {
  for (const LayerCodecs& codecs : policy)
    if (codecs.lossy()) return true;
  return false;
}

}  // namespace hifc::kv
