#include "capi/store_thread.h"

#include <system_error>
#include <utility>

#include "base/log.h"

namespace hifc::capi {
namespace {

// How long a message waits at most while the thread sleeps on the device: small against a read,
// which takes 80 us or more.
constexpr uint64_t kSliceNs = 20'000;

}  // namespace

Result<std::unique_ptr<StoreThread>> StoreThread::open(flash::StoreOptions options,
                                                       std::unique_ptr<io::Ring> ring) {
  std::unique_ptr<StoreThread> self(new StoreThread(std::move(ring)));
  Result<void> opened;
  Countdown answered(1);
  try {
    self->thread_ = std::thread([&, owner = self.get()] {
      opened = owner->open_here(options);
      const bool usable = opened.has_value();
      if (!usable) owner->close_here();
      answered.finish_one();  // what is captured by reference is gone afterwards
      if (!usable) return;
      owner->loop();
      owner->close_here();
    });
  } catch (const std::system_error& error) {
    return failure(Code::kIo, "cannot start the thread of the store", error.code().value());
  }
  answered.wait();
  HIFC_TRY(opened);
  return self;
}

StoreThread::~StoreThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  sent_.notify_one();
  thread_.join();
}

Result<void> StoreThread::open_here(const flash::StoreOptions& options) {
  HIFC_ASSIGN(store_, flash::Store::open(options, *ring_));
  reader_.emplace(*store_, ring_->depth());
  return {};
}

void StoreThread::close_here() {
  store_.reset();
  // A device that does not answer still has memory of ours; waiting for it could take forever.
  if (ring_->in_flight() > 0) {
    log_error("the flash device does not answer; its ring is abandoned");
    (void)ring_.release();
  }
  ring_.reset();
}

void StoreThread::run(Task task) {
  Countdown countdown(1);
  send([&] {
    task(*store_);
    countdown.finish_one();
  });
  countdown.wait();
}

void StoreThread::read(std::span<ReadRequest* const> requests) {
  if (requests.empty()) return;
  Countdown countdown(requests.size());
  send([&] {
    for (ReadRequest* const request : requests)
      reader_->add(*request, [&countdown] { countdown.finish_one(); });
  });
  countdown.wait();
}

void StoreThread::post(Write write) {
  send([this, write = std::move(write)]() mutable { writes_.push_back(std::move(write)); });
}

void StoreThread::send(Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
  }
  sent_.notify_one();
}

// Ends when it is to be closed and nothing is left to start.
void StoreThread::loop() {
  while (auto messages = receive()) {
    for (Message& message : *messages) message();
    start_writes();
    reader_->advance();
    if (ring_->in_flight() == 0) continue;
    const uint32_t completed = ring_->wait_for(kSliceNs);
    progress_ = completed + store_->poll() > 0;
  }
}

// Sleeps only when there is nothing else to do. What is in flight at the end is the store's to wait
// for: it knows whether the device still answers.
std::optional<std::vector<StoreThread::Message>> StoreThread::receive() {
  const bool all_started = writes_.empty() && reader_->idle();
  const bool nothing_to_do = all_started && ring_->in_flight() == 0;
  std::unique_lock lock(mutex_);
  if (nothing_to_do) sent_.wait(lock, [this] { return closing_ || !messages_.empty(); });
  if (all_started && closing_ && messages_.empty()) return std::nullopt;
  return std::exchange(messages_, {});
}

void StoreThread::start_writes() {
  // Trying again costs the checksums of a batch, and only a completion makes room.
  if (blocked_ && !progress_ && ring_->in_flight() > 0) return;
  blocked_ = false;
  while (!writes_.empty()) {
    Write& write = writes_.front();
    const Result<void> started = write.start(*store_);
    if (!started) {
      const Code code = started.error().code;
      // Reads pin the segments that are to make room: new ones wait until there is some.
      const bool pinned = code == Code::kFull && reader_->pins_segments();
      if (pinned) reader_->hold();
      blocked_ = pinned || (code == Code::kBusy && ring_->in_flight() > 0);
      if (blocked_) return;
      write.refused(started.error());
    }
    writes_.pop_front();
  }
  reader_->resume();
}

}  // namespace hifc::capi
