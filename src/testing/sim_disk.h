// SimDisk: a file system in memory that knows what is durable, to crash a store on it again and
// again, the same way for the same seed.
//
// Bulk data goes through a SimRing that knows the disk. A write is volatile until a sync of its
// file; a name that was created or removed is volatile until sync_directory(). Directories
// themselves are durable at once. A new file's size is volatile too: it may come back as 0 bytes.
// Paths are names of this disk only. One thread; must outlive its rings, locks and files' users.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/function_ref.h"
#include "io/file_system.h"
#include "io/transfer.h"
#include "testing/sim_file.h"
#include "testing/sim_random.h"

namespace hifc::testing {

enum class Crash : uint8_t {
  kProcess,  // kill -9: completed writes and names survive; what was in flight is there in part
  kPower,    // what is volatile is kept, reverted or torn besides
};

enum class DiskOperation : uint8_t { kCreate, kRemove, kList, kSyncDirectory };

class SimDisk final : public io::FileSystem {
 public:
  struct Options {
    uint64_t seed = 1;
    uint64_t capacity_bytes = uint64_t{1} << 40;
    // Asked before each operation: the errno to fail with, or 0.
    std::function<int(DiskOperation, const std::string& path)> choose = {};
  };

  // Writes that were accepted and have not run: a crash applies a part of each.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void each_pending_write(FunctionRef<void(const io::Request&)> visit) = 0;
  };

  explicit SimDisk(Options options);
  ~SimDisk() override;
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  // Every operation fails with EIO and changes nothing until crash().
  void power_off();
  bool powered() const { return powered_; }
  // Powers off where that has not happened, works out what is left, and powers on. Locks are free;
  // files opened before are cut off: requests on them fail with EIO.
  void crash(Crash kind);
  // Powers off in the `count`-th operation from now that changes something (write, sync, create,
  // remove, sync_directory), of which a random part happens; 0: never.
  void crash_after(uint64_t count) { crash_countdown_ = count; }
  uint64_t operations() const { return operations_; }  // that changed something, so far

  void set_capacity_bytes(uint64_t bytes) { options_.capacity_bytes = bytes; }
  void set_choose(std::function<int(DiskOperation, const std::string& path)> choose) {
    options_.choose = std::move(choose);
  }

  // For tests, whether powered or not: files as they are now, changed durably and at once.
  std::vector<std::string> paths() const;  // of all files, sorted
  bool exists(const std::string& path) const;
  uint64_t size_bytes(const std::string& path) const;
  std::vector<std::byte> read(const std::string& path) const;
  void write(const std::string& path, std::span<const std::byte> contents);  // creates or replaces
  void flip_byte(const std::string& path, uint64_t offset);
  void truncate(const std::string& path, uint64_t size_bytes);

  // For SimRing. begin() when a request is accepted; its ticket goes to prepare(), which accounts
  // for what the transfer is about to do, or gives the errno that it fails with.
  void attach(Source& source) { sources_.push_back(&source); }
  void detach(Source& source) { std::erase(sources_, &source); }
  uint64_t begin(const io::Request& request);
  int prepare(const io::Transfer& transfer, uint64_t ticket);
  void sync_failed(const io::File& file, uint64_t ticket);
  // Requests on this file can succeed: the power is on and no crash has cut it off.
  bool reachable(const io::File& file) const;

  Result<bool> create_directory(const std::string& path) override;
  Result<void> remove_directory(const std::string& path) override;
  Result<std::vector<io::DirectoryEntry>> list(const std::string& path) override;
  Result<io::File> open(const std::string& path, io::File::Options options) override;
  Result<io::File> create(const std::string& path, uint64_t size_bytes, bool direct) override;
  Result<void> remove(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<uint64_t> free_bytes(const std::string& path) override;
  Result<std::unique_ptr<io::FileLock>> lock(const std::string& path) override;

 private:
  class Lock;
  using Names = std::map<std::string, std::shared_ptr<SimFile>>;
  struct NameChange {
    std::string path;
    std::shared_ptr<SimFile> file;  // null: removed
  };
  enum class Tracking : uint8_t { kCutOff, kUnlinked, kTracked };
  struct Target {
    Tracking tracking = Tracking::kCutOff;
    std::shared_ptr<SimFile> file = {};  // only of kTracked
  };

  int injected(DiskOperation operation, const std::string& path);
  bool fatal();
  Target target_of(const io::File& file) const;
  int prepare_write(const Target& target, const io::Transfer& transfer);
  int prepare_sync(const Target& target, uint64_t ticket);
  uint64_t used_bytes() const;
  SimFile& at(const std::string& path) const;
  void set_name(const std::string& path, std::shared_ptr<SimFile> file);
  void settle_names(FunctionRef<bool(const std::string& path)> durable);
  void lose_volatile();
  void cut_off_handles();
  void unlock(const std::string& path, uint64_t generation);

  Options options_;
  SimRandom random_;
  bool powered_ = true;
  uint64_t generation_ = 0;  // crashes so far
  uint64_t operations_ = 0, crash_countdown_ = 0;
  uint64_t writes_ = 0;  // the sequence of the last one

  std::set<std::string> directories_ = {"/", "."};
  Names names_, durable_names_;
  std::vector<NameChange> changes_;  // between the two, in order
  std::set<std::string> locked_;
  // By inode number. Expired: removed for good, but perhaps still open somewhere.
  std::unordered_map<ino_t, std::weak_ptr<SimFile>> files_;
  std::vector<Source*> sources_;
};

}  // namespace hifc::testing
