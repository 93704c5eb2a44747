#include "io/ring.h"

#include <fmt/format.h>

#include <atomic>

#include "base/log.h"
#include "io/backends.h"

namespace hifc::io {
namespace {

constexpr uint32_t kDepthMax = 4096;
constexpr uint32_t kWorkersMax = 256;

Result<std::unique_ptr<Ring>> create_automatic(const RingOptions& options) {
  auto ring = create_uring(options);
  if (ring) return ring;
  static std::atomic_flag warned;
  if (!warned.test_and_set())
    log_warn("{}; reading and writing with {} threads", ring.error().message(), options.workers);
  return create_threads(options);
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(RingOptions options) {
  if (options.depth < 1 || options.depth > kDepthMax)
    return failure(Code::kInvalid,
                   fmt::format("ring depth {} is not between 1 and {}", options.depth, kDepthMax));
  if (options.workers < 1 || options.workers > kWorkersMax)
    return failure(Code::kInvalid, fmt::format("{} ring workers are not between 1 and {}",
                                               options.workers, kWorkersMax));
  switch (options.backend) {
    case RingOptions::Backend::kAutomatic: return create_automatic(options);
    case RingOptions::Backend::kUring: return create_uring(options);
    case RingOptions::Backend::kThreads: return create_threads(options);
  }
  return failure(Code::kInvalid, "unknown ring backend");
}

}  // namespace hifc::io
