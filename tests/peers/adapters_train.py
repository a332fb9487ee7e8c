"""Adapters between us and PEFT: adapters_train.py BINARY, in a folder that may be filled. PEFT makes an adapter with random values and saves
it: `probe` gives its logits and loss. We train it for some steps: PEFT loads what is left, and has the loss that `eval` gives."""
import json
import subprocess
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config, Qwen3Config

BINARY = sys.argv[1]
warnings.filterwarnings("ignore")
small = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=96,
             max_position_embeddings=64)
MODELS = {"llama": LlamaConfig(**small), "qwen3": Qwen3Config(**small, head_dim=12), "phi3": Phi3Config(**small, pad_token_id=0),
          "gpt2": GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=96, n_positions=64)}
SCALE = dict(r=4, lora_alpha=6)
CASES = {
    "lora": ("llama", dict(**SCALE, target_modules="all-linear")),
    "dora": ("llama", dict(**SCALE, target_modules=["q_proj", "v_proj", "down_proj"], use_dora=True)),
    "patterns, rslora": ("qwen3", dict(**SCALE, target_modules=["q_proj", "o_proj", "up_proj"], use_rslora=True, rank_pattern={"o_proj": 7},
                                       alpha_pattern={"layers.1.self_attn.q_proj": 9})),
    "embedding, head, saved": ("qwen3", dict(**SCALE, target_modules=["embed_tokens", "k_proj"], modules_to_save=["lm_head", "norm"])),
    "gpt2": ("gpt2", dict(**SCALE, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "gpt2, dora": ("gpt2", dict(**SCALE, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, use_dora=True)),
    "phi3, fused": ("phi3", dict(**SCALE, target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
    "phi3, fused, dora": ("phi3", dict(**SCALE, target_modules=["qkv_proj", "gate_up_proj"], use_dora=True)),
}


def run(*words):
    return subprocess.run([BINARY, *words], check=True, capture_output=True, text=True).stdout


def load(name):
    return AutoModelForCausalLM.from_pretrained("base-" + name, dtype=torch.float32, attn_implementation="eager")


def measure(model, rows):
    """Logits, and the mean loss of all labels."""
    with torch.no_grad():
        logits = model.eval()(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows["labels"][:, 1:].flatten(), ignore_index=-100)
    return logits, float(loss)


draw = torch.Generator().manual_seed(1)
ids = torch.randint(1, 96, (4, 20), generator=draw)
rows = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
rows["labels"][:, :5] = -100
save_file(rows, "rows.safetensors")
for name, config in MODELS.items():
    torch.manual_seed(7)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for p in base.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    base.save_pretrained("base-" + name)
bad = 0
for i, (name, (base, settings)) in enumerate(CASES.items()):
    folder, out = f"theirs-{i}", f"ours-{i}"
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    model.save_pretrained(folder)
    want, loss = measure(model, rows)
    run("probe", "--model", "base-" + base, "--adapter", folder, "--input", "rows.safetensors", "--output", "probe.safetensors")
    got = load_file("probe.safetensors")
    far, far_loss = float((got["logits"] - want).abs().max()), abs(float(got["loss"][0]) - loss)
    config = {"model": "base-" + base, "adapter": {"path": folder}, "data": {"train": "rows.safetensors", "seq_len": 20}, "precision": "fp32",
              "max_steps": 3, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "output_dir": out, "memory": {"cache": "none"}}
    json.dump(config, open("config.json", "w"))
    run("train", "config.json", "--quiet")
    ours = json.loads(run("eval", "--model", "base-" + base, "--adapter", out, "--data", "rows.safetensors", "--json"))["loss"]
    _, theirs = measure(PeftModel.from_pretrained(load(base), out), rows)
    print(f"{name}: PEFT's folder here: logits {far:.2g}, loss {far_loss:.2g} off; ours in PEFT after 3 steps: loss {theirs:.6f}, eval "
          f"{ours:.6f}, it was {loss:.6f}")
    if far > 1e-4 or far_loss > 1e-5 or abs(ours - theirs) > 1e-5 or not ours < loss - 0.01:
        bad = 1
raise SystemExit(bad)
