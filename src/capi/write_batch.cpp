#include "capi/write_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace hifc::capi {
namespace {

constexpr uint64_t kPageBytes = io::kAlignment;

// docs/flash-format.md: a record and a lane's length in the batch header, a record in the
// checkpoint, and a checksum for each page, the smallest chunk.
constexpr uint64_t kRecordBytes = 40 + 4 + 48;
constexpr uint64_t kChecksumBytes = 8;

constexpr uint64_t pages_of(uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes;
}

}  // namespace

// Keys are digests, or at least meant to be; mixing guards against those that are not.
size_t WriteBatch::KeyHash::operator()(const flash::Key& key) const noexcept {
  uint64_t hash = 0;
  for (size_t i = 0; i < key.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, key.data() + i, sizeof(word));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return hash;
}

uint64_t WriteBatch::cost_bytes(uint64_t value_bytes) {
  return pages_of(value_bytes) * (kPageBytes + kChecksumBytes) + kRecordBytes;
}

// Headers of segment and batch, and the checkpoint, which end with pages that are not full.
uint64_t WriteBatch::fixed_cost_bytes() {
  return 3 * kPageBytes;
}

Result<std::shared_ptr<WriteBatch>> WriteBatch::create(uint64_t budget_bytes,
                                                       uint32_t chunk_bytes) {
  HIFC_ASSIGN(io::AlignedMemory memory, io::AlignedMemory::allocate(budget_bytes));
  return std::shared_ptr<WriteBatch>(new WriteBatch(std::move(memory), budget_bytes, chunk_bytes));
}

bool WriteBatch::fits(uint64_t value_bytes) const {
  return cost_bytes(value_bytes) <= left_bytes_;
}

void WriteBatch::add(const flash::Key& key, std::span<const std::byte> value) {
  HIFC_CHECK(sealed_.empty());
  HIFC_CHECK(fits(value.size()));
  forget(key);
  // The memory begins as zeros, and no page is used twice: so does what pads the last one.
  std::memcpy(memory_.data() + filled_bytes_, value.data(), value.size());
  places_[key] = {.offset_bytes = filled_bytes_, .size_bytes = value.size()};
  filled_bytes_ += pages_of(value.size()) * kPageBytes;
  left_bytes_ -= cost_bytes(value.size());
  value_bytes_ += value.size();
}

std::optional<std::span<const std::byte>> WriteBatch::find(const flash::Key& key) const {
  const auto found = places_.find(key);
  if (found == places_.end()) return std::nullopt;
  const Place& place = found->second;
  return memory_.span().subspan(place.offset_bytes, place.size_bytes);
}

bool WriteBatch::forget(const flash::Key& key) {
  const auto found = places_.find(key);
  if (found == places_.end()) return false;
  value_bytes_ -= found->second.size_bytes;
  places_.erase(found);
  return true;
}

void WriteBatch::seal() {
  HIFC_CHECK(sealed_.empty());
  for (const auto& [key, place] : places_)
    sealed_.push_back({.key = key,
                       .lanes = {memory_.span().subspan(place.offset_bytes,
                                                        pages_of(place.size_bytes) * kPageBytes)},
                       .size_bytes = place.size_bytes});
  // Neighbours in time are neighbours on flash.
  std::ranges::sort(sealed_, {},
                    [](const flash::PutValue& value) { return value.lanes.front().data(); });
}

}  // namespace hifc::capi
