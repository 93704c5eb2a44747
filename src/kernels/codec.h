// Low-bit codecs for pages of K and V, and the rotation that makes vectors easier to encode.
//
// A page is a matrix of F16 values: K is [head_dim][64 tokens], V is [64 tokens][head_dim]. Each
// row is encoded on its own in groups of up to 64 columns (80 columns: groups of 64 and 16):
//
//   value = min + scale * code      scale and min: F16, one pair per group
//                                   code: 0 .. 2^bits - 1
//
//   encoded page: | scale | min | codes |   each [group][row]; scale and min are little-endian F16
//
// The codes of one group and row are a bit plane, or for kI3 a plane of the two low bits followed
// by a plane of the high bit. A plane is an array of little-endian words: of 32 bits in groups of
// 64 columns, of 8 bits in narrower ones and for kI8. Of its n words, word i holds the codes of
// columns i, i + n, i + 2n, ..., the first one in the lowest bits. So a vector of words, shifted
// and masked, is one of consecutive columns. 64 columns:
//
//   8 bits: a byte for each column
//   4 bits, 8 words: word i = | column i + 56 | ... | column i + 8 | column i |
//   2 bits, 4 words: word i = | column i + 60 | ... | column i + 4 | column i |
//   1 bit,  2 words: word i = | column i + 62 | ... | column i + 2 | column i |
//
//   codec   bits per value, scale and min included
//           groups of 64   80 columns   96 columns   groups of 16
//   kI8     8.5            8.8          8.67         10
//   kI4     4.5            4.8          4.67         6
//   kI3     3.5            3.8          3.67         5
//   kI2     2.5            2.8          2.67         4
//
// Finite input gives finite floats; the largest may exceed 65504, F16's maximum, by up to one step.
// A group with NaN or infinity is decoded as NaN throughout, so that damage stays visible. -0 is
// decoded as +0.
//
// Every instruction set encodes to the same bytes and decodes to the same floats.
//
// Thread-safe: no state of their own; each call writes only the memory it is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/attention.h"
#include "kv/codec.h"

namespace hifc::kernels {

using kv::kGroupColumns;
using kv::page_bytes;
using kv::PageFormat;

struct RowRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One instruction set's codecs; kF16 is copied. No pointer needs an alignment.
struct Codecs {
  Isa isa = Isa::kPortable;
  std::string_view name = {};  // of the instruction set, with the extensions that are used

  // page: F16 bits [rows][columns]; encoded: page_bytes(format).
  void (*encode)(const PageFormat& format, const uint16_t* page, std::byte* encoded) = nullptr;

  // Rows [first, first + count) of an encoded page, not of kF16; out: [count][columns]. Any bytes
  // may be decoded, though damaged ones give meaningless floats. (Scales that are no numbers, which
  // `encode` never writes, give NaN whose sign and payload depend on the instruction set.)
  void (*decode)(const PageFormat& format, RowRange rows, const std::byte* encoded,
                 float* out) = nullptr;

  // The whole page, rounded to the nearest F16 bits [rows][columns]; what exceeds the range of F16
  // becomes its largest number.
  void (*decode_f16)(const PageFormat& format, const std::byte* encoded, uint16_t* page) = nullptr;

  // Orthonormal Walsh-Hadamard transform of each vector, in place: channels are taken in blocks of
  // the largest power of two that is left (128; 80 = 64 + 16; 96 = 64 + 32). It is its own inverse,
  // keeps dot products and spreads an outlier channel over its block. head_dim: a multiple of 16,
  // at most kv::kHeadDimMax; vectors: [count][head_dim].
  void (*rotate)(uint32_t head_dim, uint32_t count, float* vectors) = nullptr;

  // The same for F16 bits: vectors that begin `from_stride` values apart; to: [count][head_dim],
  // rounded to the nearest F16, which is infinity for what exceeds the range.
  void (*rotate_f16)(uint32_t head_dim, uint32_t count, const uint16_t* from, size_t from_stride,
                     uint16_t* to) = nullptr;
};

// The codecs of one instruction set; kAmx has those of kAvx512. kUnsupported where the CPU or the
// build lacks it.
Result<const Codecs*> codecs_for(Isa isa);

// All that this CPU can run: of each instruction set those for CPUs with fewer extensions too,
// before the ones that codecs_for() gives. For tests and measurements.
std::vector<const Codecs*> runnable_codecs();

}  // namespace hifc::kernels
