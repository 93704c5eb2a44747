// Turns the configuration into byte budgets for one model: what each tier holds, and a refusal that
// names the minimum where that is not enough.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "base/result.h"
#include "engine/model.h"
#include "kv/layout.h"
#include "kv/shape.h"

namespace hifc::engine {

struct Budget {
  kv::GroupLayout layout;
  uint32_t context_tokens = 0;  // the context limit
  uint32_t ubatch_tokens = 0;   // tokens of a prefill chunk, to begin with
  uint64_t hot_bytes = 0;
  uint64_t warm_bytes = 0;
  // Of sparse attention: sketches of pages and histories. On top of hot_bytes and warm_bytes, but
  // part of a warm_cache_size that was given.
  uint64_t statistics_bytes = 0;
  bool flash = false;
  std::string flash_path;
  uint64_t flash_bytes = 0;

  uint64_t group_bytes = 0;  // memory and flash bytes of one sealed group
  uint64_t kv_bytes_at_limit = 0;
  // What holds all of that, with the newest tokens still exact.
  uint64_t memory_bytes_at_limit = 0;
};

// `codecs`: of each layer, or none where all are F16. `model_context` is what the model was trained
// for.
Result<Budget> plan_budget(const Config& config, const kv::ModelShape& shape,
                           const kv::CodecPolicy& codecs, uint32_t model_context);
// For the codecs that `config` names.
Result<Budget> plan_budget(const Config& config, const Model& model);

// kInvalid, naming what would be enough, when `tokens` of KV fit neither in memory nor on flash.
Result<void> check_fits(const Budget& budget, uint64_t tokens);

// Where prefill stands after a chunk.
struct ChunkOutcome {
  uint32_t ubatch_tokens = 0;
  uint32_t length = 0;        // tokens done
  uint64_t chunk_ns = 0;      // the chunk's time
  uint64_t stall_ns = 0;      // of it, waiting for flash
  uint64_t memory_bytes = 0;  // hot and warm together
};

// Tokens of the next chunk: twice as many while more than a tenth of the time goes into waiting for
// flash, so that re-reading the past hides behind more computation; as many as before where the
// memory or the chunk grid (chunks begin at multiples of their size) does not allow it, or 4,096.
uint32_t next_ubatch(const ChunkOutcome& outcome, const kv::GroupLayout& layout);

}  // namespace hifc::engine
