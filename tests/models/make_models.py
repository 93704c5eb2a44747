#!/usr/bin/env python3
"""Writes small GGUF models with random weights for the tests: make_models.py FOLDER [NAME...].

The weights depend only on the model's and the tensor's name, so the files are the same everywhere.
Their scale keeps activations near 1 and logits a few units apart: text is gibberish, but
attention, near and far, changes it. Tokens that are no printable ASCII have logit 0 and are hardly
ever chosen, so generation does not end by chance and the text is readable.

All of them load in libllama, and all but gemma3n-shared decode. What HiFC does with each:

  runs     llama-32l        32 layers, multi-head attention, head_dim 64, 4,096 tokens
           qwen2-gqa-bias   8 query heads on 2 KV heads, biases on Q, K and V; byte-level BPE
           llama-hd96       head_dim 96 (a row is no power of two)
           llama-hd128      head_dim 128, 1 KV head
           gemma2-softcap   head_dim 64, soft-capped scores, a window of 128 in every other layer
  refuses  bloom-alibi      ALiBi instead of rotary positions
           deepseek2-mla    multi-head latent attention
           mamba-recurrent  no attention at all
           phi3-longrope    rotary factors chosen by context size
           gemma3n-shared   the last 2 of 22 layers use the KV of earlier ones
           gptoss-sinks     attention sinks
"""

import hashlib
import pathlib
import sys
import zlib

import gguf
import numpy as np

CONTEXT = 4096
PIECES = ("▁t he in er an re on at en nd ti es or te of ed is it al ar st to nt "
          "▁the ▁a ▁o ▁in ing").split()


def add_spm_tokenizer(writer):
    """SentencePiece: bytes, printable ASCII and a few frequent pieces. Returns a printable mask."""
    kind = gguf.TokenType
    tokens = [("<unk>", kind.UNKNOWN), ("<s>", kind.CONTROL), ("</s>", kind.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
    tokens += [("▁", kind.NORMAL)] + [(chr(code), kind.NORMAL) for code in range(33, 127)]
    tokens += [(piece, kind.NORMAL) for piece in PIECES]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([text for text, _ in tokens])
    # A longer piece wins over its parts, an earlier one over a later one.
    writer.add_token_scores([len(text) * 100.0 - number for number, (text, _) in enumerate(tokens)])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return np.array([kind == gguf.TokenType.NORMAL for _, kind in tokens])


def byte_characters():
    """GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte if byte in plain else 256 + other.index(byte)) for byte in range(256)}


def add_bpe_tokenizer(writer):
    """Byte-level BPE with a handful of merges. Returns a printable mask."""
    characters = byte_characters()
    merges = ["Ġ t", "h e", "Ġt he", "i n", "e r", "a n", "Ġ a", "o n", "in g", "o f", "Ġ of"]
    tokens = list(characters.values()) + [merge.replace(" ", "") for merge in merges]
    kinds = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * 2
    printable = [32 <= byte < 127 for byte in characters] + [True] * len(merges) + [False] * 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens + ["<|endoftext|>", "<|im_end|>"])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens))
    writer.add_eos_token_id(len(tokens) + 1)
    writer.add_add_bos_token(False)
    return np.array(printable)


class Model:
    """A file being written. Sizes are given in GGUF's order: the fastest dimension first."""

    def __init__(self, path, arch, layers, width, heads, kv_heads=None, head_dim=None, ffn=None,
                 tokenizer=add_spm_tokenizer):
        self.name = path.stem
        self.path = path
        self.layers, self.width, self.heads = layers, width, heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_dim = head_dim or width // heads
        self.ffn = ffn or width
        self.writer = gguf.GGUFWriter(str(path.with_suffix(".part")), arch)
        # Not the file's name: libllama treats some model names ("phi3") specially.
        self.writer.add_name("random weights")
        self.writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        self.writer.add_context_length(CONTEXT)
        self.writer.add_block_count(layers)
        self.writer.add_embedding_length(width)
        self.printable = tokenizer(self.writer)
        self.writer.add_vocab_size(len(self.printable))

    def add_attention_keys(self, rms=True):
        w = self.writer
        w.add_feed_forward_length(self.ffn)
        w.add_head_count(self.heads)
        w.add_head_count_kv(self.kv_heads)
        (w.add_layer_norm_rms_eps if rms else w.add_layer_norm_eps)(1e-5)

    def add_head_keys(self):
        self.writer.add_key_length(self.head_dim)
        self.writer.add_value_length(self.head_dim)
        self.writer.add_rope_dimension_count(self.head_dim)

    def normal(self, name, sizes):
        seed = zlib.crc32(f"{self.name}/{name}".encode())
        generator = np.random.Generator(np.random.PCG64(seed))
        return generator.standard_normal(tuple(reversed(sizes)), dtype=np.float32)

    def add_weight(self, name, *sizes, gain=1.0):
        """A matrix (or a stack of them) that turns inputs of size 1 into outputs of size `gain`."""
        values = self.normal(name, sizes) * np.float32(gain / np.sqrt(sizes[0]))
        self.writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    def add_vector(self, name, *sizes, mean=0.0, deviation=0.1):
        values = self.normal(name, sizes) * np.float32(deviation) + np.float32(mean)
        self.writer.add_tensor(name, values)

    def add_norm(self, name, size, bias=False, mean=1.0):
        self.add_vector(f"{name}.weight", size, mean=mean)
        if bias:
            self.add_vector(f"{name}.bias", size)

    def add_embeddings(self, tied=False):
        vocabulary = len(self.printable)
        table = self.normal("token_embd", (self.width, vocabulary))
        if tied:  # Gemma multiplies what it looks up by the root of the width.
            table /= np.float32(np.sqrt(self.width))
        self.writer.add_tensor("token_embd.weight", table.astype(np.float16))
        if not tied:
            # Logits with a deviation of 2.5; 0 for what should not be chosen.
            output = self.normal("output", (self.width, vocabulary))
            output *= np.float32(2.5 / np.sqrt(self.width)) * self.printable[:, None]
            self.writer.add_tensor("output.weight", output.astype(np.float16))

    @property
    def residual_gain(self):
        """What each of a layer's two branches adds, so that all of them together add about 2."""
        return 2.0 / np.sqrt(2 * self.layers)

    def add_attention(self, layer, bias=False):
        """Q is larger than K, so that attention prefers some positions."""
        rows, kv_rows = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.add_weight(f"blk.{layer}.attn_q", self.width, rows, gain=2.0)
        self.add_weight(f"blk.{layer}.attn_k", self.width, kv_rows)
        self.add_weight(f"blk.{layer}.attn_v", self.width, kv_rows)
        if bias:
            self.add_vector(f"blk.{layer}.attn_q.bias", rows, deviation=0.5)
            self.add_vector(f"blk.{layer}.attn_k.bias", kv_rows, deviation=0.5)
            self.add_vector(f"blk.{layer}.attn_v.bias", kv_rows, deviation=0.5)
        self.add_attention_output(layer, rows)

    def add_attention_output(self, layer, rows):
        # The mean over many positions shrinks the values, hence the factor.
        self.add_weight(f"blk.{layer}.attn_output", rows, self.width, gain=3 * self.residual_gain)

    def add_gated_ffn(self, layer):
        self.add_weight(f"blk.{layer}.ffn_gate", self.width, self.ffn)
        self.add_weight(f"blk.{layer}.ffn_up", self.width, self.ffn)
        self.add_weight(f"blk.{layer}.ffn_down", self.ffn, self.width, gain=2 * self.residual_gain)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        self.path.with_suffix(".part").replace(self.path)


def make_llama(path, arch="llama", bias=False, **shape):
    model = Model(path, arch, **shape)
    model.add_attention_keys()
    model.add_head_keys()
    model.add_embeddings()
    for layer in range(model.layers):
        model.add_norm(f"blk.{layer}.attn_norm", model.width)
        model.add_attention(layer, bias)
        model.add_norm(f"blk.{layer}.ffn_norm", model.width)
        model.add_gated_ffn(layer)
    model.add_norm("output_norm", model.width)
    model.close()


def make_gemma2(path):
    model = Model(path, "gemma2", layers=4, width=256, heads=4, kv_heads=4, head_dim=64)
    model.add_attention_keys()
    model.add_head_keys()
    model.writer.add_sliding_window(128)
    model.writer.add_attn_logit_softcapping(50.0)
    model.writer.add_final_logit_softcapping(30.0)
    model.add_embeddings(tied=True)
    for layer in range(model.layers):
        model.add_norm(f"blk.{layer}.attn_norm", model.width)
        model.add_attention(layer)
        model.add_norm(f"blk.{layer}.post_attention_norm", model.width,
                       mean=2 * model.residual_gain)
        model.add_norm(f"blk.{layer}.ffn_norm", model.width)
        model.add_gated_ffn(layer)
        model.add_norm(f"blk.{layer}.post_ffw_norm", model.width, mean=2 * model.residual_gain)
    model.add_norm("output_norm", model.width, mean=2.5)
    model.close()


def make_bloom(path):
    model = Model(path, "bloom", layers=2, width=128, heads=4)
    model.add_attention_keys(rms=False)
    model.add_embeddings()
    model.add_norm("token_embd_norm", model.width, bias=True)
    for layer in range(model.layers):
        model.add_norm(f"blk.{layer}.attn_norm", model.width, bias=True)
        model.add_weight(f"blk.{layer}.attn_qkv", model.width, 3 * model.width)
        model.add_vector(f"blk.{layer}.attn_qkv.bias", 3 * model.width)
        model.add_attention_output(layer, model.width)
        model.add_vector(f"blk.{layer}.attn_output.bias", model.width)
        model.add_norm(f"blk.{layer}.ffn_norm", model.width, bias=True)
        model.add_weight(f"blk.{layer}.ffn_up", model.width, model.ffn)
        model.add_vector(f"blk.{layer}.ffn_up.bias", model.ffn)
        model.add_weight(f"blk.{layer}.ffn_down", model.ffn, model.width)
        model.add_vector(f"blk.{layer}.ffn_down.bias", model.width)
    model.add_norm("output_norm", model.width, bias=True)
    model.close()


def make_deepseek2(path):
    q_rank, kv_rank, rope_dim, plain_dim, value_dim = 64, 64, 32, 32, 32
    model = Model(path, "deepseek2", layers=2, width=128, heads=4, kv_heads=1)
    key_dim = plain_dim + rope_dim
    w = model.writer
    model.add_attention_keys()
    w.add_q_lora_rank(q_rank)
    w.add_kv_lora_rank(kv_rank)
    w.add_key_length(kv_rank + rope_dim)
    w.add_value_length(kv_rank)
    w.add_key_length_mla(key_dim)
    w.add_value_length_mla(value_dim)
    w.add_rope_dimension_count(rope_dim)
    w.add_leading_dense_block_count(model.layers)
    w.add_expert_feed_forward_length(model.ffn)
    w.add_expert_count(2)
    w.add_expert_used_count(1)
    w.add_expert_shared_count(1)
    model.add_embeddings()
    for layer in range(model.layers):
        blk = f"blk.{layer}"
        model.add_norm(f"{blk}.attn_norm", model.width)
        model.add_weight(f"{blk}.attn_q_a", model.width, q_rank)
        model.add_norm(f"{blk}.attn_q_a_norm", q_rank)
        model.add_weight(f"{blk}.attn_q_b", q_rank, model.heads * key_dim)
        model.add_weight(f"{blk}.attn_kv_a_mqa", model.width, kv_rank + rope_dim)
        model.add_norm(f"{blk}.attn_kv_a_norm", kv_rank)
        # F32, because libllama's AMX path takes an F16 stack and then refuses its operands' layout.
        model.add_vector(f"{blk}.attn_k_b.weight", plain_dim, kv_rank, model.heads, deviation=0.2)
        model.add_vector(f"{blk}.attn_v_b.weight", kv_rank, value_dim, model.heads, deviation=0.2)
        model.add_attention_output(layer, model.heads * value_dim)
        model.add_norm(f"{blk}.ffn_norm", model.width)
        model.add_gated_ffn(layer)
    model.add_norm("output_norm", model.width)
    model.close()


def make_mamba(path):
    model = Model(path, "mamba", layers=2, width=128, heads=1)
    inner, state, rank, kernel = 2 * model.width, 16, 8, 4
    w = model.writer
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_ssm_conv_kernel(kernel)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(rank)
    model.add_embeddings()
    for layer in range(model.layers):
        blk = f"blk.{layer}"
        model.add_norm(f"{blk}.attn_norm", model.width)
        model.add_weight(f"{blk}.ssm_in", model.width, 2 * inner)
        model.add_vector(f"{blk}.ssm_conv1d.weight", kernel, inner, deviation=0.5)
        model.add_vector(f"{blk}.ssm_conv1d.bias", inner)
        model.add_weight(f"{blk}.ssm_x", inner, rank + 2 * state)
        model.add_weight(f"{blk}.ssm_dt", rank, inner)
        model.add_vector(f"{blk}.ssm_dt.bias", inner)
        model.add_vector(f"{blk}.ssm_a", state, inner, mean=-1.0)
        model.add_vector(f"{blk}.ssm_d", inner, mean=1.0)
        model.add_weight(f"{blk}.ssm_out", inner, model.width)
    model.add_norm("output_norm", model.width)
    model.close()


def make_phi3(path):
    model = Model(path, "phi3", layers=2, width=128, heads=4)
    model.add_attention_keys()
    model.add_head_keys()
    w = model.writer
    w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    w.add_rope_scaling_orig_ctx_len(CONTEXT // 4)
    w.add_rope_scaling_attn_factors(1.19)
    model.add_embeddings()
    model.add_vector("rope_factors_long.weight", model.head_dim // 2, mean=4.0)
    model.add_vector("rope_factors_short.weight", model.head_dim // 2, mean=1.0, deviation=0.02)
    for layer in range(model.layers):
        blk = f"blk.{layer}"
        model.add_norm(f"{blk}.attn_norm", model.width)
        model.add_weight(f"{blk}.attn_qkv", model.width, 3 * model.width)
        model.add_attention_output(layer, model.width)
        model.add_norm(f"{blk}.ffn_norm", model.width)
        model.add_weight(f"{blk}.ffn_up", model.width, 2 * model.ffn)
        model.add_weight(f"{blk}.ffn_down", model.ffn, model.width)
    model.add_norm("output_norm", model.width)
    model.close()


def make_gemma3n(path):
    # libllama fixes the first layer without KV (20) and the sizes of AltUp (4, 256), LAuReL (64).
    altup, altup_width, rank = 4, 256, 64
    model = Model(path, "gemma3n", layers=22, width=64, heads=2, kv_heads=1, head_dim=32)
    model.add_attention_keys()
    model.add_head_keys()
    model.writer.add_sliding_window(128)
    model.writer.add_shared_kv_layers(2)
    model.add_embeddings(tied=True)
    width = model.width
    model.add_weight("altup_proj", width, width, altup - 1)
    model.add_weight("altup_unembd_proj", width, width, altup - 1)
    model.add_weight("per_layer_token_embd", altup_width * model.layers, len(model.printable))
    model.add_weight("per_layer_model_proj", width, altup_width * model.layers)
    model.add_norm("per_layer_proj_norm", altup_width)
    for layer in range(model.layers):
        blk = f"blk.{layer}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm",
                     "altup_correct_scale", "altup_router_norm", "laurel_post_norm"):
            model.add_norm(f"{blk}.{norm}", width)
        model.add_attention(layer)
        model.add_norm(f"{blk}.attn_q_norm", model.head_dim)
        model.add_norm(f"{blk}.attn_k_norm", model.head_dim)
        model.add_gated_ffn(layer)
        model.add_weight(f"{blk}.inp_gate", width, altup_width)
        model.add_weight(f"{blk}.proj", altup_width, width)
        model.add_vector(f"{blk}.altup_correct_coef.weight", altup, altup)
        model.add_vector(f"{blk}.altup_predict_coef.weight", altup, altup * altup)
        model.add_vector(f"{blk}.altup_router.weight", width, altup)
        model.add_weight(f"{blk}.laurel_l", width, rank)
        model.add_weight(f"{blk}.laurel_r", rank, width)
    model.add_norm("output_norm", width)
    model.close()


def make_gptoss(path):
    experts = 4
    model = Model(path, "gpt-oss", layers=2, width=128, heads=4, kv_heads=2)
    w = model.writer
    model.add_attention_keys()
    model.add_head_keys()
    w.add_sliding_window(128)
    w.add_expert_count(experts)
    w.add_expert_used_count(2)
    w.add_expert_feed_forward_length(model.ffn)
    model.add_embeddings()
    for layer in range(model.layers):
        blk = f"blk.{layer}"
        model.add_norm(f"{blk}.attn_norm", model.width)
        model.add_attention(layer, bias=True)
        model.add_vector(f"{blk}.attn_output.bias", model.width)
        model.add_vector(f"{blk}.attn_sinks.weight", model.heads, deviation=1.0)
        model.add_norm(f"{blk}.post_attention_norm", model.width)
        model.add_vector(f"{blk}.ffn_gate_inp.weight", model.width, experts)
        model.add_vector(f"{blk}.ffn_gate_inp.bias", experts)
        for part, inputs, outputs in (("gate", model.width, model.ffn),
                                      ("up", model.width, model.ffn),
                                      ("down", model.ffn, model.width)):
            model.add_weight(f"{blk}.ffn_{part}_exps", inputs, outputs, experts)
            model.add_vector(f"{blk}.ffn_{part}_exps.bias", outputs, experts)
    model.add_norm("output_norm", model.width)
    model.close()


MODELS = {
    "llama-32l": lambda path: make_llama(path, layers=32, width=256, heads=4, ffn=192),
    "qwen2-gqa-bias": lambda path: make_llama(path, arch="qwen2", bias=True, layers=4, width=512,
                                              heads=8, kv_heads=2, ffn=256,
                                              tokenizer=add_bpe_tokenizer),
    "llama-hd96": lambda path: make_llama(path, layers=3, width=256, heads=4, kv_heads=2,
                                          head_dim=96),
    "llama-hd128": lambda path: make_llama(path, layers=4, width=256, heads=4, kv_heads=1,
                                           head_dim=128),
    "gemma2-softcap": make_gemma2,
    "bloom-alibi": make_bloom,
    "deepseek2-mla": make_deepseek2,
    "mamba-recurrent": make_mamba,
    "phi3-longrope": make_phi3,
    "gemma3n-shared": make_gemma3n,
    "gptoss-sinks": make_gptoss,
}


def main():
    folder = pathlib.Path(sys.argv[1])
    names = sys.argv[2:] or list(MODELS)
    folder.mkdir(parents=True, exist_ok=True)
    # A file is up to date while the note beside it holds the digest of this script.
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    for name in names:
        path, note = folder / f"{name}.gguf", folder / f".{name}.digest"
        if path.exists() and note.exists() and note.read_text() == digest:
            continue
        MODELS[name](path)
        note.write_text(digest)


if __name__ == "__main__":
    main()
