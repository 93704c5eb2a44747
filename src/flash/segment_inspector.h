// One segment file for inspection.h: everything that its header, its checkpoint and its batches
// say, and what of it does not hold.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flash/inspection.h"
#include "flash/segment_reader.h"

namespace hifc::flash {

class SegmentInspector {
 public:
  struct FoundValue {
    size_t entry = 0;  // of the segment
    DamagedValue value;
  };
  using Progress = std::function<Result<void>(uint64_t done_bytes)>;

  // Fills in `segment`; the file must outlive what is in flight.
  SegmentInspector(const io::File& file, InspectedSegment& segment, io::Ring& ring,
                   const InspectionOptions& options);
  void on_progress(Progress progress) { progress_ = std::move(progress); }

  SegmentReader& reader() { return reader_; }
  Result<void> contents(const SegmentHeader& header);

  std::vector<FoundValue>& damaged_values() { return damaged_values_; }
  std::vector<DamagedRecord>& damaged_records() { return damaged_records_; }

 private:
  Result<void> read_checkpoint();
  Result<void> check_listed();
  Result<void> check_batch(uint64_t offset, size_t begin, size_t end);
  Result<void> check_values(const BatchContents& contents, uint64_t offset, size_t begin,
                            size_t end);
  Result<void> check_lanes(const BatchContents& contents, uint64_t offset,
                           std::span<const std::optional<size_t>> entry_of);
  Result<std::optional<std::string>> check_lane(const BatchContents& contents, uint64_t offset,
                                                uint32_t lane, size_t value);
  Result<void> scan();
  Result<uint64_t> scan_page(uint64_t offset);
  Result<BatchContents> batch_at(uint64_t offset);
  bool was_batch_header(std::span<const std::byte> page, uint64_t offset);
  bool was_checkpoint(std::span<const std::byte> page);
  void damaged(DamagedRecord::Part part, uint64_t offset, std::string problem);
  void lose(size_t entry, uint64_t offset, std::string problem);

  InspectedSegment& segment_;
  const InspectionOptions& options_;
  SegmentReader reader_;
  Progress progress_ = [](uint64_t) -> Result<void> { return {}; };
  uint64_t end_bytes_ = 0;       // of what may be batches
  uint64_t unreadable_end_ = 0;  // of the pages that could not be read last
  std::vector<FoundValue> damaged_values_;
  std::vector<DamagedRecord> damaged_records_;
};

}  // namespace hifc::flash
