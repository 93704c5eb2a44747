#include "engine/preflight.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <span>

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

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

void append(std::vector<std::byte>& target, std::span<const std::byte> bytes) {
  target.insert(target.end(), bytes.begin(), bytes.end());
}

void append_number(std::vector<std::byte>& target, uint64_t value) {
  append(target, std::as_bytes(std::span(&value, 1)));
}

void append_text(std::vector<std::byte>& target, std::string_view text) {
  append_number(target, text.size());
  append(target, std::as_bytes(std::span(text)));
}

size_t size_of(gguf_type type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

// The type, the length where there is one, and the value of a metadata key.
void append_value(std::vector<std::byte>& target, const gguf_context* gguf, int64_t id) {
  const auto raw = [&](const void* data, size_t size) {
    append(target, std::span(static_cast<const std::byte*>(data), size));
  };
  const gguf_type type = gguf_get_kv_type(gguf, id);
  append_number(target, type);
  if (type == GGUF_TYPE_STRING) return append_text(target, gguf_get_val_str(gguf, id));
  if (type != GGUF_TYPE_ARRAY) return raw(gguf_get_val_data(gguf, id), size_of(type));
  const gguf_type element = gguf_get_arr_type(gguf, id);
  const size_t count = gguf_get_arr_n(gguf, id);
  append_number(target, element);
  append_number(target, count);
  if (element != GGUF_TYPE_STRING) {
    if (count > 0) raw(gguf_get_arr_data(gguf, id), count * size_of(element));
    return;
  }
  for (size_t i = 0; i < count; ++i) append_text(target, gguf_get_arr_str(gguf, id, i));
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

  std::vector<std::byte> rope() const {
    std::map<std::string_view, int64_t> keys;
    for (int64_t id = 0; id < gguf_get_n_kv(gguf_); ++id) {
      const std::string_view name = gguf_get_key(gguf_, id);
      if (name.find("rope") != std::string_view::npos && name.starts_with(architecture_ + '.'))
        keys.emplace(name, id);
    }
    std::vector<std::byte> bytes;
    for (const auto& [name, id] : keys) {
      append_text(bytes, name);
      append_value(bytes, gguf_, id);
    }
    return bytes;
  }

  // As libllama finds them; it refuses names of another form itself.
  std::vector<std::string> files() const {
    const int64_t id = gguf_find_key(gguf_, "split.count");
    const bool split = id >= 0 && gguf_get_kv_type(gguf_, id) == GGUF_TYPE_UINT16;
    const int32_t count = split ? gguf_get_val_u16(gguf_, id) : 1;
    std::string prefix(path_.size() + 1, '\0');
    if (count <= 1 ||
        llama_split_prefix(prefix.data(), prefix.size(), path_.c_str(), 0, count) <= 0)
      return {path_};
    std::vector<std::string> files;
    for (int32_t part = 0; part < count; ++part) {
      std::string file(path_.size() + 32, '\0');
      file.resize(llama_split_path(file.data(), file.size(), prefix.c_str(), part, count));
      files.push_back(std::move(file));
    }
    return files;
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
  return Preflight{.architecture = inspector.architecture(),
                   .fingerprint = inspector.fingerprint(file_bytes),
                   .files = inspector.files(),
                   .rope = inspector.rope()};
}

}  // namespace hifc::engine
