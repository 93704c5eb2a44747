#include "flash/put_request.h"

#include <fmt/format.h>

#include "base/units.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kLaneBytesMax = uint64_t{1} << 40;

bool whole_pages(uint64_t bytes) {
  return bytes > 0 && bytes % kPageBytes == 0;
}

Result<void> validate(const BatchShape& shape, const PutValue& value) {
  if (value.lanes.size() != shape.lanes)
    return failure(Code::kInvalid, fmt::format("a value with {} lanes in a batch of {}",
                                               value.lanes.size(), shape.lanes));
  if (!whole_pages(value.lane_bytes) || value.lane_bytes > kLaneBytesMax)
    return failure(Code::kInvalid,
                   fmt::format("lanes of {} bytes: accepted are multiples of {} up to {}",
                               value.lane_bytes, kPageBytes, kLaneBytesMax));
  if (value.size_bytes > shape.lanes * value.lane_bytes)
    return failure(Code::kInvalid, fmt::format("a value of {} bytes in {} lanes of {}",
                                               value.size_bytes, shape.lanes, value.lane_bytes));
  for (const std::byte* lane : value.lanes)
    if (lane == nullptr || !io::is_aligned(lane))
      return failure(Code::kInvalid, fmt::format("lane memory at {} is not aligned to {}",
                                                 static_cast<const void*>(lane), io::kAlignment));
  return {};
}

}  // namespace

Result<void> validate(const BatchShape& shape, const std::vector<PutValue>& values,
                      uint64_t capacity_bytes) {
  if (shape.lanes == 0 || shape.lanes > kLanesMax || !whole_pages(shape.chunk_bytes))
    return failure(Code::kInvalid,
                   fmt::format("values of {} lanes in chunks of {} bytes: accepted are 1 to {} "
                               "lanes, and multiples of {} bytes",
                               shape.lanes, shape.chunk_bytes, kLanesMax, kPageBytes));
  if (values.empty() || values.size() > kValuesMax)
    return failure(Code::kInvalid, fmt::format("a batch of {} values: accepted are 1 to {}",
                                               values.size(), kValuesMax));
  // Also keeps what follows from overflowing.
  uint64_t pages_left = capacity_bytes / kPageBytes;
  for (const PutValue& value : values) {
    HIFC_TRY(validate(shape, value));
    const uint64_t pages = shape.lanes * (value.lane_bytes / kPageBytes);
    if (pages > pages_left)
      return failure(Code::kFull,
                     fmt::format("a batch of {} values, one of {}, is larger than the flash "
                                 "capacity of {}",
                                 values.size(), format_size(shape.lanes * value.lane_bytes),
                                 format_size(capacity_bytes)));
    pages_left -= pages;
  }
  return {};
}

Result<void> validate(const Range& range, const Handle& handle) {
  if (range.lane >= handle.lanes())
    return failure(Code::kInvalid,
                   fmt::format("lane {} of a value that has {}", range.lane, handle.lanes()));
  const uint64_t lane = handle.lane_bytes();
  const bool inside = range.size_bytes > 0 && range.offset_bytes < lane &&
                      range.size_bytes <= lane - range.offset_bytes;
  const uint64_t end = range.offset_bytes + range.size_bytes;
  const bool on_chunks = range.offset_bytes % handle.chunk_bytes() == 0 &&
                         (end % handle.chunk_bytes() == 0 || end == lane);
  if (inside && on_chunks) return {};
  return failure(Code::kInvalid,
                 fmt::format("bytes {} to {} of a lane of {}: accepted are whole chunks of {}",
                             range.offset_bytes, end, lane, handle.chunk_bytes()));
}

BatchContents batch_contents(const BatchShape& shape, const std::vector<PutValue>& values) {
  BatchContents contents;
  contents.shape = shape;
  for (const PutValue& value : values) {
    const uint64_t all = shape.lanes * value.lane_bytes;
    contents.values.push_back({.key = value.key,
                               .size_bytes = value.size_bytes == 0 ? all : value.size_bytes,
                               .lane_pages = static_cast<uint32_t>(value.lane_bytes / kPageBytes),
                               .stripe_page = 0});
  }
  return contents;
}

void add_checksums(BatchContents& contents, const std::vector<PutValue>& values) {
  const uint32_t chunk_bytes = contents.shape.chunk_bytes;
  for (const PutValue& value : values)
    for (const std::byte* lane : value.lanes)
      for (uint64_t i = 0; i < chunks_of(value.lane_bytes, chunk_bytes); ++i)
        contents.checksums.push_back(checksum(chunk({lane, value.lane_bytes}, i, chunk_bytes)));
}

std::vector<iovec> payload_vectors(const BatchShape& shape, const std::vector<PutValue>& values) {
  std::vector<iovec> vectors;
  vectors.reserve(1 + values.size() * shape.lanes);
  for (uint32_t lane = 0; lane < shape.lanes; ++lane)
    for (const PutValue& value : values)
      vectors.push_back({const_cast<std::byte*>(value.lanes[lane]), value.lane_bytes});
  return vectors;
}

}  // namespace hifc::flash
