#include "apps/swap_workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"

namespace hifc::apps {
namespace {

// The library's distributions differ between machines; the generator does not.
uint64_t below(std::mt19937_64& random, uint64_t end) {
  return random() % end;
}
double unit(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

// Which of `count` sequences is the most popular one, the second, and so on.
std::vector<uint32_t> popularity(std::mt19937_64& random, uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[below(random, i)]);
  return order;
}

}  // namespace

SwapWorkload::SwapWorkload(const SwapWorkloadOptions& options) : options_(options) {
  HIFC_CHECK(options.sequences > 0 && options.groups > 0 && options.layers > 0);
  HIFC_CHECK(options.block_bytes > 0 && options.block_bytes % sizeof(uint64_t) == 0);
  make_sequences();
  make_trace();
}

// Lengths from half the mean to one and a half of it, evenly.
void SwapWorkload::make_sequences() {
  for (uint32_t i = 0; i < options_.sequences; ++i) {
    const uint32_t least = std::max(1u, options_.groups / 2);
    const uint32_t span = 2 * (options_.groups - least) + 1;
    const uint32_t groups = least + (i * span + span / 2) / options_.sequences % span;
    sequences_.push_back({.first_group = groups_, .groups = groups});
    groups_ += groups;
  }
}

void SwapWorkload::make_trace() {
  std::mt19937_64 random(options_.seed);
  const std::vector<uint32_t> order = popularity(random, options_.sequences);
  std::vector<double> cumulative;
  double sum = 0;
  for (uint32_t rank = 0; rank < options_.sequences; ++rank)
    cumulative.push_back(sum += std::pow(rank + 1, -options_.zipf_exponent));
  for (uint32_t i = 0; i < options_.accesses; ++i) {
    const auto at = std::ranges::upper_bound(cumulative, unit(random) * sum) - cumulative.begin();
    const auto rank = std::min<size_t>(static_cast<size_t>(at), order.size() - 1);
    trace_.push_back({.phase = SwapPhase::kPopular, .sequence = order[rank]});
  }
  for (uint32_t pass = 0; pass < options_.passes; ++pass)
    for (uint32_t sequence = 0; sequence < options_.sequences; ++sequence)
      trace_.push_back({.phase = SwapPhase::kCyclic, .sequence = sequence});
}

uint64_t SwapWorkload::sequence_bytes_max() const {
  return group_bytes() * std::ranges::max(sequences_, {}, &Sequence::groups).groups;
}

void SwapWorkload::fill_block(uint32_t group, uint32_t layer, std::span<std::byte> memory) const {
  std::mt19937_64 random(options_.seed + uint64_t{group} * options_.layers + layer);
  for (size_t at = 0; at + sizeof(uint64_t) <= memory.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

}  // namespace hifc::apps
