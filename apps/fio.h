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

// Random reads of `read_bytes` (rounded to 4 KiB) at `depth` by io_uring with O_DIRECT on a file of
// written extents in `directory`, for about a second. The file is made on the first call and stays
// until remove_fio_file(). kNotFound when there is no fio.
Result<FioResult> measure_reads(const std::string& directory, uint64_t read_bytes, uint32_t depth);
void remove_fio_file(const std::string& directory);

}  // namespace hifc::apps
