// Draws that are the same on every system, which the distributions of <random> are not.
#pragma once

#include <cstdint>
#include <random>

namespace hifc::testing {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : engine_(seed) {}

  uint64_t below(uint64_t bound) { return engine_() % bound; }
  bool coin() { return below(2) == 0; }
  // The top 53 bits as a fraction. A chance of 0 draws nothing, so that faults added to a plan
  // leave the sequences of the others as they were.
  bool happens(double chance) {
    return chance > 0 && static_cast<double>(engine_() >> 11) * 0x1p-53 < chance;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace hifc::testing
