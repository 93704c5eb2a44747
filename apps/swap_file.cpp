#include "apps/swap_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "apps/bench.h"
#include "apps/page_cache.h"
#include "base/check.h"

namespace hifc::apps {
namespace {

constexpr uint64_t kPageBytes = 4096;

Result<void> refused(const char* what, const io::File& file) {
  return failure(Code::kIo, fmt::format("cannot {} {}", what, file.path()), errno);
}

}  // namespace

std::string_view to_string(SwapWay way) {
  switch (way) {
    case SwapWay::kBuffered4k: return "buffered_4k";
    case SwapWay::kBufferedBlock: return "buffered_block";
    case SwapWay::kDirectSync: return "direct_sync";
  }
  return "unknown";
}

Result<std::unique_ptr<SwapFile>> SwapFile::create(const SwapWorkload& workload,
                                                   const std::string& path,
                                                   FunctionRef<void(uint32_t groups)> written) {
  using Mode = io::File::Mode;
  HIFC_ASSIGN(io::File buffered, io::File::open(path, {.mode = Mode::kCreate, .direct = false}));
  HIFC_ASSIGN(io::File direct, io::File::open(path, {.mode = Mode::kReadOnly, .direct = true}));
  if (!direct.direct())
    return failure(Code::kUnsupported,
                   fmt::format("{} is on a file system without O_DIRECT, where memory answers and "
                               "nothing can be compared; give another directory",
                               path));
  std::unique_ptr<SwapFile> file(new SwapFile(workload, std::move(buffered), std::move(direct)));
  HIFC_TRY(file->write(written));
  return file;
}

Result<void> SwapFile::write(FunctionRef<void(uint32_t groups)> written) {
  const uint64_t bytes = workload_.sequence_bytes_max() + block_bytes();
  HIFC_ASSIGN(memory_, io::AlignedMemory::allocate(bytes));
  memory_.populate(bytes);
  for (uint32_t group = 0; group < workload_.groups(); ++group) {
    HIFC_TRY(check_interrupted());
    for (uint32_t layer = 0; layer < workload_.options().layers; ++layer) {
      const auto block = memory_.span().first(block_bytes());
      workload_.fill_block(group, layer, block);
      const auto offset = static_cast<off_t>(offset_of({.group = group, .layer = layer}));
      const ssize_t put = pwrite(buffered_.descriptor(), block.data(), block.size(), offset);
      if (put != static_cast<ssize_t>(block.size())) return refused("write", buffered_);
    }
    written(group + 1);
  }
  if (fdatasync(buffered_.descriptor()) != 0) return refused("write", buffered_);
  return {};
}

uint64_t SwapFile::unit_bytes(SwapWay way) const {
  return way == SwapWay::kBuffered4k ? kPageBytes : block_bytes();
}

uint64_t SwapFile::offset_of(const Unit& unit) const {
  const uint64_t block = uint64_t{unit.group} * workload_.options().layers + unit.layer;
  return block * block_bytes() + unit.offset_bytes;
}

std::vector<SwapFile::Unit> SwapFile::units_of(SwapWay way, std::span<const uint32_t> groups) {
  std::vector<Unit> units;
  size_t memory = 0;
  const uint64_t bytes = unit_bytes(way);
  for (const uint32_t group : groups)
    for (uint32_t layer = 0; layer < workload_.options().layers; ++layer)
      for (uint64_t offset = 0; offset < block_bytes(); offset += bytes, memory += bytes)
        units.push_back(
            {.group = group, .layer = layer, .offset_bytes = offset, .memory_bytes = memory});
  if (way != SwapWay::kDirectSync) std::ranges::shuffle(units, random_);
  return units;
}

Result<double> SwapFile::make_cold(std::span<const uint32_t> groups) const {
  HIFC_TRY(forget_pages(buffered_.path()));
  double most = 0;
  for (const uint32_t group : groups) {
    const uint64_t begin = group * workload_.group_bytes();
    HIFC_ASSIGN(const double cached,
                cached_share(buffered_.path(), begin, begin + workload_.group_bytes()));
    most = std::max(most, cached);
  }
  return most;
}

Result<SwapFile::Reading> SwapFile::read(SwapWay way, std::span<const uint32_t> groups,
                                         double seconds_max) {
  HIFC_CHECK(groups.size() * workload_.group_bytes() <= workload_.sequence_bytes_max());
  std::vector<Unit> units = units_of(way, groups);
  Reading reading;
  HIFC_ASSIGN(reading.cached_share, make_cold(groups));
  const io::File& file = way == SwapWay::kDirectSync ? direct_ : buffered_;
  const uint64_t start_ns = clock_.now_ns();
  const uint64_t end_ns = start_ns + static_cast<uint64_t>(seconds_max * 1e9);
  size_t done = 0;
  for (uint64_t now_ns = start_ns; done < units.size() && now_ns < end_ns; ++done) {
    if (interrupted()) break;
    HIFC_TRY(read_unit(units[done], file, unit_bytes(way)));
    now_ns = clock_.now_ns();
  }
  reading.seconds = milliseconds(clock_.now_ns() - start_ns) / 1000;
  HIFC_TRY(check_interrupted());
  units.resize(done);
  reading.bytes = done * unit_bytes(way);
  HIFC_TRY(verify(std::move(units), unit_bytes(way)));
  return reading;
}

Result<void> SwapFile::read_unit(const Unit& unit, const io::File& file, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(file.descriptor(), memory_.data() + unit.memory_bytes + done,
                              bytes - done, static_cast<off_t>(offset_of(unit) + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return refused("read", file);
    done += static_cast<uint64_t>(got);
  }
  return {};
}

Result<void> SwapFile::verify(std::vector<Unit> units, uint64_t bytes) {
  const auto block_of = [](const Unit& unit) { return std::pair(unit.group, unit.layer); };
  std::ranges::sort(units, {}, block_of);
  const auto expected = memory_.span().last(block_bytes());
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    if (i == 0 || block_of(units[i - 1]) != block_of(unit))
      workload_.fill_block(unit.group, unit.layer, expected);
    if (!std::ranges::equal(memory_.span().subspan(unit.memory_bytes, bytes),
                            expected.subspan(unit.offset_bytes, bytes)))
      return failure(Code::kCorrupt,
                     fmt::format("{} gave back other bytes than were written", buffered_.path()));
  }
  return {};
}

}  // namespace hifc::apps
