"""Small models with llama.cpp's fixed values (SmolLM3's every 4th layer, Gemma's scalars and patterns) or that no fixture
has, and transformers' logits with llama.cpp's GELU, a table of float16 values: peers_gguf_models.py DIR (torch 2.13,
transformers 5.23; called by peers_gguf.sh)."""
import sys

import torch
import transformers as T
from safetensors.torch import save_file

SIZES = dict(vocab_size=90, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}
PROPORTIONAL = {"full_attention": {"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
MODELS = {
    "smollm3": lambda: T.SmolLM3ForCausalLM(T.SmolLM3Config(num_hidden_layers=5, tie_word_embeddings=True, **SIZES)),
    "ministral3": lambda: T.Ministral3ForCausalLM(T.Ministral3Config(
        num_hidden_layers=2, head_dim=8, rope_parameters={**YARN, "mscale_all_dim": 1.0}, **SIZES)),
    "ministral3 without mscale_all_dim": lambda: T.Ministral3ForCausalLM(T.Ministral3Config(
        num_hidden_layers=2, head_dim=8, rope_parameters={**YARN, "mscale_all_dim": 0.0}, **SIZES)),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(
        num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, **SIZES)),
    "gemma3": lambda: T.Gemma3ForCausalLM(T.Gemma3TextConfig(
        num_hidden_layers=7, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, **SIZES)),
    "gemma4, keys as values": lambda: T.Gemma4ForCausalLM(T.Gemma4TextConfig(
        num_hidden_layers=6, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
        hidden_size_per_layer_input=0, num_kv_shared_layers=0, use_double_wide_mlp=False, sliding_window=8,
        layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2, rope_parameters=PROPORTIONAL, **SIZES)),
    "gemma4, shared keys": lambda: T.Gemma4ForCausalLM(T.Gemma4TextConfig(
        num_hidden_layers=4, head_dim=8, global_head_dim=16, hidden_size_per_layer_input=8, num_kv_shared_layers=2,
        use_double_wide_mlp=True, sliding_window=8, final_logit_softcapping=3.0, vocab_size_per_layer_input=90,
        layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters=PROPORTIONAL, **SIZES)),
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=90, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                                     bos_token_id=1, eos_token_id=2)),
}


class TableGelu(torch.nn.Module):
    def forward(self, x):
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))


torch.manual_seed(1)
torch.set_num_threads(1)
for name, make in MODELS.items():
    model = make().eval()
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(0.3 * torch.randn_like(p) + float(p.ndim == 1 and "gemma" not in name and "bias" not in n))
    place = f"{sys.argv[1]}/{name}"
    model.save_pretrained(place)
    for _, module in list(model.named_modules()):
        for n, child in list(module.named_children()):
            if "gelu" in type(child).__name__.lower():
                setattr(module, n, TableGelu())
    ids = torch.randint(3, 90, (2, 40))
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float().contiguous()
    save_file({"input_ids": ids[None].contiguous(), "attention_mask": torch.ones_like(ids)[None].contiguous(),
               "logits": logits}, place + "/golden.safetensors")
