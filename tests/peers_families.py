"""Families of models beside transformers, for peers.sh: what `train` leaves of every fixture arch_* loads there without a
missing or an unexpected tensor and gives our logits; a model of a family that has no fixture, random, gives its logits and
gradients here.

    python peers_families.py TIDEMILL FIXTURES          in an empty folder
"""
import json
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

tidemill, fixtures = sys.argv[1], pathlib.Path(sys.argv[2])
bad = []


def ours(*arguments):
    """False, and said, where it fails."""
    r = subprocess.run([tidemill, *map(str, arguments)], capture_output=True, text=True)
    if r.returncode:
        print(f"{' '.join(map(str, arguments))}: exit status {r.returncode}\n{r.stderr}", flush=True)
    return r.returncode == 0


def judge(name, what, value, limit):
    print(f"{name}: {what} differ by {value:.2g} (allowed {limit:.0g})", flush=True)
    if not value <= limit:
        bad.append(name)


def load(folder, kind=AutoModelForCausalLM):
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[key]:
            print(f"{folder}: {key} {sorted(info[key])[:4]}")
            bad.append(str(folder))
    return model.eval()


def probe(folder, rows, *more):
    save_file(rows, "in.safetensors")
    done = ours("probe", "--model", folder, "--input", "in.safetensors", "--output", "out.safetensors", "--precision", "fp32", *more)
    return load_file("out.safetensors") if done else None


def logits_apart(model, rows, got):
    mask = rows["attention_mask"]
    with torch.no_grad():
        want = model(input_ids=rows["input_ids"], attention_mask=mask).logits
    return ((got - want).abs().amax(-1) * mask).max().item()


def train(folder, rows):
    """The folder that two steps leave; None where they fail."""
    save_file(rows, "rows.safetensors")
    output = pathlib.Path("out-" + folder.name)
    pathlib.Path("train.json").write_text(json.dumps({
        "model": str(folder), "precision": "fp32", "data": {"train": "rows.safetensors", "seq_len": rows["input_ids"].shape[1]},
        "max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-3, "output_dir": str(output),
        "memory": {"cache": "none"}}))
    if ours("train", "train.json", "--quiet"):
        return output
    bad.append(folder.name)
    return None


def trained(folder):
    golden = load_file(folder / "golden.safetensors")
    output = train(folder, {k: golden[k].flatten(0, 1).contiguous() for k in ("input_ids", "labels", "attention_mask")})
    if output is None:
        return
    batch = {k: golden[k][0].contiguous() for k in ("input_ids", "labels", "attention_mask")}
    judge(folder.name, "logits of what was trained", logits_apart(load(output), batch, probe(output, batch)["logits"]), 5e-5)


def make(name, config, kind):
    torch.manual_seed(3)
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(name)
    rows = {"input_ids": torch.randint(3, 200, (2, 37)), "attention_mask": torch.ones(2, 37, dtype=torch.long)}
    rows["attention_mask"][1, 29:] = 0
    rows["labels"] = torch.where(rows["attention_mask"] == 1, rows["input_ids"], -100)
    return load(name, kind), rows


def composite(name, config):
    """The text part is computed and trained; the others are as they were, and the folder loads as what it was."""
    model, rows = make(name, config, AutoModelForImageTextToText)
    out = probe(name, rows)
    output = out and train(pathlib.Path(name), rows)
    if not output:
        return bad.append(name)
    judge(name, "logits", logits_apart(model, rows, out["logits"]), 5e-5)
    after = load(output, AutoModelForImageTextToText)
    judge(name, "logits of what was trained", logits_apart(after, rows, probe(output, rows)["logits"]), 5e-5)
    was, now = load_file(f"{name}/model.safetensors"), load_file(output / "model.safetensors")
    changed = {k for k in was if not torch.equal(was[k], now[k])}
    other = {k for k in was if "language_model" not in k and "lm_head" not in k}
    if set(was) != set(now) or changed & other or len(changed) < len(set(was) - other) / 2:
        print(f"{name}: {len(changed)} tensors changed, {sorted(changed & other)[:3]} among them")
        bad.append(name)


def random_model(name, config):
    model, rows = make(name, config, AutoModelForCausalLM)
    model(**rows).loss.backward()
    out = probe(name, rows, "--grads")
    if out is None:
        return bad.append(name)
    judge(name, "logits", logits_apart(model, rows, out["logits"]), 5e-5)
    want = {"grad." + k: p.grad for k, p in model.named_parameters()}
    if set(want) != {k for k in out if k.startswith("grad.")}:
        sys.exit(f"{name}: names of gradients differ")
    apart = {k: ((out[k] - g).norm() / max(g.norm(), 1e-2)).item() for k, g in want.items()}
    judge(name, f"gradients (of {max(apart, key=apart.get)[5:]})", max(apart.values()), 5e-5)


SIZES = dict(vocab_size=211, hidden_size=42, intermediate_size=29, num_hidden_layers=3, num_attention_heads=3,
             num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MINISTRAL = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
GEMMA4 = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.4, "rope_theta": 3000.0},
          "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
# What no fixture has: a name, model_type, keys.
RANDOM = [
    ("ministral3", "ministral3", dict(head_dim=10, rope_parameters=MINISTRAL)),
    ("llama-biases", "llama", dict(attention_bias=True, mlp_bias=True)),
    ("llama-yarn", "llama", dict(rope_parameters={**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.8})),
    ("llama-yarn-truncate", "llama", dict(rope_parameters={**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4})),
    ("qwen2-window", "qwen2", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    ("qwen3-biases", "qwen3", dict(head_dim=10, attention_bias=True, tie_word_embeddings=False)),
    ("qwen3-window", "qwen3", dict(head_dim=10, use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    ("gemma2-biases", "gemma2", dict(head_dim=10, attention_bias=True, sliding_window=5, query_pre_attn_scalar=9)),
    ("gemma2-no-caps", "gemma2", dict(head_dim=10, attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=5)),
    ("gemma3-biases", "gemma3_text", dict(head_dim=10, attention_bias=True, sliding_window=5, num_hidden_layers=7,
                                          final_logit_softcapping=3.0, attn_logit_softcapping=2.0)),
    ("phi3-window", "phi3", dict(sliding_window=5)),
    ("smollm3-biases", "smollm3", dict(attention_bias=True, mlp_bias=True, num_hidden_layers=5)),
    ("smollm3-window", "smollm3", dict(use_sliding_window=True, sliding_window=5, num_hidden_layers=5)),
    ("olmo2-biases", "olmo2", dict(attention_bias=True)),
    ("granite-biases", "granite", dict(attention_bias=True, mlp_bias=True, attention_multiplier=0.3, embedding_multiplier=3.0,
                                       logits_scaling=1.7)),
    ("glm4-no-biases", "glm4", dict(head_dim=12, attention_bias=False)),
    ("starcoder2", "starcoder2", dict(sliding_window=5)),
    ("stablelm", "stablelm", dict(use_qkv_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.75})),
    ("seed-oss", "seed_oss", dict(head_dim=10, attention_out_bias=True, mlp_bias=True)),
    ("gemma4-keys", "gemma4_text", dict(head_dim=10, global_head_dim=14, num_key_value_heads=3, num_global_key_value_heads=1,
                                        attention_k_eq_v=True, attention_bias=True, sliding_window=5, hidden_size_per_layer_input=0,
                                        num_hidden_layers=7, rope_parameters=GEMMA4, tie_word_embeddings=False)),
    ("gemma4-inputs", "gemma4_text", dict(head_dim=10, global_head_dim=14, sliding_window=5, num_kv_shared_layers=3, num_hidden_layers=8,
                                          hidden_size_per_layer_input=7, vocab_size_per_layer_input=215, rope_parameters=GEMMA4,
                                          layer_types=["full_attention", *["sliding_attention"] * 6, "full_attention"])),
    ("gpt2-gelu", "gpt2", dict(n_embd=42, n_layer=3, n_head=3, n_positions=64, activation_function="gelu")),
]

VISION = dict(hidden_size=16, intermediate_size=20, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
COMPOSITE = [
    ("gemma3", "gemma3", dict(text_config={**SIZES, "head_dim": 10, "sliding_window": 5}, vision_config=VISION,
                              mm_tokens_per_image=4, image_token_index=200, boi_token_index=201, eoi_token_index=202)),
    ("gemma4", "gemma4", dict(text_config={**SIZES, "head_dim": 10, "global_head_dim": 14, "sliding_window": 5, "num_kv_shared_layers": 1,
                                           "hidden_size_per_layer_input": 7, "vocab_size_per_layer_input": 211,
                                           "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                                           "rope_parameters": GEMMA4},
                              vision_config={**VISION, "num_key_value_heads": 2, "head_dim": 8}, audio_config=None,
                              image_token_id=200, boi_token_id=201, eoi_token_id=202)),
    ("mistral3", "mistral3", dict(text_config={"model_type": "ministral3", **SIZES, "head_dim": 10, "rope_parameters": MINISTRAL},
                                  vision_config={"model_type": "pixtral", **VISION, "head_dim": 8}, image_token_index=200)),
    ("mistral3-untied", "mistral3", dict(text_config={"model_type": "ministral3", **SIZES, "head_dim": 10, "rope_parameters": MINISTRAL},
                                         vision_config={"model_type": "pixtral", **VISION, "head_dim": 8}, image_token_index=200,
                                         tie_word_embeddings=False)),
]

for folder in sorted(fixtures.glob("arch_*")):
    trained(folder)
for name, model_type, keys in RANDOM:
    sizes = {k: SIZES[k] for k in ("vocab_size", "bos_token_id", "eos_token_id")} if model_type == "gpt2" else SIZES
    random_model(name, AutoConfig.for_model(model_type, **{**sizes, **keys}))
for name, model_type, keys in COMPOSITE:
    composite(name, AutoConfig.for_model(model_type, **keys))
if bad:
    sys.exit(f"peers: {', '.join(bad)} differ")
