#include "engine/resume.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace hifc::engine {
namespace {

// No drive is faster: where this one would be too slow, nothing has to be measured.
constexpr double kFastestRead = 16e9;
// Short prompts must not be given up because of one slow read among fast ones.
constexpr uint64_t kPatienceMinNs = 50'000'000;
// Where the speed of computing is not known: faster than most models on most processors.
constexpr double kComputeUnknown = 1000;
constexpr uint64_t kPatienceUnknownMinNs = 2'000'000'000;
// Speeds vary with the prompt's length and with what else the machine does.
constexpr double kSpeedChange = 1.5;

struct Record {
  std::array<char, 8> magic = {'H', 'I', 'F', 'C', 'S', 'P', 'D', '\0'};
  uint32_t version = 1;
  uint32_t reserved = 0;
  double tokens_per_s = 0;
};
static_assert(sizeof(Record) == 24);
static_assert(std::endian::native == std::endian::little);

class Resume {
 public:
  Resume(cache::KvCache& cache, std::span<const int32_t> tokens, const Clock& clock,
         const ResumeOptions& options)
      : cache_(cache), tokens_(tokens), clock_(clock), options_(options) {}

  ResumeReport operator()() {
    const uint64_t start_ns = clock_.now_ns();
    speeds_.compute = options_.compute_speed;
    find();
    if (report_.stored_tokens > 0) {
      report_.decision = ResumeDecision::kLoaded;
      load();
      report_.reused_tokens = cache_.length();
    }
    report_.load_ns = clock_.now_ns() - start_ns;
    return report_;
  }

 private:
  void find() {
    prefix_ = cache_.find_stored(tokens_, patience(patience_ns(tokens_.size(), speeds_)));
    report_.stored_tokens = prefix_.tokens(cache_.block_tokens());
    report_.decision = ResumeDecision::kNothing;
  }

  void load() {
    if (prefix_.groups() > 0 && !worth_all(kFastestRead)) return give_up(ResumeDecision::kComputed);
    if (prefix_.groups() > 0 && !load_first()) return;
    load_tail();
    if (stored_tokens() == 0) return give_up(without_tail_);
    if (prefix_.groups() > 1 && !worth_all(read_speed())) {
      keep_first();
      report_.decision = ResumeDecision::kComputed;
    }
    cache_.adopt(tokens_, std::move(prefix_), std::move(loaded_));
  }

  // False when nothing of the prefix can be used.
  bool load_first() {
    auto first = measure(0, stored_tokens());
    if (first) {
      loaded_.first.emplace(std::move(*first));
      return true;
    }
    const bool late = first.error().code == Code::kTimeout;
    // Streaming needs no memory for a whole group, and computes again what is damaged.
    if (first.error().code == Code::kFull || first.error().code == Code::kCorrupt) return true;
    give_up(late ? ResumeDecision::kTooSlow : ResumeDecision::kComputed);
    return false;
  }

  void load_tail() {
    if (!prefix_.tail) return;
    const uint32_t valid = prefix_.tail->valid_tokens;
    if (worth(valid, prefix_.tail->handle.bytes(), read_speed())) {
      auto tail = measure(prefix_.groups(), valid);
      if (tail) {
        loaded_.tail.emplace(std::move(*tail));
        return;
      }
      if (tail.error().code == Code::kTimeout) without_tail_ = ResumeDecision::kTooSlow;
      log_debug("the stored tail is not used: {}", tail.error().message());
    }
    prefix_.tail.reset();
  }

  Result<cache::LoadedGroup> measure(uint32_t index, uint32_t tokens) {
    const uint64_t bytes = prefix_.handle(index).bytes();
    auto group = cache_.load(prefix_, index, patience(patience_ns(tokens, speeds_)));
    if (group && group->read_ns() > 0)
      speeds_.read = static_cast<double>(bytes) * 1e9 / static_cast<double>(group->read_ns());
    return group;
  }

  void give_up(ResumeDecision decision) {
    report_.decision = decision;
    prefix_ = {};
    loaded_.first.reset();
    loaded_.tail.reset();
  }

  // It has been read already.
  void keep_first() {
    prefix_.handles.resize(1);
    prefix_.keys.resize(1);
    prefix_.tail.reset();
    loaded_.tail.reset();
  }

  uint32_t stored_tokens() const { return prefix_.tokens(cache_.block_tokens()); }
  double read_speed() const { return speeds_.read > 0 ? speeds_.read : kFastestRead; }
  bool worth(uint64_t tokens, uint64_t bytes, double read) const {
    return worth_loading(tokens, bytes, {.compute = speeds_.compute, .read = read});
  }
  bool worth_all(double read) const {
    return worth(stored_tokens(), cache_.bytes_to_read(prefix_), read);
  }
  cache::Patience patience(uint64_t ns) const {
    return {.clock = &clock_, .until_ns = clock_.now_ns() + ns, .cancelled = options_.cancelled};
  }

  cache::KvCache& cache_;
  std::span<const int32_t> tokens_;
  const Clock& clock_;
  const ResumeOptions& options_;
  Speeds speeds_;
  cache::StoredPrefix prefix_;
  cache::KvCache::Loaded loaded_;
  ResumeDecision without_tail_ = ResumeDecision::kComputed;
  ResumeReport report_;
};

}  // namespace

std::string_view to_string(ResumeDecision decision) {
  switch (decision) {
    case ResumeDecision::kOff: return "off";
    case ResumeDecision::kNothing: return "nothing stored";
    case ResumeDecision::kLoaded: return "loaded";
    case ResumeDecision::kComputed: return "computing is faster";
    case ResumeDecision::kTooSlow: return "flash was too slow";
  }
  return "unknown";
}

bool worth_loading(uint64_t tokens, uint64_t bytes, const Speeds& speeds) {
  if (speeds.compute <= 0 || speeds.read <= 0) return true;
  return static_cast<double>(bytes) / speeds.read < static_cast<double>(tokens) / speeds.compute;
}

uint64_t patience_ns(uint64_t tokens, const Speeds& speeds) {
  const bool known = speeds.compute > 0;
  const double ns = static_cast<double>(tokens) * 1e9 / (known ? speeds.compute : kComputeUnknown);
  return std::max(known ? kPatienceMinNs : kPatienceUnknownMinNs,
                  static_cast<uint64_t>(std::min(ns, 1e18)));
}

kv::GroupKey speed_key(const kv::Fingerprint& fingerprint, uint32_t threads) {
  std::array<std::byte, std::tuple_size_v<kv::Fingerprint> + sizeof threads> name;
  std::ranges::copy(fingerprint, name.begin());
  std::memcpy(name.data() + fingerprint.size(), &threads, sizeof threads);
  return kv::record_key("hifc/speed", name);
}

std::array<std::byte, kRecordBytes> encode_speed(double tokens_per_s) {
  std::array<std::byte, kRecordBytes> bytes = {};
  const Record record{.tokens_per_s = tokens_per_s};
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

double decode_speed(std::span<const std::byte> bytes) {
  if (bytes.size() != kRecordBytes) return 0;
  const Record expected;
  Record record;
  std::memcpy(&record, bytes.data(), sizeof record);
  const bool ours = record.magic == expected.magic && record.version == expected.version;
  const bool sane = std::isfinite(record.tokens_per_s) && record.tokens_per_s > 0;
  return ours && sane ? record.tokens_per_s : 0;
}

bool worth_recording(double recorded, double measured) {
  if (!std::isfinite(measured) || measured <= 0) return false;
  return recorded <= 0 || measured > recorded * kSpeedChange || measured * kSpeedChange < recorded;
}

ResumeReport resume(cache::KvCache& cache, std::span<const int32_t> tokens, const Clock& clock,
                    const ResumeOptions& options) {
  HIFC_CHECK(cache.length() == 0);
  return Resume(cache, tokens, clock, options)();
}

}  // namespace hifc::engine
