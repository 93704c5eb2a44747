#include "flash/segment_inspector.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace hifc::flash {
namespace {

using Part = DamagedRecord::Part;
using State = InspectedSegment::State;

constexpr uint64_t kProgressBytes = 4u << 20;

// Nothing that can be laid to what is on the device: a hung one must not make values look damaged.
bool fatal(const Error& error) {
  return error.code != Code::kIo && error.code != Code::kCorrupt;
}

std::string problem_of(const Error& error) {
  return error.code == Code::kIo ? "cannot be read: " + error.message() : error.context;
}

}  // namespace

SegmentInspector::SegmentInspector(const io::File& file, InspectedSegment& segment, io::Ring& ring,
                                   const InspectionOptions& options)
    : segment_(segment),
      options_(options),
      reader_({.file = &file, .size_bytes = segment.size_bytes, .deadline_ns = options.deadline_ns},
              ring) {}

Result<void> SegmentInspector::contents(const SegmentHeader& header) {
  segment_.context = {.number = static_cast<uint32_t>(header.number),
                      .nonce = header.nonce,
                      .size_bytes = header.segment_bytes};
  segment_.overwrites = header.overwrites;
  segment_.state = State::kOpen;
  segment_.tail_bytes = kSegmentHeaderBytes;
  end_bytes_ = std::min(segment_.size_bytes, header.segment_bytes);
  if (!segment_.whole())
    damaged(Part::kFile, end_bytes_,
            fmt::format("the file has {} bytes instead of {}", segment_.size_bytes,
                        header.segment_bytes));
  HIFC_TRY(read_checkpoint());
  HIFC_TRY(check_listed());
  return segment_.state == State::kOpen ? scan() : Result<void>();
}

// ---- the checkpoint ----

Result<void> SegmentInspector::read_checkpoint() {
  const SegmentContext& context = segment_.context;
  if (segment_.size_bytes < context.size_bytes) return {};
  const uint64_t last = context.size_bytes - kPageBytes;
  const auto page = reader_.bytes(last, kPageBytes);
  if (!page) {
    if (fatal(page.error())) return std::unexpected(page.error());
    damaged(Part::kCheckpoint, last, problem_of(page.error()));
    return {};
  }
  const uint64_t length = checkpoint_bytes(*page, context).value_or(0);
  const bool expected = was_checkpoint(*page);  // may read another one
  auto checkpoint = Result<Checkpoint>(failure(Code::kCorrupt, "the checkpoint is damaged"));
  if (length > 0) {
    const auto bytes = reader_.bytes(context.size_bytes - length, length);
    if (!bytes && fatal(bytes.error())) return std::unexpected(bytes.error());
    checkpoint = bytes ? decode_checkpoint(*bytes, context) : std::unexpected(bytes.error());
  }
  if (!checkpoint) {
    if (expected) damaged(Part::kCheckpoint, last, problem_of(checkpoint.error()));
    return {};
  }
  segment_.covered_bytes = segment_.tail_bytes = checkpoint->covered_bytes;
  if (checkpoint->sealed) segment_.state = State::kSealed;
  for (const CheckpointEntry& entry : checkpoint->entries)
    segment_.entries.push_back({.entry = entry});
  end_bytes_ = std::min(end_bytes_, context.size_bytes - length);
  return {};
}

// Whether the last page of the file has been the end of this segment's checkpoint, in contrast to
// one of an earlier use of the file: as was_batch_header().
bool SegmentInspector::was_checkpoint(std::span<const std::byte> page) {
  const size_t at = kPageBytes - sizeof(CheckpointTrailer);
  const SegmentContext& context = segment_.context;
  const auto trailer = read_as<CheckpointTrailer>(page.subspan(at));
  const bool magic = looks_like_checkpoint(page);
  const bool place = trailer.begin_bytes < context.size_bytes &&
                     trailer.entries < context.size_bytes / sizeof(CheckpointEntry) &&
                     context.size_bytes - trailer.begin_bytes == checkpoint_bytes(trailer.entries);
  if (trailer.segment == context.number) return magic || place;
  if (!magic || !place) return false;
  const auto bytes = reader_.bytes(trailer.begin_bytes, context.size_bytes - trailer.begin_bytes);
  if (!bytes) return false;
  std::vector<std::byte> mended(bytes->begin(), bytes->end());
  const uint64_t number = context.number;
  std::memcpy(mended.data() + mended.size() - sizeof trailer + offsetof(CheckpointTrailer, segment),
              &number, sizeof number);
  return decode_checkpoint(mended, context).has_value();
}

// ---- batches ----

Result<void> SegmentInspector::check_listed() {
  const auto& entries = segment_.entries;
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    const uint32_t page = entries[begin].entry.batch_page;
    while (end < entries.size() && entries[end].entry.batch_page == page) ++end;
    HIFC_TRY(check_batch(page * kPageBytes, begin, end));
  }
  return {};
}

// The batch that has the records of these entries. One with removals only is not read: the
// checkpoint says all of it.
Result<void> SegmentInspector::check_batch(uint64_t offset, size_t begin, size_t end) {
  const auto entries = std::span(segment_.entries).subspan(begin, end - begin);
  if (std::ranges::none_of(entries, [](const auto& entry) { return entry.entry.removal == 0; }))
    return {};
  const auto contents = batch_at(offset);
  if (contents) return check_values(*contents, offset, begin, end);
  if (fatal(contents.error())) return std::unexpected(contents.error());
  damaged(Part::kBatchHeader, offset, problem_of(contents.error()));
  for (size_t i = begin; i < end; ++i)
    if (segment_.entries[i].entry.removal == 0) lose(i, offset, "its batch header is damaged");
  return {};
}

Result<void> SegmentInspector::check_values(const BatchContents& contents, uint64_t offset,
                                            size_t begin, size_t end) {
  std::vector<std::optional<size_t>> entry_of(contents.values.size());
  for (size_t i = begin; i < end; ++i) {
    InspectedEntry& entry = segment_.entries[i];
    if (entry.entry.removal == 1) continue;
    const size_t value = entry.entry.value;
    if (value >= contents.values.size() || contents.values[value].key != entry.entry.key) {
      lose(i, offset, "its batch holds something else in its place");
      continue;
    }
    entry.size_bytes = contents.values[value].size_bytes;
    entry_of[value] = i;
  }
  if (options_.depth == Depth::kPayload) HIFC_TRY(check_lanes(contents, offset, entry_of));
  return progress_(offset + contents.size_bytes());
}

// In the order of the file. `entry_of` [values]: nothing where the value does not count.
Result<void> SegmentInspector::check_lanes(const BatchContents& contents, uint64_t offset,
                                           std::span<const std::optional<size_t>> entry_of) {
  std::vector<DamagedValue> found(entry_of.size());
  for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane) {
    for (size_t value = 0; value < entry_of.size(); ++value) {
      if (!entry_of[value]) continue;
      HIFC_ASSIGN(auto problem, check_lane(contents, offset, lane, value));
      if (!problem) continue;
      DamagedValue& damaged = found[value];
      if (damaged.lanes.empty()) {
        damaged.offset_bytes = offset + contents.lane_offset_bytes(lane, value);
        damaged.problem = std::move(*problem);
      }
      damaged.lanes.push_back(lane);
    }
  }
  for (size_t value = 0; value < found.size(); ++value) {
    if (found[value].lanes.empty()) continue;
    lose(*entry_of[value], found[value].offset_bytes, std::move(found[value].problem));
    damaged_values_.back().value.lanes = std::move(found[value].lanes);
  }
  return {};
}

// What is wrong with the lane.
Result<std::optional<std::string>> SegmentInspector::check_lane(const BatchContents& contents,
                                                                uint64_t offset, uint32_t lane,
                                                                size_t value) {
  const uint64_t begin = offset + contents.lane_offset_bytes(lane, value);
  const uint64_t lane_bytes = contents.lane_bytes(lane, value);
  const uint32_t chunk_bytes = contents.shape.chunk_bytes;
  const auto expected = contents.lane_checksums(lane, value);
  for (size_t i = 0; i < expected.size(); ++i) {
    const uint64_t at = i * chunk_bytes;
    const auto got = reader_.bytes(begin + at, std::min<uint64_t>(chunk_bytes, lane_bytes - at));
    if (!got && fatal(got.error())) return std::unexpected(got.error());
    if (!got) return problem_of(got.error());
    if (checksum(*got) != expected[i]) return "the checksum is wrong";
  }
  return std::nullopt;
}

// ---- what no checkpoint names ----

Result<void> SegmentInspector::scan() {
  for (uint64_t offset = segment_.tail_bytes; offset + kPageBytes <= end_bytes_;) {
    if (offset % kProgressBytes == 0) HIFC_TRY(progress_(offset));
    HIFC_ASSIGN(offset, scan_page(offset));
  }
  return {};
}

// The next page to look at.
Result<uint64_t> SegmentInspector::scan_page(uint64_t offset) {
  const uint64_t next = offset + kPageBytes;
  const auto page = reader_.bytes(offset, kPageBytes);
  if (!page) {
    if (fatal(page.error())) return std::unexpected(page.error());
    // One record for all that follow each other.
    if (offset != unreadable_end_) damaged(Part::kBatchHeader, offset, problem_of(page.error()));
    unreadable_end_ = segment_.tail_bytes = next;
    return next;
  }
  const bool intact = batch_header_bytes(*page, segment_.context, offset).has_value();
  const bool expected = was_batch_header(*page, offset);
  auto contents =
      intact ? batch_at(offset) : failure(Code::kCorrupt, "the batch header is damaged");
  if (!contents) {
    if (fatal(contents.error())) return std::unexpected(contents.error());
    if (!expected) return next;
    damaged(Part::kBatchHeader, offset, problem_of(contents.error()));
    segment_.tail_bytes = next;
    return next;
  }
  std::vector<CheckpointEntry> records;
  append_entries(*contents, static_cast<uint32_t>(offset / kPageBytes), records);
  const size_t begin = segment_.entries.size();
  for (const CheckpointEntry& entry : records) segment_.entries.push_back({.entry = entry});
  segment_.tail_bytes = offset + contents->size_bytes();
  HIFC_TRY(check_values(*contents, offset, begin, segment_.entries.size()));
  return segment_.tail_bytes;
}

// Whether the page has been the beginning of a batch header of this segment. Damage in one place
// leaves two of the three things that say so; an earlier use of the file leaves two as well, but
// not under this segment's nonce.
bool SegmentInspector::was_batch_header(std::span<const std::byte> page, uint64_t offset) {
  const auto header = read_as<BatchHeader>(page);
  const bool magic = looks_like_batch(page);
  const bool place = header.offset_bytes == offset;
  if (header.segment == segment_.context.number) return magic || place;
  if (!magic || !place || header.header_bytes > end_bytes_ - offset ||
      header.header_bytes % kPageBytes != 0 || header.header_bytes == 0)
    return false;
  const auto bytes = reader_.bytes(offset, header.header_bytes);
  if (!bytes) return false;
  std::vector<std::byte> mended(bytes->begin(), bytes->end());
  std::memcpy(mended.data() + offsetof(BatchHeader, segment), &segment_.context.number,
              sizeof segment_.context.number);
  return decode_batch_header(mended, segment_.context, offset).has_value();
}

// ---- reading ----

Result<BatchContents> SegmentInspector::batch_at(uint64_t offset) {
  HIFC_ASSIGN(const auto page, reader_.bytes(offset, kPageBytes));
  const auto length = batch_header_bytes(page, segment_.context, offset);
  if (!length) return failure(Code::kCorrupt, "the batch header is damaged");
  HIFC_ASSIGN(const auto bytes, reader_.bytes(offset, *length));
  return decode_batch_header(bytes, segment_.context, offset);
}

void SegmentInspector::damaged(Part part, uint64_t offset, std::string problem) {
  damaged_records_.push_back({part, segment_.file, offset, std::move(problem)});
}

void SegmentInspector::lose(size_t entry, uint64_t offset, std::string problem) {
  InspectedEntry& lost = segment_.entries[entry];
  lost.damaged = true;
  damaged_values_.push_back({entry,
                             {.key = lost.entry.key,
                              .file = segment_.file,
                              .offset_bytes = offset,
                              .problem = std::move(problem)}});
}

}  // namespace hifc::flash
