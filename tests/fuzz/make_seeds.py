#!/usr/bin/env python3
"""Writes the seeds of the binary and hostile shapes: tests/fuzz/make_seeds.py, in the repository's root.

Each is built from the public description of a flaw in some reader, or is a good file for the fuzzer to start from. The
texts that are easier to write by hand (json, tokenizer, chat) lie in their folders.
"""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def put(parser, name, data):
    folder = os.path.join(HERE, parser + "-seeds")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


# ---- adapters: how many zeros, the header, beside the base of fuzz_peft.c -----------------------------------------

def peft():
    prefix, up = "base_model.model.", "base_model.model.model.layers.0.up."
    e, size = prefix + "model.embed_tokens.", {"F64": 8, "F32": 4, "BF16": 2}

    def seed(name, *parts, dtype="F32"):
        header, at = {}, 0
        for tensor_name, *shape in parts:
            n = size[dtype]
            for d in shape:
                n *= d
            header[tensor_name] = tensor(dtype, shape, at, at + n)
            at += n
        put("fuzz_peft", name, struct.pack("<H", at) + json.dumps(header).encode())
    a, b, m = (up + "lora_A.weight", 2, 4), (up + "lora_B.weight", 4, 2), (up + "lora_magnitude_vector", 4)
    ea, eb = (e + "lora_embedding_A", 2, 8), (e + "lora_embedding_B", 4, 2)
    seed("linear", a, b)
    seed("dora", a, b, m, dtype="F64")
    seed("embedding", a, b, ea, eb, (e + "base_layer.weight", 8, 4), dtype="BF16")
    seed("dora-embedding", ea, eb, (e + "lora_magnitude_vector.weight", 4))
    seed("head", (prefix + "lm_head.lora_A.weight", 2, 4), (prefix + "lm_head.lora_B.weight", 8, 2))
    seed("whole", a, b, (prefix + "lm_head.weight", 8, 4), (e + "weight", 8, 4), (up + "base_layer.bias", 4))
    seed("twice", a, b, (e + "weight", 8, 4), (e + "base_layer.weight", 8, 4))
    seed("lora-bias", a, b, (up + "lora_B.bias", 4))
    seed("no-module", (prefix + ".weight", 4), (prefix + "lora_A.weight", 2, 4))
    seed("grown", a, b, (e + "weight", 9, 4))
    seed("empty", (up + "lora_A.weight", 0, 4), (up + "lora_B.weight", 4, 0))


# ---- safetensors -------------------------------------------------------------------------------------------------

def st(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    p = "fuzz_safetensors"
    put(p, "good", st({"__metadata__": {"format": "pt"}, "a": tensor("F32", [2, 3], 0, 24),
                       "b": tensor("BF16", [4], 24, 32), "s": tensor("F64", [], 32, 40)}, bytes(range(40))))
    put(p, "types", st({t: tensor(t, [8 // n], 8 * i, 8 * i + 8) for i, (t, n) in enumerate(
        [("F16", 2), ("I64", 8), ("I32", 4), ("I16", 2), ("I8", 1), ("U64", 8), ("U32", 4), ("U16", 2), ("U8", 1),
         ("BOOL", 1), ("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1), ("C64", 8)])}, bytes(range(112))))
    put(p, "empty-tensor", st({"a": tensor("F32", [0, 5], 0, 0)}))
    put(p, "header-bomb", st(b"{}", length=1 << 62))            # allocate what the length says
    put(p, "header-past-end", st(b"{}", length=100_000_000))
    put(p, "length-wraps", st(b"{}", length=(1 << 64) - 8))     # 8 + n overflows
    put(p, "shape-wraps", st({"a": tensor("F32", [1 << 32, 1 << 32], 0, 0)}))   # product is 0 mod 2^64
    put(p, "shape-wraps-to-size", st({"a": tensor("F32", [(1 << 62) + 1], 0, 4)}, b"abcd"))
    put(p, "shape-and-offsets-differ", st({"a": tensor("F32", [1024], 0, 4)}, b"abcd"))  # fill by shape
    put(p, "offsets-reversed", st({"a": tensor("U8", [4], 8, 4)}, b"abcdefgh"))
    put(p, "offsets-huge", st({"a": tensor("U8", [4], (1 << 63) - 1, (1 << 63) + 3)}, b"abcd"))
    put(p, "overlap", st({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [4], 2, 6)}, b"abcdef"))
    put(p, "hole-polyglot", st({"a": tensor("U8", [4], 4, 8)}, b"PK\3\4abcd"))
    put(p, "trailing-polyglot", st({"a": tensor("U8", [4], 0, 4)}, b"abcdPK\5\6"))
    put(p, "duplicate-key", st(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                               b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"))
    put(p, "nul-name", st({"a\0b": tensor("U8", [1], 0, 1)}, b"x"))
    put(p, "deep", st(b'{"__metadata__":' + b"[" * 500))
    put(p, "many-dims", st({"a": tensor("U8", [1] * 40, 0, 1)}, b"x"))
    put(p, "float-offsets", st(b'{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1.0]}}', b"x"))
    put(p, "pickle", b"\x80\x02cposix\nsystem\nq\x00X\x02\0\0\0idq\x01\x85q\x02Rq\x03.")
    put(p, "zip", b"PK\3\4\x14\0\0\0archive/data.pkl")


def index():
    p = "fuzz_index"
    put(p, "good", json.dumps({"metadata": {"total_size": 4}, "weight_map": {"a": "1.safetensors",
                                                                             "b": "2.safetensors"}}))
    for name, shard in [("parent", "../1.safetensors"), ("absolute", "/etc/1.safetensors"), ("nul", "1\0.safetensors"),
                        ("inner-parent", "x/../../1.safetensors"), ("dot", "./1.safetensors"), ("empty", ""),
                        ("pickle", "pytorch_model.bin"), ("folder", "x/"), ("backslash", "..\\1.safetensors"),
                        ("long", "a" * 300 + ".safetensors"), ("deep", "a/" * 40 + "1.safetensors")]:
        put(p, name, json.dumps({"weight_map": {"a": shard}}))
    put(p, "missing-tensor", json.dumps({"weight_map": {"zz": "1.safetensors"}}))
    put(p, "many-shards", json.dumps({"weight_map": {"t%d" % i: "%d.safetensors" % i for i in range(40)}}))
    put(p, "twice", '{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}')
    put(p, "map-twice", '{"weight_map":{},"weight_map":{"a":"1.safetensors"}}')
    put(p, "map-is-list", '{"weight_map":[["a","1.safetensors"]]}')
    put(p, "nested", '{"metadata":' + '{"a":' * 70 + "1" + "}" * 70 + ',"weight_map":{}}')


# ---- GGUF --------------------------------------------------------------------------------------------------------

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORM = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(t, v):
    return text(v) if t == STRING else struct.pack("<" + FORM[t], v)


def kv(key, t, v):
    return text(key) + struct.pack("<I", t) + value(t, v)


def kv_array(key, t, items, count=None):
    return (text(key) + struct.pack("<IIQ", ARRAY, t, len(items) if count is None else count)
            + b"".join(value(t, i) for i in items))


def info(name, dims, kind, offset):
    return text(name) + struct.pack("<I%dQIQ" % len(dims), len(dims), *dims, kind, offset)


def gguf(kvs, infos=(), data=b"", version=3, n_kv=None, n_tensors=None, align=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos) if n_tensors is None else n_tensors,
                                 len(kvs) if n_kv is None else n_kv) + b"".join(kvs) + b"".join(infos)
    return head + b"\0" * (-len(head) % align) + data


def keys(arch, norm="rms_epsilon"):
    return [kv("general.architecture", STRING, arch), kv(arch + ".block_count", U32, 1),
            kv(arch + ".context_length", U32, 64), kv(arch + ".embedding_length", U32, 8),
            kv(arch + ".feed_forward_length", U32, 8), kv(arch + ".attention.head_count", U32, 2),
            kv(arch + ".attention.head_count_kv", U32, 1), kv(arch + ".attention.layer_norm_" + norm, F32, 1e-5),
            kv(arch + ".rope.freq_base", F32, 10000.0), kv(arch + ".vocab_size", U32, 8)]


LLAMA = keys("llama")


def vocabulary(kind):
    byte = ["<0x%02X>" % i for i in range(256)]
    if kind == "llama":
        tokens = ["<unk>", "<s>", "</s>"] + byte + ["\u2581", "a", "b", "ab", "\u2581a"]
        types = [2, 3, 3] + [6] * 256 + [1] * 5
        extra = [kv_array("tokenizer.ggml.scores", F32, [-float(i) for i in range(len(tokens))])]
    else:
        tokens = ["a", "b", "ab", "\u0120", "\u0120a", "<|im_start|>", "<|im_end|>", "c"]
        types = [1] * 5 + [3, 3, 1]
        extra = [kv_array("tokenizer.ggml.merges", STRING, ["a b", "\u0120 a"]),
                 kv("tokenizer.ggml.pre", STRING, "smollm")]
    return [kv("tokenizer.ggml.model", STRING, kind), kv_array("tokenizer.ggml.tokens", STRING, tokens),
            kv_array("tokenizer.ggml.token_type", I32, types), kv("tokenizer.ggml.bos_token_id", U32, 1),
            kv("tokenizer.ggml.eos_token_id", U32, 2)] + extra


LLAMA_DIMS = [("token_embd.weight", [8, 8]), ("output_norm.weight", [8]), ("blk.0.attn_norm.weight", [8]),
              ("blk.0.attn_q.weight", [8, 8]), ("blk.0.attn_k.weight", [8, 4]), ("blk.0.attn_v.weight", [8, 4]),
              ("blk.0.attn_output.weight", [8, 8]), ("blk.0.ffn_norm.weight", [8]), ("blk.0.ffn_gate.weight", [8, 8]),
              ("blk.0.ffn_up.weight", [8, 8]), ("blk.0.ffn_down.weight", [8, 8])]


def llama_tensors(dims=LLAMA_DIMS):
    infos, data = [], b""
    for name, d in dims:
        n = 4 * d[0] * (d[1] if len(d) > 1 else 1)
        infos.append(info(name, d, 0, len(data)))
        data += bytes(n)
    return infos, data


def ggufs():
    p = "fuzz_gguf"
    infos, data = llama_tensors()
    for kind in ("llama", "gpt2"):
        put(p, "good-" + kind, gguf(LLAMA + vocabulary(kind), infos, data))
    put(p, "good-gemma3", gguf(keys("gemma3") + [
        kv("gemma3.attention.scale", F32, 0.25), kv("gemma3.rope.freq_base_swa", F32, 100.0),
        kv("gemma3.rope.scaling.type", STRING, "linear"), kv("gemma3.rope.scaling.factor", F32, 8.0),
        kv_array("gemma3.attention.sliding_window_pattern", BOOL, [1])] + vocabulary("llama"), infos, data))
    put(p, "good-gemma4", gguf([k for k in keys("gemma4") if b"feed_forward" not in k and b"head_count_kv" not in k] + [
        kv_array("gemma4.feed_forward_length", I32, [8]), kv_array("gemma4.attention.head_count_kv", I32, [1]),
        kv("gemma4.attention.key_length", U32, 8), kv("gemma4.attention.key_length_swa", U32, 4),
        kv("gemma4.attention.shared_kv_layers", U32, 0), kv("gemma4.embedding_length_per_layer_input", U32, 8),
        kv_array("gemma4.attention.sliding_window_pattern", BOOL, [0])] + vocabulary("llama"), *llama_tensors(
            [("token_embd.weight", [8, 8]), ("per_layer_token_embd.weight", [8, 8]), ("blk.0.attn_k.weight", [8, 8]),
             ("blk.0.layer_output_scale.weight", [1])])))
    put(p, "good-smollm3", gguf(keys("smollm3") + [
        kv("smollm3.rope.layer_pattern", U32, 2), kv("smollm3.rope.scaling.type", STRING, "yarn"),
        kv("smollm3.rope.scaling.factor", F32, 4.0),
        kv("smollm3.rope.scaling.original_context_length", U32, 16)] + vocabulary("gpt2"), infos, data))
    fused = [("token_embd.weight", [8, 8]), ("output.weight", [8, 8]), ("rope_factors_long.weight", [1]),
             ("rope_factors_short.weight", [1]), ("blk.0.attn_qkv.weight", [8, 16])]
    put(p, "good-phi3", gguf(keys("phi3") + [
        kv("phi3.rope.dimension_count", U32, 2), kv("phi3.rope.scaling.attn_factor", F32, 1.25),
        kv("phi3.rope.scaling.original_context_length", U32, 16), kv("phi3.attention.sliding_window", U32, 0)],
        llama_tensors(fused)[0], struct.pack("<256f", *[1.0] * 256)))
    turned = [("token_embd.weight", [8, 8]), ("position_embd.weight", [8, 64]), ("blk.0.attn_qkv.weight", [8, 24]),
              ("blk.0.attn_qkv.bias", [24])]
    put(p, "good-gpt2-model", gguf(keys("gpt2", "epsilon"), *llama_tensors(turned)))
    put(p, "blocks", gguf([], [info("a", [32], 2, 0), info("b", [32], 3, 32), info("c", [32], 8, 64),
                               info("d", [256], 12, 128), info("e", [256], 14, 288)], bytes(500)))
    put(p, "types", gguf([kv("k%d" % t, t, 1) for t in FORM] + [kv_array("a%d" % t, t, [1, 0]) for t in FORM]))
    put(p, "n-kv-huge", gguf([], n_kv=(1 << 64) - 1))                    # allocation by count
    put(p, "n-kv-times-size-wraps", gguf([], n_kv=(1 << 64) // 48 + 1))
    put(p, "n-tensors-huge", gguf([], n_tensors=1 << 61))
    put(p, "key-length-wraps", gguf([struct.pack("<Q", (1 << 64) - 1) + b"x" * 40], n_kv=1))   # n + 1 == 0
    put(p, "string-length-wraps", gguf([text("k") + struct.pack("<IQ", STRING, (1 << 64) - 1) + b"x" * 40], n_kv=1))
    put(p, "array-count-wraps", gguf([kv_array("k", U64, [], count=1 << 61)], n_kv=1))
    put(p, "array-of-strings-huge", gguf([kv_array("k", STRING, [], count=1 << 60)], n_kv=1))
    put(p, "array-of-arrays", gguf([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1 << 30)], n_kv=1))
    put(p, "type-out-of-range", gguf([text("k") + struct.pack("<I", 77) + b"x" * 40], n_kv=1))
    put(p, "array-type-out-of-range", gguf([text("k") + struct.pack("<IIQ", ARRAY, 77, 4) + b"x" * 40], n_kv=1))
    put(p, "dims-5", gguf([], [text("a") + struct.pack("<I5QIQ", 5, 1, 1, 1, 1, 1, 0, 0)], bytes(32)))  # CVE-2024-21802
    put(p, "dims-0", gguf([], [text("a") + struct.pack("<IIQ", 0, 0, 0) + bytes(40)], bytes(32)))
    put(p, "elements-wrap", gguf([], [info("a", [1 << 32, 1 << 32], 0, 0)], bytes(32)))
    put(p, "elements-wrap-to-small", gguf([], [info("a", [(1 << 62) + 1, 4], 0, 0)], bytes(32)))
    put(p, "bytes-wrap", gguf([], [info("a", [1 << 62], 0, 0)], bytes(32)))                    # CVE-2026-33298
    put(p, "padding-wraps", gguf([], [info("a", [(1 << 62) - 1], 0, 0)], bytes(32)))           # CVE-2025-53630
    put(p, "sum-wraps", gguf([], [info("a", [8], 0, (1 << 64) - 32), info("b", [8], 0, 0)], bytes(64)))  # CVE-2026-27940
    put(p, "offset-plus-size-wraps", gguf([], [info("a", [8], 0, (1 << 64) - 32)], bytes(64)))
    put(p, "more-than-the-file", gguf([], [info("a", [1 << 20], 0, 0)], bytes(64)))            # CVE-2026-7482
    put(p, "negative-dim", gguf([], [info("a", [(1 << 64) - 4], 0, 0)], bytes(64)))
    put(p, "broken-block", gguf([], [info("a", [33], 2, 0)], bytes(64)))
    put(p, "alignment-0", gguf([kv("general.alignment", U32, 0)], [info("a", [8], 0, 0)], bytes(64)))
    put(p, "alignment-huge", gguf([kv("general.alignment", U32, (1 << 32) - 1)], [info("a", [8], 0, 0)], bytes(64)))
    put(p, "alignment-text", gguf([kv("general.alignment", STRING, "32")], [info("a", [8], 0, 0)], bytes(64)))
    put(p, "tensor-twice", gguf([], [info("a", [8], 0, 0), info("a", [8], 0, 32)], bytes(64)))
    put(p, "overlap", gguf([], [info("a", [16], 0, 0), info("b", [8], 0, 32)], bytes(64)))
    put(p, "big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    put(p, "version-1", gguf([], version=1))
    put(p, "heads-0", gguf([k if b"head_count" not in k else k[:-4] + bytes(4) for k in LLAMA] + vocabulary("llama"),
                           infos, data))
    put(p, "layers-huge", gguf([k if b"block_count" not in k else k[:-4] + b"\xff" * 4 for k in LLAMA], infos, data))
    put(p, "merge-without-space", gguf(LLAMA + [kv("tokenizer.ggml.model", STRING, "gpt2"),
                                                kv_array("tokenizer.ggml.tokens", STRING, ["a", "b"]),
                                                kv_array("tokenizer.ggml.merges", STRING, ["ab", " ", "a b c", ""])]))
    put(p, "token-types-short", gguf(LLAMA + [kv("tokenizer.ggml.model", STRING, "llama"),
                                              kv_array("tokenizer.ggml.tokens", STRING, ["a", "b", "c"]),
                                              kv_array("tokenizer.ggml.token_type", I32, [1]),
                                              kv_array("tokenizer.ggml.scores", F32, [0.0])]))
    put(p, "eos-out-of-range", gguf(LLAMA + [kv("tokenizer.ggml.eos_token_id", U32, 1 << 31)] + vocabulary("gpt2")[:3]))
    put(p, "template", gguf(LLAMA + [kv("tokenizer.chat_template", STRING, "{{ ''.__class__.__mro__ }}")]))


# ---- the rest ----------------------------------------------------------------------------------------------------

def config():
    p = "fuzz_config"
    put(p, "full", json.dumps({
        "model": "m", "init": "pretrained", "precision": "bf16", "seed": 1, "max_steps": 5, "learning_rate": 1e-5,
        "data": {"train": "d", "format": "auto", "seq_len": 16, "shuffle": True}, "output_dir": "o",
        "memory": {"host_budget": "3GiB", "cache": "none", "update": "F", "slots": 2, "io_engine": "sync"},
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.1, "commit_steps": 2, "no_decay": ["norm", "bias"]}))
    put(p, "deepspeed", """{ // comments
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 1e-5}},
        "zero_optimization": {"stage": 3, "sub_group_size": 5e8, "offload_param": {"device": "nvme", "nvme_path": ["a", "b"],
        "buffer_size": 1e8, "max_in_cpu": 1e9}, "offload_optimizer": {"device": "cpu", "pipeline_read": true,},
        "stage3_prefetch_bucket_size": "auto"}, "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1}, }""")
    put(p, "model", json.dumps({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "vocab_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_theta": 1e4, "max_position_embeddings": 128, "tie_word_embeddings": False, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}}))
    plain = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "bos_token_id", "pad_token_id")
    for name, form in (("qwen3", ""), ("gemma2", ""), ("gemma3", ""), ("gemma3", "_v4"), ("phi3", ""), ("phi4mini", "_v4"),
                       ("llama_yarn", ""), ("smollm3", ""), ("gpt2", ""), ("olmo2", ""), ("granite", ""), ("glm4", "")):
        with open(os.path.join(HERE, "..", "fixtures", f"arch_{name}", f"config{form}.json"), encoding="ascii") as f:
            config = json.load(f)
        put(p, f"model-{name}{form}", json.dumps({k: v for k, v in config.items() if k not in plain and "dropout" not in k}))
    put(p, "model-heads-0", '{"model_type":"llama","hidden_size":64,"num_attention_heads":0,"num_hidden_layers":1}')
    put(p, "model-huge", json.dumps({
        "model_type": "llama", "hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "num_hidden_layers": 2**31 - 1,
        "vocab_size": 2**31 - 1, "num_attention_heads": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}))
    put(p, "numbers", '{"seed": 1e308, "max_steps": -9223372036854775808, "learning_rate": -0.0, "warmup_steps": 1e-320}')
    put(p, "sizes", '{"memory": {"host_budget": "18446744073709551615TiB"}, "aio": {"block_size": 1e19}}')
    put(p, "code", '{"model": "$(id)", "data": {"train": "`id`"}, "lr_scheduler_kwargs": {"__class__": "os.system"}}')
    put(p, "files", '{"data": {"train": [{"path": "a.csv#5", "weight": 2, "columns": {"q": "prompt"}}, "b#3", {"path": "c", "samples": 4, '
        '"sample_by": "line"}], "eval": {"path": "d"}, "format": "safetensors"}, "packing": true, "val_size": 0.5}')
    put(p, "objective", '{"rlhf_type": "dpo", "beta": 0.2, "loss_type": ["ipo"], "ref_model": "r", "objective": {"cpo_alpha": 1}}')
    put(p, "suggestion", '{"learning_rat": 1, "per_device_train_batch_sise": 1, "zero_optimisation": {"stag": 3}}')


def manifest():
    p = "fuzz_manifest"
    info_text = b'{"step":3,"total_steps":9,"applied":3,"config":{}}'
    paths = b"/a/run-1\0"

    def build(n_paths=1, slots=2, objects=((0, 0, 0, 0, 0, 65536, 1), (3, 0, 1, 0, 0, 131072, 2)), n_pages=3, version=1,
              magic=b"tidemill commit\0", info=info_text, paths=paths, info_bytes=None, n_objects=None, page=65536,
              sums=None):
        head = magic + struct.pack("<IIQQIIIIIIQ", version, page, 7, 3, 1, n_paths, slots,
                                   len(info) if info_bytes is None else info_bytes,
                                   len(objects) if n_objects is None else n_objects, len(paths), n_pages)
        return (head + info + paths + b"".join(struct.pack("<BBBBIQQQ", k, w, s, 0, n, o, b, g)
                                               for k, w, s, n, o, b, g in objects)
                + bytes(8 * (n_pages if sums is None else sums)))

    put(p, "good", build())
    put(p, "two-paths", build(n_paths=2, paths=b"/a/run-1\0/b/run-1\0"))
    put(p, "objects-wrap", build(n_objects=1 << 27))                    # CVE-2026-43629: its own state file
    put(p, "pages-wrap", build(n_pages=(1 << 61) + 3, sums=3))
    put(p, "info-past-end", build(info_bytes=1 << 31))
    put(p, "info-exactly-all", build(info_bytes=1 << 20))
    put(p, "no-objects", build(objects=(), n_pages=0))
    put(p, "object-out-of-bounds", build(objects=((0, 0, 0, 0, (1 << 63) - 4096, 1 << 62, 1),), n_pages=1))
    put(p, "object-kind", build(objects=((200, 9, 7, 0, 0, 65536, 1),), n_pages=1))
    put(p, "paths-without-nul", build(paths=b"/a/run-1"))
    put(p, "path-traversal", build(paths=b"../../etc\0"))
    put(p, "info-deep", build(info=b"[" * 100))
    put(p, "version-2", build(version=2))
    put(p, "slots-0", build(slots=0))


def data():
    p = "fuzz_data"
    lines = [json.dumps(x) for x in [
        {"text": "ab a"}, {"prompt": "a", "completion": "b"}, {"instruction": "a", "input": "", "output": "ab"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "a", "output": "b", "history": [["a", "b"]]}, {"text": "a" * 100}]]
    for how in range(6):
        put(p, "all-%d" % how, "\n".join(lines) + "\n" + chr(how))
    put(p, "bad-lines", '{"text": "a"}\n{"text": 3}\n{"text"\n\n[]\n{"text": "\\ud800"}\n{"text": "a", "text": "b"}\n\x40')
    put(p, "crlf-bom", b"\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"}\x80")
    put(p, "not-utf8", b'{"text": "\xff\xfe"}\n{"text": "ab"}\n\x06')
    put(p, "long-line", '{"text": "' + "ab" * 1500 + '"}\n{"text": "a"}\n\x00')
    put(p, "deep", "[" * 200 + '\n{"text": "a"}\n\x01')
    put(p, "nul", b'{"text": "a\\u0000b"}\n\0\n{"text": "a"}\x0c')
    put(p, "roles", '{"messages": [{"role": "assistant", "content": "a", "loss": false}, {"role": "</s>", "content": "<s>"}]}\n\x02')
    put(p, "overlong", '{"text": "' + "1" * 30 + '"}\n{"text": "1"}\n\x4c')


def hf_tokenizer():
    p = "fuzz_hf_tokenizer"
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u2581": 3, "<0x41>": 4, "<unk>": 5, "\u0120": 6},
           "merges": ["a b"], "unk_token": "<unk>"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    split = {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
             r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}}

    def whole(name, **parts):
        put(p, name, json.dumps({"added_tokens": [{"id": 7, "content": "<s>", "special": True}], "model": bpe, **parts}))

    def sequence(*parts):
        return {"type": "Sequence", "pretokenizers": list(parts)}

    whole("gpt2", pre_tokenizer=byte_level)
    whole("digits", pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, byte_level))
    whole("qwen2", normalizer={"type": "NFC"}, pre_tokenizer=sequence(split, {**byte_level, "use_regex": False}),
          post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})
    whole("spm", model={**bpe, "byte_fallback": True, "merges": [["a", "b"]]},
          normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}]})
    whole("regex-is-object", pre_tokenizer=sequence({"type": "Split", "pattern": {"Regex": {}}}, {**byte_level, "use_regex": False}))
    whole("id-out-of-range", model={**bpe, "vocab": {"a": 0, "b": 300}}, pre_tokenizer=byte_level)
    whole("id-negative", model={**bpe, "vocab": {"a": -1}}, pre_tokenizer=byte_level)
    whole("text-twice", model={**bpe, "vocab": {"a": 0, "b": 0}}, pre_tokenizer=byte_level)
    whole("merge-of-nothing", model={**bpe, "merges": ["x y", "a", "a b c"]}, pre_tokenizer=byte_level)


def yaml():
    p = "fuzz_yaml"
    put(p, "factory", "model_name_or_path: m # x\nstage: sft\nfinetuning_type: lora\nlora_target: all\ndataset: a.jsonl,b.jsonl\ncutoff_len: 64\n"
        "learning_rate: 1.0e-4\nbf16: true\nresume_from_checkpoint: null\n")
    put(p, "axolotl", "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\nsequence_len: 64\nadapter: qlora\nlora_r: 8\nlora_alpha: 16\n"
        "lora_target_modules:\n  - q_proj\nwandb_project:\nmicro_batch_size: 2\noptimizer: adamw_torch\nbf16: auto\n")
    put(p, "aliases", "a: &x [1, {b: 2}]\nb: *x\nc: &x 3\nd: [*x, *x]\n")
    put(p, "bomb", "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join("%s: &%s [%s]\n" % (n, n, ",".join(["*" + m] * 9)) for m, n in zip("abcdefg", "bcdefgh")))
    put(p, "recursion", "a: &a [*a, {b: *a}]\n")
    put(p, "numbers", "- 0x1f\n- 0o17\n- +.5e-3\n- 007\n- -5.\n- .inf\n- 1_0\n- 9223372036854775808\n- ~\n- \n")
    put(p, "texts", "a: \"\\x41\\u00e9\\0\"\nb: 'it''s'\nc: >-\n  folded\nd: |+\n  kept\n\n")
    put(p, "tags", "a: !!str 1\nb: !x {c: d}\n%TAG ! tag:x,2000:\n--- a\n")
    put(p, "keys", "? [a]\n: 1\n<<: {b: 1}\n&k a: 2\n1: x\n")
    put(p, "deep", "[" * 80 + "]" * 80)
    put(p, "utf16", b"\xff\xfea\0:\0 \x001\0")


# ---- integer codes: shapes of the tensors, then the quantization_config (fuzz_ints.c) ------------------------------

def ints():
    def seed(name, head, config):
        put("fuzz_ints", name, bytes(head) + json.dumps(config).encode())

    def packed(**weights):
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}
    none, awq = 255, {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": True}
    seed("packed4", [0, 6, 4, 6, 2, none, 0, none, 6, 32, 0, 0],
         packed(num_bits=4, type="int", symmetric=True, strategy="group", group_size=16))
    seed("packed4-zeros-index", [0, 6, 4, 6, 2, 1, 2, 32, 6, 32, 1, 0],
         packed(num_bits=4, symmetric=False, strategy="group", group_size=16, actorder="group"))
    seed("packed8-channel", [0, 6, 10, 6, 1, 2, 1, none, 6, 37, 0, 0], packed(num_bits=8, symmetric=False, strategy="channel"))
    seed("not-there", [0, 6, 4, none, 0, none, 0, none, 6, 32, 0, 0], packed(num_bits=4, group_size=16))
    seed("gptq", [1, 4, 8, 2, 8, 2, 1, 32, 0, 0, 1, 0],
         {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "checkpoint_format": "gptq"})
    seed("gptq8", [1, 4, 8, 1, 8, 1, 2, none, 0, 0, 0, 0],
         {"quant_method": "gptq", "bits": 8, "group_size": -1, "checkpoint_format": "gptq_v2"})
    seed("awq", [1, 32, 2, 2, 16, 2, 2, none, 0, 0, 0, 0], awq)
    seed("misfit", [1, 31, 2, 2, 16, 2, 2, none, 0, 0, 0, 0], awq)


safetensors(), index(), ggufs(), config(), manifest(), data(), hf_tokenizer(), peft(), yaml(), ints()
