#include "testing/sim_disk.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace hifc::testing {
namespace {

std::string normal(const std::string& path) {
  std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  if (whole.filename().empty() && whole.has_relative_path()) whole = whole.parent_path();
  return whole;
}

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename();
}

std::unexpected<Error> refused(std::string_view verb, const std::string& path, int system_errno) {
  const Code code = system_errno == ENOENT   ? Code::kNotFound
                    : system_errno == ENOSPC ? Code::kFull
                                             : Code::kIo;
  return failure(code, fmt::format("cannot {} {}", verb, path), system_errno);
}

uint64_t size_bytes_of(std::span<const iovec> vectors) {
  uint64_t bytes = 0;
  for (const iovec& vector : vectors) bytes += vector.iov_len;
  return bytes;
}

constexpr auto kEverything = [] { return true; };

}  // namespace

class SimDisk::Lock final : public io::FileLock {
 public:
  Lock(SimDisk& disk, std::string path)
      : disk_(disk), path_(std::move(path)), generation_(disk.generation_) {}
  ~Lock() override { disk_.unlock(path_, generation_); }

 private:
  SimDisk& disk_;
  std::string path_;
  uint64_t generation_;
};

SimDisk::SimDisk(Options options) : options_(std::move(options)), random_(options_.seed) {}

SimDisk::~SimDisk() {
  HIFC_CHECK(sources_.empty());
}

void SimDisk::power_off() {
  if (!powered_) return;
  powered_ = false;
  for (Source* source : sources_)
    source->each_pending_write([&](const io::Request& request) {
      const Target target = target_of(*request.file);
      if (target.tracking == Tracking::kTracked)
        target.file->write_part(request.offset_bytes, request.vectors, ++writes_, random_);
    });
}

void SimDisk::crash(Crash kind) {
  power_off();
  if (kind == Crash::kPower) lose_volatile();
  cut_off_handles();
  locked_.clear();
  crash_countdown_ = 0;
  ++generation_;
  powered_ = true;
}

void SimDisk::lose_volatile() {
  const uint64_t kept_eighths = random_.below(9);
  settle_names([&](const std::string&) { return random_.below(8) < kept_eighths; });
  changes_.clear();
  names_ = durable_names_;
  for (const auto& [path, file] : names_) file->lose_volatile(random_);
}

void SimDisk::cut_off_handles() {
  files_.clear();
  const auto renew = [&](const std::shared_ptr<SimFile>& file) {
    if (file == nullptr) return;
    file->renew();
    files_[file->number()] = file;
  };
  for (const auto& [path, file] : names_) renew(file);
  for (const auto& [path, file] : durable_names_) renew(file);
  for (const NameChange& change : changes_) renew(change.file);
}

// Counts an operation; true when the power goes in the middle of it.
bool SimDisk::fatal() {
  ++operations_;
  return crash_countdown_ > 0 && --crash_countdown_ == 0;
}

// The errno that stops an operation before it starts.
int SimDisk::injected(DiskOperation operation, const std::string& path) {
  if (!powered_) return EIO;
  return options_.choose ? options_.choose(operation, path) : 0;
}

// A later change of a name is durable only if the earlier ones are.
void SimDisk::settle_names(FunctionRef<bool(const std::string& path)> durable) {
  std::set<std::string> unsettled;
  std::vector<NameChange> left;
  for (NameChange& change : changes_) {
    if (unsettled.contains(change.path) || !durable(change.path)) {
      unsettled.insert(change.path);
      left.push_back(std::move(change));
    } else if (change.file == nullptr) {
      durable_names_.erase(change.path);
    } else {
      durable_names_[change.path] = std::move(change.file);
    }
  }
  changes_ = std::move(left);
}

void SimDisk::set_name(const std::string& path, std::shared_ptr<SimFile> file) {
  if (file == nullptr) {
    names_.erase(path);
  } else {
    names_[path] = file;
    files_[file->number()] = file;
  }
  changes_.push_back({path, std::move(file)});
}

Result<bool> SimDisk::create_directory(const std::string& path) {
  if (!powered_) return refused("create the directory", path, EIO);
  if (path.empty()) return refused("create the directory", path, ENOENT);
  const std::string whole = normal(path);
  if (names_.contains(whole)) return refused("create the directory", path, ENOTDIR);
  if (directories_.contains(whole)) return false;
  if (const auto parent = create_directory(parent_of(whole)); !parent)
    return refused("create the directory", path, parent.error().system_errno);
  directories_.insert(whole);
  return true;
}

Result<void> SimDisk::remove_directory(const std::string& path) {
  if (!powered_) return refused("remove the directory", path, EIO);
  const std::string whole = normal(path);
  if (!directories_.contains(whole)) return refused("remove the directory", path, ENOENT);
  const auto inside = [&](const std::string& other) { return parent_of(other) == whole; };
  if (std::ranges::any_of(directories_, inside) ||
      std::ranges::any_of(names_, inside, [](const auto& entry) { return entry.first; }))
    return refused("remove the directory", path, ENOTEMPTY);
  // Nothing that is volatile can come back without its directory.
  settle_names([&](const std::string& name) { return inside(name); });
  directories_.erase(whole);
  return {};
}

Result<std::vector<io::DirectoryEntry>> SimDisk::list(const std::string& path) {
  if (const int reason = injected(DiskOperation::kList, path); reason != 0)
    return refused("list", path, reason);
  const std::string whole = normal(path);
  if (!directories_.contains(whole)) return refused("list", path, ENOENT);
  std::vector<io::DirectoryEntry> entries;
  for (const std::string& directory : directories_)
    if (directory != whole && parent_of(directory) == whole)
      entries.push_back({.name = name_of(directory)});
  for (const auto& [name, file] : names_)
    if (parent_of(name) == whole)
      entries.push_back({.name = name_of(name), .regular = true, .size_bytes = file->size_bytes()});
  // Nobody may rely on an order.
  for (size_t left = entries.size(); left > 1; --left)
    std::swap(entries[left - 1], entries[random_.below(left)]);
  return entries;
}

Result<io::File> SimDisk::open(const std::string& path, io::File::Options options) {
  if (!powered_) return refused("open", path, EIO);
  const auto found = names_.find(normal(path));
  if (found == names_.end()) return refused("open", path, ENOENT);
  return found->second->open(options, path);
}

Result<io::File> SimDisk::create(const std::string& path, uint64_t size_bytes, bool direct) {
  if (const int reason = injected(DiskOperation::kCreate, path); reason != 0)
    return refused("create", path, reason);
  const std::string whole = normal(path);
  if (names_.contains(whole) || directories_.contains(whole))
    return refused("create", path, EEXIST);
  if (!directories_.contains(parent_of(whole))) return refused("create", path, ENOENT);
  const bool last = fatal();
  if (!last || random_.coin()) set_name(whole, std::make_shared<SimFile>(size_bytes));
  if (last) power_off();
  if (last) return refused("create", path, EIO);
  return names_[whole]->open({.mode = io::File::Mode::kReadWrite, .direct = direct}, path);
}

Result<void> SimDisk::remove(const std::string& path) {
  if (const int reason = injected(DiskOperation::kRemove, path); reason != 0)
    return refused("remove", path, reason);
  const std::string whole = normal(path);
  if (!names_.contains(whole)) return refused("remove", path, ENOENT);
  const bool last = fatal();
  if (!last || random_.coin()) set_name(whole, nullptr);
  if (!last) return {};
  power_off();
  return refused("remove", path, EIO);
}

Result<void> SimDisk::sync_directory(const std::string& path) {
  if (const int reason = injected(DiskOperation::kSyncDirectory, path); reason != 0)
    return refused("sync the directory", path, reason);
  const std::string whole = normal(path);
  if (!directories_.contains(whole)) return refused("sync the directory", path, ENOENT);
  const bool last = fatal();
  settle_names([&](const std::string& name) {
    return parent_of(name) == whole && (!last || random_.coin());
  });
  if (!last) return {};
  power_off();
  return refused("sync the directory", path, EIO);
}

Result<uint64_t> SimDisk::free_bytes(const std::string& path) {
  if (!powered_) return refused("read the free space of", path, EIO);
  if (!directories_.contains(normal(path))) return refused("read the free space of", path, ENOENT);
  return options_.capacity_bytes - std::min(options_.capacity_bytes, used_bytes());
}

Result<std::unique_ptr<io::FileLock>> SimDisk::lock(const std::string& path) {
  if (!powered_) return refused("lock", path, EIO);
  const std::string whole = normal(path);
  if (directories_.contains(whole)) return refused("open the lock file", path, EISDIR);
  if (!directories_.contains(parent_of(whole))) return refused("open the lock file", path, ENOENT);
  if (const auto found = names_.find(whole);
      found != names_.end() && found->second->size_bytes() != 0)
    return io::not_a_lock(path);
  if (!locked_.insert(whole).second)
    return failure(Code::kBusy, fmt::format("the flash directory {} is in use by another process",
                                            parent_of(whole)));
  if (!names_.contains(whole)) set_name(whole, std::make_shared<SimFile>(0));
  return std::make_unique<Lock>(*this, whole);
}

void SimDisk::unlock(const std::string& path, uint64_t generation) {
  if (generation != generation_ || !powered_) return;
  locked_.erase(path);
  if (names_.contains(path)) set_name(path, nullptr);
}

uint64_t SimDisk::used_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [path, file] : names_) bytes += file->allocated_bytes();
  return bytes;
}

SimDisk::Target SimDisk::target_of(const io::File& file) const {
  struct stat status = {};
  if (fstat(file.descriptor(), &status) != 0) return {};
  const auto found = files_.find(status.st_ino);
  if (found == files_.end()) return {};
  std::shared_ptr<SimFile> tracked = found->second.lock();
  if (tracked == nullptr) return {.tracking = Tracking::kUnlinked};
  return {.tracking = Tracking::kTracked, .file = std::move(tracked)};
}

uint64_t SimDisk::begin(const io::Request& request) {
  if (request.operation != io::Operation::kSync) return 0;
  const Target target = target_of(*request.file);
  if (target.tracking == Tracking::kTracked) target.file->begin_sync(writes_);
  return writes_;
}

int SimDisk::prepare(const io::Transfer& transfer, uint64_t ticket) {
  const Target target = target_of(transfer.file());
  if (!powered_ || target.tracking == Tracking::kCutOff) return EIO;  // as reachable() says
  switch (transfer.operation()) {
    case io::Operation::kRead: return 0;
    case io::Operation::kWrite: return prepare_write(target, transfer);
    case io::Operation::kSync: return prepare_sync(target, ticket);
  }
  return EIO;
}

int SimDisk::prepare_write(const Target& target, const io::Transfer& transfer) {
  const uint64_t bytes = size_bytes_of(transfer.vectors());
  if (target.tracking == Tracking::kTracked &&
      used_bytes() + target.file->missing_bytes(transfer.offset_bytes(), bytes) >
          options_.capacity_bytes)
    return ENOSPC;
  const bool last = fatal();
  ++writes_;
  if (target.tracking == Tracking::kTracked && last)
    target.file->write_part(transfer.offset_bytes(), transfer.vectors(), writes_, random_);
  else if (target.tracking == Tracking::kTracked)
    target.file->before_write(transfer.offset_bytes(), bytes, writes_);
  if (!last) return 0;
  power_off();
  return EIO;
}

int SimDisk::prepare_sync(const Target& target, uint64_t ticket) {
  const bool last = fatal();
  const auto by_chance = [&] { return random_.coin(); };
  if (target.tracking == Tracking::kTracked && last)
    target.file->end_sync(ticket, by_chance);
  else if (target.tracking == Tracking::kTracked)
    target.file->end_sync(ticket, kEverything);
  if (!last) return 0;
  power_off();
  return EIO;
}

void SimDisk::sync_failed(const io::File& file, uint64_t ticket) {
  const Target target = target_of(file);
  if (target.tracking == Tracking::kTracked) target.file->fail_sync(ticket);
}

bool SimDisk::reachable(const io::File& file) const {
  return powered_ && target_of(file).tracking != Tracking::kCutOff;
}

SimFile& SimDisk::at(const std::string& path) const {
  const auto found = names_.find(normal(path));
  HIFC_CHECK(found != names_.end());
  return *found->second;
}

std::vector<std::string> SimDisk::paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, file] : names_) paths.push_back(path);
  return paths;
}

bool SimDisk::exists(const std::string& path) const {
  return names_.contains(normal(path));
}

uint64_t SimDisk::size_bytes(const std::string& path) const {
  return at(path).size_bytes();
}

std::vector<std::byte> SimDisk::read(const std::string& path) const {
  return at(path).read();
}

void SimDisk::write(const std::string& path, std::span<const std::byte> contents) {
  const std::string whole = normal(path);
  if (!names_.contains(whole)) {
    HIFC_CHECK(directories_.contains(parent_of(whole)));
    set_name(whole, std::make_shared<SimFile>(0));
  }
  settle_names([&](const std::string& name) { return name == whole; });
  names_[whole]->replace(contents);
}

void SimDisk::flip_byte(const std::string& path, uint64_t offset) {
  std::vector<std::byte> contents = read(path);
  HIFC_CHECK(offset < contents.size());
  contents[offset] ^= std::byte{0xff};
  write(path, contents);
}

void SimDisk::truncate(const std::string& path, uint64_t size_bytes) {
  std::vector<std::byte> contents = read(path);
  contents.resize(size_bytes);
  write(path, contents);
}

}  // namespace hifc::testing
