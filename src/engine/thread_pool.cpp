#include "engine/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace hifc::engine {

struct ThreadPool::Graph {
  ggml_context* context = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_cplan plan = {};
  std::vector<uint8_t> work;

  FunctionRef<void(uint32_t, uint32_t)>* task = nullptr;
  uint32_t count = 0;
  std::atomic<uint32_t> next{0};

  static void work_on(ggml_tensor*, const ggml_tensor*, int thread, int, void* self) {
    auto& graph = *static_cast<Graph*>(self);
    for (uint32_t index;
         (index = graph.next.fetch_add(1, std::memory_order_relaxed)) < graph.count;)
      (*graph.task)(index, static_cast<uint32_t>(thread));
  }
  ~Graph() {
    if (context != nullptr) ggml_free(context);
  }
};

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(uint32_t threads) {
  if (threads > GGML_MAX_N_THREADS)
    return failure(Code::kInvalid,
                   fmt::format("threads {} is more than {}", threads, GGML_MAX_N_THREADS));
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  if (threads > cores)
    log_warn(
        "{} threads on {} cores: llama's threads wait for each other busily, so this is many "
        "times slower than --threads {}",
        threads, cores, cores);
  const int count = static_cast<int>(threads);
  std::unique_ptr<ThreadPool> pool(new ThreadPool());
  pool->threads_ = threads;
  auto params = ggml_threadpool_params_default(count);
  pool->pool_ = ggml_threadpool_new(&params);
  if (pool->pool_ == nullptr)
    return failure(Code::kInternal, fmt::format("{} threads cannot be started", threads));
  pool->graph_ = std::make_unique<Graph>();
  Graph& graph = *pool->graph_;
  graph.context = ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = false});
  HIFC_CHECK(graph.context != nullptr);
  ggml_tensor* input = ggml_new_tensor_1d(graph.context, GGML_TYPE_F32, 1);
  ggml_tensor* node = ggml_map_custom1(graph.context, input, &Graph::work_on, count, &graph);
  graph.graph = ggml_new_graph(graph.context);
  ggml_build_forward_expand(graph.graph, node);
  graph.plan = ggml_graph_plan(graph.graph, count, pool->pool_);
  graph.work.resize(graph.plan.work_size);
  graph.plan.work_data = graph.work.data();
  return pool;
}

ThreadPool::~ThreadPool() {
  if (pool_ != nullptr) ggml_threadpool_free(pool_);
}

void ThreadPool::run(uint32_t count, FunctionRef<void(uint32_t, uint32_t)> task) {
  if (count == 0) return;
  if (count == 1 || threads_ == 1) {
    for (uint32_t index = 0; index < count; ++index) task(index, 0);
    return;
  }
  graph_->task = &task;
  graph_->count = count;
  graph_->next.store(0, std::memory_order_relaxed);
  HIFC_CHECK(ggml_graph_compute(graph_->graph, &graph_->plan) == GGML_STATUS_SUCCESS);
}

}  // namespace hifc::engine
