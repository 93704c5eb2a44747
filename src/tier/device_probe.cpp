#include "tier/device_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "io/file_system.h"
#include "io/memory.h"

namespace hifc::tier {
namespace {

// From single pages to where drives reach their bandwidth, which is at 128 KiB and more.
constexpr std::array<uint64_t, 5> kSizes = {4u << 10, 16u << 10, 64u << 10, 256u << 10, 1u << 20};
constexpr uint64_t kBufferBytes = kSizes.back();
// A moment in which the device is busy with something else must not decide.
constexpr uint32_t kPasses = 3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// What completions write to: it outlives a probe that gave up waiting.
struct Transfers {
  std::shared_ptr<const io::File> file;
  io::AlignedMemory memory;
  std::vector<std::byte*> free;  // buffers
  uint32_t in_flight = 0;
  Result<void> outcome;  // the first error
};

class Probe {
 public:
  Probe(io::Ring& ring, const Clock& clock, const ProbeOptions& options)
      : ring_(ring), clock_(clock), options_(options), random_(options.seed) {}

  Result<void> prepare(std::shared_ptr<const io::File> file) {
    transfers_->file = std::move(file);
    const uint64_t bytes = options_.depth * kBufferBytes;
    HIFC_ASSIGN(transfers_->memory, io::AlignedMemory::allocate(bytes));
    // What nothing can compress; it takes the memory too, before anything is timed.
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      const uint64_t word = random_();
      std::memcpy(transfers_->memory.data() + at, &word, sizeof(word));
    }
    for (uint32_t i = 0; i < options_.depth; ++i)
      transfers_->free.push_back(transfers_->memory.data() + i * kBufferBytes);
    return {};
  }

  Result<void> write() {
    for (uint64_t at = 0; at < options_.scratch_bytes; at += kBufferBytes) {
      while (transfers_->free.empty()) HIFC_TRY(wait());
      HIFC_TRY(
          start(io::Operation::kWrite, at, std::min(kBufferBytes, options_.scratch_bytes - at)));
    }
    HIFC_TRY(drain());
    HIFC_TRY(start(io::Operation::kSync, 0, 0));
    return drain();
  }

  Result<DeviceProfile> measure() {
    const uint64_t start_ns = clock_.now_ns();
    std::array<std::vector<double>, kSizes.size()> seconds;
    std::vector<double> latencies;
    for (uint32_t pass = 0; pass < kPasses; ++pass) {
      if (pass > 0 && clock_.now_ns() - start_ns >= options_.budget_ns) break;
      HIFC_ASSIGN(const double latency, seconds_per_read(kSizes.front(), 1));
      latencies.push_back(latency);
      for (size_t i = 0; i < kSizes.size(); ++i) {
        HIFC_ASSIGN(const double each, seconds_per_read(kSizes[i], options_.depth));
        seconds[i].push_back(each);
      }
    }
    std::vector<ReadSample> samples;
    for (size_t i = 0; i < kSizes.size(); ++i)
      samples.push_back({.bytes = kSizes[i], .seconds = median(seconds[i])});
    return profile(samples, median(latencies));
  }

 private:
  Result<DeviceProfile> profile(std::span<const ReadSample> samples, double latency_s) const {
    const auto costs = fit_reads(samples);
    if (!costs) return failure(Code::kInternal, "reads of the flash device took no time");
    return DeviceProfile{.fixed_s = costs->fixed_s,
                         .s_per_byte = costs->s_per_byte,
                         .latency_s = latency_s,
                         .depth = options_.depth};
  }

  Result<double> seconds_per_read(uint64_t bytes, uint32_t depth) {
    const uint64_t slot_ns = options_.budget_ns / (kPasses * (kSizes.size() + 1));
    const uint64_t places = options_.scratch_bytes / bytes;
    const uint64_t start_ns = clock_.now_ns();
    uint64_t reads = 0;
    // Of a slow device, one read for each place in the queue.
    const auto goes = [&] { return reads < depth || clock_.now_ns() - start_ns < slot_ns; };
    while (true) {
      for (; transfers_->in_flight < depth && transfers_->outcome && goes(); ++reads)
        HIFC_TRY(start(io::Operation::kRead, random_() % places * bytes, bytes));
      if (transfers_->in_flight == 0) break;
      HIFC_TRY(wait());
    }
    HIFC_TRY(transfers_->outcome);
    return static_cast<double>(clock_.now_ns() - start_ns) / 1e9 / static_cast<double>(reads);
  }

  Result<void> start(io::Operation operation, uint64_t offset, uint64_t bytes) {
    io::Request request{
        .operation = operation, .file = transfers_->file.get(), .offset_bytes = offset};
    std::byte* const buffer = transfers_->free.back();
    if (bytes > 0) request.vectors = {{.iov_base = buffer, .iov_len = bytes}};
    request.done = [transfers = transfers_, buffer](Result<void> outcome) {
      --transfers->in_flight;
      transfers->free.push_back(buffer);
      if (!outcome && transfers->outcome) transfers->outcome = std::move(outcome);
    };
    HIFC_TRY(ring_.submit(std::move(request)));
    transfers_->free.pop_back();
    ++transfers_->in_flight;
    return {};
  }

  Result<void> wait() {
    if (ring_.wait_for(options_.deadline_ns) > 0) return {};
    return failure(Code::kTimeout, "the flash device does not answer");
  }

  Result<void> drain() {
    while (transfers_->in_flight > 0) HIFC_TRY(wait());
    return transfers_->outcome;
  }

  io::Ring& ring_;
  const Clock& clock_;
  const ProbeOptions& options_;
  std::mt19937_64 random_;
  const std::shared_ptr<Transfers> transfers_ = std::make_shared<Transfers>();
};

Result<void> check(const ProbeOptions& options, const io::Ring& ring) {
  if (options.depth < 1 || options.depth > ring.depth())
    return failure(Code::kInvalid, fmt::format("a probe of {} reads in flight on a ring of {}",
                                               options.depth, ring.depth()));
  if (options.scratch_bytes < kBufferBytes || options.scratch_bytes % io::kAlignment != 0)
    return failure(Code::kInvalid,
                   fmt::format("{} bytes are not enough to be read from", options.scratch_bytes));
  return {};
}

Result<std::shared_ptr<io::File>> make_scratch(const std::string& directory,
                                               const ProbeOptions& options) {
  HIFC_ASSIGN(const uint64_t free, io::system_files().free_bytes(directory));
  if (free < options.scratch_bytes + options.free_space_floor_bytes)
    return failure(Code::kFull, fmt::format("{} has no room to measure the device", directory));
  HIFC_ASSIGN(io::File file, io::File::create_unnamed(directory));
  if (!file.direct())
    return failure(Code::kUnsupported,
                   fmt::format("{} answers from memory: no O_DIRECT", directory));
  return std::make_shared<io::File>(std::move(file));
}

}  // namespace

Result<DeviceProfile> probe_device(const std::string& directory, io::Ring& ring, const Clock& clock,
                                   const ProbeOptions& options) {
  HIFC_TRY(check(options, ring));
  HIFC_ASSIGN(auto file, make_scratch(directory, options));
  Probe probe(ring, clock, options);
  HIFC_TRY(probe.prepare(std::move(file)));
  HIFC_TRY(probe.write());
  return probe.measure();
}

Result<DeviceProfile> probe_file(std::shared_ptr<const io::File> file, io::Ring& ring,
                                 const Clock& clock, const ProbeOptions& options) {
  HIFC_TRY(check(options, ring));
  Probe probe(ring, clock, options);
  HIFC_TRY(probe.prepare(std::move(file)));
  return probe.measure();
}

}  // namespace hifc::tier
