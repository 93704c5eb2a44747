// Figures of what was measured several times. Samples are in the order of the rounds.
#pragma once

#include <vector>

namespace hifc::apps {

double median(std::vector<double> values);
// (largest - smallest) / median: how far to trust the median.
double spread(const std::vector<double>& values);

// [round] one / other, of the rounds that both have: the machine's speed drifts between rounds.
std::vector<double> ratios(const std::vector<double>& one, const std::vector<double>& other);
// [round] the smaller of the two; of rounds that one alone has, that one's.
std::vector<double> smaller(const std::vector<double>& one, const std::vector<double>& other);

}  // namespace hifc::apps
