// How attention over the tiers may be approximated; the names users give to each choice.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace hifc {

enum class AttentionMode : uint8_t {
  kExact,   // every token
  kSparse,  // in steps of one token, the pages that hold most of each query's attention
};
inline constexpr auto kAttentionModeNames = std::to_array<std::string_view>({"exact", "sparse"});

// What the pages that the next step needs are told from, in each layer and KV head.
enum class PredictorKind : uint8_t {
  kDecayedMean,  // pages with most of the exponentially decayed mean of their shares of attention
  kDecayedMax,   // of the decayed maximum
  kMean,         // of the mean of the last 16 steps
  kHotSpan,      // one span: from the first to the last of these, widened by 10 % of its length at
                 // the start and 15 % at the end
};
inline constexpr auto kPredictorNames =
    std::to_array<std::string_view>({"decayed_mean", "decayed_max", "mean", "hot_span"});

// What becomes of pages that attention wants and that are not in memory yet.
enum class OnMiss : uint8_t {
  kFetch,  // it waits for them
  kSkip,   // it goes without them after a deadline
};
inline constexpr auto kOnMissNames = std::to_array<std::string_view>({"fetch", "skip"});

}  // namespace hifc
