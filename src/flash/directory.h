// The store's directory: ownership and the names of its files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/file_system.h"

namespace hifc::flash {

// Owns the directory through `hifc.lock`; segment files are `hifc-NNNNNNNN.seg`.
class Directory {
 public:
  static constexpr uint32_t kSegmentIdMax = 99'999'999;  // eight digits

  struct SegmentFile {
    uint32_t id = 0;
    uint64_t size_bytes = 0;
  };
  struct Listing {
    std::vector<SegmentFile> segments;  // files with a segment's name, by id
    std::vector<std::string> foreign;   // names of everything else
  };
  enum class Missing : uint8_t { kCreate, kRefuse };

  // Takes the lock; creates the directory where it is missing, or refuses with kNotFound.
  static Result<std::unique_ptr<Directory>> open(const std::string& path, io::FileSystem& files,
                                                 Missing missing);
  // Gives up the lock, and removes the directory if open() created it and nothing is in it.
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  const std::string& path() const { return path_; }
  Result<Listing> list() const;

  // A segment file of zeros, durably in the directory; nothing stays on failure.
  Result<io::File> create_segment(uint32_t id, uint64_t size_bytes, bool direct);
  Result<io::File> open_segment(uint32_t id, io::File::Options options);
  Result<void> remove_segment(uint32_t id);
  Result<void> sync() { return files_.sync_directory(path_); }
  std::string segment_path(uint32_t id) const;
  static std::string segment_name(uint32_t id);

  // Of all segment files at `path`, whoever owns it; 0 where nothing can be listed.
  static uint64_t segments_bytes(const std::string& path, io::FileSystem& files);

  Result<uint64_t> free_bytes() const { return files_.free_bytes(path_); }

 private:
  Directory(std::string path, io::FileSystem& files) : path_(std::move(path)), files_(files) {}

  std::string path_;
  io::FileSystem& files_;
  bool created_ = false;
  std::unique_ptr<io::FileLock> lock_;
};

}  // namespace hifc::flash
