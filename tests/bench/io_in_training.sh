#!/bin/sh
# What training gets out of the disk, and what it pays for it: steps that the disk bounds (small micro-batches, nothing kept
# in memory) at several budgets, given as multiples of the least one.
#
#   rate       bytes a second of the steps beside `bench io` with the same request size, number of requests, and half reads
#              and half writes, while all cores compute; alternating.                      target: 0.90; engine 5% of a core
#   checksums  two steps with and two without, in turns, in one process (TIDEMILL_CHECKSUMS=alternate; the first of each two
#              is not counted: what is read ahead belongs to the step before). One pair: a step with beside the mean of its
#              two neighbours without.                                                     target: 3% of the step
#
# The program is the test build, build/tests/tidemill, which hears that variable. Settings: lib.py; TIDEMILL_BENCH_ROUNDS=3,
# TIDEMILL_BENCH_PAIRS=12, TIDEMILL_BENCH_TOKENS=16, TIDEMILL_BENCH_BUDGETS="1.3 6", TIDEMILL_BENCH_PARTS="rate checksums", TIDEMILL_BENCH_SHAPES="134M"
# (the 1.26 B shape takes 20 GB of disk).
root=$(cd "$(dirname "$0")/../.." && pwd)
TIDEMILL=${TIDEMILL:-$root/build/tests/tidemill} PYTHONPATH=$root/tests/bench exec python3 - "$@" <<'PY'
import re
from lib import *

rounds = int(os.environ.get("TIDEMILL_BENCH_ROUNDS", 1 if TINY else 3))
tokens = int(os.environ.get("TIDEMILL_BENCH_TOKENS", 16))
pairs = int(os.environ.get("TIDEMILL_BENCH_PAIRS", 2 if TINY else 12))
parts = os.environ.get("TIDEMILL_BENCH_PARTS", "rate checksums").split()
names = ["tiny"] if TINY else os.environ.get("TIDEMILL_BENCH_SHAPES", "134M").split()
budgets = [float(x) for x in os.environ.get("TIDEMILL_BENCH_BUDGETS", "1.3 6").split()]


def bench_io(depth, block, *more):
    folder = WORK / "bench-io"
    folder.mkdir(exist_ok=True)
    out = expect(Run(["bench", "io", folder, "--rw", "mixed", "--block", block, "--depth", depth, "--size", "64MiB" if TINY else "1GiB",
                      "--busy", "--json", *more]), "bench io")
    d = json.loads(out.out)
    return (d["read_bytes_per_second"] + d["write_bytes_per_second"]) * 1e-9


def steps(name, factor, count, checksums):
    path = config(name, tokens, steps=count)
    os.environ["TIDEMILL_LOG"] = "debug"
    os.environ["TIDEMILL_CHECKSUMS"] = checksums
    try:
        return expect(train(path, {"memory.host_budget": int(least(name) * factor), "memory.cache": "none"}), "train")
    finally:
        del os.environ["TIDEMILL_CHECKSUMS"], os.environ["TIDEMILL_LOG"]


known = {}


def least(name):
    if name not in known:
        known[name] = minimum(config(name, tokens, steps=4))
    return known[name]


def rate(name, factor, table):
    rows = []
    for i in range(rounds):
        io = bench_io(8, "4MiB") if i % 2 else None
        run = steps(name, factor, 4 if TINY else 6, "")
        io = io or bench_io(8, "4MiB")
        costs = re.search(r"I/O engine \S+ ([0-9.]+) CPU seconds a GB; page checksums: ([0-9.]+) seconds a GB", run.err)
        timed = run.steps[1:-1]
        step, gb = median([s["step_seconds"] for s in timed]), moved(timed[0]) * 1e-9
        rows.append((step, gb / step, io, float(costs[1]) * gb / step, float(costs[2]) * gb / step))
    step, train_rate, io, engine, checksums = (median(column) for column in zip(*rows))
    ratio = median([r[1] / r[2] for r in rows])
    table.row(name, factor, f"{step:.3f}", f"{train_rate:.3f}", f"{io:.3f}", f"{ratio:.3f}", f"{engine:.4f}", f"{checksums:.4f}",
              ok=ratio >= 0.9 and engine <= 0.05)


def checksums(name, factor, table):
    run = steps(name, factor, 4 * pairs + 5, "alternate")
    on = [m == "on" for m in re.findall(r'run of "(?:first|training) step": page checksums (on|off)', run.err)]
    seconds = [s["step_seconds"] for s in run.steps]
    counted = [i for i in range(1, min(len(on), len(seconds))) if on[i] == on[i - 1]]  # seconds of two: on, off, on, off, ...
    found = []
    for before, i, after in zip(counted, counted[1:], counted[2:]):
        if on[i] and after - before == 4:
            found.append(2 * seconds[i] / (seconds[before] + seconds[after]) - 1)
    quartile = statistics.quantiles(found, n=4)
    table.row(name, factor, len(found), f"{median([seconds[i] for i in counted if on[i]]):.3f}",
              f"{median([seconds[i] for i in counted if not on[i]]):.3f}", f"{median(found):+.4f}",
              f"{quartile[0]:+.4f} to {quartile[2]:+.4f}", ok=median(found) <= 0.03)


ok = []
if "rate" in parts:
    table = Table("I/O in training", "shape ", "x least", "step s ", "train GB/s", "bench io GB/s", "ratio", "engine cores", "checksum cores")
    for name in names:
        for factor in budgets:
            rate(name, factor, table)
    ok.append(table)
if "checksums" in parts:
    table = Table("Page checksums", "shape ", "x least", "pairs", "step s, on", "step s, off", "median cost", "quartiles       ")
    for name in names:
        for factor in budgets:
            checksums(name, factor, table)
    ok.append(table)
for table in ok:
    table.done()
PY
