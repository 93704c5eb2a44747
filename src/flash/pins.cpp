#include "flash/pins.h"

#include <utility>

namespace hifc::flash {
namespace {

// Headers of small values are large against them: keeping some saves reading them again and again.
constexpr uint64_t kRecentBytesMax = 16u << 20;

uint64_t memory_bytes(const Batch& batch) {
  const BatchContents& contents = batch.contents;
  return contents.header_bytes + contents.places.size() * sizeof(LanePlace) + sizeof(Batch);
}

}  // namespace

struct Pins::Fetch {
  Fetch(Segment& batch_segment, uint32_t page)
      : segment(batch_segment), context(batch_segment.context()), batch_page(page) {
    ++segment.batches_in_memory;  // not retired while it is read
  }
  ~Fetch() { --segment.batches_in_memory; }
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  uint64_t offset_bytes() const { return batch_page * kPageBytes; }
  Place place() const { return place_of(context.number, batch_page); }

  Segment& segment;
  const SegmentContext context;
  const uint32_t batch_page;
  io::AlignedMemory memory;
  uint64_t size_bytes = 0;  // being read
  std::vector<Got> waiters;
};

std::shared_ptr<Batch> Pins::in_memory(Place place) {
  const auto found = batches_.find(place);
  return found == batches_.end() ? nullptr : found->second.lock();
}

Result<void> Pins::get(Segment& segment, const Location& location, Got got) {
  const Place place = place_of(location.segment, location.batch_page);
  if (std::shared_ptr<Batch> batch = in_memory(place)) {
    use(batch);
    got(std::move(batch));
    return {};
  }
  if (const auto fetch = fetches_.find(place); fetch != fetches_.end()) {
    fetch->second->waiters.push_back(std::move(got));
    return {};
  }
  HIFC_TRY(transfers_.admit(io::Operation::kRead));
  auto fetch = std::make_shared<Fetch>(segment, location.batch_page);
  const uint64_t pages = location.header_pages == 255 ? 1 : location.header_pages;
  HIFC_ASSIGN(fetch->memory, io::AlignedMemory::allocate(pages * kPageBytes));
  fetch->waiters.push_back(std::move(got));
  fetches_[place] = fetch;
  read(fetch, pages * kPageBytes);
  return {};
}

void Pins::read(const std::shared_ptr<Fetch>& fetch, uint64_t size_bytes) {
  fetch->size_bytes = size_bytes;
  transfers_.start(
      {.operation = io::Operation::kRead,
       .file = &fetch->segment.file,
       .offset_bytes = fetch->offset_bytes(),
       .vectors = {{fetch->memory.data(), size_bytes}},
       .done = [this, fetch](Result<void> result) { arrived(fetch, std::move(result)); },
       .released = [fetch] {}});
}

void Pins::arrived(const std::shared_ptr<Fetch>& fetch, Result<void> result) {
  if (!result) return finish(fetch, std::unexpected(std::move(result).error()));
  const auto bytes = fetch->memory.span().first(fetch->size_bytes);
  const auto length = batch_header_bytes(bytes, fetch->context, fetch->offset_bytes());
  if (!length) return finish(fetch, failure(Code::kCorrupt, "there is no batch header"));
  if (*length > fetch->size_bytes) {
    // The index does not know the length of long headers.
    auto memory = io::AlignedMemory::allocate(*length);
    if (!memory) return finish(fetch, std::unexpected(std::move(memory).error()));
    fetch->memory = std::move(*memory);
    return read(fetch, *length);
  }
  auto contents = decode_batch_header(bytes.first(*length), fetch->context, fetch->offset_bytes());
  if (!contents) return finish(fetch, std::unexpected(std::move(contents).error()));
  auto batch = std::make_shared<Batch>(std::move(*contents), fetch->segment, fetch->offset_bytes());
  add(batch);
  finish(fetch, std::move(batch));
}

void Pins::finish(const std::shared_ptr<Fetch>& fetch, Result<std::shared_ptr<Batch>> outcome) {
  fetches_.erase(fetch->place());
  for (Got& got : std::exchange(fetch->waiters, {})) got(outcome);
}

void Pins::add(const std::shared_ptr<Batch>& batch) {
  batches_[place_of(batch->number, batch->page())] = batch;
  use(batch);
  if (batches_.size() < sweep_at_) return;
  std::erase_if(batches_, [](const auto& entry) { return entry.second.expired(); });
  sweep_at_ = 64 + 2 * batches_.size();
}

void Pins::use(const std::shared_ptr<Batch>& batch) {
  if (!recent_.empty() && recent_.back() == batch) return;
  recent_.push_back(batch);
  recent_bytes_ += memory_bytes(*batch);
  while (recent_bytes_ > kRecentBytesMax && recent_.size() > 1) {
    recent_bytes_ -= memory_bytes(*recent_.front());
    recent_.pop_front();
  }
}

}  // namespace hifc::flash
