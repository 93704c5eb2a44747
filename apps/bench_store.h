// A flash store under load: the contender that `hifc bench flash` holds against fio. One thread
// drives it, as one thread drives an engine.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "flash/store.h"
#include "io/memory.h"
#include "io/ring.h"

namespace hifc::apps {

// The `number`-th of a sequence of keys that look like content keys: no two alike, all bits random.
flash::Key bench_key(uint64_t number);

// Fills `memory` with bytes that nothing can compress.
void fill_random(std::span<std::byte> memory);

class BenchStore {
 public:
  struct Options {
    std::string directory = {};   // created; removed with the store
    uint64_t capacity_bytes = 0;  // also what is transferred again and again
    uint32_t depth = 0;           // of the ring
    uint32_t lanes = 0;           // a batch is one value of so many lanes
    uint64_t lane_bytes = 0;
    uint32_t chunk_bytes = 0;
  };
  struct Speed {
    double gbps = 0;           // 10^9 bytes of lanes a second
    double core_s_per_gb = 0;  // processor time of this process, user and system
  };

  static Result<std::unique_ptr<BenchStore>> create(Options options);

  // Puts values until every segment file has been overwritten: the state in which a cache lives.
  Result<void> fill();
  Result<Speed> write(double seconds);
  // Puts `bytes`, of which every fourth value is found twice: bytes of write requests / bytes put.
  Result<double> write_amplification(uint64_t bytes);

  // The segment files, all of them written.
  std::vector<std::string> files() const;
  // Takes handles of what is stored; nothing can be put any more.
  Result<void> pin();
  // Whole lanes, verified, in the order of the device.
  Result<Speed> read(double seconds);
  // Single chunks, verified, anywhere.
  Result<Speed> read_chunks(double seconds);

  const flash::StoreStatistics& statistics() const { return store_->statistics(); }

 private:
  struct Target {
    const flash::Handle* handle = nullptr;
    flash::Range range;
  };
  struct Arrived {
    Target target;
    size_t buffer = 0;
  };
  using Goes = std::function<bool()>;    // whether to start another transfer
  using Next = std::function<Target()>;  // what to read
  using Stored = std::function<void(uint64_t number)>;

  explicit BenchStore(Options options) : options_(std::move(options)) {}
  Result<void> allocate();
  uint64_t value_bytes() const { return options_.lanes * options_.lane_bytes; }
  std::byte* buffer(size_t index) const { return memory_.data() + index * options_.lane_bytes; }
  Goes until(double seconds) const;

  Result<void> put(const Goes& goes, const Stored& stored = {});
  Result<void> put_one(const Stored& stored);
  Result<void> find(uint64_t number, std::function<void(flash::Handle)> found);

  Result<Speed> read(double seconds, const Next& next);
  void start_reads(const Goes& goes, const Next& next);
  Result<void> start_read(const Goes& goes, const Next& next);
  void verify_one();
  void keep(Result<void> result);  // the first error

  const Options options_;
  SystemClock clock_;
  std::mt19937_64 random_{1};
  io::AlignedMemory memory_;  // of lanes; outlives the ring, which knows it
  std::unique_ptr<io::Ring> ring_;
  std::unique_ptr<flash::Store> store_;
  uint64_t put_ = 0;  // values so far, and the number of the next one
  std::vector<size_t> free_buffers_;
  std::deque<Arrived> arrived_;  // not yet verified
  uint32_t in_flight_ = 0;
  uint64_t bytes_ = 0;  // read and verified
  Result<void> outcome_;
  std::vector<flash::Handle> handles_;  // in the order of the device; go before the store
};

}  // namespace hifc::apps
