// Bandwidth of the flash directory by fio, the yardstick that HiFC's reads are held against.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace hifc::apps {

struct FioResult {
  double gbps = 0;           // 10^9 bytes a second
  double core_s_per_gb = 0;  // processor time, user and system
};

struct FioOptions {
  std::string directory;
  uint64_t file_bytes = 0;  // the working set: drives and hosts cache small ones
  uint64_t read_bytes = 0;  // of one read; rounded to 4 KiB
  uint32_t depth = 1;
};

// io_uring with O_DIRECT and registered buffers, over and over through a file of written extents,
// for about a second each in order and at random; gives the faster. The file stays until
// remove_fio_file(). kNotFound when there is no fio.
Result<FioResult> measure_reads(const FioOptions& options);
void remove_fio_file(const std::string& directory);

}  // namespace hifc::apps
