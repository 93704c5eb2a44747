#include "io/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <utility>

#include "io/ring.h"

namespace hifc::io {
namespace {

constexpr size_t kHugePage = 2u << 20;

std::byte* round_up(std::byte* address, size_t multiple) {
  const uintptr_t value = reinterpret_cast<uintptr_t>(address);
  return address + (multiple - value % multiple) % multiple;
}

void unmap(std::byte* begin, std::byte* end) {
  if (begin != end) munmap(begin, static_cast<size_t>(end - begin));
}

}  // namespace

Result<AlignedMemory> AlignedMemory::allocate(size_t size_bytes) {
  if (size_bytes > std::numeric_limits<size_t>::max() / 2)
    return failure(Code::kInvalid, fmt::format("cannot allocate {} bytes", size_bytes));
  const size_t rounded_bytes = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  AlignedMemory memory;
  if (rounded_bytes == 0) return memory;

  // mmap aligns to 4 KiB only: map more, and give back what lies before and after.
  const size_t slack = rounded_bytes >= kHugePage ? kHugePage : 0;
  const size_t mapped_bytes = rounded_bytes + slack;
  void* mapping = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED)
    return failure(Code::kFull, fmt::format("cannot allocate {} bytes", size_bytes), errno);

  auto* begin = static_cast<std::byte*>(mapping);
  memory.data_ = slack == 0 ? begin : round_up(begin, kHugePage);
  memory.size_bytes_ = rounded_bytes;
  unmap(begin, memory.data_);
  unmap(memory.data_ + memory.size_bytes_, begin + mapped_bytes);
  if (slack != 0) madvise(memory.data_, memory.size_bytes_, MADV_HUGEPAGE);  // a wish, not a need
  return memory;
}

void AlignedMemory::populate(size_t size_bytes) const {
#ifdef MADV_POPULATE_WRITE
  // Fails on kernels before 5.14: memory then comes when it is touched.
  if (size_bytes > 0) madvise(data_, std::min(size_bytes, size_bytes_), MADV_POPULATE_WRITE);
#endif
}

AlignedMemory::AlignedMemory(AlignedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

AlignedMemory::~AlignedMemory() {
  unmap(data_, data_ + size_bytes_);
}

}  // namespace hifc::io
