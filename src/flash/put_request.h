// What callers hand to the store, checked and brought into the order of the file.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "flash/format.h"
#include "flash/store.h"

namespace hifc::flash {

// kInvalid where a batch cannot be stored, kFull where it can never fit in the capacity.
Result<void> validate(const BatchShape& shape, const std::vector<PutValue>& values,
                      uint64_t capacity_bytes);
// kInvalid names what of the range is not in the value or not on its chunks.
Result<void> validate(const Range& range, const Handle& handle);

// The batch, without removals and checksums; not laid out yet.
BatchContents batch_contents(const BatchShape& shape, const std::vector<PutValue>& values);
void add_checksums(BatchContents& contents, const std::vector<PutValue>& values);
// The lanes in the order of the file. Writing does not change the memory; iovec has no const.
std::vector<iovec> payload_vectors(const BatchShape& shape, const std::vector<PutValue>& values);

}  // namespace hifc::flash
