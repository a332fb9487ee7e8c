#!/usr/bin/env python3
"""slow_link_overlap.py [--rate 1gbit] [--tokens 256] [--steps 3] [STRATEGY]...: how much of the exchanges compute hides. Two
ranks of one core each on two imitated nodes, joined by a link of that rate (slow_link.sh), all state in memory; `bench
step` runs the step's plan as it is, with exchanges alone, and with operations alone. The link makes exchanges take time
that is nobody's processor time, as a network does; between ranks of one machine a copy takes a core from the compute
beside it. The prediction knows the link as `bench collective` measured it just before, and the operations as they were
timed with the other core at the same work. Exit 1 where the step is more than 1.15 of the larger of the two alone, or more
than 15% from the prediction. As root; 77 where that cannot be done.

    TIDEMILL=build/bin/tidemill python3 tests/bench/slow_link_overlap.py
"""
import argparse
import json
import subprocess
import sys

import lib
import links

# Vocabulary and blocks in the proportion of a model of a few billion parameters: what no plan can hide is the gather of the
# first part and the sum of the last one, the embedding.
lib.SHAPES["222M"] = (1024, 2816, 16, 16, 16, 8000)


def time_operations(path):
    """Ranks do not time their operations: they would disturb each other by chance. Two processes at once do it evenly."""
    both = [subprocess.Popen([lib.BINARY, "plan", str(path), "--json"], stdout=subprocess.DEVNULL,
                             env={**links.ENV, **({"TIDEMILL_PROFILE": str(lib.WORK / "beside.json")} if beside else {})})
            for beside in (False, True)]
    if any([process.wait() for process in both]):
        sys.exit("plan failed")


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
        "per_device_train_batch_size": 1, "output_dir": str(lib.WORK / "out"), "memory": {"host_budget": "7GiB"},
        "zero_optimization": {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}}))
    file = links.hardware(a.rate, 1)
    time_operations(path)
    table = lib.Table(f"{a.tokens} tokens a rank and step, {a.rate}; seconds, predicted in brackets", "strategy", "             step",
                      "          compute", "        exchanges", "over the longer", "over the bound", "over predicted")
    for strategy in a.strategies:
        b = links.json_of(links.run(a.rate, 1, ["bench", "step", path, "--json", "--steps", a.steps, "--hardware", file, "--set",
                                                f"strategy={strategy}"], strategy))
        pairs = [f"{b[real]:.2f} ({b[said]:.2f})" for real, said in (("step_seconds", "predicted_seconds"),
                                                                     ("compute_seconds", "predicted_compute_seconds"),
                                                                     ("io_seconds", "predicted_io_seconds"))]
        foreseen = b["step_seconds"] / b["predicted_seconds"]
        table.row(strategy, *pairs, f"{b['overlap']:.3f}", f"{b['step_seconds'] / b['bound_seconds']:.3f}", f"{foreseen:.3f}",
                  ok=b["overlap"] <= 1.15 and 0.85 <= foreseen <= 1.15)
    table.done()


if __name__ == "__main__":
    main()
