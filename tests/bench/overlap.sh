#!/bin/sh
# A step takes at most 1.10 x the longer of its halves (bench step): five budgets x two step lengths, both shapes.
# With clipping an update cannot be read for before the norm is known, and is over when its unit is used (F): what
# forward has of transfers beyond its compute, backward cannot take, and no plan that moves these bytes gets below the
# bound (the longer half of forward, of backward, of the update, added). Both ratios are shown, and how many rows keep to
# 1.10 by each; by the second a row is judged.
# Twenty minutes; the 1.26 B shape needs 33 GB of disk. A quiet machine. Settings: lib.py; TIDEMILL_BENCH_SHAPES="134M",
# TIDEMILL_BENCH_LENGTHS="64 512", TIDEMILL_BENCH_BUDGETS="0.02 0.1 0.25 0.5 0.8" (of the state, above the least),
# TIDEMILL_BENCH_STEPS=4.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *

asked, within, bounded = 1.10, [], []
names = os.environ.get("TIDEMILL_BENCH_SHAPES", "134M 1.26B").split()
steps = int(os.environ.get("TIDEMILL_BENCH_STEPS", 2 if TINY else 4))
table = Table("overlap: seconds", "shape ", "tokens ", "budget MiB", "update", "step   ", "compute", "I/O    ", "bound  ", "ratio", "over bound", "predicted", "tokens/s")
for name in ["tiny"] if TINY else names:
    for tokens in map(int, os.environ.get("TIDEMILL_BENCH_LENGTHS", "64 512").split()):
        path = config(name, tokens)
        least, all_of_it = minimum(path), 14 * parameters(name)
        for part in map(float, os.environ.get("TIDEMILL_BENCH_BUDGETS", "0.02 0.1 0.25 0.5 0.8").split()):
            budget = int(least + part * all_of_it)
            b = bench_step(path, {"memory.host_budget": budget}, steps)
            over = b["step_seconds"] / b["bound_seconds"]
            within.append(b["overlap"] <= asked)
            bounded.append(over <= asked)
            table.row(name, tokens, mib(budget), b["update"], f"{b['step_seconds']:.3f}", f"{b['compute_seconds']:.3f}",
                      f"{b['io_seconds']:.3f}", f"{b['bound_seconds']:.3f}", f"{b['overlap']:.3f}", f"{over:.3f}", f"{b['predicted_seconds']:.3f}", f"{b['tokens_per_second']:.1f}", ok=over <= asked)
print(f"at most {asked:.2f} of the longer of compute alone and I/O alone, as was asked: {sum(within)} of {len(within)} rows; "
      f"of the bound, which no plan goes below: {sum(bounded)} of {len(bounded)}")
table.done()
PY
