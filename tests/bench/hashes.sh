#!/bin/sh
# One hash of the final state over more than 50 combinations of budget, variant, activations, queue depth, engine and
# number of paths (B among themselves and with the others without clipping). A small model; three minutes. Settings:
# lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import itertools
import pathlib
from lib import *

name, tokens = "tiny", 64
table = Table("state hashes", "hash                            ", "runs", "combinations differ in")
path = config(name, tokens, 2, steps=3, learning_rate=1e-3)
paths = [[str(WORK / f"disk{i}") for i in range(n)] for n in (1, 2, 3)]
for disk in paths[2]:
    pathlib.Path(disk).mkdir(exist_ok=True)
engines = ("uring", "threads", "sync")
runs, hashes = 0, {}
for clip in (1.0, 0):
    for update, activations, part in itertools.product("UF" if clip else "UFB", ("keep", "recompute", "auto"), (0, 0.3, 2)):
        values = {"max_grad_norm": clip, "memory.update": update, "memory.activations": activations, "memory.io_engine": engines[runs % 3],
                  "aio.queue_depth": (1, 4, 8, 32)[runs % 4], "memory.cache": "none" if runs % 5 == 4 else "auto",
                  "zero_optimization.offload_param.nvme_path": paths[runs // 3 % 3]}
        budget = int(minimum(path, values) + part * 14 * parameters(name))
        run = expect(train(path, {**values, "memory.host_budget": budget}), str(values))
        hashes.setdefault((clip, run.end["state_hash"]), []).append((update, activations, part))
        runs += 1
    for depth, engine, count in itertools.product((1, 8), engines, (0, 2)) if clip else ():
        values = {"max_grad_norm": clip, "memory.io_engine": engine, "aio.queue_depth": depth, "zero_optimization.offload_param.nvme_path": paths[count]}
        run = expect(train(path, {**values, "memory.host_budget": minimum(path, values) + 8 * MIB}), str(values))
        hashes.setdefault((clip, run.end["state_hash"]), []).append((engine, depth, count))
        runs += 1
for (clip, digest), where in hashes.items():
    table.row(digest, len(where), f"clipping {clip}: " + (str(where[:4]) if len(where) < 4 else "all but the hash"))
table.check(runs >= 50, f"{runs} runs")
table.check(len(hashes) == 2, f"{len(hashes)} hashes, one with clipping and one without")
if len(hashes) != 2 or runs < 50:
    sys.exit(1)
PY
