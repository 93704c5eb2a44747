#include "flash/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "flash/segment_inspector.h"

namespace hifc::flash {
namespace {

using State = InspectedSegment::State;

// A file without a batch has none, whatever its header says.
std::optional<uint64_t> values_of(const InspectedSegment& segment) {
  const bool known = segment.state != State::kDamaged || segment.size_bytes <= kSegmentHeaderBytes;
  return known ? std::optional(segment.values(Fate::kCurrent)) : std::nullopt;
}

// A directory whose files are removed and rewritten one after the other, or only would be.
class Editor {
 public:
  Editor(Directory& directory, io::Ring& ring, const InspectionOptions& options,
         Execution execution)
      : directory_(directory), ring_(ring), options_(options), execution_(execution) {}

  bool applies() const { return execution_ == Execution::kApply; }

  Result<void> check_cancelled() const {
    if (options_.cancelled == nullptr || !options_.cancelled->load()) return {};
    return failure(Code::kCancelled,
                   fmt::format("interrupted with {} files changed; call it again for the rest",
                               changed_files_));
  }

  Result<RemovedSegment> remove(const InspectedSegment& segment) {
    RemovedSegment removed{
        .file = segment.file, .size_bytes = segment.size_bytes, .values = values_of(segment)};
    if (!applies()) return removed;
    HIFC_TRY(check_cancelled());
    HIFC_TRY(directory_.remove_segment(segment.id));
    ++changed_files_;
    // Before the next one: a power failure must not bring back what newer values have replaced.
    HIFC_TRY(directory_.sync());
    return removed;
  }

  // Gives the file its length and a checkpoint of `entries` before `covered_bytes`.
  Result<void> rewrite(const InspectedSegment& segment, const Checkpoint& checkpoint) {
    if (!applies()) return {};
    HIFC_TRY(check_cancelled());
    HIFC_ASSIGN(io::File opened,
                directory_.open_segment(
                    segment.id, {.mode = io::File::Mode::kReadWrite, .direct = options_.direct}));
    auto file = std::make_unique<io::File>(std::move(opened));
    ++changed_files_;
    auto outcome = write(*file, segment, checkpoint);
    if (!outcome && outcome.error().code == Code::kTimeout) keep_open(std::move(file));
    return outcome;
  }

 private:
  // A checkpoint names only what is durable. One that is torn counts as none: the segment is
  // scanned then.
  Result<void> write(io::File& file, const InspectedSegment& segment,
                     const Checkpoint& checkpoint) {
    if (!segment.whole()) {
      // Without the part of a page at its end, which nobody has looked at.
      const uint64_t kept = std::min(segment.size_bytes, segment.context.size_bytes);
      HIFC_TRY(file.truncate(kept / kPageBytes * kPageBytes));
      HIFC_TRY(file.truncate(segment.context.size_bytes));
    }
    const uint64_t size = checkpoint_bytes(checkpoint.entries.size());
    HIFC_ASSIGN(io::AlignedMemory allocated, io::AlignedMemory::allocate(size));
    const auto memory = std::make_shared<io::AlignedMemory>(std::move(allocated));
    encode_checkpoint(checkpoint, segment.context, memory->span().first(size));
    HIFC_TRY(transfer({.operation = io::Operation::kSync, .file = &file}, memory));
    HIFC_TRY(transfer({.operation = io::Operation::kWrite,
                       .file = &file,
                       .offset_bytes = segment.context.size_bytes - size,
                       .vectors = {{memory->data(), size}}},
                      memory));
    return transfer({.operation = io::Operation::kSync, .file = &file}, memory);
  }

  Result<void> transfer(io::Request request, std::shared_ptr<io::AlignedMemory> memory) {
    return transfer_now(ring_, std::move(request), options_.deadline_ns, std::move(memory));
  }

  Directory& directory_;
  io::Ring& ring_;
  const InspectionOptions& options_;
  const Execution execution_;
  uint64_t changed_files_ = 0;
};

// What the segment's checkpoint shall say.
Checkpoint checkpoint_without_damage(const InspectedSegment& segment) {
  Checkpoint checkpoint{.covered_bytes = std::max(segment.covered_bytes, segment.tail_bytes),
                        .sealed = segment.state == State::kSealed};
  for (const InspectedEntry& each : segment.entries)
    if (!each.damaged) checkpoint.entries.push_back(each.entry);
  // Pages that could not be read may be those of the checkpoint.
  const uint64_t begin = segment.context.size_bytes - checkpoint_bytes(checkpoint.entries.size());
  checkpoint.covered_bytes = std::min(checkpoint.covered_bytes, begin);
  return checkpoint;
}

class Repairer {
 public:
  Repairer(Directory& directory, io::Ring& ring, const InspectionOptions& options,
           Execution execution)
      : editor_(directory, ring, options, execution) {}

  Result<Repair> run(Inspection found) {
    for (const InspectedSegment& segment : found.segments)
      if (found.damaged(segment)) HIFC_TRY(mend(segment));
    result_.found = std::move(found);
    return std::move(result_);
  }

 private:
  Result<void> mend(const InspectedSegment& segment) {
    if (segment.state == State::kUnreadable) {
      result_.unrepaired.push_back(segment.file + ": cannot be read, and is left alone");
      return {};
    }
    const bool readable = segment.state != State::kDamaged;
    const bool empty = std::ranges::none_of(
        segment.entries, [](const InspectedEntry& entry) { return !entry.damaged; });
    if (!readable || (empty && segment.size_bytes < segment.context.size_bytes)) {
      HIFC_ASSIGN(RemovedSegment removed, editor_.remove(segment));
      result_.removed.push_back(std::move(removed));
      return {};
    }
    const Checkpoint checkpoint = checkpoint_without_damage(segment);
    HIFC_TRY(editor_.rewrite(segment, checkpoint));
    if (!segment.whole()) result_.restored.push_back(segment.file);
    result_.rewritten.push_back(segment.file);
    return {};
  }

  Editor editor_;
  Repair result_;
};

// ---- trim ----

struct Candidate {
  const InspectedSegment* segment = nullptr;
  uint64_t values = 0;
};

// As SegmentPool: what holds nothing first, those overwritten least before others. `left` is sorted
// as Inspection::segments.
std::optional<size_t> next_to_go(const std::vector<Candidate>& left) {
  const auto rank = [&](size_t i) {
    const InspectedSegment& segment = *left[i].segment;
    return std::tuple(segment.overwrites, segment.size_bytes, segment.id);
  };
  const auto has_number = [](const Candidate& each) { return each.segment->context.number != 0; };
  const auto first = static_cast<size_t>(std::ranges::find_if(left, has_number) - left.begin());
  std::optional<size_t> next;
  for (size_t i = 0; i < first; ++i)
    if (!next || rank(i) < rank(*next)) next = i;
  if (next) return next;
  for (size_t i = first; i < left.size(); ++i) {
    if (left[i].segment->supersedes && i != first) continue;
    if (left[i].values == 0) return i;
    if (!next) next = i;
  }
  return next;
}

}  // namespace

Result<Repair> repair(Directory& directory, io::Ring& ring, InspectionOptions options,
                      Execution execution) {
  options.depth = Depth::kPayload;
  HIFC_ASSIGN(Inspection found, inspect(directory, ring, options));
  return Repairer(directory, ring, options, execution).run(std::move(found));
}

Result<Trim> trim(Directory& directory, io::Ring& ring, uint64_t target_bytes,
                  InspectionOptions options, Execution execution) {
  options.depth = Depth::kRecords;
  HIFC_ASSIGN(Inspection found, inspect(directory, ring, options));
  Editor editor(directory, ring, options, execution);
  Trim result{.size_bytes_after = found.size_bytes()};
  std::vector<Candidate> left;
  for (const InspectedSegment& segment : found.segments)
    if (segment.state != State::kUnreadable)
      left.push_back({&segment, segment.values(Fate::kCurrent)});
  while (result.size_bytes_after > target_bytes) {
    const auto next = next_to_go(left);
    if (!next) break;
    HIFC_ASSIGN(RemovedSegment removed, editor.remove(*left[*next].segment));
    result.size_bytes_after -= removed.size_bytes;
    result.removed.push_back(std::move(removed));
    left.erase(left.begin() + static_cast<ptrdiff_t>(*next));
  }
  result.found = std::move(found);
  return result;
}

}  // namespace hifc::flash
