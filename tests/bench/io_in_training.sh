#!/bin/sh
# What training gets out of the disk, and what it pays for it: steps that the disk bounds (small micro-batches, a small
# budget) beside `bench io` with the same request size, number of requests, and half reads and half writes, while all cores
# compute; alternating. Also: processor time of the engine and of the page checksums, and steps with and without checksums.
#   targets: 0.90 of bench io; 5% of a core for the engine; 3% of the step for checksums
# A build with TIDEMILL_FAULTS (the default) is needed for the last row. Settings: lib.py; TIDEMILL_BENCH_ROUNDS=3,
# TIDEMILL_BENCH_SHAPES="134M" (the 1.26 B shape takes 20 GB of disk).
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import re
from lib import *

rounds = int(os.environ.get("TIDEMILL_BENCH_ROUNDS", 1 if TINY else 3))
names = ["tiny"] if TINY else os.environ.get("TIDEMILL_BENCH_SHAPES", "134M").split()
table = Table("I/O in training", "shape ", "step s ", "train GB/s", "bench io GB/s", "ratio", "engine cores", "checksum cores", "off s  ", "checksums cost")


def bench_io(depth, block, *more):
    folder = WORK / "bench-io"
    folder.mkdir(exist_ok=True)
    out = expect(Run(["bench", "io", folder, "--rw", "mixed", "--block", block, "--depth", depth, "--size", "64MiB" if TINY else "1GiB",
                      "--busy", "--json", *more]), "bench io")
    d = json.loads(out.out)
    return (d["read_bytes_per_second"] + d["write_bytes_per_second"]) * 1e-9


def steps(path, values, checksums):
    """Median seconds of a step, bytes of it; CPU seconds a GB of engine and checksums as the run says in the end."""
    os.environ["TIDEMILL_LOG"] = "debug"
    os.environ["TIDEMILL_CHECKSUMS"] = checksums
    run = expect(train(path, values), "train")
    del os.environ["TIDEMILL_CHECKSUMS"], os.environ["TIDEMILL_LOG"]
    costs = re.search(r"I/O engine \S+ ([0-9.]+) CPU seconds a GB; page checksums: ([0-9.]+) seconds a GB", run.err)
    timed = run.steps[1:-1]
    return median([s["step_seconds"] for s in timed]), moved(timed[0]) * 1e-9, float(costs[1]), float(costs[2])


for name in names:
    path = config(name, 16, steps=4 if TINY else 6)
    values = {"memory.host_budget": int(minimum(path) * 6), "memory.cache": "none"}  # room to look ahead, nothing kept
    rows = []
    for _ in range(rounds):
        io = bench_io(8, "4MiB")
        on = steps(path, values, "on")
        off = steps(path, values, "off")
        rows.append((on[0], on[1] / on[0], io, on[2] * on[1] / on[0], on[3] * on[1] / on[0], off[0]))
    step, rate, io, engine, checksums, off = (median(column) for column in zip(*rows))
    table.row(name, f"{step:.3f}", f"{rate:.3f}", f"{io:.3f}", f"{median([r[1] / r[2] for r in rows]):.3f}", f"{engine:.4f}", f"{checksums:.4f}",
              f"{off:.3f}", f"{median([r[0] / r[5] for r in rows]) - 1:+.3f}",
              ok=rate >= 0.9 * io and engine <= 0.05 and step <= 1.03 * off)
table.done()
PY
