// Speed of the flash directory by fio, the yardstick that HiFC's reads and writes are held against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace hifc::apps {

struct FioResult {
  double gbps = 0;           // 10^9 bytes a second
  double core_s_per_gb = 0;  // processor time, user and system
};

enum class FioPattern : uint8_t { kRead, kRandomRead, kWrite };

struct FioOptions {
  std::string directory;
  // To be read instead of a file of fio's own: drives read some extents faster than others.
  std::vector<std::string> files = {};
  FioPattern pattern = FioPattern::kRead;
  // The working set: hosts cache small ones. Of given files, what is read of each; 0: all.
  uint64_t file_bytes = 0;
  uint64_t block_bytes = 0;  // of one transfer; rounded to 4 KiB
  uint32_t depth = 1;
  double seconds = 1;
};

// io_uring with O_DIRECT and registered buffers in huge pages, over and over through a file whose
// extents have been written before. The file stays in the directory. kNotFound when there is no
// fio.
Result<FioResult> run_fio(const FioOptions& options);
// In order and at random; gives the faster.
Result<FioResult> measure_reads(FioOptions options);

}  // namespace hifc::apps
