#include "flash/put_request.h"

#include <fmt/format.h>

#include "base/units.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kLaneBytesMax = uint64_t{1} << 40;

bool whole_pages(uint64_t bytes) {
  return bytes > 0 && bytes % kPageBytes == 0;
}

// Of at most kLanesMax lanes of kLaneBytesMax, whose sum does not overflow.
uint64_t bytes_of(const PutValue& value) {
  uint64_t bytes = 0;
  for (const auto lane : value.lanes) bytes += lane.size();
  return bytes;
}

// `index`: of the value in its batch.
Result<void> validate_lanes(const PutValue& value, size_t index) {
  for (size_t lane = 0; lane < value.lanes.size(); ++lane) {
    const std::span<const std::byte> bytes = value.lanes[lane];
    if (!whole_pages(bytes.size()) || bytes.size() > kLaneBytesMax)
      return failure(Code::kInvalid,
                     fmt::format("lane {} of value {} has {} bytes: accepted are multiples of {} "
                                 "from {} to {}",
                                 lane, index, bytes.size(), kPageBytes, kPageBytes, kLaneBytesMax));
    if (bytes.data() == nullptr || !io::is_aligned(bytes.data()))
      return failure(Code::kInvalid,
                     fmt::format("the memory of lane {} of value {}, at {}, is not aligned to {}",
                                 lane, index, static_cast<const void*>(bytes.data()), kPageBytes));
  }
  return {};
}

Result<void> validate(const BatchShape& shape, const PutValue& value, size_t index) {
  if (value.lanes.size() != shape.lanes)
    return failure(Code::kInvalid, fmt::format("value {} with {} lanes in a batch of {}", index,
                                               value.lanes.size(), shape.lanes));
  HIFC_TRY(validate_lanes(value, index));
  if (value.size_bytes > bytes_of(value))
    return failure(Code::kInvalid,
                   fmt::format("value {} of {} bytes in {} lanes that have {} together", index,
                               value.size_bytes, shape.lanes, bytes_of(value)));
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
  for (size_t i = 0; i < values.size(); ++i) {
    HIFC_TRY(validate(shape, values[i], i));
    const uint64_t pages = bytes_of(values[i]) / kPageBytes;
    if (pages > pages_left)
      return failure(Code::kFull,
                     fmt::format("a batch of {} values, one of {}, is larger than the flash "
                                 "capacity of {}",
                                 values.size(), format_size(bytes_of(values[i])),
                                 format_size(capacity_bytes)));
    pages_left -= pages;
  }
  return {};
}

Result<void> validate(const Range& range, const Handle& handle) {
  if (range.lane >= handle.lanes())
    return failure(Code::kInvalid,
                   fmt::format("lane {} of a value that has {}", range.lane, handle.lanes()));
  const uint64_t lane = handle.lane_bytes(range.lane);
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
  contents.lane_pages.reserve(values.size() * shape.lanes);
  for (const PutValue& value : values) {
    const uint64_t size_bytes = value.size_bytes == 0 ? bytes_of(value) : value.size_bytes;
    contents.values.push_back({.key = value.key, .size_bytes = size_bytes});
    for (const auto lane : value.lanes)
      contents.lane_pages.push_back(static_cast<uint32_t>(lane.size() / kPageBytes));
  }
  return contents;
}

void add_checksums(BatchContents& contents, const std::vector<PutValue>& values) {
  const uint32_t chunk_bytes = contents.shape.chunk_bytes;
  for (const PutValue& value : values)
    for (const auto lane : value.lanes)
      for (uint64_t i = 0; i < chunks_of(lane.size(), chunk_bytes); ++i)
        contents.checksums.push_back(checksum(chunk(lane, i, chunk_bytes)));
}

std::vector<iovec> payload_vectors(const BatchShape& shape, const std::vector<PutValue>& values) {
  std::vector<iovec> vectors;
  vectors.reserve(1 + values.size() * shape.lanes);
  for (uint32_t lane = 0; lane < shape.lanes; ++lane)
    for (const PutValue& value : values)
      vectors.push_back(
          {const_cast<std::byte*>(value.lanes[lane].data()), value.lanes[lane].size()});
  return vectors;
}

}  // namespace hifc::flash
