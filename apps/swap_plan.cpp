#include "apps/swap_plan.h"

#include <algorithm>
#include <utility>

namespace hifc::apps {
namespace {

double share(uint64_t hits, uint64_t uses) {
  return uses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(uses);
}

class Planner {
 public:
  Planner(const SwapWorkload& workload, cache::ReplacementPolicy policy, uint64_t memory_bytes,
          const tier::DeviceProfile& device)
      : workload_(workload),
        replacement_({.policy = policy, .capacity_bytes = memory_bytes}),
        reload_s_(workload.options().layers * device.read_seconds(workload.options().block_bytes)) {
  }

  SwapPlan operator()() {
    for (const SwapWorkload::Access& access : workload_.trace()) add(access);
    return std::move(plan_);
  }

 private:
  void add(const SwapWorkload::Access& access) {
    const SwapWorkload::Sequence& sequence = workload_.sequences()[access.sequence];
    const auto phase = static_cast<size_t>(access.phase);
    SwapStep step;
    for (uint32_t i = 0; i < sequence.groups; ++i) {
      const uint32_t group = sequence.first_group + i;
      const auto use =
          replacement_.use({.id = group, .bytes = workload_.group_bytes(), .reload_s = reload_s_});
      for (const auto id : use.evicted) evict(static_cast<uint32_t>(id), step);
      plan_.hits[phase] += use.hit ? 1 : 0;
      if (use.hit) continue;
      step.read.push_back(group);
      step.kept.push_back(use.held);
    }
    plan_.uses[phase] += sequence.groups;
    plan_.groups_read += step.read.size();
    plan_.steps.push_back(std::move(step));
  }

  // A group of a long sequence may go again in the access that reads it.
  static void evict(uint32_t group, SwapStep& step) {
    const auto found = std::ranges::find(step.read, group);
    if (found == step.read.end())
      step.evicted.push_back(group);
    else
      step.kept[static_cast<size_t>(found - step.read.begin())] = false;
  }

  const SwapWorkload& workload_;
  cache::Replacement replacement_;
  const double reload_s_;
  SwapPlan plan_;
};

}  // namespace

double SwapPlan::hit_rate() const {
  return share(hits[0] + hits[1], uses[0] + uses[1]);
}
double SwapPlan::hit_rate(SwapPhase phase) const {
  return share(hits[static_cast<size_t>(phase)], uses[static_cast<size_t>(phase)]);
}

SwapPlan make_plan(const SwapWorkload& workload, cache::ReplacementPolicy policy,
                   uint64_t memory_bytes, const tier::DeviceProfile& device) {
  return Planner(workload, policy, memory_bytes, device)();
}

}  // namespace hifc::apps
