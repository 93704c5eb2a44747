// A whole store on a simulated disk and clock, driven by random steps and checked against a model
// in memory. Everything follows from the seed.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "flash/store.h"
#include "flash/store_fixture.h"
#include "testing/sim_clock.h"
#include "testing/sim_disk.h"
#include "testing/sim_ring.h"

namespace hifc::flash {

// What the device does wrong.
enum class Device : uint8_t {
  kHonest,     // fails, but says so: EIO, ENOSPC, short reads, failed syncs
  kDishonest,  // also flips bits, loses, tears and misdirects writes without a word
  kHanging,    // also does not answer at times
};

struct SimulationOptions {
  uint64_t seed = 1;
  Device device = Device::kHonest;
  double fault_chance = 0.02;  // of each kind, per request
  uint64_t crash_after = 0;    // operations of the disk until the first crash; 0: at random
  uint32_t steps = 120;
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  // Checks as it goes; GoogleTest collects what is wrong.
  void run();

  uint64_t disk_operations() const { return disk_.operations(); }
  uint64_t reads_verified() const { return reads_verified_; }

 private:
  // One thing that happened to a key, in the order of calls.
  struct Event {
    uint64_t serial = 0;
    uint64_t version = 0;  // its serial, 0: removed
    bool completed = false;
    bool failed = false;
    bool durable = false;
    bool doubtful = false;  // was not made durable by a flush that failed
  };
  using History = std::deque<Event>;
  using Possible = std::map<uint64_t, std::set<uint64_t>>;  // id -> versions; 0: none

  uint64_t draw(uint64_t bound) { return random_() % bound; }
  bool chance(double share) { return static_cast<double>(random_() >> 11) * 0x1p-53 < share; }
  bool syncs_fail() const { return options_.fault_chance > 0 && options_.seed % 2 == 0; }
  testing::FaultPlan plan(double fault_chance);

  Result<std::unique_ptr<Store>> try_open();
  void open();
  void give_up();
  void step();
  void put();
  ValueShape draw_shape();
  void remove();
  void read(uint64_t id);
  void flush();
  void restart();
  void crash();
  void damage();
  void change_capacity();
  void draw_sizes();
  void finish();
  void wait_all();

  void check_bytes();
  void check_after_opening();
  void check_value(uint64_t id, const Handle& handle);
  bool was_put_as(const Handle& handle, uint64_t id, uint64_t version) const;
  static std::string describe(const History& history);
  void settle(uint64_t id, const Event& found);
  const Event* latest(uint64_t id) const;
  std::set<uint64_t> possible_after_crash(uint64_t id, bool findable) const;

  const SimulationOptions options_;
  std::mt19937_64 random_;
  testing::SimDisk disk_;
  testing::SimClock clock_;
  std::unique_ptr<testing::SimRing> ring_;
  std::unique_ptr<Store> store_;
  uint64_t capacity_bytes_ = 0;
  uint64_t segment_bytes_ = 0;

  std::map<uint64_t, History> histories_;
  std::map<uint64_t, std::set<uint64_t>> ever_put_;  // id -> versions
  std::map<uint64_t, ValueShape> shapes_;            // version -> of its values
  Possible possible_;                                // after the next opening
  std::set<uint64_t> undead_;  // versions of puts that failed or that a crash broke off
  uint64_t last_version_ = 0;
  uint64_t reads_verified_ = 0;
  bool damaged_ = false;  // a test's hand has been in the files
};

}  // namespace hifc::flash
