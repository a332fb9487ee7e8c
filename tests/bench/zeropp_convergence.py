#!/usr/bin/env python3
"""zeropp_convergence.py [--steps 12] [--ranks 2] [--rows 4] [--seeds 42,43] [qwz|qgz|both]...: fine-tunes SmolLM2-135M on
examples/skill with zero3, exactly and with weights in 8 bits (qwZ), gradients in 4 bits (qgZ) and both on the way between
ranks, and prints the mean loss over the run and the loss of the held-out rows after it, each over the exact run's of the
same seed. A seed is an order of the data.

Exit 1 where, over the seeds (geometric means),
  - the mean loss over the run is above 1.05 of exact's: the same batches in the same order, so that hard ones cancel, or
  - the held-out loss is above 1.05 of exact's by more than exact runs of different orders lie apart (twice the standard
    error of a difference, by their spread; with one seed a third is taken for that), or
  - a run's held-out loss is not below a tenth of its first loss.
The loss of single late steps says little: one batch of few rows that is hard is several times another.
77: the model (../shared/models, or TIDEMILL_SMOLLM2) or mpirun is not there.
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

import lib

WAYS = {"exact": {}, "qwz": {"zero_quantized_weights": True}, "qgz": {"zero_quantized_gradients": True},
        "both": {"zero_quantized_weights": True, "zero_quantized_gradients": True}}
BOUND, ONE_SEED_SPREAD = 1.05, 1 / 3


def skip(why):
    print(f"SKIP: {why}", file=sys.stderr)
    sys.exit(77)


def model():
    path = os.environ.get("TIDEMILL_SMOLLM2", lib.ROOT.parent / "shared" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        skip(f"{path} is not there; TIDEMILL_SMOLLM2 names the model")
    return str(path)


def train(a, way, seed):
    """Losses of the steps, loss of the held-out rows, bytes sent in a step."""
    path, output, skill = lib.WORK / f"{way}.json", lib.WORK / way, lib.ROOT / "examples" / "skill"
    path.write_text(json.dumps({
        "model": model(), "precision": "bf16", "seed": seed,
        "data": {"train": str(skill / "train.jsonl"), "eval": str(skill / "heldout.jsonl"), "seq_len": 96},
        "per_device_train_batch_size": a.rows, "per_device_eval_batch_size": 8, "max_steps": a.steps,
        "eval_steps": a.steps, "learning_rate": 3e-4, "warmup_steps": 2, "commit_steps": 0, "save_steps": 0,
        "output_dir": str(output), "zero_optimization": {"stage": 3, **WAYS[way]},
        "memory": {"host_budget": "3GiB", "shared_window": "off"}}))
    env = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    r = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(a.ranks), lib.BINARY, "train", str(path),
                        "--quiet"], env=env, capture_output=True, text=True)
    if r.returncode != 0:
        sys.exit(f"{way}: exit {r.returncode}\n{r.stderr[-2000:]}")
    lines = [json.loads(line) for line in open(output / "log.jsonl")]
    shutil.rmtree(output)
    steps = [line for line in lines if "event" not in line]
    held_out = [line["loss"] for line in lines if line.get("event") == "eval"][-1]
    return [s["loss"] for s in steps], held_out, sum(steps[-1]["comm_sent_bytes"].values())


def allowed_apart(exact):
    """What a geometric mean of held-out ratios may be above BOUND by chance, by the spread of exact runs."""
    logs = [math.log(x) for x in exact]
    spread = statistics.stdev(logs) if len(logs) > 1 else ONE_SEED_SPREAD
    return math.exp(2 * spread * math.sqrt(2 / len(logs)))


def geometric(values):
    return math.exp(statistics.mean(map(math.log, values)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rows", type=int, default=4)
    p.add_argument("--seeds", default="42,43")
    p.add_argument("ways", nargs="*", default=[w for w in WAYS if w != "exact"])
    a = p.parse_args()
    if not shutil.which("mpirun"):
        skip("no mpirun")
    seeds, good, held, during = [int(s) for s in a.seeds.split(",")], True, {}, {}
    for seed in seeds:
        for way in ["exact", *(w for w in a.ways if w != "exact")]:
            losses, held_out, sent = train(a, way, seed)
            held.setdefault(way, []).append(held_out)
            during.setdefault(way, []).append(statistics.mean(losses))
            good = good and held_out < losses[0] / 10
            print(f"seed {seed} {way:6} {' '.join(f'{x:.3f}' for x in losses)}  mean {during[way][-1]:.4f} "
                  f"({during[way][-1] / during['exact'][-1]:.3f} of exact), held out {held_out:.4f} "
                  f"({held_out / held['exact'][-1]:.3f}); {sent / lib.MIB:.0f} MiB a step and rank", flush=True)
    apart = allowed_apart(held["exact"])
    for way in held:
        run = geometric(x / e for x, e in zip(during[way], during["exact"]))
        end = geometric(x / e for x, e in zip(held[way], held["exact"]))
        good = good and run <= BOUND and end <= BOUND * apart
        print(f"{way:6} over the run {run:.3f} of exact (at most {BOUND}), held out {end:.3f} (at most {BOUND * apart:.2f})")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
