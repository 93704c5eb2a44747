#include "cache/group_writer.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace hifc::cache {
namespace {

// A device that failed this often in a row is not asked again: the groups stay in memory.
constexpr uint32_t kFailuresMax = 3;

}  // namespace

GroupWriter::GroupWriter(tier::Tiers& tiers, Sequence& sequence, Residency& residency,
                         const kv::BlockHeader& header)
    : tiers_(tiers), sequence_(sequence), residency_(residency), header_(header) {}

void GroupWriter::seal(uint32_t index) {
  Group& group = sequence_.groups[index];
  kv::BlockHeader header = header_;
  header.tokens.first_position = index * header.block_tokens;
  header.tokens.token_count = static_cast<uint16_t>(header.block_tokens);
  for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) {
    HIFC_CHECK(group.blocks[layer].state == Block::State::kResident);
    header.layer = layer;
    kv::write_header(header, tiers_.span(group.blocks[layer].frame));
  }
  const kv::GroupKey previous = index == 0
                                    ? kv::root_key(header.model_fingerprint, header.block_tokens)
                                    : sequence_.groups[index - 1].key;
  const auto tokens =
      std::span(sequence_.tokens).subspan(size_t{index} * header.block_tokens, header.block_tokens);
  group.key = kv::next_key(previous, tokens);
  group.stage = Group::Stage::kFull;
}

void GroupWriter::add(uint32_t group) {
  seal(group);
  queue_.push_back(group);
}

void GroupWriter::forget_from(uint32_t first) {
  std::erase_if(queue_, [&](uint32_t group) { return group >= first; });
}

void GroupWriter::pump() {
  if (!tiers_.has_cold() || failures_ >= kFailuresMax) return;
  while (queue_.size() >= tiers_.groups_per_write_min() && failures_ < kFailuresMax) {
    const size_t before = queue_.size();
    write(std::min(static_cast<uint32_t>(queue_.size()), tiers_.groups_per_write_max()));
    if (queue_.size() == before) return;
  }
}

bool GroupWriter::push() {
  if (tiers_.has_cold() && failures_ < kFailuresMax && !queue_.empty())
    write(std::min(static_cast<uint32_t>(queue_.size()), tiers_.groups_per_write_max()));
  return in_flight_ > 0;
}

Result<void> GroupWriter::flush() {
  if (!tiers_.has_cold()) return {};
  while (!queue_.empty() || in_flight_ > 0) {
    if (!push()) return std::unexpected(error_.value_or(Error{.context = "nothing was written"}));
    tiers_.wait();
  }
  return {};
}

void GroupWriter::write(uint32_t count) {
  const std::vector<uint32_t> batch(queue_.begin(), queue_.begin() + count);
  std::vector<flash::PutValue> values;
  for (const uint32_t g : batch) {
    flash::PutValue& value = values.emplace_back();
    value.key = sequence_.groups[g].key;
    for (const Block& block : sequence_.groups[g].blocks)
      value.lanes.push_back(tiers_.data(block.frame));
    sequence_.groups[g].stage = Group::Stage::kWriting;
  }
  queue_.erase(queue_.begin(), queue_.begin() + count);
  ++in_flight_;
  auto accepted = tiers_.store_groups(std::move(values),
                                      [this, batch](Result<std::vector<flash::Handle>> outcome) {
                                        --in_flight_;
                                        finish(batch, std::move(outcome));
                                      });
  if (accepted) return;
  --in_flight_;
  fail(batch, std::move(accepted).error());
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
  for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) residency_.stored(index, layer);
}

void GroupWriter::fail(const std::vector<uint32_t>& batch, Error error) {
  for (const uint32_t g : batch) sequence_.groups[g].stage = Group::Stage::kFull;
  queue_.insert(queue_.begin(), batch.begin(), batch.end());
  std::ranges::sort(queue_);  // several batches may fail; neighbours stay neighbours
  if (error.code == Code::kBusy) return;
  if (++failures_ == kFailuresMax)
    log_info("writing to flash failed {} times, so KV stays in memory from now on: {}", failures_,
             error.message());
  error_ = std::move(error);
}

}  // namespace hifc::cache
