// Beginning a prompt with its stored prefix, where that is faster than computing it.
//
// The costs are measured: how fast this model computes is kept in a record of the store, and how
// fast the drive reads is seen on the first group that is loaded. What is not known yet counts in
// favour of loading, since a deadline bounds what that can cost.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "cache/kv_cache.h"
#include "engine/records.h"
#include "kv/key.h"

namespace hifc::engine {

enum class ResumeDecision : uint8_t {
  kOff,       // not asked for, or there is no flash
  kNothing,   // nothing of the prompt is stored
  kLoaded,    // the stored prefix is used
  kComputed,  // computing most of it is faster
  kTooSlow,   // it was loaded, but the drive took too long
};
std::string_view to_string(ResumeDecision decision);

struct ResumeReport {
  ResumeDecision decision = ResumeDecision::kOff;
  uint32_t stored_tokens = 0;  // of the prompt, found on flash
  uint32_t reused_tokens = 0;  // of those, not computed again
  uint64_t load_ns = 0;        // finding them, and waiting for what is read of them
};

// Tokens and bytes a second; 0: unknown.
struct Speeds {
  double compute = 0;
  double read = 0;
};

bool worth_loading(uint64_t tokens, uint64_t bytes, const Speeds& speeds);
// What waiting for `tokens` that are stored may cost: as long as computing them would take.
uint64_t patience_ns(uint64_t tokens, const Speeds& speeds);

// The record of a model's computing speed on this machine, with so many threads.
kv::GroupKey speed_key(const kv::Fingerprint& fingerprint, uint32_t threads);
std::array<std::byte, kRecordBytes> encode_speed(double tokens_per_s);
// 0 unless `record` is what encode_speed() wrote.
double decode_speed(std::span<const std::byte> record);
// Whether a measured speed says something that the record does not.
bool worth_recording(double recorded, double measured);

struct ResumeOptions {
  double compute_speed = 0;  // tokens a second; 0: unknown
  const std::atomic<bool>* cancelled = nullptr;
};

// Lets the cache, which is empty, begin with what is worth it. The report's reused_tokens are the
// cache's length.
ResumeReport resume(cache::KvCache& cache, std::span<const int32_t> tokens, const Clock& clock,
                    const ResumeOptions& options);

}  // namespace hifc::engine
