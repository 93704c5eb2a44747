// The factories of the two backends; internal to io, users call Ring::create().
#pragma once

#include <memory>

#include "io/ring.h"

namespace hifc::io {

Result<std::unique_ptr<Ring>> create_uring(const RingOptions& options);
Result<std::unique_ptr<Ring>> create_threads(const RingOptions& options);

}  // namespace hifc::io
