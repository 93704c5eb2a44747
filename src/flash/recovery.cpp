#include "flash/recovery.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "flash/segment_reader.h"

namespace hifc::flash {
namespace {

class Recoverer {
 public:
  Recoverer(Directory& directory, io::Ring& ring, const RecoveryOptions& options)
      : directory_(directory), ring_(ring), options_(options) {}

  Result<Recovery> run() {
    HIFC_ASSIGN(Directory::Listing listing, directory_.list());
    result_.foreign = std::move(listing.foreign);
    for (const Directory::SegmentFile& file : listing.segments) HIFC_TRY(refuse_newer(file));
    for (const Directory::SegmentFile& file : listing.segments) HIFC_TRY(read_file(file));
    free_duplicates();
    return std::move(result_);
  }

 private:
  // Before anything is written to any of them.
  Result<void> refuse_newer(const Directory::SegmentFile& entry) {
    auto opened = directory_.open_segment(
        entry.id, {.mode = io::File::Mode::kReadOnly, .direct = options_.direct});
    if (!opened) return {};
    auto file = std::make_unique<io::File>(std::move(*opened));
    SegmentReader reader(
        {.file = file.get(), .size_bytes = entry.size_bytes, .deadline_ns = options_.deadline_ns},
        ring_);
    const auto header = reader.header();
    if (reader.timed_out()) {
      keep_open(std::move(file));
      return std::unexpected(header.error());
    }
    if (header || header.error().code != Code::kUnsupported) return {};
    return failure(Code::kUnsupported,
                   fmt::format("{} was written by a newer HiFC ({}); use that one or another "
                               "directory",
                               directory_.segment_path(entry.id), header.error().context));
  }

  Result<void> read_file(const Directory::SegmentFile& entry) {
    auto file = directory_.open_segment(
        entry.id, {.mode = io::File::Mode::kReadWrite, .direct = options_.direct});
    if (!file) {
      leave(entry, file.error());
      return {};
    }
    auto segment = std::make_unique<Segment>(entry.id, std::move(*file), entry.size_bytes);
    SegmentReader reader({.file = &segment->file,
                          .size_bytes = entry.size_bytes,
                          .deadline_ns = options_.deadline_ns},
                         ring_);
    auto outcome = read_segment(entry, reader, segment);
    if (outcome && reader.timed_out())
      outcome = failure(Code::kTimeout, "the flash device did not answer in time");
    if (!outcome && outcome.error().code == Code::kTimeout) keep_open(std::move(segment));
    return outcome;
  }

  Result<void> read_segment(const Directory::SegmentFile& entry, SegmentReader& reader,
                            std::unique_ptr<Segment>& segment) {
    const auto header = reader.header();
    if (!header) {
      HIFC_ASSIGN(const bool free, without_header(entry, reader, header.error()));
      if (!free) return {};
    } else {
      fill_in(*segment, *header, reader);
    }
    if (!reader.timed_out()) result_.segments.push_back(std::move(segment));
    return {};
  }

  // Whether the file is ours, to be written anew.
  Result<bool> without_header(const Directory::SegmentFile& entry, SegmentReader& reader,
                              const Error& error) {
    if (error.code == Code::kTimeout) return std::unexpected(error);
    if (error.code != Code::kCorrupt) {
      leave(entry, error);
      return false;
    }
    switch (reader.origin()) {
      case SegmentReader::Origin::kForeign:
        // Left alone like other files of others. It counts all the same: nobody can tell it from a
        // segment of ours that is damaged beyond recognition.
        result_.foreign.push_back(Directory::segment_name(entry.id));
        result_.untouchable_bytes += entry.size_bytes;
        return false;
      // A crash between creating a file and writing its header damages nothing.
      case SegmentReader::Origin::kEmpty:
      case SegmentReader::Origin::kUnwritten: return true;
      case SegmentReader::Origin::kOutdated: ++result_.outdated; return true;
      case SegmentReader::Origin::kDamaged: ++result_.damaged_headers; return true;
    }
    return false;
  }

  void leave(const Directory::SegmentFile& entry, const Error& error) {
    result_.untouchable_bytes += entry.size_bytes;
    result_.unreadable.push_back(
        fmt::format("{}: {}", directory_.segment_path(entry.id), error.message()));
  }

  void fill_in(Segment& segment, const SegmentHeader& header, SegmentReader& reader) {
    segment.number = segment.number_on_disk = static_cast<uint32_t>(header.number);
    segment.nonce = header.nonce;
    segment.overwrites = header.overwrites;
    segment.state = Segment::State::kClosed;
    segment.backed_bytes = segment.size_bytes;
    // A file that was cut off lacks its end: what is left is found batch by batch.
    const SegmentContext context{
        .number = segment.number, .nonce = segment.nonce, .size_bytes = header.segment_bytes};
    uint64_t end = std::min(segment.size_bytes, header.segment_bytes);
    bool sealed = false;
    if (auto checkpoint = reader.checkpoint(context)) {
      segment.tail_bytes = checkpoint->covered_bytes;
      segment.entries = std::move(checkpoint->entries);
      segment.durable_entries = segment.checkpointed_entries = segment.entries.size();
      end -= checkpoint_bytes(segment.entries.size());
      sealed = checkpoint->sealed;
    }
    if (!sealed) scan(segment, context, reader, end);
    segment.unused = segment.tail_bytes == kSegmentHeaderBytes && reader.surely_without(context);
    segment.reserved_entries = segment.entries.size();
    // What has no checkpoint yet goes on being filled, or gets one: both only behind a header and
    // batches that are durable.
    const bool whole = segment.size_bytes == header.segment_bytes;
    if (sealed || !whole || !make_durable(segment)) return;
    segment.state = Segment::State::kOpen;
    segment.durable_entries = segment.entries.size();
  }

  // The header once more, so that it is among what the sync covers: where a sync of the process
  // before us failed, systems take what it did not write for written.
  bool make_durable(const Segment& segment) {
    auto page = io::AlignedMemory::allocate(kSegmentHeaderBytes);
    if (!page) return false;
    const auto memory = std::make_shared<io::AlignedMemory>(std::move(*page));
    encode_segment_header(header_of(segment), memory->span().first(kSegmentHeaderBytes));
    return transfer_now(ring_,
                        {.operation = io::Operation::kWrite,
                         .file = &segment.file,
                         .vectors = {{memory->data(), kSegmentHeaderBytes}}},
                        options_.deadline_ns, memory) &&
           transfer_now(ring_, {.operation = io::Operation::kSync, .file = &segment.file},
                        options_.deadline_ns, nullptr);
  }

  void scan(Segment& segment, const SegmentContext& context, SegmentReader& reader, uint64_t end) {
    while (auto found = reader.next_batch(context, segment.tail_bytes, end)) {
      std::vector<bool> good(found->contents.values.size(), true);
      reader.verify(*found, [&](size_t value, uint32_t) { good[value] = false; });
      std::vector<CheckpointEntry> entries;
      append_entries(found->contents, static_cast<uint32_t>(found->offset_bytes / kPageBytes),
                     entries);
      for (const CheckpointEntry& entry : entries) {
        if (entry.removal != 0 || good[entry.value])
          segment.entries.push_back(entry);
        else
          ++result_.damaged_values;
      }
      segment.tail_bytes = found->offset_bytes + found->contents.size_bytes();
    }
  }

  // Numbers are used once; a second file with the same one can only be damage.
  void free_duplicates() {
    std::unordered_set<uint32_t> seen;
    for (std::unique_ptr<Segment>& segment : result_.segments) {
      if (segment->free() || seen.insert(segment->number).second) continue;
      ++result_.damaged_headers;
      segment =
          std::make_unique<Segment>(segment->id, std::move(segment->file), segment->size_bytes);
    }
  }

  Directory& directory_;
  io::Ring& ring_;
  const RecoveryOptions options_;
  Recovery result_;
};

}  // namespace

Result<Recovery> recover(Directory& directory, io::Ring& ring, const RecoveryOptions& options) {
  return Recoverer(directory, ring, options).run();
}

}  // namespace hifc::flash
