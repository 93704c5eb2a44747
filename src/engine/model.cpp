#include "engine/model.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "base/log.h"
#include "engine/preflight.h"
#include "engine/probe.h"
#include "ggml.h"
#include "llama.h"

namespace hifc::engine {
namespace {

constexpr const char* kTiledProducts = "GGML_CPU_TILED_MM";

std::mutex log_mutex;
std::string last_error;  // guarded by log_mutex

void on_llama_log(ggml_log_level level, const char* text, void*) {
  std::string_view line(text);
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (line.empty()) return;
  log_debug("llama: {}", line);
  // Follows the line that says why.
  if (level != GGML_LOG_LEVEL_ERROR || line.ends_with("failed to load model")) return;
  const std::lock_guard lock(log_mutex);
  last_error = line;
}

// Length of the UTF-8 sequence that begins text[at], 0 if there is none.
size_t utf8_sequence(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(at + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool outside = (lead == 0xED && second > 0x9F) || (lead == 0xF4 && second > 0x8F);
  return overlong || outside ? 0 : length;
}

Result<void> check_text(std::string_view text) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return failure(Code::kInvalid, fmt::format("the text has a NUL byte at offset {}", nul));
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_sequence(text, at);
    if (length == 0)
      return failure(Code::kInvalid,
                     fmt::format("the text is not UTF-8: byte 0x{:02x} at offset {}",
                                 static_cast<unsigned char>(text[at]), at));
    at += length;
  }
  return {};
}

Result<std::vector<ModelFile>> identify(const std::vector<std::string>& paths) {
  std::vector<ModelFile> files;
  for (const std::string& path : paths) {
    HIFC_ASSIGN(const FileIdentity identity, identify_file(path));
    files.push_back({.path = path, .identity = identity});
  }
  return files;
}

// libllama and ggml end the process where a damaged file breaks one of their assumptions. While
// this lives, such an end on this thread is an exception instead: libllama's loader catches most,
// and load() the rest. Nothing of the model is used after one.
class AbortGuard {
 public:
  AbortGuard() : previous_(ggml_set_abort_callback(&AbortGuard::on_abort)) { guarded = true; }
  ~AbortGuard() {
    guarded = false;
    ggml_set_abort_callback(previous_);
  }
  AbortGuard(const AbortGuard&) = delete;
  AbortGuard& operator=(const AbortGuard&) = delete;

 private:
  static void on_abort(const char* message) {
    if (guarded) throw std::runtime_error(message);
    std::fprintf(stderr, "%s\n", message);  // and the process ends
  }

  static thread_local bool guarded;
  ggml_abort_callback_t previous_;
};
thread_local bool AbortGuard::guarded = false;

// Whether ggml multiplies K-quants tile by tile, as the first model that is loaded wants it.
bool tiled_products(kernels::Rounding rounding) {
  static const bool tiled = [rounding] {
    if (rounding == kernels::Rounding::kOne) setenv(kTiledProducts, "0", /*overwrite=*/1);
    const char* chosen = std::getenv(kTiledProducts);
    return chosen == nullptr || std::atoi(chosen) != 0;
  }();
  return tiled;
}

}  // namespace

void install_llama_log() {
  llama_log_set(on_llama_log, nullptr);
}

std::string last_llama_error() {
  const std::lock_guard lock(log_mutex);
  return last_error;
}

std::string_view Model::products() const {
  if (rounding_ == kernels::Rounding::kOne) return "one rounding";
  return tiled_products(rounding_) ? "" : "not tiled";
}

kernels::Rounding rounding_of(const Config& config) {
  return config.deterministic ? kernels::Rounding::kOne : kernels::Rounding::kFastest;
}

static Result<void> choose_products(kernels::Rounding rounding) {
  if (!tiled_products(rounding) || rounding == kernels::Rounding::kFastest) return {};
  return failure(Code::kUnsupported,
                 fmt::format("deterministic is not possible in a process that has loaded a model "
                             "without it, unless {}=0 is in its environment",
                             kTiledProducts));
}

Result<std::unique_ptr<Model>> Model::load(const std::string& path, kernels::Rounding rounding) {
  install_llama_log();
  const AbortGuard guard;
  try {
    return load_and_probe(path, rounding);
  } catch (const std::exception& error) {
    return failure(Code::kInvalid,
                   fmt::format("model '{}' is damaged or not supported: {}", path, error.what()));
  }
}

Result<std::unique_ptr<Model>> Model::load_and_probe(const std::string& path,
                                                     kernels::Rounding rounding) {
  HIFC_ASSIGN(const Preflight preflight, inspect(path));
  std::unique_ptr<Model> model(new Model());
  model->path_ = path;
  HIFC_ASSIGN(model->files_, identify(preflight.files));
  HIFC_TRY(choose_products(rounding));
  model->rounding_ = rounding;
  llama_model_params params = llama_model_default_params();
  params.use_extra_bufts = rounding == kernels::Rounding::kFastest;
  model->model_ = llama_model_load_from_file(path.c_str(), params);
  if (model->model_ == nullptr)
    return failure(Code::kUnsupported,
                   fmt::format("model '{}' cannot be loaded: {}", path, last_llama_error()));
  if (llama_model_has_encoder(model->model_) || !llama_model_has_decoder(model->model_) ||
      llama_model_is_recurrent(model->model_) || llama_model_is_hybrid(model->model_) ||
      llama_model_is_diffusion(model->model_))
    return failure(Code::kUnsupported,
                   fmt::format("model '{}' (architecture {}) is not a decoder with attention in "
                               "every layer, which is what HiFC supports",
                               path, preflight.architecture));
  model->vocab_ = llama_model_get_vocab(model->model_);
  auto shape = probe_shape(model->model_);
  if (!shape)
    return failure(shape.error().code,
                   fmt::format("model '{}' (architecture {}) is not supported: {}", path,
                               preflight.architecture, shape.error().context));
  for (const ModelFile& file : model->files_) {
    HIFC_ASSIGN(const FileIdentity now, identify_file(file.path));
    if (now != file.identity)
      return failure(Code::kBusy, fmt::format("'{}' changed while it was loaded", file.path));
  }
  model->identity_.content = preflight.fingerprint;
  model->identity_.architecture = preflight.architecture;
  model->identity_.rope.metadata = preflight.rope;
  model->identity_.shape = std::move(*shape);
  return model;
}

Model::~Model() {
  if (model_ != nullptr) llama_model_free(model_);
}

std::string Model::description() const {
  char text[128];
  llama_model_desc(model_, text, sizeof text);
  return text;
}

uint32_t Model::context_tokens() const {
  return static_cast<uint32_t>(llama_model_n_ctx_train(model_));
}

uint32_t Model::vocabulary_size() const {
  return static_cast<uint32_t>(llama_vocab_n_tokens(vocab_));
}

uint64_t Model::weight_bytes() const {
  return llama_model_size(model_);
}

Result<std::vector<int32_t>> Model::tokenize(std::string_view text, bool parse_special) const {
  HIFC_TRY(check_text(text));
  std::vector<int32_t> tokens(text.size() + 8);
  const int32_t count = llama_tokenize(vocab_, text.data(), static_cast<int32_t>(text.size()),
                                       tokens.data(), static_cast<int32_t>(tokens.size()),
                                       /*add_special=*/true, parse_special);
  if (count < 0) return failure(Code::kInternal, "the text could not be tokenized");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

std::string Model::piece(int32_t token) const {
  std::string text(64, '\0');
  int32_t length = llama_token_to_piece(vocab_, token, text.data(),
                                        static_cast<int32_t>(text.size()), 0, /*special=*/false);
  if (length < 0) {
    text.resize(static_cast<size_t>(-length));
    length = llama_token_to_piece(vocab_, token, text.data(), static_cast<int32_t>(text.size()), 0,
                                  /*special=*/false);
  }
  text.resize(static_cast<size_t>(std::max(0, length)));
  return text;
}

bool Model::ends_generation(int32_t token) const {
  return llama_vocab_is_eog(vocab_, token);
}

bool Model::has_chat_template() const {
  return llama_model_chat_template(model_, nullptr) != nullptr;
}

Result<std::string> Model::apply_chat_template(std::string_view user_text) const {
  const char* chat_template = llama_model_chat_template(model_, nullptr);
  if (chat_template == nullptr)
    return failure(Code::kUnsupported, "the model has no chat template; use --raw");
  HIFC_TRY(check_text(user_text));
  const std::string content(user_text);
  const llama_chat_message message{.role = "user", .content = content.c_str()};
  std::string text(content.size() + 4096, '\0');
  const int32_t length = llama_chat_apply_template(chat_template, &message, 1, /*add_ass=*/true,
                                                   text.data(), static_cast<int32_t>(text.size()));
  if (length < 0 || static_cast<size_t>(length) > text.size())
    return failure(Code::kUnsupported,
                   "the model's chat template is not one libllama knows; use --raw");
  text.resize(static_cast<size_t>(length));
  return text;
}

}  // namespace hifc::engine
