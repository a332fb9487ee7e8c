#!/usr/bin/env python3
"""slow_link_overlap.py [--rate 1gbit] [--tokens 256] [--steps 3] [STRATEGY]...: how much of the exchanges compute hides. Two
ranks of one core each on two imitated nodes, joined by a link of that rate (slow_link.sh), all state in memory; `bench
step` runs the step's plan as it is, with exchanges alone, and with operations alone. The link makes exchanges take time
that is nobody's processor time, as a network does; between ranks of one machine a copy takes a core from the compute
beside it. Exit 1 where the step is more than 1.15 of the larger of the two alone. As root; 77 where that cannot be done.

    TIDEMILL=build/bin/tidemill python3 tests/bench/slow_link_overlap.py
"""
import argparse
import json
import os

import lib

SLOW = str(lib.ROOT / "tests" / "bench" / "slow_link.sh")
ENV = dict(os.environ, OMP_NUM_THREADS="1", TIDEMILL_PROFILE=str(lib.WORK / "profile.json"))
# Vocabulary and blocks in the proportion of a model of a few billion parameters: what no plan can hide is the gather of the
# first part and the sum of the last one, the embedding.
lib.SHAPES["222M"] = (1024, 2816, 16, 16, 16, 8000)


def run(a, path, strategy):
    command = [SLOW, a.rate, "1", lib.BINARY, "bench", "step", str(path), "--json", "--steps", str(a.steps), "--set",
               f"strategy={strategy}", "--set", "offload_param_device=cpu", "--set", "offload_optimizer_device=cpu"]
    out = lib.output_of(command, ENV, strategy)
    return json.loads(out[out.index("{"):])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rate", default="1gbit")
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("strategies", nargs="*", default=["zero3", "ddp"])
    a = p.parse_args()
    path = lib.WORK / "overlap.json"
    path.write_text(json.dumps({
        "model": str(lib.model(lib.shape("222M"))), "init": "random", "precision": "bf16",
        "data": {"train": str(lib.rows(4, a.tokens)), "seq_len": a.tokens}, "max_steps": 4, "commit_steps": 0,
        "per_device_train_batch_size": 1, "output_dir": str(lib.WORK / "out"), "memory": {"host_budget": "7GiB"}}))
    table = lib.Table(f"{a.tokens} tokens a rank and step, {a.rate}",
                      "strategy", "    step", " compute", "exchanges", "over the longer", "over the bound", "predicted")
    for strategy in a.strategies:
        b = run(a, path, strategy)
        table.row(strategy, f"{b['step_seconds']:.2f}", f"{b['compute_seconds']:.2f}", f"{b['io_seconds']:.2f}",
                  f"{b['overlap']:.3f}", f"{b['step_seconds'] / b['bound_seconds']:.3f}",
                  f"{b['predicted_seconds']:.2f}", ok=b["overlap"] <= 1.15)
    table.done()


if __name__ == "__main__":
    main()
