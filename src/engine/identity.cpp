#include "engine/identity.h"

#include <fmt/format.h>

#include <vector>

#include "base/log.h"
#include "base/units.h"
#include "engine/digest.h"
#include "engine/records.h"
#include "kv/identity.h"
#include "llama.h"

namespace hifc::engine {
namespace {

static_assert(kDigestRecordBytes == kRecordBytes);

// Seconds of hashing: the user wants to know what is going on.
constexpr uint64_t kLargeFileBytes = uint64_t{2} << 30;

// Says how far hashing is, in steps of a tenth.
class HashingLog {
 public:
  explicit HashingLog(const std::string& path) : path_(path) {}

  void operator()(uint64_t done_bytes, uint64_t total_bytes) {
    if (total_bytes < kLargeFileBytes) return;
    const uint64_t tenth = done_bytes * 10 / total_bytes;
    if (tenth <= said_) return;
    said_ = tenth;
    log_info("hashing '{}' once, so that stored KV can be recognised: {} % of {}", path_,
             10 * tenth, format_size(total_bytes));
  }

 private:
  const std::string& path_;
  uint64_t said_ = 0;
};

std::unexpected<Error> changed(const std::string& path) {
  return failure(Code::kBusy,
                 fmt::format("'{}' has changed since the model was loaded from it", path));
}

Result<kv::Fingerprint> digest_of(const ModelFile& file, tier::Tiers& tiers, Parallel& parallel,
                                  const std::atomic<bool>* cancelled) {
  HIFC_ASSIGN(const FileIdentity now, identify_file(file.path));
  if (now != file.identity) return changed(file.path);
  const kv::GroupKey key = digest_record_key(now);
  if (const auto record = read_record(tiers, key)) {
    const auto cached = decode_digest(*record);
    if (cached && trustworthy(*cached, now)) return cached->digest;
  }
  HIFC_ASSIGN(const CachedDigest hashed,
              digest_file(file.path, parallel,
                          {.progress = HashingLog(file.path), .cancelled = cancelled}));
  if (hashed.file != file.identity) return changed(file.path);
  // One that may not be believed later would only wear the drive.
  if (!trustworthy(hashed, hashed.file)) return hashed.digest;
  if (auto written = write_record(tiers, key, encode(hashed)); !written)
    log_debug("the digest of '{}' is not kept: {}", file.path, written.error().message());
  return hashed.digest;
}

}  // namespace

Result<kv::Fingerprint> resolve_fingerprint(const Model& model, const kernels::Kernels& kernels,
                                            tier::Tiers& tiers, Parallel& parallel,
                                            const IdentityOptions& options) {
  kv::Identity identity = model.identity();
  identity.tenant = options.tenant;
  if (kv::lossy(options.codecs)) identity.codecs = options.codecs;
  // ggml's matrix products round differently from one instruction set to another.
  identity.arithmetic = fmt::format("{}; {}{}", kernels::to_string(kernels.isa),
                                    llama_print_system_info(), model.products());
  if (tiers.has_cold() && !options.temporary) {
    std::vector<kv::Fingerprint> digests;
    for (const ModelFile& file : model.files()) {
      HIFC_ASSIGN(const kv::Fingerprint digest,
                  digest_of(file, tiers, parallel, options.cancelled));
      digests.push_back(digest);
    }
    identity.content = combine_digests(digests);
  }
  return kv::fingerprint(identity);
}

}  // namespace hifc::engine
