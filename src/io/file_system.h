// The metadata operations of a file system behind one interface, so that a simulation can replace
// it and lose what was not synced. Bulk data goes through io/ring.h.
//
// Thread-compatible. Errors are kIo with the path and errno, kNotFound where something had to be
// there, kFull for ENOSPC and EDQUOT.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/ring.h"

namespace hifc::io {

struct DirectoryEntry {
  std::string name;
  bool regular = false;     // a regular file; links are not followed
  uint64_t size_bytes = 0;  // of a regular file
};

// Ownership of a lock file; given up on destruction.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the directory (mode 0700) and its missing parents, durably. True if it did, false if it
  // was there.
  virtual Result<bool> create_directory(const std::string& path) = 0;
  virtual Result<void> remove_directory(const std::string& path) = 0;             // must be empty
  virtual Result<std::vector<DirectoryEntry>> list(const std::string& path) = 0;  // any order

  // An existing file.
  virtual Result<File> open(const std::string& path, File::Options options) = 0;
  // A new file of `size_bytes` zeros, mode 0600, its blocks not allocated yet; kIo with EEXIST when
  // the name is taken. Nothing stays on failure.
  virtual Result<File> create(const std::string& path, uint64_t size_bytes, bool direct) = 0;
  virtual Result<void> remove(const std::string& path) = 0;
  // Files created in and removed from the directory stay so after a power failure.
  virtual Result<void> sync_directory(const std::string& path) = 0;

  virtual Result<uint64_t> free_bytes(const std::string& path) = 0;  // for this user
  // Creates the file where missing (mode 0600, empty) and owns it exclusively; kBusy when another
  // owner lives, kInvalid when it has content, since then it is no lock file. The file is removed
  // when the lock is given up; an owner that was killed leaves it and nothing else.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

// What lock() says of a file with content.
std::unexpected<Error> not_a_lock(const std::string& path);

FileSystem& system_files();

}  // namespace hifc::io
