"""One training run of DeepSpeed ZeRO-3 on the CPU accelerator, parameters and optimizer on NVMe: seconds a step, peak
resident size. Called by deepspeed.sh; prints one JSON object.

    DS_ACCELERATOR=cpu [PRECISION=fp32] [CHECKPOINTING=1] python deepspeed_run.py MODEL_DIR NVME_DIR TOKENS ACCUMULATION STEPS
"""
import json
import os
import resource
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29513")):
    os.environ.setdefault(name, value)

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

# Without bf16 instructions PyTorch's bf16 products are some fifty times slower than its fp32 ones: then fp32 is the fair peer.
PRECISION = torch.float32 if os.environ.get("PRECISION") == "fp32" else torch.bfloat16


def disk_bytes():
    """What the kernel counted for this process: (read, written)."""
    with open("/proc/self/io") as f:
        counts = dict(line.split(": ") for line in f)
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def settings(nvme, accumulation, parameters, largest):
    nvme_block = {"device": "nvme", "nvme_path": nvme, "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": PRECISION == torch.bfloat16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
        "zero_optimization": {
            "stage": 3,
            # buffers as small as the model allows: the defaults of 1e9 elements would ask for 25 GB
            "sub_group_size": max(largest, 50_000_000),
            "reduce_bucket_size": max(largest, 5_000_000),
            "stage3_prefetch_bucket_size": 5_000_000,
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": max(2 * largest, 50_000_000),
            "stage3_max_reuse_distance": 0,
            "offload_param": dict(nvme_block, buffer_count=12, buffer_size=largest, max_in_cpu=0),
            "offload_optimizer": dict(nvme_block, buffer_count=5),
        },
        "aio": {"block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True},
    }


def main():
    folder, nvme, tokens, accumulation, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo")
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        shapes = [p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()]
    ds = settings(nvme, accumulation, sum(shapes), max(shapes))
    with deepspeed.zero.Init(config_dict_or_path=ds):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=PRECISION)
    if os.environ.get("CHECKPOINTING"):
        model.gradient_checkpointing_enable()
    model.config.use_cache = False
    engine, *_ = deepspeed.initialize(model=model, config=ds)
    seconds, moved = [], []
    ids = torch.arange(tokens).reshape(1, -1) * 31 % 997
    for step in range(steps):
        before, began = disk_bytes(), time.monotonic()
        for _ in range(accumulation):
            loss = engine(input_ids=ids, labels=ids).loss
            engine.backward(loss)
            engine.step()
        seconds.append(time.monotonic() - began)
        after = disk_bytes()
        moved.append([after[0] - before[0], after[1] - before[1]])
        print(f"deepspeed: step {step + 1}: {seconds[-1]:.2f} s, loss {loss.item():.4f}", file=sys.stderr)
    later = sorted(seconds[1:] or seconds)
    print(json.dumps({"parameters": sum(shapes), "step_seconds": later[len(later) // 2], "steps": seconds,
                      "read_bytes": moved[-1][0], "write_bytes": moved[-1][1],
                      "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                      "version": deepspeed.__version__}))


main()
