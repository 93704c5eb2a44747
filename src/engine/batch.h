// llama_batch with an owner. Tokens of one sequence at consecutive positions.
#pragma once

#include <cstdint>
#include <span>

#include "engine/outputs.h"
#include "llama.h"

namespace hifc::engine {

class TokenBatch {
 public:
  explicit TokenBatch(uint32_t tokens_max)
      : batch_(llama_batch_init(static_cast<int32_t>(tokens_max), 0, 1)) {}
  ~TokenBatch() { llama_batch_free(batch_); }
  TokenBatch(const TokenBatch&) = delete;
  TokenBatch& operator=(const TokenBatch&) = delete;

  // Returns the number of rows of logits that decoding gives.
  uint32_t fill(uint32_t position, std::span<const int32_t> tokens, Outputs outputs) {
    batch_.n_tokens = static_cast<int32_t>(tokens.size());
    uint32_t rows = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool last = i + 1 == tokens.size();
      batch_.token[i] = tokens[i];
      batch_.pos[i] = static_cast<llama_pos>(position + i);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = 0;
      batch_.logits[i] = outputs == Outputs::kAll || (outputs == Outputs::kLast && last);
      rows += batch_.logits[i] != 0 ? 1 : 0;
    }
    return rows;
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

}  // namespace hifc::engine
