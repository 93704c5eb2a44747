#include "io/transfer.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace hifc::io {
namespace {

bool aligned(uint64_t value) {
  return value % kAlignment == 0;
}

bool aligned(const iovec& vector) {
  return aligned(reinterpret_cast<uintptr_t>(vector.iov_base)) && aligned(vector.iov_len);
}

std::byte* end_of(const iovec& vector) {
  return static_cast<std::byte*>(vector.iov_base) + vector.iov_len;
}

void join_neighbours(std::vector<iovec>& vectors) {
  size_t last = 0;
  for (size_t i = 1; i < vectors.size(); ++i) {
    if (end_of(vectors[last]) == vectors[i].iov_base)
      vectors[last].iov_len += vectors[i].iov_len;
    else
      vectors[++last] = vectors[i];
  }
  if (!vectors.empty()) vectors.resize(last + 1);
}

const char* verb(Operation operation) {
  switch (operation) {
    case Operation::kRead: return "read";
    case Operation::kWrite: return "write";
    case Operation::kSync: return "sync";
  }
  return "transfer";
}

}  // namespace

Result<void> validate(const Request& request) {
  if (request.file == nullptr) return failure(Code::kInvalid, "a request without a file");
  if (request.operation == Operation::kSync) {
    if (request.vectors.empty()) return {};
    return failure(Code::kInvalid, "a sync takes no memory");
  }
  if (request.vectors.empty() || request.vectors.size() > IOV_MAX)
    return failure(Code::kInvalid, fmt::format("{} vectors in a request, accepted are 1 to {}",
                                               request.vectors.size(), IOV_MAX));
  if (!aligned(request.offset_bytes))
    return failure(Code::kInvalid, fmt::format("offset {} is not a multiple of {}",
                                               request.offset_bytes, kAlignment));
  for (const iovec& vector : request.vectors) {
    if (vector.iov_len == 0 || !aligned(vector))
      return failure(Code::kInvalid,
                     fmt::format("{} bytes of memory at {}: neither may be zero, both must be "
                                 "multiples of {}",
                                 vector.iov_len, vector.iov_base, kAlignment));
  }
  return {};
}

Transfer::Transfer(Request request) : request_(std::move(request)) {
  join_neighbours(request_.vectors);
  for (const iovec& vector : request_.vectors) total_bytes_ += vector.iov_len;
}

bool Transfer::advance(int64_t answer) {
  if (answer == -EAGAIN || answer == -EINTR) return false;
  if (answer < 0) {
    fail(error(static_cast<int>(-answer), ""));
    return true;
  }
  return operation() == Operation::kSync || advance_bytes(static_cast<uint64_t>(answer));
}

bool Transfer::advance_bytes(uint64_t bytes) {
  HIFC_CHECK(bytes <= total_bytes_ - done_bytes_);
  // The rest must stay aligned for O_DIRECT: part of a page is transferred again. No whole page
  // moved means that the next attempt would not move one either.
  bytes -= bytes % kAlignment;
  skip_vectors(bytes);
  if (done_bytes_ == total_bytes_) return true;
  if (bytes > 0) return false;
  fail(operation() == Operation::kRead ? error(0, "end of file")
                                       : error(ENOSPC, "nothing more was taken"));
  return true;
}

void Transfer::skip_vectors(uint64_t bytes) {
  done_bytes_ += bytes;
  while (bytes > 0) {
    iovec& vector = request_.vectors[first_];
    const size_t part = std::min<uint64_t>(bytes, vector.iov_len);
    vector.iov_base = static_cast<std::byte*>(vector.iov_base) + part;
    vector.iov_len -= part;
    bytes -= part;
    if (vector.iov_len == 0) ++first_;
  }
}

Error Transfer::error(int system_errno, std::string_view what) const {
  std::string context = fmt::format("cannot {} {}", verb(operation()), file().path());
  if (operation() != Operation::kSync)
    context = fmt::format("cannot {} {} bytes at {} of {}", verb(operation()), total_bytes_,
                          request_.offset_bytes, file().path());
  if (!what.empty()) context += fmt::format(" ({} after {} bytes)", what, done_bytes_);
  return {.code = Code::kIo, .system_errno = system_errno, .context = std::move(context)};
}

void Transfer::complete(RingStatistics& statistics) {
  const bool good = outcome_.has_value();
  if (operation() == Operation::kRead) {
    ++(good ? statistics.reads : statistics.read_errors);
    if (good) statistics.read_bytes += total_bytes_;
  } else if (operation() == Operation::kWrite) {
    ++(good ? statistics.writes : statistics.write_errors);
    if (good) statistics.written_bytes += total_bytes_;
  }
  // The completion may destroy what this transfer lives in: it runs from here, on its own copy.
  auto done = std::move(request_.done);
  if (done) done(std::move(outcome_));
}

int64_t transfer_blocking(const Transfer& transfer) {
  const int descriptor = transfer.file().descriptor();
  const std::span<const iovec> vectors = transfer.vectors();
  const int count = static_cast<int>(vectors.size());
  const off_t offset = static_cast<off_t>(transfer.offset_bytes());
  int64_t answer = -EINVAL;
  switch (transfer.operation()) {
    case Operation::kRead: answer = preadv(descriptor, vectors.data(), count, offset); break;
    case Operation::kWrite: answer = pwritev(descriptor, vectors.data(), count, offset); break;
    case Operation::kSync: answer = fdatasync(descriptor); break;
  }
  return answer < 0 ? -errno : answer;
}

}  // namespace hifc::io
