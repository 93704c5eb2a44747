// Encoded pages (kernels/codec.h): where their parts lie, and decoding.
// Included once per Highway target, hence the toggling guard.
#if defined(HIFC_KERNELS_GENERIC_ENCODED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HIFC_KERNELS_GENERIC_ENCODED_INL_H_
#undef HIFC_KERNELS_GENERIC_ENCODED_INL_H_
#else
#define HIFC_KERNELS_GENERIC_ENCODED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/codec.h"
#include "kernels/generic/codes-inl.h"
#include "kernels/generic/planes-inl.h"
#include "kernels/generic/range-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hifc::kernels::HWY_NAMESPACE {

// The offsets within an encoded page; group g has the columns from 64 * g on.
class PageOffsets {
 public:
  explicit PageOffsets(const PageFormat& format)
      : rows_(format.rows),
        columns_(format.columns),
        groups_((columns_ + kGroupColumns - 1) / kGroupColumns),
        bits_(code_bits(format.codec)) {}
  size_t width(size_t g) const {
    return std::min<size_t>(kGroupColumns, columns_ - g * kGroupColumns);
  }
  size_t scale(size_t row, size_t g) const { return (g * rows_ + row) * sizeof(uint16_t); }
  size_t min(size_t row, size_t g) const { return scale(groups_ * rows_ + row, g); }
  size_t codes(size_t row, size_t g) const {
    const size_t parameters = 2 * groups_ * rows_ * sizeof(uint16_t);
    return parameters + (g * rows_ * kGroupColumns + row * width(g)) * bits_ / 8;
  }

 private:
  size_t rows_, columns_, groups_, bits_;
};

// Some rows of one group, or all.
struct EncodedRows {
  EncodedRows(const PageFormat& format, const std::byte* page, RowRange rows, size_t g)
      : codec(format.codec), count(rows.count) {
    const PageOffsets offsets(format);
    width = offsets.width(g);
    scales = page + offsets.scale(rows.first, g);
    mins = page + offsets.min(rows.first, g);
    codes = page + offsets.codes(rows.first, g);
  }
  kv::Codec codec;
  size_t count, width;
  const std::byte* scales;  // F16, as are mins
  const std::byte* mins;
  const std::byte* codes;
};

template <size_t kValue>
using Constant = std::integral_constant<size_t, kValue>;

// Calls run(Constant<bits of a code>()).
template <class Run>
HWY_INLINE void with_bits(kv::Codec codec, const Run& run) {
  switch (codec) {
    case kv::Codec::kI8: return run(Constant<8>());
    case kv::Codec::kI4: return run(Constant<4>());
    case kv::Codec::kI3: return run(Constant<3>());
    case kv::Codec::kI2: return run(Constant<2>());
    case kv::Codec::kF16: break;
  }
  check_failed("the codec is one of low bits", __FILE__, __LINE__);
}

// Calls run(Constant<columns of a group>()).
template <class Run>
HWY_INLINE void with_width(size_t width, const Run& run) {
  switch (width) {
    case 16: return run(Constant<16>());
    case 32: return run(Constant<32>());
    case 48: return run(Constant<48>());
    default: return run(Constant<kGroupColumns>());
  }
}

inline float read_half(const std::byte* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return float_of_half(half);
}

// Calls use(column, codes) for each vector of the codes of a group.
template <size_t kBits, size_t kWidth, class Use>
HWY_INLINE void for_codes(const std::byte* from, const Use& use) {
  if constexpr (kWidth == kGroupColumns) {
    const CodeReader<kBits> codes(*reinterpret_cast<const Codes<kBits>*>(from));
    HIFC_UNROLL
    for (size_t i = 0; i < kGroupVectors; ++i) use(i * kFloatLanes, codes.vector(i));
  } else {
    const hn::Rebind<uint8_t, FloatTag> bytes;
    const hn::RebindToSigned<FloatTag> words;
    alignas(64) uint8_t codes[kWidth];
    unpack_narrow<kBits, kWidth>(from, codes);
    HIFC_UNROLL
    for (size_t i = 0; i < kWidth; i += kFloatLanes)
      use(i, hn::ConvertTo(FloatTag(), hn::PromoteTo(words, hn::LoadU(bytes, codes + i))));
  }
}

// Calls use(row, column, codes) for each vector of codes.
template <size_t kBits, size_t kWidth, class Use>
HWY_INLINE void for_rows(const EncodedRows& rows, const Use& use) {
  for (size_t row = 0; row < rows.count; ++row)
    for_codes<kBits, kWidth>(rows.codes + row * kWidth * kBits / 8,
                             [&](size_t column, FloatVector codes)
                                 HWY_ATTR { use(row, column, codes); });
}

// The same with values. Scale and code have 11 and at most 8 significant bits, so that their
// product is exact and a multiplication and an addition give the bits of a fused one.
template <size_t kBits, size_t kWidth, class Use>
HWY_INLINE void for_values(const EncodedRows& rows, const Use& use) {
  const FloatTag d;
  for (size_t row = 0; row < rows.count; ++row) {
    const FloatVector scale = hn::Set(d, read_half(rows.scales + row * sizeof(uint16_t)));
    const FloatVector min = hn::Set(d, read_half(rows.mins + row * sizeof(uint16_t)));
    for_codes<kBits, kWidth>(rows.codes + row * kWidth * kBits / 8,
                             [&](size_t column, FloatVector codes)
                                 HWY_ATTR { use(row, column, hn::MulAdd(scale, codes, min)); });
  }
}

template <size_t kBits, size_t kWidth>
HWY_NOINLINE void decode_rows_of(const EncodedRows& rows, float* out, size_t stride) {
  for_values<kBits, kWidth>(rows, [&](size_t row, size_t column, FloatVector x) HWY_ATTR {
    hn::StoreU(x, FloatTag(), out + row * stride + column);
  });
}

// out: [rows][stride].
inline void decode_rows(const EncodedRows& rows, float* out, size_t stride) {
  with_bits(rows.codec, [&](auto bits) HWY_ATTR {
    with_width(rows.width,
               [&](auto width) HWY_ATTR { decode_rows_of<bits, width>(rows, out, stride); });
  });
}

template <size_t kBits, size_t kWidth>
HWY_NOINLINE void decode_codes_of(const EncodedRows& rows, float* out, size_t stride) {
  for_rows<kBits, kWidth>(rows, [&](size_t row, size_t column, FloatVector codes) HWY_ATTR {
    hn::StoreU(codes, FloatTag(), out + row * stride + column);
  });
}

// The codes alone.
inline void decode_codes(const EncodedRows& rows, float* out, size_t stride) {
  with_bits(rows.codec, [&](auto bits) HWY_ATTR {
    with_width(rows.width,
               [&](auto width) HWY_ATTR { decode_codes_of<bits, width>(rows, out, stride); });
  });
}

template <size_t kBits, size_t kWidth>
HWY_NOINLINE void decode_halves_of(const EncodedRows& rows, uint16_t* out, size_t stride) {
  const FloatTag d;
  const FloatVector limit = hn::Set(d, 65504.0f);
  for_values<kBits, kWidth>(rows, [&](size_t row, size_t column, FloatVector x) HWY_ATTR {
    // Not Min and Max: a NaN has to stay visible.
    x = hn::IfThenElse(hn::Gt(x, limit), limit, x);
    x = hn::IfThenElse(hn::Lt(x, hn::Neg(limit)), hn::Neg(limit), x);
    store_halves(x, out + row * stride + column);
  });
}

// F16 bits; beyond its range the largest number.
inline void decode_halves(const EncodedRows& rows, uint16_t* out, size_t stride) {
  with_bits(rows.codec, [&](auto bits) HWY_ATTR {
    with_width(rows.width,
               [&](auto width) HWY_ATTR { decode_halves_of<bits, width>(rows, out, stride); });
  });
}

}  // namespace hifc::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HIFC_KERNELS_GENERIC_ENCODED_INL_H_
