"""A model as Hugging Face keeps it, made from a GGUF file, and a GGUF file of the same weights beside it: matrices become
BF16 (or F16, F32) in both, vectors what is left of them after that. Names, shapes, the order of rows and the numbers of
config.json are written here from what the two formats say of themselves, not from Forge's reader.

    python3 hf_folder.py FROM.gguf FOLDER TO.gguf
"""
import json
import pathlib
import struct
import sys

import numpy as np

import layers_gguf

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM",
           "granite": "GraniteForCausalLM", "gemma": "GemmaForCausalLM", "gemma3": "Gemma3ForCausalLM",
           "smollm3": "SmolLM3ForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM", "qwen2moe": "Qwen2MoeForCausalLM",
           "mixtral": "MixtralForCausalLM"}
PAIRS = ("llama", "granite", "smollm3", "mixtral")  # whose GGUF files have a pair's rows side by side
BLOCK = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
         "ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj",
         "ffn_down_shexp": "mlp.shared_expert.down_proj", "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
         "ffn_gate_exps": "mlp.experts.{}.gate_proj", "ffn_up_exps": "mlp.experts.{}.up_proj",
         "ffn_down_exps": "mlp.experts.{}.down_proj"}
RENAMED = {"gemma3": {"ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
                      "post_ffw_norm": "post_feedforward_layernorm"},
           "phi3": {"ffn_up": "mlp.gate_up_proj"},
           "mixtral": {"ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
                       "ffn_up_exps": "block_sparse_moe.experts.{}.w3", "ffn_down_exps": "block_sparse_moe.experts.{}.w2"}}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}
GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)


def encode(values, dtype):
    """Floats as the type's bytes; half to even."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype != "BF16":
        return values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


def rounded(values, dtype):
    data = encode(values, dtype)
    if dtype == "BF16":
        back = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        back = np.frombuffer(data, np.float16 if dtype == "F16" else np.float32).astype(np.float32)
    return back.reshape(values.shape)


def halves(values, heads):
    """Rows of GGUF's order, in which a rotated pair's stand side by side, in Hugging Face's, where they are half a head apart."""
    rows = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return rows.swapaxes(1, 2).reshape(values.shape)


def write_safetensors(path, tensors, odd=False):
    """[(name, dtype, shape, bytes)], as the format's page describes it; `odd`: values begin at odd addresses."""
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in tensors:
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 + odd)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for *_, data in tensors:
            out.write(data)


class Source:
    """A GGUF file, its tensors as floats."""

    def __init__(self, path):
        import gguf  # pylint: disable=import-outside-toplevel
        self.reader = gguf.GGUFReader(path)
        self.dequantize = gguf.quants.dequantize
        self.arch = self.get("general.architecture")

    def get(self, key, otherwise=None):
        field = self.reader.fields.get(key)
        return otherwise if field is None else field.contents()

    def own(self, key, otherwise=None):
        return self.get(f"{self.arch}.{key}", otherwise)

    def tensors(self):
        for tensor in self.reader.tensors:
            values = self.dequantize(tensor.data, tensor.tensor_type)
            yield tensor.name, values.reshape([int(d) for d in reversed(tensor.shape)]).astype(np.float32)


def config_of(source, tied, extra):
    own, heads = source.own, source.own("attention.head_count")
    kind = "mixtral" if source.arch == "llama" and own("expert_count") else source.arch
    config = {"architectures": [CLASSES[kind]], "model_type": source.arch, "torch_dtype": "bfloat16",
              "hidden_size": own("embedding_length"), "intermediate_size": own("feed_forward_length"),
              "num_hidden_layers": own("block_count"), "num_attention_heads": heads,
              "num_key_value_heads": own("attention.head_count_kv", heads), "tie_word_embeddings": tied,
              "max_position_embeddings": own("context_length"), "hidden_act": "silu",
              "rms_norm_eps": own("attention.layer_norm_rms_epsilon"), "rope_theta": own("rope.freq_base", 10000.0),
              "vocab_size": len(source.get("tokenizer.ggml.tokens")), "rope_scaling": None}
    head_dim = own("attention.key_length", config["hidden_size"] // heads)
    if kind not in ("phi3", "qwen2", "qwen2moe"):
        config["head_dim"] = head_dim
    if kind == "phi3" and own("rope.dimension_count") != head_dim:
        config["partial_rotary_factor"] = own("rope.dimension_count") / head_dim
    if own("attention.sliding_window"):
        config["sliding_window"] = own("attention.sliding_window")
    if kind.startswith("gemma"):
        config.update(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=head_dim)
        del config["hidden_act"]
    if kind == "gemma3":
        config.update(rope_local_base_freq=10000.0, sliding_window_pattern=6)
    if kind == "granite":
        config.update(embedding_multiplier=own("embedding_scale"), residual_multiplier=own("residual_scale"),
                      attention_multiplier=own("attention.scale"), logits_scaling=own("logit_scale"))
    if kind == "smollm3":
        config["no_rope_layers"] = [int((i + 1) % 4 != 0) for i in range(config["num_hidden_layers"])]
    if own("expert_count"):
        config.update({"num_local_experts" if kind == "mixtral" else "num_experts": own("expert_count"),
                       "num_experts_per_tok": own("expert_used_count"), "norm_topk_prob": kind == "qwen3moe",
                       "moe_intermediate_size": own("expert_feed_forward_length")})
    if kind == "qwen2moe":
        config["shared_expert_intermediate_size"] = own("expert_shared_feed_forward_length")
    scaling, factor = own("rope.scaling.type"), own("rope.scaling.factor")
    original = own("rope.scaling.original_context_length")
    if factor:
        config["rope_scaling"] = {"rope_type": scaling or "linear", "factor": factor}
        if original:
            config["rope_scaling"]["original_max_position_embeddings"] = original
    elif scaling == "longrope":
        config["rope_scaling"] = {"type": "longrope", "attention_factor": own("rope.scaling.attn_factor")}
        config["original_max_position_embeddings"] = original
    config.update(extra)
    return kind, config


def merges_of_scores(tokens, kinds, scores):
    """All ways to make a token of two, best tokens first: how SentencePiece's vocabularies become lists of merges."""
    ids = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (NORMAL, DEFINED)}
    ways = []
    for token, i in ids.items():
        local = [(token[:at], token[at:]) for at in range(1, len(token)) if token[:at] in ids and token[at:] in ids]
        score = 0.0 if kinds[i] == DEFINED else scores[i]  # files say something else of what is taken from the text whole
        ways += [(-score, i, ids[a], ids[b], a, b) for a, b in local]
    return [f"{a} {b}" for *_, a, b in sorted(ways)]


def spm_steps(source, metaspace):
    """Normalizer and pre-tokenizer of SentencePiece's kind, as files of several ages have them."""
    prefix = source.get("tokenizer.ggml.add_space_prefix", True)
    if metaspace:
        return None, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first" if prefix else "never",
                      "split": False}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    if not prefix:
        return replace, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]}, None


def tokenizer_of(source, pairs, metaspace=False):
    """tokenizer.json, tokenizer_config.json and generation_config.json; `pairs`: merges as lists of two."""
    tokens, kinds = source.get("tokenizer.ggml.tokens"), source.get("tokenizer.ggml.token_type")
    spm = source.get("tokenizer.ggml.model") == "llama"
    if spm:  # files have spaces in tokens that are taken from the text as they are
        tokens = [token.replace(" ", "\u2581") for token in tokens]
    pre = source.get("tokenizer.ggml.pre", "default")
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind != DEFINED} for i, (token, kind) in enumerate(zip(tokens, kinds))
             if kind in (CONTROL, DEFINED) or (spm and kind == UNKNOWN)]
    by_regex = {"llama-bpe": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}.get(pre)
    steps = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": by_regex is None}]
    if by_regex:
        steps.insert(0, {"type": "Split", "pattern": {"Regex": by_regex}, "behavior": "Isolated", "invert": False})
    elif pre == "smollm":
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    else:
        assert pre in ("gpt-2", "default"), pre
    cuts, normalizer = {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0], None
    if spm:
        normalizer, cuts = spm_steps(source, metaspace)
    merges = (merges_of_scores(tokens, kinds, source.get("tokenizer.ggml.scores")) if spm
              else source.get("tokenizer.ggml.merges"))
    bos, eos = (source.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    adds = bool(source.get("tokenizer.ggml.add_bos_token", spm or pre == "llama-bpe")) and bos is not None
    first = [{"SpecialToken": {"id": tokens[bos], "type_id": 0}}] if adds else []
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": cuts,
        "post_processor": {"type": "TemplateProcessing", "single": first + [{"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": first + [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}
                           if adds else {}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>" if spm else None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": spm, "byte_fallback": spm,
                  "ignore_merges": pre == "llama-bpe",
                  "vocab": {token: i for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind != UNUSED},
                  "merges": [merge.split(" ") for merge in merges] if pairs else list(merges)}}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None if bos is None else tokens[bos],
              "eos_token": {"content": tokens[eos], "special": True} if pairs else tokens[eos],
              "model_max_length": source.own("context_length"), "clean_up_tokenization_spaces": False}
    if source.get("tokenizer.chat_template"):
        config["chat_template"] = source.get("tokenizer.chat_template")
    return tokenizer, config, {"eos_token_id": eos, "bos_token_id": bos, "_from_model_config": True}


def convert(source, kind, config, dtype):
    """Both files' tensors of all that the source has: ([(name, dtype, shape, bytes)], [(name, dims, type, bytes)])."""
    ours, theirs = [], []
    names = {**BLOCK, **RENAMED.get(kind, {})}
    less = 1.0 if kind.startswith("gemma") else 0.0
    for name, values in source.tensors():
        if name.startswith("rope_f"):
            theirs.append((name.encode(), list(values.shape), 0, values.tobytes()))
            if name.startswith("rope_factors"):
                config["rope_scaling"][name[13:-7] + "_factor"] = [float(x) for x in values]
            continue
        part, _, suffix = name.partition(".")[2].partition(".")[2].rpartition(".")
        base = WHOLE.get(name) or f"model.layers.{name.split('.')[1]}.{names[part]}.{suffix}"
        is_float = values.ndim == 1 or part == "ffn_gate_inp"
        norm = less if "norm" in name else 0.0
        kept = rounded(values - norm, dtype)
        theirs.append((name.encode(), list(reversed(values.shape)), 0 if is_float else GGUF_TYPES[dtype],
                       encode(kept + np.float32(norm), "F32" if is_float else dtype)))
        if kind in PAIRS and part in ("attn_q", "attn_k"):
            kept = halves(kept, config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"])
        if part == "ffn_gate_inp_shexp":
            kept = kept.reshape(1, -1)
        for i, one in enumerate(kept if "{}" in base else [kept]):
            ours.append((base.format(i), dtype, one.shape, encode(one, dtype)))
    return ours, theirs


def make_vocabulary(path, folder, **options):
    """A folder that has nothing but a file's vocabulary: a model without layers to speak of, all of it zeros."""
    folder, source, embedding = pathlib.Path(folder), Source(path), 32
    folder.mkdir(parents=True)
    vocab = len(source.get("tokenizer.ggml.tokens"))
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": embedding, "intermediate_size": embedding,
              "num_hidden_layers": 0, "num_attention_heads": 1, "max_position_embeddings": 2048, "vocab_size": vocab,
              "tie_word_embeddings": True}
    write_json(folder, "config.json", config)
    for name, value in zip(("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
                           tokenizer_of(source, False, **options)):
        write_json(folder, name, value)
    write_safetensors(folder / "model.safetensors", [
        ("model.embed_tokens.weight", "BF16", (vocab, embedding), bytes(2 * vocab * embedding)),
        ("model.norm.weight", "BF16", (embedding,), bytes(2 * embedding))])


def write_json(folder, name, value):
    (pathlib.Path(folder) / name).write_text(json.dumps(value), encoding="utf-8")


def make(path, folder, gguf_path=None, dtype="BF16", shards=1, pairs=False, odd=False, extra=None, added=()):
    """`extra`: more of config.json; `added`: more tensors of the GGUF file, [(name, values)]."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = Source(path)
    tied = all(tensor.name != "output.weight" for tensor in source.reader.tensors)
    kind, config = config_of(source, tied, extra or {})
    ours, theirs = convert(source, kind, config, dtype)
    write_json(folder, "config.json", config)
    for name, value in zip(("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
                           tokenizer_of(source, pairs)):
        write_json(folder, name, value)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", ours, odd)
    else:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, name in enumerate(files):
            write_safetensors(folder / name, ours[i::shards])
        write_json(folder, "model.safetensors.index.json", {
            "metadata": {"total_size": sum(len(t[3]) for t in ours)},
            "weight_map": {t[0]: files[i % shards] for i, t in enumerate(ours)}})
    if gguf_path:
        version, meta, _, alignment = layers_gguf.read(path)
        theirs += [(name.encode(), list(values.shape), 0, encode(values, "F32")) for name, values in added]
        layers_gguf.write(gguf_path, version, meta, theirs, alignment)


if __name__ == "__main__":
    make(*sys.argv[1:4])
