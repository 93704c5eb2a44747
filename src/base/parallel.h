// The one way lower layers run work on several cores. The engine implements it on llama's own
// thread pool, so that HiFC and llama never compete for cores; tests use SerialParallel.
#pragma once

#include <cstdint>

#include "base/function_ref.h"

namespace hifc {

class Parallel {
 public:
  virtual ~Parallel() = default;

  // Threads that run() may use, the caller's included; at least 1.
  virtual uint32_t threads() const = 0;

  // Calls task(index, thread) once for each index in [0, count), thread in [0, threads()), and
  // returns when all calls have returned. Indices are started in ascending order. Not reentrant;
  // one caller at a time.
  virtual void run(uint32_t count, FunctionRef<void(uint32_t index, uint32_t thread)> task) = 0;
};

class SerialParallel final : public Parallel {
 public:
  uint32_t threads() const override { return 1; }
  void run(uint32_t count, FunctionRef<void(uint32_t, uint32_t)> task) override {
    for (uint32_t index = 0; index < count; ++index) task(index, 0);
  }
};

}  // namespace hifc
