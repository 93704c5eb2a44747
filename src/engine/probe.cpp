#include "engine/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "engine/graph.h"
#include "llama.h"

namespace hifc::engine {
namespace {

constexpr uint32_t kProbeBatch = 64;
// Added to the window so that a layer without one has visibly more cells.
constexpr uint32_t kProbeMargin = 1024;

struct AttentionNode {
  uint32_t layer = 0;
  int64_t head_dim_k = 0, head_dim_v = 0, query_heads = 0, kv_heads = 0, cells = 0;
};

struct Probe {
  std::vector<AttentionNode> nodes;
  std::string refusal;

  void refuse(std::string reason) {
    if (refusal.empty()) refusal = std::move(reason);
  }

  void look_at(const ggml_tensor* node) {
    if (node->op == GGML_OP_FLASH_ATTN_EXT) return look_at_attention(node);
    // Writing the new K and V and taking views are llama's part; any other use of the cache is not
    // covered by replacing flash attention.
    if (node->op == GGML_OP_SET_ROWS || node->op == GGML_OP_VIEW || node->op == GGML_OP_PERMUTE ||
        node->op == GGML_OP_RESHAPE || node->op == GGML_OP_CPY)
      return;
    for (const ggml_tensor* source : node->src)
      if (source != nullptr && std::string_view(root_of(source)->name).starts_with("cache_"))
        refuse(fmt::format("its graph reads the KV cache through {}", ggml_op_name(node->op)));
  }

  void look_at_attention(const ggml_tensor* node) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    const auto layer = cache_layer(k, "cache_k_l");
    if (!layer || !cache_layer(v, "cache_v_l"))
      return refuse("its attention does not read a per-layer K and V cache");
    const FlashAttentionParameters parameters = attention_parameters(node);
    if (parameters.max_bias != 0) refuse("it uses ALiBi attention biases");
    if (node->src[4] != nullptr) refuse("it uses attention sinks");
    if (k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16) refuse("its cache is not F16");
    nodes.push_back({.layer = *layer,
                     .head_dim_k = k->ne[0],
                     .head_dim_v = v->ne[0],
                     .query_heads = q->ne[2],
                     .kv_heads = k->ne[2],
                     .cells = root_of(k)->ne[1] * root_of(k)->ne[2]});
  }
};

bool on_node(ggml_tensor* node, bool ask, void* user) {
  if (ask) static_cast<Probe*>(user)->look_at(node);
  return !ask;
}

Result<Probe> run_probe(llama_model* model) {
  Probe probe;
  llama_context_params params = llama_context_default_params();
  const auto window = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model)));
  params.n_ctx = window + kProbeBatch + kProbeMargin;
  params.n_batch = params.n_ubatch = kProbeBatch;
  params.n_outputs_max = 1;
  // llama's threads spin: where cores are busy, more of them cost far more than they bring.
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.swa_full = false;
  params.kv_unified = true;
  params.cb_eval = on_node;
  params.cb_eval_user_data = &probe;
  const std::unique_ptr<llama_context, void (*)(llama_context*)> context(
      llama_init_from_model(model, params), llama_free);
  if (!context) return failure(Code::kUnsupported, "libllama cannot make a context for it");
  std::vector<llama_token> tokens = {0, 1};
  if (llama_decode(context.get(), llama_batch_get_one(tokens.data(), 2)) != 0)
    return failure(Code::kUnsupported, "libllama cannot decode with it");
  return probe;
}

Result<kv::ModelShape> shape_of(const Probe& probe, const llama_model* model) {
  if (!probe.refusal.empty()) return failure(Code::kUnsupported, probe.refusal);
  const auto layers = static_cast<uint32_t>(llama_model_n_layer(model));
  std::set<uint32_t> seen;
  for (const AttentionNode& node : probe.nodes) seen.insert(node.layer);
  if (probe.nodes.size() != layers || seen.size() != layers || *seen.rbegin() != layers - 1)
    return failure(
        Code::kUnsupported,
        fmt::format("{} of its {} layers have a KV cache of their own (recurrent, hybrid "
                    "and shared-KV layers are not supported)",
                    seen.size(), layers));
  const AttentionNode& first = probe.nodes.front();
  int64_t cells_max = 0;
  for (const AttentionNode& node : probe.nodes) {
    cells_max = std::max(cells_max, node.cells);
    if (node.head_dim_k != node.head_dim_v || node.head_dim_k != first.head_dim_k ||
        node.query_heads != first.query_heads || node.kv_heads != first.kv_heads)
      return failure(Code::kUnsupported, "its heads differ between K and V or between layers");
  }
  if (first.head_dim_k % 16 != 0 || first.head_dim_k > kv::kHeadDimMax)
    return failure(Code::kUnsupported,
                   fmt::format("its head_dim {} is not a multiple of 16 up to {}", first.head_dim_k,
                               kv::kHeadDimMax));
  kv::ModelShape shape{.layers = layers,
                       .query_heads = static_cast<uint32_t>(first.query_heads),
                       .kv_heads = static_cast<uint32_t>(first.kv_heads),
                       .head_dim = static_cast<uint32_t>(first.head_dim_k),
                       .window = std::vector<uint32_t>(layers)};
  const auto window = static_cast<uint32_t>(std::max(0, llama_model_n_swa(model)));
  for (const AttentionNode& node : probe.nodes)
    if (window > 0 && node.cells < cells_max) shape.window[node.layer] = window;
  const bool any = std::ranges::any_of(shape.window, [](uint32_t w) { return w != 0; });
  if (window > 0 && !any)
    return failure(
        Code::kUnsupported,
        fmt::format("it has an attention window of {} tokens but no layer shows it", window));
  return shape;
}

}  // namespace

Result<kv::ModelShape> probe_shape(llama_model* model) {
  HIFC_ASSIGN(const Probe probe, run_probe(model));
  return shape_of(probe, model);
}

}  // namespace hifc::engine
