"""Training steps of a transformers model in PyTorch: the peer of torch_step.sh, families.sh and gpu.sh. Builds the model, then makes
one step for each line on standard input and answers with its seconds.

    python torch_step.py MODEL_DIR fp32|bf16 BATCH TOKENS [CHECKPOINTING [DEVICE]]
"""
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, precision, batch, tokens = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5])
torch.set_num_threads(2)
torch.manual_seed(1)
config = AutoConfig.from_pretrained(folder)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
                                         attn_implementation="sdpa")
model.config.use_cache = False
if len(sys.argv) > 5 and sys.argv[5] == "1":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
device = sys.argv[6] if len(sys.argv) > 6 else "cpu"
model.to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
ids = torch.tensor([[(i * 31 + b * 17) % 997 for i in range(tokens)] for b in range(batch)], device=device)
print("ready", torch.__version__, flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    print(time.perf_counter() - start, value, flush=True)
