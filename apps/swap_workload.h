// The conversations that `hifc bench swap` swaps, and the order in which they are wanted. The same
// options give the same workload, whatever the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hifc::apps {

struct SwapWorkloadOptions {
  uint32_t sequences = 24;  // conversations
  uint32_t groups = 8;      // of each, on average: from half of it to one and a half
  uint32_t layers = 30;     // blocks of a group
  uint64_t block_bytes = 192u << 10;
  uint32_t accesses = 96;    // by popularity
  uint32_t passes = 3;       // then all conversations in turn, so many times
  double zipf_exponent = 1;  // the n-th most popular is wanted 1 / n^exponent as often
  uint64_t seed = 1;
};

enum class SwapPhase : uint8_t { kPopular, kCyclic };

class SwapWorkload {
 public:
  struct Sequence {
    uint32_t first_group = 0;  // among the groups of all sequences
    uint32_t groups = 0;
  };
  // A conversation is wanted: all of its groups, in order.
  struct Access {
    SwapPhase phase = SwapPhase::kPopular;
    uint32_t sequence = 0;
  };

  explicit SwapWorkload(const SwapWorkloadOptions& options);

  const SwapWorkloadOptions& options() const { return options_; }
  std::span<const Sequence> sequences() const { return sequences_; }
  std::span<const Access> trace() const { return trace_; }
  uint32_t groups() const { return groups_; }
  uint64_t group_bytes() const { return options_.layers * options_.block_bytes; }
  uint64_t bytes() const { return groups_ * group_bytes(); }
  uint64_t sequence_bytes_max() const;

  // The contents of a block, which nothing can compress and no other block has.
  void fill_block(uint32_t group, uint32_t layer, std::span<std::byte> memory) const;

 private:
  void make_sequences();
  void make_trace();

  SwapWorkloadOptions options_;
  uint32_t groups_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<Access> trace_;
};

}  // namespace hifc::apps
