#include "flash/segment_reader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hifc::flash {
namespace {

// Reads of this size run at the drive's full speed.
constexpr uint64_t kWindowBytes = 4u << 20;

}  // namespace

Result<void> transfer_now(io::Ring& ring, io::Request request, uint64_t deadline_ns,
                          std::shared_ptr<io::AlignedMemory> memory) {
  // Outlives this call where the deadline passes.
  struct State {
    std::optional<Result<void>> outcome;
  };
  const auto state = std::make_shared<State>();
  request.done = [state, memory = std::move(memory)](Result<void> result) {
    state->outcome = std::move(result);
  };
  HIFC_TRY(ring.submit(std::move(request)));
  while (!state->outcome)
    if (ring.wait_for(deadline_ns == 0 ? io::Ring::kForever : deadline_ns) == 0 && !state->outcome)
      return failure(Code::kTimeout, "the flash device did not answer in time");
  return *state->outcome;
}

void keep_open(std::shared_ptr<const void> file) {
  static auto* const files = new std::vector<std::shared_ptr<const void>>();
  files->push_back(std::move(file));
}

Result<std::span<const std::byte>> SegmentReader::bytes(uint64_t offset, uint64_t length) {
  HIFC_CHECK(offset % kPageBytes == 0 && length % kPageBytes == 0);
  const uint64_t size = options_.size_bytes / kPageBytes * kPageBytes;
  if (offset > size || length > size - offset)
    return failure(Code::kCorrupt, "the segment file is cut off");
  if (timed_out_) return failure(Code::kTimeout, "the flash device does not answer");
  const bool inside = offset >= window_begin_ && offset + length <= window_begin_ + window_bytes_;
  if (!inside) {
    // Ahead only where it goes on from where the last call ended.
    const bool goes_on =
        window_bytes_ > 0 && offset <= window_begin_ + window_bytes_ && offset > window_begin_;
    const uint64_t ahead = goes_on ? std::max(length, kWindowBytes) : length;
    const uint64_t wanted = std::min(ahead, size - offset);
    window_bytes_ = 0;
    if (!window_ || window_->size_bytes() < wanted || window_.use_count() > 1) {
      HIFC_ASSIGN(io::AlignedMemory memory, io::AlignedMemory::allocate(wanted));
      window_ = std::make_shared<io::AlignedMemory>(std::move(memory));
    }
    const auto read = [&](uint64_t count) {
      return transfer_now(ring_,
                          {.operation = io::Operation::kRead,
                           .file = options_.file,
                           .offset_bytes = offset,
                           .vectors = {{window_->data(), count}}},
                          options_.deadline_ns, window_);
    };
    auto outcome = read(wanted);
    // A bad page must not cost those around it.
    uint64_t got = wanted;
    if (!outcome && wanted > length && outcome.error().code != Code::kTimeout)
      outcome = read(got = length);
    timed_out_ = !outcome && outcome.error().code == Code::kTimeout;
    missed_ = missed_ || !outcome;
    HIFC_TRY(outcome);
    window_begin_ = offset;
    window_bytes_ = got;
  }
  return std::span<const std::byte>(window_->data() + (offset - window_begin_), length);
}

// The first page, or all of a file that is shorter.
Result<std::span<const std::byte>> SegmentReader::beginning() {
  if (options_.size_bytes >= kPageBytes) return bytes(0, kPageBytes);
  HIFC_ASSIGN(io::AlignedMemory memory, io::AlignedMemory::allocate(kPageBytes));
  window_ = std::make_shared<io::AlignedMemory>(std::move(memory));
  window_bytes_ = 0;
  // Reads are of whole pages: one that meets the end of the file is an error without an errno, and
  // has brought what there is.
  const auto read = transfer_now(ring_,
                                 {.operation = io::Operation::kRead,
                                  .file = options_.file,
                                  .vectors = {{window_->data(), kPageBytes}}},
                                 options_.deadline_ns, window_);
  timed_out_ = !read && read.error().code == Code::kTimeout;
  if (!read && (timed_out_ || read.error().system_errno != 0)) return std::unexpected(read.error());
  return window_->span().first(options_.size_bytes);
}

Result<SegmentHeader> SegmentReader::header() {
  if (options_.size_bytes == 0) return failure(Code::kCorrupt, "the file is empty");
  HIFC_ASSIGN(const auto page, beginning());
  return decode_segment_header(page);
}

SegmentReader::Origin SegmentReader::origin() {
  if (options_.size_bytes == 0) return Origin::kEmpty;
  const auto first = beginning();
  const bool zero = first && is_unwritten(*first);
  if (first && is_older_layout(*first)) return Origin::kOutdated;
  if (first && !zero && looks_like_segment(*first)) return Origin::kDamaged;
  const uint64_t pages = options_.size_bytes / kPageBytes;
  if (pages == 0) return zero ? Origin::kUnwritten : Origin::kForeign;
  const auto second = bytes(kSegmentHeaderBytes, kPageBytes);
  if (second && looks_like_batch(*second)) return Origin::kDamaged;
  const auto last = bytes((pages - 1) * kPageBytes, kPageBytes);
  if (last && looks_like_checkpoint(*last)) return Origin::kDamaged;
  return zero ? Origin::kUnwritten : Origin::kForeign;
}

std::optional<Checkpoint> SegmentReader::checkpoint(const SegmentContext& segment) {
  if (options_.size_bytes < segment.size_bytes) return std::nullopt;
  const auto page = bytes(segment.size_bytes - kPageBytes, kPageBytes);
  if (!page) return std::nullopt;
  const auto length = checkpoint_bytes(*page, segment);
  if (!length) return std::nullopt;
  const auto all = bytes(segment.size_bytes - *length, *length);
  if (!all) return std::nullopt;
  auto checkpoint = decode_checkpoint(*all, segment);
  if (!checkpoint) return std::nullopt;
  return std::move(*checkpoint);
}

std::optional<SegmentReader::Found> SegmentReader::next_batch(const SegmentContext& segment,
                                                              uint64_t offset, uint64_t end) {
  for (; offset + kPageBytes <= end; offset += kPageBytes) {
    const auto page = bytes(offset, kPageBytes);
    if (!page) {
      if (page.error().code == Code::kCorrupt || page.error().code == Code::kTimeout) break;
      continue;
    }
    const auto length = batch_header_bytes(*page, segment, offset);
    if (!length) continue;
    const auto header = bytes(offset, *length);
    if (!header) continue;
    auto contents = decode_batch_header(*header, segment, offset);
    if (contents) return Found{offset, std::move(*contents)};
  }
  return std::nullopt;
}

bool SegmentReader::surely_without(const SegmentContext& segment) {
  const auto first = bytes(kSegmentHeaderBytes, kPageBytes);
  return first && !missed_ && !batch_header_bytes(*first, segment, kSegmentHeaderBytes);
}

void SegmentReader::verify(const Found& batch, const Damaged& damaged) {
  const BatchContents& contents = batch.contents;
  for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane) {
    for (size_t value = 0; value < contents.values.size(); ++value) {
      const uint64_t begin = batch.offset_bytes + contents.lane_offset_bytes(lane, value);
      const auto expected = contents.lane_checksums(lane, value);
      for (size_t i = 0; i < expected.size(); ++i) {
        const uint64_t at = i * contents.shape.chunk_bytes;
        const uint64_t length =
            std::min<uint64_t>(contents.shape.chunk_bytes, contents.lane_bytes(lane, value) - at);
        const auto got = bytes(begin + at, length);
        if (!got || checksum(*got) != expected[i]) damaged(value, lane);
      }
    }
  }
}

}  // namespace hifc::flash
