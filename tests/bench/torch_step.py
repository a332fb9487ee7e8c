"""Training steps of a transformers model in PyTorch: the peer of torch_step.sh, families.sh, lora.sh and gpu.sh. Builds the model,
then makes one step for each line on standard input and answers with its seconds, its loss, the most memory that was resident so far and its seconds of processor.

    python torch_step.py MODEL_DIR fp32|bf16 BATCH TOKENS [CHECKPOINTING [DEVICE [RANK [fp32|bf16]]]]

RANK: PEFT's LoRA of that rank on all linear layers, in the type that follows (fp32 is PEFT's default).
"""
import resource
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
if len(sys.argv) > 7:
    from peft import LoraConfig, get_peft_model
    rank = int(sys.argv[7])
    model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"),
                           autocast_adapter_dtype=sys.argv[8] == "fp32")
learning = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learning, lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
ids = torch.tensor([[(i * 31 + b * 17) % 997 for i in range(tokens)] for b in range(batch)], device=device)
def usage():
    return resource.getrusage(resource.RUSAGE_SELF)


print("ready", torch.__version__, flush=True)
for line in sys.stdin:
    start, before = time.perf_counter(), usage()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learning, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = loss.item()
    seconds, after = time.perf_counter() - start, usage()
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(seconds, value, after.ru_maxrss * 1024, busy, flush=True)
