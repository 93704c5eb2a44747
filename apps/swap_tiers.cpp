#include "apps/swap_tiers.h"

#include <algorithm>
#include <utility>

#include "apps/bench.h"
#include "apps/bench_store.h"
#include "cache/prefetcher.h"

namespace hifc::apps {
namespace {

constexpr uint64_t kSegmentBytes = 256u << 20;
// Of a batch, and of a segment: more than either has.
constexpr uint64_t kHeaderBytes = 1u << 20;
// Verifying more than this in one go would let the device run dry.
constexpr uint64_t kVerifyBytes = 256u << 10;
const uint64_t kRunBytes = cache::PrefetchOptions{}.run_bytes_max;

}  // namespace

SwapTiers::SwapTiers(const SwapWorkload& workload, Options options)
    : workload_(workload),
      options_(std::move(options)),
      handles_(workload.groups()),
      frames_(size_t{workload.groups()} * workload.options().layers, tier::kNoFrame),
      kept_(workload.groups()),
      expected_(workload.options().block_bytes) {}

uint64_t SwapTiers::flash_bytes(const SwapWorkload& workload) {
  const uint32_t groups =
      tier::groups_per_write_min(workload.group_bytes(), workload.options().layers);
  const uint64_t batch = groups * workload.group_bytes() + kHeaderBytes;
  // A batch lies in one segment, which is longer where it has to be.
  const uint64_t segment = std::max(kSegmentBytes, batch + kHeaderBytes);
  const uint64_t batches_per_segment = (segment - kHeaderBytes) / batch;
  const uint64_t batches = (workload.groups() + groups - 1) / groups;
  return (batches / batches_per_segment + 4) * segment;
}

Result<std::unique_ptr<SwapTiers>> SwapTiers::create(const SwapWorkload& workload, Options options,
                                                     FunctionRef<void(uint32_t groups)> written) {
  std::unique_ptr<SwapTiers> swap(new SwapTiers(workload, std::move(options)));
  HIFC_TRY(swap->open());
  HIFC_TRY(swap->put_all(written));
  return swap;
}

Result<void> SwapTiers::open() {
  // Beside what stays: reads on their way and being verified, or two writes of groups.
  const uint64_t streaming =
      std::max(2 * options_.depth * std::max(kRunBytes, block_bytes()),
               2 * tier::groups_per_write_max(workload_.group_bytes()) * workload_.group_bytes());
  HIFC_ASSIGN(tiers_, tier::Tiers::create({.block_bytes = block_bytes(),
                                           .blocks_per_group = layers(),
                                           .warm_bytes = options_.memory_bytes + streaming,
                                           .flash = {{.directory = options_.directory,
                                                      .capacity_bytes = flash_bytes(workload_),
                                                      .segment_bytes = kSegmentBytes,
                                                      .temporary = true}},
                                           .ring = {.depth = 2 * options_.depth}}));
  tiers_->populate(tiers_->memory_bytes());
  return {};
}

// ---- putting ----

Result<void> SwapTiers::put_all(FunctionRef<void(uint32_t groups)> written) {
  const uint32_t batch = tier::groups_per_write_min(workload_.group_bytes(), layers());
  Result<void> outcome;
  for (uint32_t first = 0; first < workload_.groups() && outcome; first += batch) {
    const uint32_t count = std::min(batch, workload_.groups() - first);
    outcome = put(first, count);
    if (outcome) outcome = check_interrupted();
    written(first + count);
  }
  while (in_flight_ > 0) tiers_->wait();
  HIFC_TRY(outcome);
  HIFC_TRY(outcome_);
  return tiers_->sync();
}

Result<void> SwapTiers::put(uint32_t first, uint32_t count) {
  std::vector<flash::PutValue> values;
  for (uint32_t group = first; group < first + count; ++group) {
    flash::PutValue& value = values.emplace_back();
    value.key = bench_key(group);
    for (uint32_t layer = 0; layer < layers(); ++layer) {
      HIFC_ASSIGN(frame({group, layer}), frame_to_fill());
      const auto memory = tiers_->span(frame({group, layer}));
      workload_.fill_block(group, layer, memory);
      value.lanes.push_back(memory);
    }
  }
  const auto done = [this, first](Result<std::vector<flash::Handle>> stored) {
    --in_flight_;
    if (!stored) return keep(std::unexpected(std::move(stored).error()));
    for (size_t i = 0; i < stored->size(); ++i) {
      const uint32_t group = first + static_cast<uint32_t>(i);
      handles_[group] = std::move((*stored)[i]);
      release(group);
    }
  };
  auto accepted = tiers_->store_groups(values, done);
  while (!accepted && accepted.error().code == Code::kBusy && tiers_->wait() > 0)
    accepted = tiers_->store_groups(values, done);
  HIFC_TRY(accepted);
  ++in_flight_;
  return {};
}

Result<tier::FrameId> SwapTiers::frame_to_fill() {
  while (true) {
    if (const auto frame = tiers_->acquire(tier::Tier::kWarm, block_bytes())) return *frame;
    HIFC_TRY(outcome_);
    if (tiers_->wait() == 0) return failure(Code::kInternal, "no memory for a group");
  }
}

// ---- reading ----

Result<SwapTiers::Reading> SwapTiers::replay(const SwapPlan& plan, Check check) {
  release_all();
  Reading reading;
  for (const SwapStep& step : plan.steps) {
    for (const uint32_t group : step.evicted) release(group);
    if (step.read.empty()) continue;
    const uint64_t start_ns = clock_.now_ns();
    HIFC_TRY(read(step, check));
    reading.access_ms.push_back(milliseconds(clock_.now_ns() - start_ns));
    reading.seconds += reading.access_ms.back() / 1000;
    reading.bytes += step.read.size() * workload_.group_bytes();
  }
  return reading;
}

Result<void> SwapTiers::read(const SwapStep& step, Check check) {
  cursor_ = {};
  for (size_t i = 0; i < step.read.size(); ++i) kept_[step.read[i]] = step.kept[i];
  uint64_t verified = 0;
  // To the end even after an error: completions refer to the step.
  while (true) {
    start_reads(step);
    if (!arrived_.empty()) {
      verify_one(check);
      verified += block_bytes();
      if (verified < kVerifyBytes) continue;
      verified = 0;
      tiers_->poll();
    } else if (in_flight_ > 0) {
      tiers_->wait();
    } else {
      break;
    }
  }
  HIFC_TRY(outcome_);
  HIFC_TRY(check_interrupted());
  if (cursor_.layer == layers()) return {};
  return failure(Code::kInternal, "no memory for blocks to be read");
}

// As many as the device is to have, from the completions of those before them: verifying comes
// later.
void SwapTiers::start_reads(const SwapStep& step) {
  while (in_flight_ < options_.depth && cursor_.layer < layers() && outcome_ && !interrupted() &&
         start_run(step))
    continue;
}

// Of the groups from the cursor on, those whose blocks of this layer are one read.
size_t SwapTiers::run_length(const SwapStep& step) const {
  const size_t most = std::max<uint64_t>(1, kRunBytes / block_bytes());
  size_t length = 1;
  while (length < most && cursor_.index + length < step.read.size()) {
    const size_t next = cursor_.index + length;
    if (!handles_[step.read[next]].follows(handles_[step.read[next - 1]])) break;
    ++length;
  }
  return length;
}

// False where frames or the store's queue have to become free first.
bool SwapTiers::start_run(const SwapStep& step) {
  std::vector<tier::Tiers::FrameRead> reads;
  const size_t wanted = run_length(step);
  while (reads.size() < wanted) {
    const auto frame = tiers_->acquire(tier::Tier::kWarm, block_bytes());
    if (!frame) break;
    reads.push_back(
        {.handle = &handles_[step.read[cursor_.index + reads.size()]], .frame = *frame});
  }
  if (reads.empty()) return false;
  const auto done = [this, &step, at = cursor_, count = reads.size()](Result<void> result) {
    --in_flight_;
    for (size_t i = 0; i < count; ++i) arrived_.push_back({step.read[at.index + i], at.layer});
    keep(std::move(result));
    start_reads(step);
  };
  auto accepted = tiers_->load(cursor_.layer, reads, done);
  if (!accepted) {
    for (const auto& read : reads) tiers_->release(read.frame);
    if (accepted.error().code != Code::kBusy || in_flight_ == 0) keep(std::move(accepted));
    return false;
  }
  ++in_flight_;
  for (size_t i = 0; i < reads.size(); ++i)
    frame({step.read[cursor_.index + i], cursor_.layer}) = reads[i].frame;
  cursor_.index += reads.size();
  if (cursor_.index == step.read.size()) cursor_ = {.layer = cursor_.layer + 1, .index = 0};
  return true;
}

void SwapTiers::verify_one(Check check) {
  const Place place = arrived_.front();
  arrived_.pop_front();
  const auto bytes = tiers_->span(frame(place));
  bool sound = tiers_->store().verify(handles_[place.group], place.layer, bytes);
  if (check == Check::kCompare) {
    workload_.fill_block(place.group, place.layer, expected_);
    sound = sound && std::ranges::equal(bytes, expected_);
  }
  if (!sound)
    keep(failure(Code::kCorrupt, "the flash directory gave back other bytes than were put"));
  if (!kept_[place.group]) tiers_->release(std::exchange(frame(place), tier::kNoFrame));
}

void SwapTiers::release(uint32_t group) {
  for (uint32_t layer = 0; layer < layers(); ++layer)
    if (auto& held = frame({group, layer}); held != tier::kNoFrame)
      tiers_->release(std::exchange(held, tier::kNoFrame));
}

void SwapTiers::release_all() {
  for (uint32_t group = 0; group < workload_.groups(); ++group) release(group);
}

void SwapTiers::keep(Result<void> result) {
  if (!result && outcome_) outcome_ = std::move(result);
}

}  // namespace hifc::apps
