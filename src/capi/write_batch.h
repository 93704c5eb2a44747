// Values copied into memory to be written to flash as one batch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "flash/store.h"
#include "io/memory.h"

namespace hifc::capi {

// Filled by add(), then sealed. Its user guards everything but the bytes of values and what
// values() gives, which do not change any more.
class WriteBatch {
 public:
  // What a value of this size takes: its pages, and its share of headers and checkpoint.
  static uint64_t cost_bytes(uint64_t value_bytes);
  // What a batch takes beside its values.
  static uint64_t fixed_cost_bytes();

  // For values that cost `budget_bytes` together, all of it.
  static Result<std::shared_ptr<WriteBatch>> create(uint64_t budget_bytes, uint32_t chunk_bytes);

  bool fits(uint64_t value_bytes) const;
  // Copies a value that fits. Replaces one under the same key.
  void add(const flash::Key& key, std::span<const std::byte> value);
  // The value under a key; lives as long as the batch.
  std::optional<std::span<const std::byte>> find(const flash::Key& key) const;
  // False if it was not there.
  bool forget(const flash::Key& key);
  size_t count() const { return places_.size(); }
  uint64_t value_bytes() const { return value_bytes_; }

  // Fixes what is written; nothing may be added afterwards.
  void seal();
  flash::BatchShape shape() const { return {.lanes = 1, .chunk_bytes = chunk_bytes_}; }
  std::vector<flash::PutValue> values() const { return sealed_; }

 private:
  struct KeyHash {
    size_t operator()(const flash::Key& key) const noexcept;
  };
  struct Place {
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
  };

  WriteBatch(io::AlignedMemory memory, uint64_t budget_bytes, uint32_t chunk_bytes)
      : memory_(std::move(memory)), chunk_bytes_(chunk_bytes), left_bytes_(budget_bytes) {}

  const io::AlignedMemory memory_;
  const uint32_t chunk_bytes_;
  uint64_t left_bytes_;        // of the budget
  uint64_t filled_bytes_ = 0;  // of the memory
  uint64_t value_bytes_ = 0;
  std::unordered_map<flash::Key, Place, KeyHash> places_;
  std::vector<flash::PutValue> sealed_;
};

}  // namespace hifc::capi
