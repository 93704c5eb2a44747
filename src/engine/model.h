// A GGUF model loaded by libllama, checked for everything that HiFC's attention cannot do. What is
// not supported is refused here, by name, before any text is produced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/result.h"
#include "engine/digest.h"
#include "kernels/attention.h"
#include "kv/identity.h"
#include "kv/shape.h"

struct llama_model;
struct llama_vocab;

namespace hifc::engine {

// A file that a model was loaded from, as it was then.
struct ModelFile {
  std::string path;
  FileIdentity identity;
};

// What a configuration asks of a model and of the kernels.
kernels::Rounding rounding_of(const Config& config);

class Model {
 public:
  // For Rounding::kOne without ggml's repacked weights and tiled products, which round by how many
  // rows a matrix has. ggml decides on the latter but once, by the environment, which the first
  // load of a process sets, before there are other threads that look at it: kUnsupported where that
  // was for Rounding::kFastest. Else kNotFound, kInvalid (not a GGUF file, damaged), kUnsupported
  // (with what it is and why), or kBusy when a file changed while it was loaded.
  static Result<std::unique_ptr<Model>> load(
      const std::string& path, kernels::Rounding rounding = kernels::Rounding::kFastest);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::string& path() const { return path_; }
  kernels::Rounding rounding() const { return rounding_; }
  // How ggml multiplies, where it is not as it does by itself; else "".
  std::string_view products() const;
  std::string description() const;  // "llama 135M Q4_1"
  const kv::ModelShape& shape() const { return identity_.shape; }
  // What of the identity of stored KV the model decides; `content` knows no tensor's bytes yet.
  const kv::Identity& identity() const { return identity_; }
  const std::vector<ModelFile>& files() const { return files_; }
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
  static Result<std::unique_ptr<Model>> load_and_probe(const std::string& path,
                                                       kernels::Rounding rounding);

  std::string path_;
  kernels::Rounding rounding_ = kernels::Rounding::kFastest;
  llama_model* model_ = nullptr;
  const llama_vocab* vocab_ = nullptr;
  kv::Identity identity_;
  std::vector<ModelFile> files_;
};

// Sends libllama's own log to HiFC's (debug level) and remembers its last error for messages.
void install_llama_log();
std::string last_llama_error();

}  // namespace hifc::engine
