#include "flash/reinserter.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/memory.h"

namespace hifc::flash {
namespace {

constexpr uint64_t kBatchBytesMax = 16u << 20;

bool verified(const BatchContents& contents, uint32_t value,
              std::span<const std::span<std::byte>> lanes) {
  for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane) {
    const auto expected = contents.lane_checksums(lane, value);
    for (size_t i = 0; i < expected.size(); ++i)
      if (checksum(chunk(lanes[lane], i, contents.shape.chunk_bytes)) != expected[i]) return false;
  }
  return true;
}

}  // namespace

// Keeps its segment from being retired while it lives; everything that runs for it shares it.
struct Reinserter::Job {
  explicit Job(Segment& job_segment) : segment(job_segment), context(job_segment.context()) {
    ++segment.batches_in_memory;
  }
  ~Job() { --segment.batches_in_memory; }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  struct Item {
    uint32_t value = 0;
    std::vector<std::span<std::byte>> lanes;
    bool good = true;
  };

  Segment& segment;
  const SegmentContext context;
  std::vector<CheckpointEntry> entries;  // chosen, by batch
  size_t next = 0;
  std::shared_ptr<io::AlignedMemory> memory;
  std::vector<Item> items;
  uint32_t reads_left = 0;
};

void Reinserter::put(uint64_t bytes) {
  if (options_.hits_min == 0) return;
  const auto earned = static_cast<uint64_t>(static_cast<double>(bytes) * options_.share);
  budget_bytes_ = std::min(options_.burst_bytes, budget_bytes_ + earned);
  const Segment* const active = pool_.active();
  if (active == nullptr || active->tail_bytes < active->size_bytes / 2 || !running_.expired())
    return;
  Segment* const oldest = pool_.next_to_retire();
  if (oldest != nullptr && std::exchange(looked_at_, oldest->number) != oldest->number)
    begin(*oldest);
}

void Reinserter::begin(Segment& segment) {
  if (segment.findable_values == 0) return;
  if (segment.size_bytes % kPageBytes != 0) return;  // cut off, and its checkpoint with it
  const auto job = std::make_shared<Job>(segment);
  running_ = job;
  read(job, kPageBytes, [this, job](std::span<const std::byte> page) {
    const auto length = checkpoint_bytes(page, job->context);
    if (length)
      read(job, *length, [this, job](std::span<const std::byte> bytes) { choose(job, bytes); });
  });
}

// The last bytes of the segment.
void Reinserter::read(const std::shared_ptr<Job>& job, uint64_t bytes,
                      std::function<void(std::span<const std::byte>)> next) {
  auto memory = io::AlignedMemory::allocate(bytes);
  if (!memory || !transfers_.admit(io::Operation::kRead)) return;
  const auto shared = std::make_shared<io::AlignedMemory>(std::move(*memory));
  transfers_.start({.operation = io::Operation::kRead,
                    .file = &job->segment.file,
                    .offset_bytes = job->segment.size_bytes - bytes,
                    .vectors = {{shared->data(), bytes}},
                    .done =
                        [shared, bytes, next = std::move(next)](const Result<void>& result) {
                          if (result) next(shared->span().first(bytes));
                        },
                    .released = [job, shared] {}});
}

void Reinserter::choose(const std::shared_ptr<Job>& job, std::span<const std::byte> bytes) {
  auto checkpoint = decode_checkpoint(bytes, job->context);
  if (!checkpoint) return;
  for (const CheckpointEntry& entry : checkpoint->entries) {
    if (entry.removal != 0 || index_.hits(entry.key) < options_.hits_min) continue;
    if (index_.find(entry.key) == location_of(entry, job->context.number))
      job->entries.push_back(entry);
  }
  next_batch(job);
}

void Reinserter::next_batch(const std::shared_ptr<Job>& job) {
  // What is late may still use the memory; and there is no hurry.
  if (job->next == job->entries.size() || transfers_.device_hangs()) return;
  const uint32_t page = job->entries[job->next].batch_page;
  std::vector<Location> locations;
  for (; job->next < job->entries.size() && job->entries[job->next].batch_page == page; ++job->next)
    locations.push_back(location_of(job->entries[job->next], job->context.number));
  const Location first = locations.front();
  (void)pins_.get(
      job->segment, first,
      [this, job, locations = std::move(locations)](Result<std::shared_ptr<Batch>> batch) mutable {
        if (batch) read_values(job, *batch, std::move(locations));
      });
}

void Reinserter::read_values(const std::shared_ptr<Job>& job, const std::shared_ptr<Batch>& batch,
                             std::vector<Location> locations) {
  const BatchContents& contents = batch->contents;
  job->items.clear();
  uint64_t total = 0;
  for (const Location& location : locations) {
    if (location.value >= contents.values.size()) return;
    const uint64_t bytes = contents.value_bytes(location.value);
    if (total + bytes > std::min(budget_bytes_, kBatchBytesMax)) continue;
    total += bytes;
    job->items.push_back({.value = location.value});
  }
  if (job->items.empty()) return;  // the budget is spent
  auto memory = io::AlignedMemory::allocate(total);
  if (!memory) return;
  job->memory = std::make_shared<io::AlignedMemory>(std::move(*memory));
  budget_bytes_ -= total;
  job->reads_left = 1;
  std::span<std::byte> rest = job->memory->span();
  for (size_t i = 0; i < job->items.size(); ++i)
    for (uint32_t lane = 0; lane < contents.shape.lanes; ++lane) {
      const uint64_t lane_bytes = contents.lane_bytes(lane, job->items[i].value);
      job->items[i].lanes.push_back(rest.first(lane_bytes));
      rest = rest.subspan(lane_bytes);
      read_lane(job, batch, i);
    }
  --job->reads_left;  // none has completed yet: completions run in poll() and wait()
}

// The last one that this item has memory for.
void Reinserter::read_lane(const std::shared_ptr<Job>& job, const std::shared_ptr<Batch>& batch,
                           size_t index) {
  Job::Item& item = job->items[index];
  const auto lane = static_cast<uint32_t>(item.lanes.size() - 1);
  const std::span<std::byte> target = item.lanes.back();
  ++job->reads_left;
  transfers_.start(
      {.operation = io::Operation::kRead,
       .file = &job->segment.file,
       .offset_bytes = batch->offset_bytes + batch->contents.lane_offset_bytes(lane, item.value),
       .vectors = {{target.data(), target.size()}},
       .done =
           [this, job, batch, &item](const Result<void>& result) {
             item.good = item.good && result.has_value();
             if (--job->reads_left == 0) write_values(job, batch);
           },
       .released = [job, memory = job->memory] {}});
}

void Reinserter::write_values(const std::shared_ptr<Job>& job,
                              const std::shared_ptr<Batch>& batch) {
  const BatchContents& contents = batch->contents;
  std::vector<Copy> copies;
  for (const Job::Item& item : job->items) {
    if (!item.good || !verified(contents, item.value, item.lanes)) continue;
    const ValueRecord& record = contents.values[item.value];
    copies.push_back({.key = record.key,
                      .from = batch->location(item.value),
                      .value = {.key = record.key,
                                .lanes = {item.lanes.begin(), item.lanes.end()},
                                .size_bytes = record.size_bytes}});
  }
  if (copies.empty()) return next_batch(job);
  (void)write_(contents.shape, std::move(copies),
               [this, job, memory = job->memory] { next_batch(job); });
}

}  // namespace hifc::flash
