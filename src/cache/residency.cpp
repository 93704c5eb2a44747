#include "cache/residency.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace hifc::cache {

std::optional<tier::FrameId> Residency::take(size_t bytes, tier::Part part) {
  auto frame = tiers_.acquire(tier::Tier::kWarm, bytes, part);
  while (!frame && part == tier::Part::kSealed && evict_one({}))
    frame = tiers_.acquire(tier::Tier::kWarm, bytes, part);
  if (!frame) return std::nullopt;
  // Attention multiplies tokens it must not see by zero, so stale NaNs must not be there.
  std::memset(tiers_.data(*frame), 0, bytes);
  if (part == tier::Part::kSealed) expected_open_ -= std::min<uint64_t>(expected_open_, bytes);
  return frame;
}

bool Residency::open(uint32_t group, uint32_t layer) {
  Block& block = sequence_.groups[group].blocks[layer];
  HIFC_CHECK(block.state == Block::State::kAbsent);
  if (layout_.sealed[layer].lossy()) return open_exact(block);
  const auto frame = take(layout_.exact.block_bytes(), tier::Part::kSealed);
  if (frame) block = {.state = Block::State::kResident, .frame = *frame};
  return frame.has_value();
}

bool Residency::open_exact(Block& block) {
  HIFC_CHECK(block.exact == tier::kNoFrame);
  const auto frame = take(layout_.exact.block_bytes(), tier::Part::kExact);
  if (!frame) return false;
  block.state = Block::State::kResident;
  block.exact = *frame;
  return true;
}

bool Residency::open_sealed(uint32_t group, uint32_t layer) {
  Block& block = sequence_.groups[group].blocks[layer];
  HIFC_CHECK(block.exact != tier::kNoFrame);
  if (block.frame != tier::kNoFrame) return true;
  const auto frame = take(layout_.sealed[layer].bytes_of(group), tier::Part::kSealed);
  if (frame) block.frame = *frame;
  return frame.has_value();
}

void Residency::close_exact(Block& block) {
  release(block.exact);
}

bool Residency::stage(uint32_t group, uint32_t layer) {
  Block& block = sequence_.groups[group].blocks[layer];
  HIFC_CHECK(block.state == Block::State::kAbsent);
  const size_t bytes = layout_.sealed[layer].bytes_of(group);
  if (tiers_.free_bytes(tier::Part::kSealed) < expected_open_ + bytes) return false;
  const std::optional<tier::FrameId> frame = tiers_.acquire(tier::Tier::kWarm, bytes);
  if (!frame) return false;
  block = {.state = Block::State::kLoading, .frame = *frame, .sealed_pages = layout_.exact.pages()};
  staged_bytes_ += bytes;
  return true;
}

void Residency::used(uint32_t group, uint32_t layer) {
  Group& owner = sequence_.groups[group];
  Block& block = owner.blocks[layer];
  if (block.state == Block::State::kResident && owner.stage == Group::Stage::kStored &&
      !placement_.wanted(group, layer))
    return drop(block);
  if (block.state != Block::State::kStaged) return;
  const uint64_t keep = placement_.staging_bytes() + expected_open_;
  const uint64_t bytes = layout_.sealed[layer].bytes_of(group);
  // What has been read ahead is staging already.
  const uint64_t others = tiers_.free_bytes(tier::Part::kSealed) + staged_bytes_ - bytes;
  // What stays is not verified again.
  const bool good = block.verified && is_every_head(block.heads, layout_.exact.kv_heads());
  if (good && placement_.wanted(group, layer) && others >= keep) {
    block.state = Block::State::kResident;
    staged_bytes_ -= bytes;
    tiers_.promote(block.frame);
  } else {
    drop(block);
  }
}

void Residency::stored(uint32_t group, uint32_t layer) {
  Block& block = sequence_.groups[group].blocks[layer];
  if (placement_.wanted(group, layer))
    tiers_.promote(block.frame);
  else if (layer != running_)  // else dropped when used: reading ahead has passed it already
    drop(block);
}

void Residency::drop(Block& block) {
  if (block.state == Block::State::kAbsent) return;
  HIFC_CHECK(block.state != Block::State::kLoading);
  if (block.state == Block::State::kStaged) staged_bytes_ -= tiers_.span(block.frame).size();
  release(block.frame);
  release(block.exact);
  block = {};
}

void Residency::release(tier::FrameId& frame) {
  if (frame != tier::kNoFrame) tiers_.release(frame);
  frame = tier::kNoFrame;
}

void Residency::drop_group(Group& group) {
  for (Block& block : group.blocks) drop(block);
}

void Residency::trim() {
  for (uint32_t g = 0; g < sequence_.groups.size(); ++g) {
    Group& group = sequence_.groups[g];
    if (group.stage != Group::Stage::kStored) continue;
    for (uint32_t layer = 0; layer < group.blocks.size(); ++layer) {
      Block& block = group.blocks[layer];
      if (block.state != Block::State::kResident) continue;
      if (placement_.wanted(g, layer))
        tiers_.promote(block.frame);
      else
        drop(block);
    }
  }
}

void Residency::drop_staged() {
  for (Group& group : sequence_.groups)
    for (Block& block : group.blocks)
      if (block.state == Block::State::kStaged) drop(block);
}

void Residency::make_room(uint32_t layer, std::span<const uint32_t> groups) {
  const Kept kept{.layer = layer, .groups = groups};
  std::vector<tier::FrameId> taken;
  for (const uint32_t g : groups) {
    if (sequence_.groups[g].blocks[layer].state != Block::State::kAbsent) continue;
    const size_t bytes = layout_.sealed[layer].bytes_of(g);
    auto frame = tiers_.acquire(tier::Tier::kWarm, bytes);
    while (!frame && evict_one(kept)) frame = tiers_.acquire(tier::Tier::kWarm, bytes);
    if (!frame) break;
    taken.push_back(*frame);
  }
  for (const tier::FrameId frame : taken) tiers_.release(frame);
}

bool Residency::evict_one(Kept kept) {
  // The latest stored groups are wanted least (placement.h); read-ahead goes only after them.
  for (const Block::State state : {Block::State::kResident, Block::State::kStaged})
    for (size_t g = sequence_.groups.size(); g-- > 0;) {
      Group& group = sequence_.groups[g];
      if (group.stage != Group::Stage::kStored && group.stage != Group::Stage::kLost) continue;
      const bool in_kept = std::ranges::binary_search(kept.groups, static_cast<uint32_t>(g));
      for (size_t layer = group.blocks.size(); layer-- > 0;) {
        if (group.blocks[layer].state != state || (in_kept && layer == kept.layer)) continue;
        drop(group.blocks[layer]);
        return true;
      }
    }
  return false;
}

}  // namespace hifc::cache
