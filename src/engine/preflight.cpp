#include "engine/preflight.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "ggml.h"
#include "gguf.h"

namespace hifc::engine {
namespace {

struct GgufDeleter {
  void operator()(gguf_context* context) const { gguf_free(context); }
};
using Gguf = std::unique_ptr<gguf_context, GgufDeleter>;

struct FileDeleter {
  void operator()(FILE* file) const { std::fclose(file); }
};
using FileHandle = std::unique_ptr<FILE, FileDeleter>;

Result<uint64_t> check_magic(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0)
    return failure(Code::kNotFound, fmt::format("model '{}' cannot be read", path), errno);
  if (!S_ISREG(status.st_mode))
    return failure(Code::kInvalid, fmt::format("model '{}' is not a regular file", path));
  const FileHandle file(std::fopen(path.c_str(), "rb"));
  if (!file) return failure(Code::kIo, fmt::format("model '{}' cannot be read", path), errno);
  std::array<char, 4> magic = {};
  const size_t got = std::fread(magic.data(), 1, magic.size(), file.get());
  if (got != magic.size() || std::memcmp(magic.data(), "GGUF", 4) != 0)
    return failure(
        Code::kInvalid,
        fmt::format("model '{}' is not a GGUF file (it does not begin with GGUF)", path));
  return static_cast<uint64_t>(status.st_size);
}

class Inspector {
 public:
  Inspector(const gguf_context* gguf, std::string path) : gguf_(gguf), path_(std::move(path)) {
    const int64_t id = gguf_find_key(gguf_, "general.architecture");
    if (id >= 0 && gguf_get_kv_type(gguf_, id) == GGUF_TYPE_STRING)
      architecture_ = gguf_get_val_str(gguf_, id);
  }

  const std::string& architecture() const { return architecture_; }

  Result<void> check(uint64_t file_bytes) const {
    if (architecture_.empty())
      return failure(Code::kInvalid, fmt::format("model '{}' has no general.architecture", path_));
    HIFC_TRY(check_complete(file_bytes));
    if (number("attention.max_alibi_bias") > 0 || is("bloom") || is("refact") || is("jina-bert-v2"))
      return refuse("ALiBi attention biases");
    if (number("attention.kv_lora_rank") > 0) return refuse("multi-head latent attention (MLA)");
    if (has("ssm.state_size") || has("wkv.head_size") || has("shortconv.l_cache"))
      return refuse("recurrent or hybrid layers");
    if (has_tensor("attn_sinks")) return refuse("attention sinks");
    if (has("attention.shared_kv_layers") || is("gemma3n"))
      return refuse("layers that share one KV cache");
    if (has_tensor("rope_factors_long"))
      return refuse("LongRoPE scaling, whose factors depend on the context length");
    if (has("attention.chunk_size") || is("llama4")) return refuse("chunked attention");
    if (number("attention.causal", 1) == 0) return refuse("attention that is not causal");
    return {};
  }

  kv::Fingerprint fingerprint(uint64_t file_bytes) const {
    std::vector<std::byte> meta(gguf_get_meta_size(gguf_) + sizeof file_bytes);
    gguf_get_meta_data(gguf_, meta.data());
    std::memcpy(meta.data() + meta.size() - sizeof file_bytes, &file_bytes, sizeof file_bytes);
    return kv::digest(meta);
  }

 private:
  bool is(std::string_view name) const { return architecture_ == name; }
  bool has(std::string_view key) const {
    return gguf_find_key(gguf_, fmt::format("{}.{}", architecture_, key).c_str()) >= 0;
  }

  double number(std::string_view key, double fallback = 0) const {
    const int64_t id = gguf_find_key(gguf_, fmt::format("{}.{}", architecture_, key).c_str());
    if (id < 0) return fallback;
    switch (gguf_get_kv_type(gguf_, id)) {
      case GGUF_TYPE_UINT32: return gguf_get_val_u32(gguf_, id);
      case GGUF_TYPE_INT32: return gguf_get_val_i32(gguf_, id);
      case GGUF_TYPE_FLOAT32: return gguf_get_val_f32(gguf_, id);
      case GGUF_TYPE_BOOL: return gguf_get_val_bool(gguf_, id) ? 1 : 0;
      default: return fallback;
    }
  }

  bool has_tensor(std::string_view part) const {
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_); ++i)
      if (std::string_view(gguf_get_tensor_name(gguf_, i)).find(part) != std::string_view::npos)
        return true;
    return false;
  }

  Result<void> check_complete(uint64_t file_bytes) const {
    uint64_t end = gguf_get_data_offset(gguf_);
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf_); ++i)
      end = std::max<uint64_t>(end, gguf_get_data_offset(gguf_) + gguf_get_tensor_offset(gguf_, i) +
                                        gguf_get_tensor_size(gguf_, i));
    if (end <= file_bytes) return {};
    return failure(Code::kInvalid, fmt::format("model '{}' is cut off: it has {} of {} bytes",
                                               path_, file_bytes, end));
  }

  std::unexpected<Error> refuse(std::string_view what) const {
    return failure(Code::kUnsupported,
                   fmt::format("model '{}' (architecture {}) uses {}, which HiFC does not support",
                               path_, architecture_, what));
  }

  const gguf_context* gguf_;
  std::string path_;
  std::string architecture_;
};

}  // namespace

Result<Preflight> inspect(const std::string& path) {
  HIFC_ASSIGN(const uint64_t file_bytes, check_magic(path));
  const Gguf gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
  if (!gguf) return failure(Code::kInvalid, fmt::format("model '{}' is a damaged GGUF file", path));
  const Inspector inspector(gguf.get(), path);
  HIFC_TRY(inspector.check(file_bytes));
  return Preflight{inspector.architecture(), inspector.fingerprint(file_bytes)};
}

}  // namespace hifc::engine
