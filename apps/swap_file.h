// The baselines of `hifc bench swap`: the same blocks in a plain file, read with pread() as cache
// offloading commonly does, one after another. Nothing comes from the page cache, and every byte is
// compared with what was written, neither of which is timed.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/swap_workload.h"
#include "base/clock.h"
#include "base/function_ref.h"
#include "base/result.h"
#include "io/memory.h"
#include "io/ring.h"

namespace hifc::apps {

enum class SwapWay : uint8_t {
  kBuffered4k,     // pages of 4 KiB, in random order
  kBufferedBlock,  // blocks, in random order
  kDirectSync,     // blocks in the file's order, O_DIRECT
};
std::string_view to_string(SwapWay way);

class SwapFile {
 public:
  struct Reading {
    uint64_t bytes = 0;
    double seconds = 0;
    double cached_share = 0;  // of what was wanted, in the page cache before
  };

  // Writes all groups of the workload, which must outlive this object, to a new file. `written`
  // hears of the groups so far.
  static Result<std::unique_ptr<SwapFile>> create(const SwapWorkload& workload,
                                                  const std::string& path,
                                                  FunctionRef<void(uint32_t groups)> written);

  // Reads as much of these groups, at most a sequence, as the time allows.
  Result<Reading> read(SwapWay way, std::span<const uint32_t> groups, double seconds_max);

 private:
  struct Unit {  // one pread()
    uint32_t group = 0, layer = 0;
    uint64_t offset_bytes = 0;  // within the block
    size_t memory_bytes = 0;    // where in memory it goes
  };

  SwapFile(const SwapWorkload& workload, io::File buffered, io::File direct)
      : workload_(workload), buffered_(std::move(buffered)), direct_(std::move(direct)) {}
  Result<void> write(FunctionRef<void(uint32_t groups)> written);
  uint64_t block_bytes() const { return workload_.options().block_bytes; }
  uint64_t unit_bytes(SwapWay way) const;
  uint64_t offset_of(const Unit& unit) const;
  std::vector<Unit> units_of(SwapWay way, std::span<const uint32_t> groups);
  Result<double> make_cold(std::span<const uint32_t> groups) const;
  Result<void> read_unit(const Unit& unit, const io::File& file, uint64_t bytes);
  Result<void> verify(std::vector<Unit> units, uint64_t bytes);

  const SwapWorkload& workload_;
  io::File buffered_, direct_;
  io::AlignedMemory memory_;  // of the longest sequence, and one block
  SystemClock clock_;
  std::mt19937_64 random_{1};
};

}  // namespace hifc::apps
