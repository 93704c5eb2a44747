#include "flash/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "flash/segment_inspector.h"

namespace hifc::flash {
namespace {

using State = InspectedSegment::State;
using Part = DamagedRecord::Part;

class Inspector {
 public:
  Inspector(Directory& directory, io::Ring& ring, const InspectionOptions& options)
      : directory_(directory), ring_(ring), options_(options) {}

  Result<Inspection> run() {
    HIFC_ASSIGN(Directory::Listing listing, directory_.list());
    result_.path = directory_.path();
    result_.foreign = std::move(listing.foreign);
    for (const Directory::SegmentFile& file : listing.segments) total_bytes_ += file.size_bytes;
    for (const Directory::SegmentFile& file : listing.segments) {
      HIFC_TRY(read_file(file));
      done_bytes_ += file.size_bytes;
      if (options_.progress) options_.progress(done_bytes_, total_bytes_);
    }
    std::ranges::sort(result_.foreign);
    drop_duplicates();
    std::ranges::sort(result_.segments, {}, [](const InspectedSegment& segment) {
      return std::tuple(segment.context.number, segment.id);
    });
    replay();
    collect_values();
    return std::move(result_);
  }

 private:
  Result<void> read_file(const Directory::SegmentFile& entry) {
    InspectedSegment segment;
    segment.id = entry.id;
    segment.size_bytes = entry.size_bytes;
    segment.file = Directory::segment_name(entry.id);
    auto opened = directory_.open_segment(
        entry.id, {.mode = io::File::Mode::kReadOnly, .direct = options_.direct});
    if (!opened) {
      unreadable(std::move(segment), opened.error());
      return {};
    }
    auto file = std::make_unique<io::File>(std::move(*opened));
    auto outcome = read_segment(*file, std::move(segment));
    if (!outcome && outcome.error().code == Code::kTimeout) keep_open(std::move(file));
    return outcome;
  }

  Result<void> read_segment(const io::File& file, InspectedSegment segment) {
    SegmentInspector inspector(file, segment, ring_, options_);
    inspector.on_progress([this](uint64_t bytes) -> Result<void> {
      if (options_.cancelled != nullptr && options_.cancelled->load())
        return failure(Code::kCancelled, fmt::format("interrupted while reading {}; nothing there "
                                                     "has been changed",
                                                     directory_.path()));
      if (options_.progress) options_.progress(done_bytes_ + bytes, total_bytes_);
      return {};
    });
    const auto header = inspector.reader().header();
    if (!header) return without_header(std::move(segment), inspector, header.error());
    HIFC_TRY(inspector.contents(*header));
    found_values_.emplace(segment.id, std::move(inspector.damaged_values()));
    std::ranges::move(inspector.damaged_records(), std::back_inserter(result_.damaged_records));
    result_.segments.push_back(std::move(segment));
    return {};
  }

  Result<void> without_header(InspectedSegment segment, SegmentInspector& inspector,
                              const Error& error) {
    if (error.code == Code::kUnsupported)
      return failure(Code::kUnsupported,
                     fmt::format("{}/{} was written by a newer HiFC ({}); use that one or another "
                                 "directory",
                                 directory_.path(), segment.file, error.context));
    if (error.code == Code::kIo) {
      unreadable(std::move(segment), error);
      return {};
    }
    if (error.code != Code::kCorrupt) return std::unexpected(error);
    using Origin = SegmentReader::Origin;
    const Origin origin = inspector.reader().origin();
    switch (origin) {
      case Origin::kForeign: result_.foreign.push_back(std::move(segment.file)); return {};
      case Origin::kUnwritten: segment.state = State::kFree; break;
      case Origin::kEmpty:
      case Origin::kOutdated:
      case Origin::kDamaged:
        segment.state = State::kDamaged;
        result_.damaged_records.push_back(
            {Part::kSegmentHeader, segment.file, 0,
             origin == Origin::kEmpty ? "the file is empty" : error.context});
    }
    result_.segments.push_back(std::move(segment));
    return {};
  }

  void unreadable(InspectedSegment segment, const Error& error) {
    segment.state = State::kUnreadable;
    result_.damaged_records.push_back({Part::kFile, segment.file, 0, error.message()});
    result_.segments.push_back(std::move(segment));
  }

  // Numbers are used once; a second file with the same one can only be damage.
  void drop_duplicates() {
    std::unordered_set<uint32_t> seen;
    for (InspectedSegment& segment : result_.segments) {
      const uint32_t number = segment.context.number;
      if (number == 0 || seen.insert(number).second) continue;
      std::erase_if(result_.damaged_records,
                    [&](const DamagedRecord& record) { return record.file == segment.file; });
      found_values_.erase(segment.id);
      result_.damaged_records.push_back({Part::kSegmentHeader, segment.file, 0,
                                         fmt::format("segment {} is in another file too", number)});
      segment.context = {};
      segment.state = State::kDamaged;
      segment.entries.clear();
      segment.covered_bytes = segment.tail_bytes = 0;
    }
  }

  // What a store would do with the entries if nothing were damaged.
  void replay() {
    struct Newest {
      InspectedSegment* segment;
      size_t entry;
    };
    std::unordered_map<Key, Newest, KeyHash> newest;
    const auto place_of = [](const Newest& at) {
      return location_of(at.segment->entries[at.entry].entry, at.segment->context.number);
    };
    for (InspectedSegment& segment : result_.segments) {
      for (size_t i = 0; i < segment.entries.size(); ++i) {
        InspectedEntry& entry = segment.entries[i];
        const Newest here{&segment, i};
        auto [present, first] = newest.try_emplace(entry.entry.key, here);
        if (entry.entry.removal == 1) {
          segment.supersedes = true;
          if (!first && newer(place_of(present->second), place_of(here))) continue;
          if (!first) present->second.segment->entries[present->second.entry].fate = Fate::kRemoved;
          newest.erase(present);
        } else if (!first) {
          InspectedEntry& older = present->second.segment->entries[present->second.entry];
          older.fate = Fate::kReplaced;
          segment.supersedes = segment.supersedes || present->second.segment != &segment;
          present->second = here;
        }
      }
    }
  }

  void collect_values() {
    for (const InspectedSegment& segment : result_.segments) {
      const auto found = found_values_.find(segment.id);
      if (found == found_values_.end()) continue;
      for (auto& [entry, value] : found->second) {
        value.fate = segment.entries[entry].fate;
        result_.damaged_values.push_back(std::move(value));
      }
    }
  }

  Directory& directory_;
  io::Ring& ring_;
  const InspectionOptions& options_;
  Inspection result_;
  std::unordered_map<uint32_t, std::vector<SegmentInspector::FoundValue>> found_values_;  // by id
  uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace

uint64_t InspectedSegment::values(Fate fate) const {
  return static_cast<uint64_t>(std::ranges::count_if(entries, [&](const InspectedEntry& entry) {
    return entry.entry.removal == 0 && entry.fate == fate;
  }));
}

uint64_t InspectedSegment::value_bytes() const {
  uint64_t bytes = 0;
  for (const InspectedEntry& entry : entries)
    if (entry.entry.removal == 0 && entry.fate == Fate::kCurrent) bytes += entry.size_bytes;
  return bytes;
}

uint64_t InspectedSegment::removals() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      entries, [](const InspectedEntry& entry) { return entry.entry.removal == 1; }));
}

uint64_t InspectedSegment::damaged_values() const {
  return static_cast<uint64_t>(std::ranges::count(entries, true, &InspectedEntry::damaged));
}

uint64_t InspectedSegment::scanned_bytes() const {
  const uint64_t begin = std::max(covered_bytes, kSegmentHeaderBytes);
  return tail_bytes > begin ? tail_bytes - begin : 0;
}

bool Inspection::damaged(const InspectedSegment& segment) const {
  return segment.damaged_values() > 0 ||
         std::ranges::count(damaged_records, segment.file, &DamagedRecord::file) > 0;
}

uint64_t Inspection::size_bytes() const {
  uint64_t bytes = 0;
  for (const InspectedSegment& segment : segments) bytes += segment.size_bytes;
  return bytes;
}

Result<Inspection> inspect(Directory& directory, io::Ring& ring, const InspectionOptions& options) {
  return Inspector(directory, ring, options).run();
}

std::string_view to_string(Fate fate) {
  switch (fate) {
    case Fate::kCurrent: return "current";
    case Fate::kReplaced: return "replaced";
    case Fate::kRemoved: return "removed";
  }
  return "unknown";
}

std::string_view to_string(Part part) {
  switch (part) {
    case Part::kFile: return "file";
    case Part::kSegmentHeader: return "segment header";
    case Part::kCheckpoint: return "checkpoint";
    case Part::kBatchHeader: return "batch header";
  }
  return "unknown";
}

std::string_view to_string(State state) {
  switch (state) {
    case State::kFree: return "free";
    case State::kOpen: return "open";
    case State::kSealed: return "sealed";
    case State::kDamaged: return "damaged";
    case State::kUnreadable: return "unreadable";
  }
  return "unknown";
}

}  // namespace hifc::flash
