#include "apps/samples.h"

#include <algorithm>

namespace hifc::apps {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double spread(const std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto [smallest, largest] = std::ranges::minmax(values);
  return (largest - smallest) / median(values);
}

std::vector<double> ratios(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> all;
  for (size_t round = 0; round < std::min(one.size(), other.size()); ++round)
    all.push_back(one[round] / other[round]);
  return all;
}

std::vector<double> smaller(const std::vector<double>& one, const std::vector<double>& other) {
  std::vector<double> all = one.size() > other.size() ? one : other;
  for (size_t round = 0; round < std::min(one.size(), other.size()); ++round)
    all[round] = std::min(one[round], other[round]);
  return all;
}

}  // namespace hifc::apps
