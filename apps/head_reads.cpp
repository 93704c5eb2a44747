#include "apps/head_reads.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "cache/prefetcher.h"
#include "cache/read_plan.h"

namespace hifc::apps {
namespace {

size_t common(const cache::PageList& one, const cache::PageList& other) {
  cache::PageList both;
  std::ranges::set_intersection(one, other, std::back_inserter(both));
  return both.size();
}

}  // namespace

ReadSum HeadReads::sum(const HeadPages& needed, std::span<const uint32_t> order, Part part) const {
  uint32_t pages = 0;
  for (const cache::PageList& head : needed)
    if (!head.empty()) pages = std::max(pages, head.back() + 1);
  std::vector<cache::HeadSet> readers(pages);
  for (uint32_t place = 0; place < order.size(); ++place)
    for (const uint32_t page : needed[order[place]]) readers[page] |= cache::head_bit(place);
  std::vector<cache::WantedBlock> blocks;
  for (uint32_t page = 0; page < pages; ++page) {
    const bool whole = readers[page] != 0 && part == Part::kWhole;
    blocks.push_back(
        {.group = page,
         .bytes = layout_.block_bytes(),
         .extents = cache::extents_of(whole ? cache::kAllHeads : readers[page], layout_,
                                      layout_.block_bytes(), /*chunk_bytes=*/4096)});
  }
  ReadSum sum;
  for (const cache::ReadRun& run : cache::plan_reads(
           blocks, {.gap_bytes_max = static_cast<uint64_t>(device_.break_even_bytes()),
                    .run_bytes_max = cache::PrefetchOptions{}.run_bytes_max})) {
    ++sum.reads;
    for (const cache::BlockPart& read : run) sum.bytes += read.extent.size();
  }
  return sum;
}

ReadSum HeadReads::whole(const HeadPages& needed) const {
  return sum(needed, natural_order(static_cast<uint32_t>(needed.size())), Part::kWhole);
}

ReadSum HeadReads::by_head(const HeadPages& needed, std::span<const uint32_t> order) const {
  return sum(needed, order, Part::kHeads);
}

std::vector<uint32_t> natural_order(uint32_t heads) {
  std::vector<uint32_t> order(heads);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

std::vector<uint32_t> order_by_likeness(std::span<const HeadPages> steps) {
  if (steps.empty() || steps.front().empty()) return {};
  std::vector<uint32_t> rest = natural_order(static_cast<uint32_t>(steps.front().size()));
  const auto pages = [&](uint32_t head) {
    size_t count = 0;
    for (const HeadPages& step : steps) count += step[head].size();
    return count;
  };
  const auto likeness = [&](uint32_t one, uint32_t other) {
    size_t shared = 0;
    for (const HeadPages& step : steps) shared += common(step[one], step[other]);
    const size_t either = pages(one) + pages(other) - shared;
    return either == 0 ? 1.0 : static_cast<double>(shared) / static_cast<double>(either);
  };
  std::vector<uint32_t> order;
  auto next = std::ranges::max_element(rest, {}, pages);
  while (true) {
    order.push_back(*next);
    rest.erase(next);
    if (rest.empty()) return order;
    next = std::ranges::max_element(rest, {},
                                    [&](uint32_t head) { return likeness(order.back(), head); });
  }
}

}  // namespace hifc::apps
