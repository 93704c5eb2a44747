// Parallel on llama's own thread pool: HiFC's attention runs as a one-node ggml graph on the
// threads that compute llama's graphs, so the two never compete for cores.
#pragma once

#include <atomic>
#include <memory>

#include "base/parallel.h"
#include "base/result.h"

struct ggml_threadpool;

namespace hifc::engine {

class ThreadPool final : public Parallel {
 public:
  static Result<std::unique_ptr<ThreadPool>> create(uint32_t threads);  // 0: all cores
  ~ThreadPool() override;

  uint32_t threads() const override { return threads_; }
  void run(uint32_t count, FunctionRef<void(uint32_t, uint32_t)> task) override;

  ggml_threadpool* handle() const { return pool_; }

 private:
  struct Graph;
  ThreadPool() = default;

  uint32_t threads_ = 1;
  ggml_threadpool* pool_ = nullptr;
  std::unique_ptr<Graph> graph_;
};

}  // namespace hifc::engine
