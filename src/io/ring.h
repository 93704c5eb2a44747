// Asynchronous file I/O behind one interface; the only way HiFC touches bulk data on storage.
//
// A Ring is driven by one thread: submit(), poll() and the waits are called from the thread that
// owns it, and completions run on that thread inside poll() and the waits. No completion runs
// inside submit(). Backends: io_uring (O_DIRECT, registered buffers) and a pool of threads doing
// preadv/pwritev, for systems where io_uring, O_DIRECT or the locked-memory limit say no.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hifc::io {

// Offsets, lengths and memory of every transfer are multiples of this (O_DIRECT on 4 KiB sectors).
inline constexpr size_t kAlignment = 4096;

inline bool is_aligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % kAlignment == 0;
}

// An open file. Closes on destruction; must outlive the requests submitted on it.
class File {
 public:
  enum class Mode : uint8_t { kReadOnly, kReadWrite, kCreate };  // kCreate: read-write, O_CREAT

  struct Options {
    Mode mode = Mode::kReadWrite;
    bool direct = true;  // O_DIRECT where the file system has it; direct() tells
  };

  // kNotFound when there is no such file; a file it creates has mode 0600.
  static Result<File> open(const std::string& path, Options options);
  // A new file that has no name: its bytes are free again when it is closed or the process ends.
  // Direct where possible.
  static Result<File> create_unnamed(const std::string& directory);
  // Takes ownership of an open descriptor; `path` is for messages.
  static File adopt(int descriptor, bool direct, std::string path) {
    return {descriptor, direct, std::move(path)};
  }
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int descriptor() const { return descriptor_; }
  bool direct() const { return direct_; }
  const std::string& path() const { return path_; }  // as opened; for messages
  Result<uint64_t> size_bytes() const;
  Result<void> truncate(uint64_t size_bytes);

 private:
  File(int descriptor, bool direct, std::string path)
      : descriptor_(descriptor), direct_(direct), path_(std::move(path)) {}
  int descriptor_ = -1;
  bool direct_ = false;
  std::string path_;
};

enum class Operation : uint8_t { kRead, kWrite, kSync };  // kSync: fdatasync of completed writes

struct Request {
  Operation operation = Operation::kRead;
  const File* file = nullptr;
  uint64_t offset_bytes = 0;
  // Consecutive in the file; memory must live until completion. At most IOV_MAX (1024); none for
  // kSync.
  std::vector<iovec> vectors = {};

  // Runs exactly once for every accepted request: all bytes were transferred, or the error (a short
  // transfer is kIo after the backend has retried the rest; end of file counts as short).
  std::move_only_function<void(Result<void>)> done = {};
};

struct RingOptions {
  enum class Backend : uint8_t { kAutomatic, kUring, kThreads };
  Backend backend = Backend::kAutomatic;  // kAutomatic: io_uring, else threads with one warning
  uint32_t depth = 32;                    // requests in flight at most; submit() beyond it is kBusy
  uint32_t workers = 2;                   // threads of the thread-pool backend
};

// Completed requests; a failed one counts as an error and moves no bytes.
struct RingStatistics {
  uint64_t reads = 0, read_bytes = 0, read_errors = 0;
  uint64_t writes = 0, written_bytes = 0, write_errors = 0;
};

class Ring {
 public:
  static constexpr uint64_t kForever = UINT64_MAX;

  static Result<std::unique_ptr<Ring>> create(RingOptions options);
  virtual ~Ring() = default;  // waits for what is in flight and runs its completions

  virtual std::string_view name() const = 0;  // "io_uring" or "threads"

  // Makes transfers from and to `memory` cheaper (registered buffers), in slices of at most 1 GiB.
  // Best effort: false, and a warning once, where the system refuses; transfers work all the same.
  // The memory must stay mapped while the ring lives.
  virtual bool register_memory(std::span<std::byte> memory) = 0;

  // Either fails at once (kBusy when `depth` requests are in flight, kInvalid when something is not
  // aligned; `done` never runs) or accepts the request and runs `done` exactly once.
  virtual Result<void> submit(Request request) = 0;

  // While one lives, what is submitted goes to the device a few requests at a time, which costs
  // less than one by one; all of it has gone when it ends. May be nested.
  class Batch {
   public:
    explicit Batch(Ring& ring) : ring_(ring) { ring_.begin_batch(); }
    ~Batch() { ring_.end_batch(); }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    Ring& ring_;
  };

  virtual uint32_t in_flight() const = 0;
  virtual uint32_t depth() const = 0;

  // Runs the completions that have arrived, without blocking. Returns how many ran. What they
  // submit is on its way when poll() or wait() returns.
  virtual uint32_t poll() = 0;
  // As poll(), but sleeps until at least one has arrived or the time has passed; 0 when none did,
  // at once when nothing is in flight.
  virtual uint32_t wait_for(uint64_t timeout_ns) = 0;
  // Sleeps as long as it takes; returns 0 only if nothing is in flight.
  uint32_t wait() { return wait_for(kForever); }

  virtual const RingStatistics& statistics() const = 0;

 private:
  virtual void begin_batch() {}
  virtual void end_batch() {}
};

}  // namespace hifc::io
