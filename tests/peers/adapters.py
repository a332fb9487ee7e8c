"""Adapters against PEFT: adapters.py BINARY, in a folder that may be filled. PEFT makes an adapter, saves it and merges it; we merge the
same folder, and it loads what we write of it. Of each case the largest distance of a weight (merged) and of a logit (written again)."""
import json
import os
import subprocess
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

BINARY = sys.argv[1]
CLOSE = 2e-6
warnings.filterwarnings("ignore")

small = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=96, max_position_embeddings=64)
MODELS = {"llama": LlamaConfig(**small), "tied": LlamaConfig(**small, tie_word_embeddings=True), "qwen2": Qwen2Config(**small),
          "gpt2": GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=96, n_positions=64)}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Model, settings; the adapter's values are random but for PiSSA's and biases'.
CASES = {
    "lora": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR)),
    "rslora, patterns": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR, use_rslora=True, rank_pattern={"q_proj": 7},
                                       alpha_pattern={"layers.1.mlp.up_proj": 9})),
    "dora": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR, use_dora=True)),
    "dora of the embedding": ("llama", dict(r=4, lora_alpha=6, target_modules=["embed_tokens", "q_proj"], use_dora=True)),
    "pissa": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR, init_lora_weights="pissa")),
    "pissa, dora": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR, init_lora_weights="pissa", use_dora=True)),
    "biases": ("qwen2", dict(r=4, lora_alpha=6, target_modules=["q_proj", "up_proj"], bias="all")),
    "saved": ("llama", dict(r=4, lora_alpha=6, target_modules=LINEAR, modules_to_save=["lm_head", "norm"])),
    "gpt2": ("gpt2", dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)),
    "gpt2, dora": ("gpt2", dict(r=4, lora_alpha=6, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True)),
    "gpt2, pissa": ("gpt2", dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True,
                                 init_lora_weights="pissa")),
    "head of a tied model": ("tied", dict(r=4, lora_alpha=6, target_modules=["lm_head", "q_proj"])),
}


def shift(model, pissa):
    """Values that training might have given: zeros hide what is wrong."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * (0.02 if pissa or "lora_" not in name else 0.1))


def run(*words):
    subprocess.run([BINARY, *words], check=True, stdout=subprocess.DEVNULL)


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


ids = torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(1))
bad = 0
for name, config in MODELS.items():
    torch.manual_seed(7)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for p in base.parameters():
            p.copy_(torch.randn_like(p) * 0.2)
    base.save_pretrained("peft-" + name)
for i, (name, (base, settings)) in enumerate(CASES.items()):
    folder, ours, plain = f"adapter-{i}", f"merged-{i}", f"plain-{i}"
    load = lambda: AutoModelForCausalLM.from_pretrained("peft-" + base, dtype=torch.float32, attn_implementation="eager")
    pissa = settings.get("init_lora_weights") == "pissa"
    model = get_peft_model(load(), LoraConfig(task_type="CAUSAL_LM", **settings))
    shift(model, pissa)
    model.save_pretrained(folder)
    want = logits(model, ids)
    run("export", folder, ours, "--merge-adapter", "--base", "peft-" + base)
    run("export", folder, plain, "--base", "peft-" + base)
    far_merged = float((logits(AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32, attn_implementation="eager"), ids) - want)
                       .abs().max())
    far_plain = float((logits(PeftModel.from_pretrained(load(), plain), ids) - want).abs().max())
    far = float("nan")
    if base != "tied":  # PEFT merges both places of the one tensor
        merged = model.merge_and_unload().state_dict()
        far = max(float((merged[k] - v).abs().max()) for k, v in load_file(ours + "/model.safetensors").items())
    r = json.load(open(plain + "/adapter_config.json"))["r"]
    bound = 20 * CLOSE if pissa else CLOSE
    print(f"{name}: merged weights {far:.2g} from PEFT's; logits {far_merged:.2g} merged, {far_plain:.2g} of our folder of rank {r} in PEFT")
    if far > bound or max(far_merged, far_plain) > 1e-4 or r != 4 * (1 + pissa):
        bad = 1
raise SystemExit(bad)
