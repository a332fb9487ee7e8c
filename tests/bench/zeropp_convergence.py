#!/usr/bin/env python3
"""zeropp_convergence.py [--steps 12] [--ranks 2] [--rows 4] [exact|qwz|qgz|both]...: fine-tunes SmolLM2-135M on examples/skill with zero3 and
with weights in 8 bits (qwZ), gradients in 4 bits (qgZ) and both on the way between ranks, and prints the losses side by
side. Exit 1 where a rounded run's mean over its last quarter is more than 5% above the exact one's, or has not fallen
below nine tenths of its first loss. 77: the model (../shared/models, or TIDEMILL_SMOLLM2) or mpirun is not there.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

import lib

WAYS = {"exact": {}, "qwz": {"zero_quantized_weights": True}, "qgz": {"zero_quantized_gradients": True},
        "both": {"zero_quantized_weights": True, "zero_quantized_gradients": True}}


def skip(why):
    print(f"SKIP: {why}", file=sys.stderr)
    sys.exit(77)


def model():
    path = os.environ.get("TIDEMILL_SMOLLM2", lib.ROOT.parent / "shared" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        skip(f"{path} is not there; TIDEMILL_SMOLLM2 names the model")
    return str(path)


def train(a, way):
    path, output = lib.WORK / f"{way}.json", lib.WORK / way
    path.write_text(json.dumps({
        "model": model(), "precision": "bf16", "data": {"train": str(lib.ROOT / "examples/skill/train.jsonl"), "seq_len": 96},
        "per_device_train_batch_size": a.rows, "max_steps": a.steps, "learning_rate": 3e-4, "warmup_steps": 2,
        "commit_steps": 0, "save_steps": 0, "output_dir": str(output),
        "zero_optimization": {"stage": 3, **WAYS[way]}, "memory": {"host_budget": "3GiB"}}))
    env = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    r = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(a.ranks), lib.BINARY, "train", str(path),
                        "--quiet"], env=env, capture_output=True, text=True)
    if r.returncode != 0:
        sys.exit(f"{way}: exit {r.returncode}\n{r.stderr[-2000:]}")
    steps = [line for line in map(json.loads, open(output / "log.jsonl")) if "event" not in line]
    shutil.rmtree(output)
    return steps


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("ways", nargs="*", default=list(WAYS))
    a = p.parse_args()
    if not shutil.which("mpirun"):
        skip("no mpirun")
    good, exact = True, None
    for way in a.ways:
        steps = train(a, way)
        losses, sent = [s["loss"] for s in steps], steps[-1]["comm_sent_bytes"]
        last = statistics.mean(losses[-max(1, len(losses) // 4):])
        exact = last if way == "exact" else exact
        ratio = f", {last / exact:.3f} of exact" if exact else ""
        print(f"{way:6} {' '.join(f'{x:.3f}' for x in losses)}  last quarter {last:.4f}{ratio}; "
              f"{(sent['in_node'] + sent['between_nodes']) / lib.MIB:.0f} MiB a step and rank", flush=True)
        good = good and last < 0.9 * losses[0] and (not exact or last <= 1.05 * exact)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
