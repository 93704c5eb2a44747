// What the system keeps of a file in its page cache, for baselines that must read from the device.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace hifc::apps {

// Nothing of the file stays in the page cache, if the system heeds it. kIo with the path.
Result<void> forget_pages(const std::string& path);

// The share of the file's bytes [begin, end) that the page cache holds; 0 of none. Page-aligned.
Result<double> cached_share(const std::string& path, uint64_t begin, uint64_t end);

}  // namespace hifc::apps
