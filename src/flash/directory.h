// The store's directory: ownership, names of its files, room on the file system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "io/ring.h"

namespace hifc::flash {

// Owns the directory through an flock on `hifc.lock`; segment files are `hifc-NNNNNNNN.seg`.
class Directory {
 public:
  // Creates the directory where missing (parents too), takes the lock, refuses segments of a newer
  // layout version, then removes segments left by an earlier process. Errors as Store::open().
  static Result<std::unique_ptr<Directory>> open(const std::string& path);
  // Removes the lock file, and the directory if open() created it and nothing else is in it.
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }

  // An empty segment file of this size, its blocks not allocated yet. Nothing stays on failure.
  Result<io::File> create_segment(uint32_t id, uint64_t size_bytes, bool direct);
  void remove_segment(uint32_t id);
  // Somebody else's file has the name of this segment.
  bool occupied(uint32_t id) const;

  Result<uint64_t> free_bytes() const;  // on the file system, for this user

 private:
  explicit Directory(std::string path) : path_(std::move(path)) {}
  Result<void> create();
  Result<void> lock();
  Result<bool> try_lock();
  Result<void> refuse_newer_segments() const;
  Result<void> remove_leftovers();
  std::string segment_path(uint32_t id) const;
  std::string lock_path() const;

  std::string path_;
  bool created_ = false;
  int lock_descriptor_ = -1;
};

}  // namespace hifc::flash
