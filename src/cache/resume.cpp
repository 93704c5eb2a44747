#include "cache/resume.h"

#include <algorithm>
#include <memory>

#include "base/check.h"

namespace hifc::cache {
namespace {

// Metadata reads that keep a drive busy without filling the store's queue.
constexpr uint32_t kPinsInFlight = 32;

std::unexpected<Error> over(const Patience& patience) {
  if (patience.left_ns() > 0) return failure(Code::kCancelled, "interrupted");
  return failure(Code::kTimeout, "the flash device was too slow");
}

// Outlives the finder where a pin comes too late.
struct Pins {
  std::vector<flash::Handle> handles;  // [key]
  uint32_t in_flight = 0;
};

class Finder {
 public:
  Finder(tier::Tiers& tiers, const GroupFormat& format, const Patience& patience)
      : tiers_(tiers), format_(format), patience_(patience) {}

  StoredPrefix find(std::span<const int32_t> tokens) {
    StoredPrefix prefix;
    chain(tokens, prefix);
    pin_groups(prefix);
    const auto rest = tokens.subspan(size_t{prefix.groups()} * format_.block_tokens());
    if (rest.empty())
      reopen_last(prefix);
    else if (!patience_.over())
      find_tail(rest, prefix);
    return prefix;
  }

 private:
  void chain(std::span<const int32_t> tokens, StoredPrefix& prefix) const {
    const uint32_t block = format_.block_tokens();
    flash::Key key = kv::root_key(format_.base.model_fingerprint, block);
    for (size_t at = 0; at + block <= tokens.size(); at += block) {
      key = kv::next_key(key, tokens.subspan(at, block));
      if (!tiers_.store().contains(key)) return;
      prefix.keys.push_back(key);
    }
  }

  // Many at a time; those before the first that fails count.
  void pin_groups(StoredPrefix& prefix) {
    const auto pins = std::make_shared<Pins>();
    pins->handles.resize(prefix.keys.size());
    for (size_t i = 0; i < prefix.keys.size() && !patience_.over(); ++i) {
      while (pins->in_flight >= kPinsInFlight && wait()) continue;
      if (!pin(prefix.keys[i], pins, i)) break;
    }
    while (pins->in_flight > 0 && wait()) continue;
    auto end = pins->handles.begin();
    while (end != pins->handles.end() &&
           format_.fits_sealed(*end, static_cast<uint32_t>(end - pins->handles.begin())))
      ++end;
    prefix.handles.assign(pins->handles.begin(), end);
    prefix.keys.resize(prefix.handles.size());
  }

  bool pin(const flash::Key& key, const std::shared_ptr<Pins>& pins, size_t index) {
    const auto attempt = [&] {
      ++pins->in_flight;
      auto accepted = tiers_.store().pin(key, [pins, index](flash::Handle handle) {
        --pins->in_flight;
        pins->handles[index] = std::move(handle);
      });
      if (!accepted) --pins->in_flight;
      return accepted;
    };
    auto accepted = attempt();
    while (!accepted && accepted.error().code == Code::kBusy && wait()) accepted = attempt();
    return accepted.has_value();
  }

  // False when there is nothing to wait for, or no patience for it.
  bool wait() {
    while (!patience_.over() && tiers_.ring()->in_flight() > 0)
      if (tiers_.wait_for(patience_.left_ns()) > 0) return true;
    return false;
  }

  // Tails of any length may be there.
  void find_tail(std::span<const int32_t> rest, StoredPrefix& prefix) {
    const flash::Key previous =
        prefix.keys.empty() ? kv::root_key(format_.base.model_fingerprint, format_.block_tokens())
                            : prefix.keys.back();
    const size_t longest = std::min<size_t>(rest.size(), format_.block_tokens() - 1);
    for (size_t count = longest; count > 0 && !patience_.over(); --count) {
      const auto valid = static_cast<uint32_t>(std::min(count, rest.size() - 1));
      const flash::Key key = kv::tail_key(previous, rest.first(count));
      if (valid == 0 || !tiers_.store().contains(key)) continue;
      const auto pins = std::make_shared<Pins>();
      pins->handles.resize(1);
      if (pin(key, pins, 0))
        while (pins->in_flight > 0 && wait()) continue;
      if (!format_.fits_exact(pins->handles.front())) continue;
      prefix.tail = {.handle = std::move(pins->handles.front()),
                     .stored_tokens = static_cast<uint32_t>(count),
                     .valid_tokens = valid};
      return;
    }
  }

  void reopen_last(StoredPrefix& prefix) const {
    if (prefix.handles.empty()) return;
    prefix.tail = {.handle = std::move(prefix.handles.back()),
                   .stored_tokens = format_.block_tokens(),
                   .valid_tokens = format_.block_tokens() - 1};
    prefix.handles.pop_back();
    prefix.keys.pop_back();
  }

  tier::Tiers& tiers_;
  const GroupFormat& format_;
  const Patience& patience_;
};

struct Reads {
  uint32_t in_flight = 0;
  Result<void> outcome;  // the first error
};

}  // namespace

StoredPrefix find_stored_prefix(tier::Tiers& tiers, const GroupFormat& format,
                                std::span<const int32_t> tokens, const Patience& patience) {
  if (!tiers.has_cold()) return {};
  return Finder(tiers, format, patience).find(tokens);
}

Result<LoadedGroup> LoadedGroup::load(tier::Tiers& tiers, const flash::Handle& handle,
                                      HeaderOf header_of, PartOf part_of, SpanOf span_of,
                                      uint32_t reads_in_flight, Parallel& parallel,
                                      const Patience& patience) {
  LoadedGroup group(tiers);
  HIFC_TRY(group.acquire(handle, part_of));
  const uint64_t start_ns = patience.clock->now_ns();
  auto outcome = group.read(handle, span_of, reads_in_flight, patience);
  group.read_ns_ = patience.clock->now_ns() - start_ns;
  if (!outcome && outcome.error().code == Code::kIo) tiers.store().quarantine(handle);
  HIFC_TRY(outcome);
  HIFC_TRY(group.verify(handle, header_of, parallel));
  return group;
}

LoadedGroup::~LoadedGroup() {
  for (const Block& block : blocks_) {
    if (block.frame != tier::kNoFrame) tiers_.release(block.frame);
    if (block.exact != tier::kNoFrame) tiers_.release(block.exact);
  }
}

Result<void> LoadedGroup::acquire(const flash::Handle& handle, PartOf part_of) {
  while (blocks_.size() < handle.lanes()) {
    const auto layer = static_cast<uint32_t>(blocks_.size());
    const auto frame = tiers_.acquire(tier::Tier::kWarm, handle.lane_bytes(layer), part_of(layer));
    if (!frame) return failure(Code::kFull, "no memory for a group that is stored");
    blocks_.push_back({.state = Block::State::kResident, .frame = *frame});
  }
  return {};
}

Result<void> LoadedGroup::read(const flash::Handle& handle, SpanOf span_of,
                               uint32_t reads_in_flight, const Patience& patience) {
  const auto reads = std::make_shared<Reads>();
  uint32_t next = 0;
  const auto issue = [&]() -> Result<void> {
    for (; next < blocks_.size() && reads->in_flight < reads_in_flight; ++next) {
      const tier::Tiers::FrameRead lane{.handle = &handle, .frame = blocks_[next].frame};
      ++reads->in_flight;
      const TraceAsync span = span_of(next);
      auto accepted = tiers_.load(next, {&lane, 1}, [reads, span](Result<void> outcome) {
        span.end(outcome ? TraceEnd::kDone : TraceEnd::kFailed);
        --reads->in_flight;
        if (!outcome && reads->outcome) reads->outcome = std::move(outcome);
      });
      if (accepted) continue;
      span.cancel();
      --reads->in_flight;
      if (accepted.error().code != Code::kBusy) return accepted;
      return {};
    }
    return {};
  };
  while (reads->outcome && (next < blocks_.size() || reads->in_flight > 0)) {
    HIFC_TRY(issue());
    if (tiers_.wait_for(patience.left_ns()) > 0) continue;
    if (patience.over()) return over(patience);
    if (reads->in_flight == 0) return failure(Code::kBusy, "the flash device takes no reads");
  }
  return reads->outcome;
}

Result<void> LoadedGroup::verify(const flash::Handle& handle, HeaderOf header_of,
                                 Parallel& parallel) {
  std::vector<uint8_t> good(blocks_.size());
  parallel.run(static_cast<uint32_t>(blocks_.size()), [&](uint32_t layer, uint32_t) {
    const auto bytes = tiers_.span(blocks_[layer].frame);
    good[layer] = tiers_.store().verify(handle, layer, bytes) &&
                  kv::check_header(header_of(layer), bytes).has_value();
  });
  if (std::ranges::all_of(good, [](uint8_t each) { return each != 0; })) return {};
  tiers_.store().quarantine(handle);
  return failure(Code::kCorrupt, "stored KV is damaged");
}

}  // namespace hifc::cache
