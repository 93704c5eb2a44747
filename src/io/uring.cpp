// The io_uring backend: O_DIRECT transfers without threads, from registered memory where possible.
#include <fmt/format.h>
#include <liburing.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "io/backends.h"
#include "io/transfer.h"

namespace hifc::io {
namespace {

constexpr size_t kSliceBytes = 1u << 30;  // the kernel refuses larger buffers with EFAULT
constexpr uint32_t kSlicesMax = 1024;
constexpr unsigned kQueuedMin = 4;  // requests of a batch that are given to the kernel together

// Completions are posted when the owner next enters the kernel or polls, not by interrupting its
// computation. Older kernels than 5.19 do not know the flags.
constexpr unsigned kSetupFlags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;

class UringRing final : public Ring {
 public:
  explicit UringRing(const RingOptions& options) : slots_(options.depth) {
    for (uint32_t slot = options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
  }

  ~UringRing() override {
    while (in_flight() > 0) wait();
    if (open_) io_uring_queue_exit(&ring_);
  }

  Result<void> open() {
    int status = io_uring_queue_init(depth(), &ring_, kSetupFlags);
    if (status == -EINVAL) status = io_uring_queue_init(depth(), &ring_, 0);
    if (status < 0) return failure(Code::kUnsupported, "io_uring is not available", -status);
    open_ = true;
    // Without it, liburing makes a timeout a request of its own, which has no slot here.
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0)
      return failure(Code::kUnsupported, "io_uring of this kernel has no timeouts", ENOSYS);
    return {};
  }

  std::string_view name() const override { return "io_uring"; }
  bool register_memory(std::span<std::byte> memory) override;
  Result<void> submit(Request request) override;
  uint32_t in_flight() const override {
    return depth() - static_cast<uint32_t>(free_slots_.size());
  }
  uint32_t depth() const override { return static_cast<uint32_t>(slots_.size()); }
  uint32_t poll() override;
  uint32_t wait_for(uint64_t timeout_ns) override;
  const RingStatistics& statistics() const override { return statistics_; }

 private:
  int register_slices(std::span<const iovec> slices);
  const iovec* slice_of(const iovec& vector) const;
  void prepare(uint32_t slot);
  void prepare_transfer(io_uring_sqe* entry, const Transfer& transfer);
  void flush();
  void sleep(uint64_t timeout_ns);
  void refuse_queued(int status);
  void begin_batch() override { ++batches_; }
  void end_batch() override {
    if (--batches_ == 0) flush();
  }
  void complete(uint32_t slot);
  uint32_t complete_refused();
  uint32_t reap();

  io_uring ring_ = {};
  bool open_ = false;
  uint32_t batches_ = 0;                        // nested
  std::vector<std::optional<Transfer>> slots_;  // [depth]; the index is the entry's user data
  std::vector<uint32_t> free_slots_;
  std::vector<uint32_t> refused_slots_;  // failed in submission, to be completed
  std::vector<iovec> slices_;  // registered memory; the index is the kernel's buffer index
  bool sparse_table_ = false;
  RingStatistics statistics_;
};

std::vector<iovec> slices_of(std::span<std::byte> memory) {
  std::vector<iovec> slices;
  for (size_t begin = 0; begin < memory.size(); begin += kSliceBytes)
    slices.push_back({memory.data() + begin, std::min(kSliceBytes, memory.size() - begin)});
  return slices;
}

bool UringRing::register_memory(std::span<std::byte> memory) {
  const std::vector<iovec> slices = slices_of(memory);
  const int status = slices.empty() ? 0 : register_slices(slices);
  if (status >= 0) return true;
  static std::atomic_flag warned;
  if (!warned.test_and_set())
    log_warn(
        "{} MiB of buffers stay unregistered ({}); raising the locked-memory limit (ulimit -l) "
        "makes transfers cheaper",
        memory.size() >> 20, Error{.system_errno = -status, .context = "io_uring"}.message());
  return false;
}

// A sparse table (kernel 5.19) takes memory bit by bit; without it only the first call counts.
int UringRing::register_slices(std::span<const iovec> slices) {
  if (slices_.size() + slices.size() > kSlicesMax) return -ENOSPC;
  if (slices_.empty() && !sparse_table_)
    sparse_table_ = io_uring_register_buffers_sparse(&ring_, kSlicesMax) == 0;
  int status = -EBUSY;
  if (sparse_table_) {
    status = 0;
    for (const iovec& slice : slices) {
      const __u64 tag = 0;
      status = io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(slices_.size()),
                                                    &slice, &tag, 1);
      if (status < 0) break;
      slices_.push_back(slice);
    }
  } else if (slices_.empty()) {
    status = io_uring_register_buffers(&ring_, slices.data(), static_cast<unsigned>(slices.size()));
    if (status == 0) slices_.assign(slices.begin(), slices.end());
  }
  return status;
}

const iovec* UringRing::slice_of(const iovec& vector) const {
  const auto* base = static_cast<const std::byte*>(vector.iov_base);
  for (const iovec& slice : slices_) {
    const auto* begin = static_cast<const std::byte*>(slice.iov_base);
    if (base >= begin && base + vector.iov_len <= begin + slice.iov_len) return &slice;
  }
  return nullptr;
}

Result<void> UringRing::submit(Request request) {
  HIFC_TRY(validate(request));
  if (free_slots_.empty())
    return failure(Code::kBusy, fmt::format("{} requests are in flight already", depth()));
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot].emplace(std::move(request));
  prepare(slot);
  // Not all in one call at the batch's end, since the device would idle until then.
  const unsigned queued = io_uring_sq_ready(&ring_), under_way = in_flight() - queued;
  if (batches_ == 0 || queued >= std::max(kQueuedMin, under_way)) flush();
  return {};
}

void UringRing::prepare(uint32_t slot) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  HIFC_CHECK(entry != nullptr);  // the queue has an entry for every slot
  prepare_transfer(entry, *slots_[slot]);
  io_uring_sqe_set_data64(entry, slot);
}

void UringRing::prepare_transfer(io_uring_sqe* entry, const Transfer& transfer) {
  const int descriptor = transfer.file().descriptor();
  if (transfer.operation() == Operation::kSync)
    return io_uring_prep_fsync(entry, descriptor, IORING_FSYNC_DATASYNC);

  const std::span<const iovec> vectors = transfer.vectors();
  const uint64_t offset = transfer.offset_bytes();
  const bool read = transfer.operation() == Operation::kRead;
  const auto count = static_cast<unsigned>(vectors.size());
  const iovec* slice = count == 1 ? slice_of(vectors[0]) : nullptr;
  if (slice == nullptr)
    return (read ? io_uring_prep_readv : io_uring_prep_writev)(entry, descriptor, vectors.data(),
                                                               count, offset);
  const auto index = static_cast<int>(slice - slices_.data());
  const auto bytes = static_cast<unsigned>(vectors[0].iov_len);  // a slice has at most 1 GiB
  void* const memory = vectors[0].iov_base;
  if (read)
    io_uring_prep_read_fixed(entry, descriptor, memory, bytes, offset, index);
  else
    io_uring_prep_write_fixed(entry, descriptor, memory, bytes, offset, index);
}

// Entries that the kernel does not take now stay queued for the next flush.
bool is_transient(int status) {
  return status == -EAGAIN || status == -EBUSY || status == -EINTR;
}

void UringRing::flush() {
  if (io_uring_sq_ready(&ring_) == 0) return;
  const int status = io_uring_submit(&ring_);
  if (status < 0 && !is_transient(status)) refuse_queued(status);
}

void UringRing::sleep(uint64_t timeout_ns) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  __kernel_timespec timeout = {.tv_sec = static_cast<int64_t>(timeout_ns / kSecondNs),
                               .tv_nsec = static_cast<int64_t>(timeout_ns % kSecondNs)};
  io_uring_cqe* entry = nullptr;
  const int status = timeout_ns == kForever
                         ? io_uring_submit_and_wait(&ring_, 1)
                         : io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &timeout, nullptr);
  if (status >= 0 || status == -ETIME || is_transient(status)) return;
  refuse_queued(status);
  sched_yield();  // what the kernel took before still arrives; there is nothing left to sleep on
}

// io_uring_enter itself failed, so that none of what is queued will ever be answered. The kernel
// reads the queue inside that call only: what it has not taken can be taken back.
void UringRing::refuse_queued(int status) {
  io_uring_sq& queue = ring_.sq;
  for (unsigned position = *queue.khead; position != queue.sqe_tail; ++position) {
    const auto slot = static_cast<uint32_t>(queue.sqes[position & queue.ring_mask].user_data);
    slots_[slot]->fail(
        {.code = Code::kIo,
         .system_errno = -status,
         .context = fmt::format("cannot submit a request on {}", slots_[slot]->file().path())});
    refused_slots_.push_back(slot);
  }
  queue.sqe_head = queue.sqe_tail = *queue.ktail = *queue.khead;
}

void UringRing::complete(uint32_t slot) {
  Transfer transfer = std::move(*slots_[slot]);
  slots_[slot].reset();
  free_slots_.push_back(slot);
  transfer.complete(statistics_);
}

uint32_t UringRing::complete_refused() {
  const std::vector<uint32_t> slots = std::exchange(refused_slots_, {});
  for (const uint32_t slot : slots) complete(slot);
  return static_cast<uint32_t>(slots.size());
}

uint32_t UringRing::reap() {
  const Batch batch(*this);
  uint32_t completed = complete_refused();
  io_uring_cqe* entry = nullptr;
  while (io_uring_peek_cqe(&ring_, &entry) == 0) {
    const auto slot = static_cast<uint32_t>(io_uring_cqe_get_data64(entry));
    const int answer = entry->res;
    io_uring_cqe_seen(&ring_, entry);
    if (!slots_[slot]->advance(answer)) {
      prepare(slot);
      continue;
    }
    ++completed;
    complete(slot);
  }
  return completed;
}

uint32_t UringRing::poll() {
  flush();
  return reap();
}

uint32_t UringRing::wait_for(uint64_t timeout_ns) {
  const SystemClock clock;
  const uint64_t start_ns = clock.now_ns();
  uint64_t left_ns = timeout_ns;
  uint32_t completed = poll();
  while (completed == 0 && in_flight() > 0 && left_ns > 0) {
    sleep(left_ns);  // EINTR and EAGAIN come round again
    completed = poll();
    if (timeout_ns != kForever)
      left_ns = timeout_ns - std::min(timeout_ns, clock.now_ns() - start_ns);
  }
  return completed;
}

}  // namespace

Result<std::unique_ptr<Ring>> create_uring(const RingOptions& options) {
  auto ring = std::make_unique<UringRing>(options);
  HIFC_TRY(ring->open());
  return ring;
}

}  // namespace hifc::io
