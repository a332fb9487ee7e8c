#!/bin/sh
# Published shapes, vocabulary included, with random weights: parameters, least budget by `plan`, disk and predicted seconds a
# step (bf16, one row of 512 tokens, all state on the disk, one slot). A shape whose parameters are known is checked by their number.
#   --train NAME...   trains these for three steps in a memory cgroup of 1 GiB (root; v1 or v2), such as Qwen3-0.6B and
#                     Gemma-3-1B (16 GB of disk with two slots, 14 with one); peak memory, seconds, bytes predicted and counted
# Settings: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *

TOKENS = 64 if TINY else 512


def qwen3(hidden, intermediate, layers, heads, tied):
    """Qwen3 technical report (arXiv:2505.09388), table 1, and the published config.json."""
    return {"model_type": "qwen3", "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "hidden_act": "silu",
            "attention_bias": False, "tie_word_embeddings": tied}


def gemma4(hidden, intermediate, layers, kv_heads, full_every, shared, wide):
    """Text part. Sizes: gemma.cpp's configs of Gemma 4 (github.com/google/gemma.cpp, pull request 919)."""
    return {"model_type": "gemma4_text", "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
            "num_attention_heads": 8, "num_key_value_heads": kv_heads, "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144,
            "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": shared,
            "use_double_wide_mlp": wide, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 512,
            "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
            "layer_types": ["sliding_attention" if (i + 1) % full_every else "full_attention" for i in range(layers)],
            "rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}


SLOTS = {"Qwen3-0.6B": 2}  # in training; the others have one
# name: (parameters or None, config.json). Of the last four as transformers counts them, to which it does not count Gemma's layer_scalar
PUBLISHED = {
    "Qwen3-0.6B": (596049920, qwen3(1024, 3072, 28, 16, True)),
    "Gemma-3-1B": (999885952, {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 256,
        "sliding_window": 512, "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh"}),
    "Qwen3-4B": (4022468096, qwen3(2560, 9728, 36, 32, True)),
    "Qwen3-8B": (8190735360, qwen3(4096, 12288, 36, 32, False)),
    "Qwen3-14B": (14768307200, qwen3(5120, 17408, 40, 40, False)),
    "Qwen3-32B": (32762123264, qwen3(5120, 25600, 64, 64, False)),
    "gpt2": (124439808, {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "Gemma-2-2B": (2614341888, {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh"}),
    "OLMo-2-1B": (1484916736, {
        "model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 100352, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 500000, "hidden_act": "silu", "tie_word_embeddings": False}),
    "SmolLM3-3B": (3075098624, {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0, "hidden_act": "silu", "no_rope_layer_interval": 4, "tie_word_embeddings": True}),
    "Phi-4-mini": (3836021760, {  # its scaling by frequency changes no size: factors of 1
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "vocab_size": 200064, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.75, "hidden_act": "silu", "tie_word_embeddings": True,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}}),
    "Granite-3.1-2B": (2533531648, {
        "model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 49155, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5000000.0,
        "hidden_act": "silu", "embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22,
        "logits_scaling": 8.0, "tie_word_embeddings": True}),
    "GLM-4-9B": (9400094720, {
        "model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False}),
    "Ministral-3-3B": (3429006336, {  # text part
        "model_type": "ministral3", "hidden_size": 3072, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
                            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}}),
    "Gemma-4-E2B": (4628569344 + 35, gemma4(1536, 6144, 35, 1, 5, 20, True)),
    "Gemma-4-E4B": (7463013376 + 42, gemma4(2560, 10240, 42, 2, 6, 18, False)),
}


def published(name, **more):
    """A configuration with the published shape."""
    folder = WORK / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"initializer_range": 0.02, **PUBLISHED[name][1]}))
    return config(shape("134M"), TOKENS, steps=3, model=str(folder), **more)


def least_budgets():
    table = Table("published shapes: bf16, one row, one slot", "model         ", "parameters  ", "least MiB", "disk GB", "s a step, least", "s a step, twice")
    for name, (parameters_known, _) in PUBLISHED.items():
        path = published(name)
        least = minimum(path)
        slow, fast = (plan(path, {"memory.host_budget": n * least}, fits=False) for n in (1, 2))
        count = slow.get("parameters")
        table.row(name, count, mib(least), f"{slow['disk_bytes'] / 1e9:.1f}", *(f"{p['seconds_per_step'] or 0:.1f}" for p in (slow, fast)),
                  ok=parameters_known in (None, count))
    return table


def train_in_1_gib(names):
    table = Table("three steps in 1 GiB", "model         ", "status", "cgroup", "peak MiB", "s a step", "planned", "bytes counted", "bytes planned")
    for name in names:
        path = published(name, memory_slots=SLOTS.get(name, 1))
        limit = {"memory.host_budget": GIB}
        p = plan(path, limit)
        if p["disk_bytes"] > shutil.disk_usage(WORK).free * 0.9:
            print(f"{name}: SKIP, {p['disk_bytes'] / 1e9:.0f} GB of disk are not free")
            continue
        group = cgroup(GIB)
        run = train(path, limit, group)
        if group:
            remove_cgroup(group)
        if run.status != 0:
            table.check(False, f"{name}: exit status {run.status}\n{run.err.strip()}")
            continue
        peak = max([run.peak_bytes] + [s["host_peak_bytes"] for s in run.steps])
        table.row(name, run.status, "yes" if group else "no", mib(peak), f"{median([s['step_seconds'] for s in run.steps]):.1f}",
                  f"{p['seconds_per_step']:.1f}", *(sum(s[f"{kind}{way}_bytes"] for s in run.steps for way in ("read", "write"))
                                                    for kind in ("", "planned_")), ok=peak <= GIB and len(run.steps) == 3)
    return table


if sys.argv[1:2] == ["--train"]:
    train_in_1_gib(sys.argv[2:] or ["Qwen3-0.6B", "Gemma-3-1B"]).done()
else:
    least_budgets().done()
PY
