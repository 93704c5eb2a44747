#include "apps/page_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

namespace hifc::apps {

Result<void> forget_pages(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failure(Code::kIo, fmt::format("cannot open {}", path), errno);
  const bool synced = fdatasync(descriptor) == 0;
  const int status = synced ? posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) : errno;
  close(descriptor);
  if (status == 0) return {};
  return failure(Code::kIo, fmt::format("{} stays in the page cache", path), status);
}

Result<double> cached_share(const std::string& path, uint64_t begin, uint64_t end) {
  if (begin == end) return 0;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return failure(Code::kIo, fmt::format("cannot open {}", path), errno);
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  void* const memory =
      mmap(nullptr, end - begin, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(begin));
  const bool known = memory != MAP_FAILED && mincore(memory, end - begin, pages.data()) == 0;
  const int reason = errno;
  if (memory != MAP_FAILED) munmap(memory, end - begin);
  close(descriptor);
  if (!known)
    return failure(Code::kIo, fmt::format("the system hides what it holds of {}", path), reason);
  const auto cached = std::ranges::count_if(pages, [](unsigned char each) { return each & 1; });
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

}  // namespace hifc::apps
