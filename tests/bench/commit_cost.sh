#!/bin/sh
# What commits cost: the same job with commit_steps 10 and without any, all state on disk and nothing cached, runs
# alternating. The time a step is the run's less its start and its end (a run of one step), so that what a commit takes
# from the steps around it (nothing is read ahead past it, the pending update is applied) counts. Beside it the share of
# commits in the runs that made them, by their own logs, which other load disturbs less; in update F most of that is the
# pending update, which the step after it then lacks. Target: at most 3.5%.
#   TIDEMILL_BENCH_ROUNDS  pairs (2)      TIDEMILL_BENCH_STEPS  steps of a run, a multiple of 10 (20)
# 134 M parameters, 64 and 512 tokens a step; about eight minutes. Other settings: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *
import time

rounds = int(os.environ.get("TIDEMILL_BENCH_ROUNDS", 1 if TINY else 2))
count = int(os.environ.get("TIDEMILL_BENCH_STEPS", 20))
lengths = [int(n) for n in os.environ.get("TIDEMILL_BENCH_TOKENS", "64 512").split()]
name = shape("134M")
table = Table(f"{name}, commit_steps 10 beside 0: {count} steps a run, {rounds} rounds", "tokens", "update", "step s, no commits",
              "with them", "cost  ", "share ", "commit itself s", "MiB written")


def timed(path, values):
    """Seconds of the whole process, and its log lines."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    began = time.monotonic()
    expect(Run(["train", path, "--quiet", "--resume", "never", *sets(values)]), "train")
    took = time.monotonic() - began
    lines = [json.loads(line) for line in (WORK / "out" / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(WORK / "out", ignore_errors=True)
    return took, [line for line in lines if line.get("event") == "commit"], sum(line.get("step_seconds", 0) for line in lines)


for tokens in lengths:
    path = config(name, tokens, steps=count, memory_slots=2, memory_cache="none", save_steps=0)
    budget = int(minimum(path) * 1.3)
    for update in os.environ.get("TIDEMILL_BENCH_UPDATES", "auto").split():
        values = {"memory.host_budget": budget, "memory.update": update}
        plain, committed, itself, written, shares = [], [], [], [], []
        once, _, _ = timed(path, {**values, "max_steps": 1})
        for _ in range(rounds):
            plain.append(timed(path, values)[0] - once)
            took, commits, in_steps = timed(path, {**values, "commit_steps": 10})
            committed.append(took - once)
            itself += [c["seconds"] for c in commits]
            shares.append(sum(c["seconds"] for c in commits) / in_steps)
            written += [c["commit_write_bytes"] for c in commits]
        a, b = median(plain) / (count - 1), median(committed) / (count - 1)
        table.row(tokens, update, f"{a:.3f}", f"{b:.3f}", f"{b / a - 1:+.4f}", f"{median(shares):.4f}", f"{median(itself):.3f}", mib(int(median(written))),
                  ok=b <= 1.035 * a)
table.done()
PY
