#include "cache/group_writer.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "cache/trace_kinds.h"

namespace hifc::cache {
namespace {

// A device that failed this often in a row is not asked again: the groups stay in memory.
constexpr uint32_t kFailuresMax = 3;

uint64_t bytes_of(std::span<const flash::PutValue> values) {
  uint64_t bytes = 0;
  for (const flash::PutValue& value : values)
    for (const auto& lane : value.lanes) bytes += lane.size();
  return bytes;
}

}  // namespace

GroupWriter::GroupWriter(tier::Tiers& tiers, Sequence& sequence, Residency& residency,
                         const GroupFormat& format, Trace* trace)
    : tiers_(tiers), sequence_(sequence), residency_(residency), format_(format), trace_(trace) {}

uint32_t GroupWriter::groups_per_write_min() const {
  return tier::groups_per_write_min(format_.layout.sealed_bytes(), format_.layout.layers());
}
uint32_t GroupWriter::groups_per_write_max() const {
  return tier::groups_per_write_max(format_.layout.sealed_bytes());
}

kv::GroupKey GroupWriter::previous_key(uint32_t group) const {
  if (group == 0) return kv::root_key(format_.base.model_fingerprint, format_.block_tokens());
  return sequence_.groups[group - 1].key;
}

void GroupWriter::close(uint32_t index) {
  Group& group = sequence_.groups[index];
  for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) {
    const Block& block = group.blocks[layer];
    HIFC_CHECK(block.state == Block::State::kResident && block.exact == tier::kNoFrame);
    kv::write_header(format_.sealed_header(index, layer), tiers_.span(block.frame));
  }
  const uint32_t block_tokens = format_.block_tokens();
  const auto tokens =
      std::span(sequence_.tokens).subspan(size_t{index} * block_tokens, block_tokens);
  group.key = kv::next_key(previous_key(index), tokens);
  group.stage = Group::Stage::kFull;
}

void GroupWriter::add(uint32_t group) {
  close(group);
  queue_.push_back(group);
}

void GroupWriter::forget_from(uint32_t first) {
  std::erase_if(queue_, [&](uint32_t group) { return group >= first; });
  std::erase_if(unusable_, [&](uint32_t group) { return group >= first; });
}

bool GroupWriter::may_write() const {
  return tiers_.has_cold() && failures_ < kFailuresMax;
}

void GroupWriter::pump() {
  reuse_stored();
  while (may_write() && queue_.size() >= groups_per_write_min()) {
    const size_t before = queue_.size();
    write(std::min(static_cast<uint32_t>(queue_.size()), groups_per_write_max()));
    if (queue_.size() == before) return;
  }
}

bool GroupWriter::push() {
  const size_t before = queue_.size();
  reuse_stored();
  if (may_write() && !queue_.empty())
    write(std::min(static_cast<uint32_t>(queue_.size()), groups_per_write_max()));
  return in_flight_ > 0 || queue_.size() < before;
}

Result<void> GroupWriter::flush() {
  if (!tiers_.has_cold()) return {};
  while (!queue_.empty() || in_flight_ > 0) {
    if (!push()) return std::unexpected(error_.value_or(Error{.context = "nothing was written"}));
    tiers_.wait();
  }
  return {};
}

void GroupWriter::reuse_stored() {
  // A device that still holds condemned frames does not answer: what is stored could not be read.
  if (!tiers_.has_cold() || tiers_.condemned_frames() > 0) return;
  const std::vector<uint32_t> queued = queue_;
  for (const uint32_t group : queued)
    if (!unusable_.contains(group) && tiers_.store().contains(sequence_.groups[group].key))
      reuse(group);
}

// What cannot be pinned after all is written.
void GroupWriter::reuse(uint32_t index) {
  std::erase(queue_, index);
  sequence_.groups[index].stage = Group::Stage::kWriting;
  ++in_flight_;
  const auto accepted =
      tiers_.store().pin(sequence_.groups[index].key, [this, index](flash::Handle handle) {
        --in_flight_;
        if (format_.fits_sealed(handle, index)) return finish_group(index, std::move(handle));
        unusable_.insert(index);
        requeue(index);
      });
  if (accepted) return;
  --in_flight_;
  unusable_.insert(index);
  requeue(index);
}

void GroupWriter::requeue(uint32_t group) {
  sequence_.groups[group].stage = Group::Stage::kFull;
  queue_.push_back(group);
  std::ranges::sort(queue_);  // neighbours stay neighbours
}

void GroupWriter::write(uint32_t count) {
  count = std::min(count, batch_max_);
  const std::vector<uint32_t> batch(queue_.begin(), queue_.begin() + count);
  std::vector<flash::PutValue> values;
  for (const uint32_t g : batch) {
    flash::PutValue& value = values.emplace_back();
    value.key = sequence_.groups[g].key;
    for (const Block& block : sequence_.groups[g].blocks)
      value.lanes.push_back(tiers_.span(block.frame));
    sequence_.groups[g].stage = Group::Stage::kWriting;
  }
  queue_.erase(queue_.begin(), queue_.begin() + count);
  ++in_flight_;
  const TraceAsync span(trace_, kTraceWrite, {batch.front(), count, bytes_of(values)});
  auto accepted = tiers_.store_groups(
      std::move(values), [this, batch, span](Result<std::vector<flash::Handle>> outcome) {
        span.end(outcome ? TraceEnd::kDone : TraceEnd::kFailed);
        --in_flight_;
        finish(batch, std::move(outcome));
      });
  if (accepted) return;
  span.cancel();
  --in_flight_;
  fail(batch, std::move(accepted).error());
}

Result<void> GroupWriter::park() {
  if (!may_write() || sequence_.groups.empty()) return {};
  const auto index = static_cast<uint32_t>(sequence_.groups.size() - 1);
  const Group& group = sequence_.groups[index];
  const auto tokens = std::span(sequence_.tokens).subspan(size_t{index} * format_.block_tokens());
  if (group.stage != Group::Stage::kOpen || tokens.empty()) return {};
  const flash::Key key = kv::tail_key(previous_key(index), tokens);
  if (tiers_.store().contains(key)) return {};
  flash::PutValue value{.key = key, .lanes = {}};
  for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) {
    const auto bytes = tiers_.span(group.blocks[layer].open_frame());
    kv::write_header(format_.exact_header(index, layer, static_cast<uint32_t>(tokens.size())),
                     bytes);
    value.lanes.push_back(bytes);
  }
  const auto outcome = std::make_shared<std::optional<Result<void>>>();
  const TraceAsync span(trace_, kTraceWrite, {index, 1, bytes_of({&value, 1})});
  const auto put = [&] {
    return tiers_.store_groups({value},
                               [outcome, span](const Result<std::vector<flash::Handle>>& handles) {
                                 span.end(handles ? TraceEnd::kDone : TraceEnd::kFailed);
                                 outcome->emplace();
                                 if (!handles) *outcome = std::unexpected(handles.error());
                               });
  };
  auto accepted = put();
  while (!accepted && accepted.error().code == Code::kBusy && tiers_.wait() > 0) accepted = put();
  if (!accepted) span.cancel();
  HIFC_TRY(accepted);
  while (!*outcome && tiers_.wait() > 0) continue;
  return outcome->value_or(failure(Code::kTimeout, "the flash device does not answer"));
}

void GroupWriter::finish(const std::vector<uint32_t>& batch,
                         Result<std::vector<flash::Handle>> outcome) {
  if (!outcome) return fail(batch, std::move(outcome).error());
  HIFC_CHECK(outcome->size() == batch.size());
  failures_ = 0;
  error_.reset();
  for (size_t i = 0; i < batch.size(); ++i) finish_group(batch[i], std::move((*outcome)[i]));
}

void GroupWriter::finish_group(uint32_t index, flash::Handle handle) {
  Group& group = sequence_.groups[index];
  group.handle = std::move(handle);
  group.stage = Group::Stage::kStored;
  unusable_.erase(index);
  for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) residency_.stored(index, layer);
}

void GroupWriter::fail(const std::vector<uint32_t>& batch, Error error) {
  for (const uint32_t g : batch) requeue(g);
  if (error.code == Code::kFull && batch.size() > 1) {
    batch_max_ = static_cast<uint32_t>(batch.size() / 2);  // there may be room for fewer at a time
    error_ = std::move(error);
    return;
  }
  if (error.code == Code::kBusy) return;
  if (++failures_ == kFailuresMax)
    log_info("writing to flash failed {} times, so KV stays in memory from now on: {}", failures_,
             error.message());
  error_ = std::move(error);
}

}  // namespace hifc::cache
