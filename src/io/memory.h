// Page-aligned anonymous memory for transfers, backed by huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace hifc::io {

// Zero-filled; physical memory is taken when first touched. Freed on destruction.
class AlignedMemory {
 public:
  static Result<AlignedMemory> allocate(size_t size_bytes);  // rounded up to kAlignment
  AlignedMemory() = default;
  AlignedMemory(AlignedMemory&& other) noexcept;
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  ~AlignedMemory();

  // Takes physical memory for the first `size_bytes` now, where the system can: the first touch of
  // memory costs as much as reading it from a fast drive, and far more on machines that lend it.
  // May run beside uses of the memory.
  void populate(size_t size_bytes) const;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> span() const { return {data_, size_bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace hifc::io
