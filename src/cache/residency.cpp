#include "cache/residency.h"

#include <cstring>

#include "base/check.h"

namespace hifc::cache {

bool Residency::open(Block& block) {
  HIFC_CHECK(block.state == Block::State::kAbsent);
  std::optional<tier::FrameId> frame = tiers_.acquire(tier::Tier::kWarm);
  if (!frame && evict_one({})) frame = tiers_.acquire(tier::Tier::kWarm);
  if (!frame) return false;
  // Attention multiplies tokens it must not see by zero, so stale NaNs must not be there.
  std::memset(tiers_.data(*frame), 0, tiers_.block_bytes());
  block = {.state = Block::State::kResident, .frame = *frame};
  if (expected_open_ > 0) --expected_open_;
  return true;
}

bool Residency::stage(Block& block) {
  HIFC_CHECK(block.state == Block::State::kAbsent);
  if (tiers_.free_frames() <= expected_open_) return false;
  const std::optional<tier::FrameId> frame = tiers_.acquire(tier::Tier::kWarm);
  if (!frame) return false;
  block = {.state = Block::State::kLoading, .frame = *frame};
  return true;
}

void Residency::used(uint32_t group, uint32_t layer) {
  Group& owner = sequence_.groups[group];
  Block& block = owner.blocks[layer];
  if (block.state == Block::State::kResident && owner.stage == Group::Stage::kStored &&
      !placement_.wanted(group, layer))
    return drop(block);
  if (block.state != Block::State::kStaged) return;
  const uint32_t keep_free = placement_.staging_frames() + expected_open_;
  if (placement_.wanted(group, layer) && tiers_.free_frames() >= keep_free) {
    block.state = Block::State::kResident;
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
  tiers_.release(block.frame);
  block = {};
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

void Residency::make_room(uint32_t frames, uint32_t layer, uint32_t first, uint32_t last) {
  const Kept kept{.layer = layer, .first_group = first, .last_group = last};
  while (tiers_.free_frames() < frames && evict_one(kept)) continue;
}

bool Residency::evict_one(Kept kept) {
  // The latest stored groups are wanted least (placement.h); read-ahead goes only after them.
  for (const Block::State state : {Block::State::kResident, Block::State::kStaged})
    for (size_t g = sequence_.groups.size(); g-- > 0;) {
      Group& group = sequence_.groups[g];
      if (group.stage != Group::Stage::kStored) continue;
      const bool in_kept = g >= kept.first_group && g < kept.last_group;
      for (size_t layer = group.blocks.size(); layer-- > 0;) {
        if (group.blocks[layer].state != state || (in_kept && layer == kept.layer)) continue;
        drop(group.blocks[layer]);
        return true;
      }
    }
  return false;
}

}  // namespace hifc::cache
