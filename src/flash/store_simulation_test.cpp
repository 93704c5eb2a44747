// Goal: whatever is done in whatever order on a device that fails, lies, hangs or loses power, the
// store never gives back wrong bytes, never loses what it said was durable, never takes more room
// than it may, and works again when the device does.
// Method: random steps on a simulated disk against a model in memory, thousands of seeds; a failure
// names the seed, and HIFC_SEED=n runs that one alone. HIFC_LONG=1 runs many more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

#include "flash/store_simulation_fixture.h"

namespace hifc::flash {
namespace {

constexpr uint32_t kCrashSteps = 60;

// Sanitizers slow a run down many times.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSlower = 6;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr uint64_t kSlower = 6;
#else
constexpr uint64_t kSlower = 1;
#endif
#else
constexpr uint64_t kSlower = 1;
#endif

uint64_t seeds(uint64_t usual) {
  const char* const longer = std::getenv("HIFC_LONG");
  const bool many = longer != nullptr && std::string_view(longer) == "1";
  return std::max<uint64_t>(1, (many ? 50 * usual : usual) / kSlower);
}

void run(const SimulationOptions& options) {
  SCOPED_TRACE(fmt::format("HIFC_SEED={} crash_after={}", options.seed, options.crash_after));
  Simulation simulation(options);
  simulation.run();
}

// Thousands of stores that warn about what is done to them on purpose.
[[maybe_unused]] const int quiet = setenv("HIFC_LOG", "error", /*overwrite=*/0);

// Crashes alone find other defects than crashes among errors.
SimulationOptions options_of(uint64_t seed, Device device) {
  return {.seed = seed, .device = device, .fault_chance = seed % 3 == 0 ? 0.0 : 0.02};
}

class StoreSimulation : public ::testing::TestWithParam<Device> {};

TEST_P(StoreSimulation, HoldsForManySeeds) {
  if (const char* const seed = std::getenv("HIFC_SEED"))
    return run(options_of(std::strtoull(seed, nullptr, 10), GetParam()));
  for (uint64_t seed = 1; seed <= seeds(1200) && !HasFailure(); ++seed)
    run(options_of(seed, GetParam()));
}

// New seeds every time.
TEST_P(StoreSimulation, HoldsForFreshSeeds) {
  std::random_device source;
  for (uint64_t i = 0; i < seeds(200) && !HasFailure(); ++i) run(options_of(source(), GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Devices, StoreSimulation,
                         ::testing::Values(Device::kHonest, Device::kDishonest, Device::kHanging),
                         [](const auto& parameter) {
                           switch (parameter.param) {
                             case Device::kHonest: return "honest";
                             case Device::kDishonest: return "dishonest";
                             case Device::kHanging: return "hanging";
                           }
                           return "";
                         });

// The power goes in every single write, sync, creation and removal of a run in turn.
TEST(StoreSimulationCrash, LosesNothingDurableAtAnyOperation) {
  const char* const one_seed = std::getenv("HIFC_SEED");
  if (const char* const after = std::getenv("HIFC_CRASH_AFTER"); one_seed && after)
    return run({.seed = std::strtoull(one_seed, nullptr, 10),
                .fault_chance = 0,
                .crash_after = std::strtoull(after, nullptr, 10),
                .steps = kCrashSteps});
  for (uint64_t seed = 1; seed <= seeds(4) && !HasFailure(); ++seed) {
    uint64_t operations = 0;
    {
      Simulation whole({.seed = seed, .fault_chance = 0, .steps = kCrashSteps});
      whole.run();
      operations = whole.disk_operations();
    }
    EXPECT_GT(operations, 20u);
    for (uint64_t crash_after = 1; crash_after <= operations && !HasFailure(); ++crash_after)
      run({.seed = seed, .fault_chance = 0, .crash_after = crash_after, .steps = kCrashSteps});
  }
}

}  // namespace
}  // namespace hifc::flash
