#include "testing/sim_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hifc::testing {
namespace {

int new_memory_file(uint64_t size_bytes) {
  const int descriptor = memfd_create("hifc-sim", MFD_CLOEXEC);
  HIFC_CHECK(descriptor >= 0);
  HIFC_CHECK(ftruncate(descriptor, static_cast<off_t>(size_bytes)) == 0);
  return descriptor;
}

uint64_t pages_of(uint64_t bytes) {
  return (bytes + SimFile::kPageBytes - 1) / SimFile::kPageBytes;
}

struct stat status_of(int descriptor) {
  struct stat status = {};
  HIFC_CHECK(fstat(descriptor, &status) == 0);
  return status;
}

}  // namespace

SimFile::SimFile(uint64_t size_bytes) : descriptor_(new_memory_file(size_bytes)) {}

SimFile::~SimFile() {
  ::close(descriptor_);
}

// Through /proc, as duplicates of our descriptor would ignore the mode.
io::File SimFile::open(io::File::Options options, const std::string& path) {
  const int access = options.mode == io::File::Mode::kReadOnly ? O_RDONLY : O_RDWR;
  const int descriptor =
      ::open(fmt::format("/proc/self/fd/{}", descriptor_).c_str(), access | O_CLOEXEC);
  HIFC_CHECK(descriptor >= 0);
  given_out_ = true;
  return io::File::adopt(descriptor, options.direct, path);
}

ino_t SimFile::number() const {
  return status_of(descriptor_).st_ino;
}

void SimFile::renew() {
  if (!given_out_) return;
  const int old = std::exchange(descriptor_, new_memory_file(size_bytes()));
  Page page;
  for (uint64_t index = 0; index < allocated_.size(); ++index) {
    if (!allocated_[index]) continue;
    const auto offset = static_cast<off_t>(index * kPageBytes);
    const ssize_t bytes = pread(old, page.data(), page.size(), offset);
    HIFC_CHECK(bytes >= 0);
    write_at(index * kPageBytes, std::span(page).first(static_cast<size_t>(bytes)));
  }
  ::close(old);
  given_out_ = false;
}

uint64_t SimFile::size_bytes() const {
  return static_cast<uint64_t>(status_of(descriptor_).st_size);
}

uint64_t SimFile::missing_bytes(uint64_t offset, uint64_t bytes) const {
  uint64_t missing = 0;
  for (uint64_t page = offset / kPageBytes; page < pages_of(offset + bytes); ++page)
    if (!allocated(page)) missing += kPageBytes;
  return missing;
}

void SimFile::before_write(uint64_t offset, uint64_t bytes, uint64_t sequence) {
  for (uint64_t page = offset / kPageBytes; page < pages_of(offset + bytes); ++page) {
    std::vector<Version>& versions = volatile_[page];
    if (versions.empty() || versions.back().sequence <= sync_begun_)
      versions.push_back(save(page, sequence));
    abandoned_.erase(page);
    set_allocated(page, true);
  }
}

void SimFile::write_part(uint64_t offset, std::span<const iovec> vectors, uint64_t sequence,
                         SimRandom& random) {
  const uint64_t eighths = random.below(9);  // how much of it: from nothing to all
  for (const iovec& vector : vectors) {
    const std::span memory(static_cast<const std::byte*>(vector.iov_base), vector.iov_len);
    for (size_t done = 0; done < memory.size(); done += kPageBytes, offset += kPageBytes) {
      if (random.below(8) >= eighths) continue;
      before_write(offset, kPageBytes, sequence);
      write_at(offset, memory.subspan(done, kPageBytes));
    }
  }
}

void SimFile::end_sync(uint64_t sequence, FunctionRef<bool()> durable) {
  for (auto entry = volatile_.begin(); entry != volatile_.end();) {
    std::vector<Version>& versions = entry->second;
    if (!abandoned_.contains(entry->first) && durable())
      std::erase_if(versions, [&](const Version& old) { return old.sequence <= sequence; });
    entry = versions.empty() ? volatile_.erase(entry) : std::next(entry);
  }
  if (durable()) durable_size_ = size_bytes();
}

void SimFile::fail_sync(uint64_t sequence) {
  for (const auto& [page, versions] : volatile_)
    if (versions.front().sequence <= sequence) abandoned_.insert(page);
}

void SimFile::lose_volatile(SimRandom& random) {
  const uint64_t kept_eighths = random.below(9);
  for (const auto& [page, versions] : volatile_)
    if (random.below(8) >= kept_eighths) tear(page, versions.front(), random);
  volatile_.clear();
  abandoned_.clear();
  if (size_bytes() != durable_size_ && random.below(8) >= kept_eighths) resize(durable_size_);
  durable_size_ = size_bytes();
}

// Puts back all of the old page, or each of its sectors by chance.
void SimFile::tear(uint64_t page, const Version& old, SimRandom& random) {
  static constexpr Page kZeros = {};
  const std::span<const std::byte> bytes = old.page == nullptr ? kZeros : *old.page;
  const bool whole = random.coin();
  for (size_t sector = 0; sector < kPageBytes; sector += kSectorBytes)
    if (whole || random.coin())
      write_at(page * kPageBytes + sector, bytes.subspan(sector, kSectorBytes));
  if (whole && old.page == nullptr) set_allocated(page, false);
}

std::vector<std::byte> SimFile::read() const {
  std::vector<std::byte> contents(size_bytes());
  read_at(0, contents);
  return contents;
}

void SimFile::replace(std::span<const std::byte> contents) {
  resize(0);
  resize(contents.size());
  constexpr auto is_zero = [](std::byte value) { return value == std::byte{0}; };
  for (size_t offset = 0; offset < contents.size(); offset += kPageBytes) {
    const auto page = contents.subspan(offset, std::min(kPageBytes, contents.size() - offset));
    if (std::ranges::all_of(page, is_zero)) continue;  // stays a hole
    write_at(offset, page);
    set_allocated(offset / kPageBytes, true);
  }
  volatile_.clear();
  abandoned_.clear();
  durable_size_ = contents.size();
}

void SimFile::set_allocated(uint64_t page, bool allocated) {
  if (page >= allocated_.size()) allocated_.resize(page + 1);
  if (allocated_[page] == allocated) return;
  allocated_[page] = allocated;
  allocated ? ++allocated_pages_ : --allocated_pages_;
}

SimFile::Version SimFile::save(uint64_t page, uint64_t sequence) const {
  Version version{.sequence = sequence};
  if (!allocated(page)) return version;
  version.page = std::make_unique<Page>();
  read_at(page * kPageBytes, *version.page);
  return version;
}

// Zeros beyond the end.
void SimFile::read_at(uint64_t offset, std::span<std::byte> target) const {
  if (target.empty()) return;
  const ssize_t bytes =
      pread(descriptor_, target.data(), target.size(), static_cast<off_t>(offset));
  HIFC_CHECK(bytes >= 0);
  std::ranges::fill(target.subspan(static_cast<size_t>(bytes)), std::byte{0});
}

void SimFile::write_at(uint64_t offset, std::span<const std::byte> source) {
  if (source.empty()) return;
  const ssize_t bytes =
      pwrite(descriptor_, source.data(), source.size(), static_cast<off_t>(offset));
  HIFC_CHECK(bytes == static_cast<ssize_t>(source.size()));
}

void SimFile::resize(uint64_t size_bytes) {
  HIFC_CHECK(ftruncate(descriptor_, static_cast<off_t>(size_bytes)) == 0);
  for (uint64_t page = pages_of(size_bytes); page < allocated_.size(); ++page)
    set_allocated(page, false);
}

}  // namespace hifc::testing
