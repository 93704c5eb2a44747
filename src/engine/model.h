// A GGUF model loaded by libllama, checked for everything that HiFC's attention cannot do. What is
// not supported is refused here, by name, before any text is produced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/key.h"
#include "kv/shape.h"

struct llama_model;
struct llama_vocab;

namespace hifc::engine {

class Model {
 public:
  // kNotFound, kInvalid (not a GGUF file, damaged) or kUnsupported (with what it is and why).
  static Result<std::unique_ptr<Model>> load(const std::string& path);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::string& path() const { return path_; }
  std::string description() const;  // "llama 135M Q4_1"
  const kv::ModelShape& shape() const { return shape_; }
  // Identifies the model within this process's stores.
  const kv::Fingerprint& fingerprint() const { return fingerprint_; }
  uint32_t context_tokens() const;  // what it was trained for
  uint32_t vocabulary_size() const;
  uint64_t weight_bytes() const;

  // kInvalid names the first byte that is not UTF-8, or is NUL. Special tokens in `text` are parsed
  // only with `parse_special`; the model's begin-of-text token is added where it wants one.
  Result<std::vector<int32_t>> tokenize(std::string_view text, bool parse_special) const;
  std::string piece(int32_t token) const;  // may be part of a UTF-8 sequence
  bool ends_generation(int32_t token) const;

  bool has_chat_template() const;
  // One user turn in the model's chat template, ready for the assistant's answer.
  Result<std::string> apply_chat_template(std::string_view user_text) const;

  llama_model* handle() const { return model_; }

 private:
  Model() = default;
  static Result<std::unique_ptr<Model>> load_and_probe(const std::string& path);

  std::string path_;
  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  kv::ModelShape shape_;
  kv::Fingerprint fingerprint_ = {};
};

// Sends libllama's own log to HiFC's (debug level) and remembers its last error for messages.
void install_llama_log();
std::string last_llama_error();

}  // namespace hifc::engine
