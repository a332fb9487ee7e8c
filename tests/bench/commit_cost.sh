#!/bin/sh
# What commits cost: one job with commit_steps 10, all state on disk and nothing cached. Of every commit: its own seconds, and
# what the step that it ends and the one after it take beyond the steps around them (three before, three after), since
# nothing is read ahead past a commit and, in update F, the commit applies the update that the next step would have; of
# ten such steps. So a disk that is faster or slower minutes later changes nothing. Target: the median at most 3.5%.
#   TIDEMILL_BENCH_COMMITS  how many of them (4)      TIDEMILL_BENCH_UPDATES  "auto", or of U F B
# 134 M parameters, 64 and 512 tokens a step (TIDEMILL_BENCH_TOKENS); about five minutes. Other settings: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *

EVERY, AROUND = 10, 3
commits = int(os.environ.get("TIDEMILL_BENCH_COMMITS", 2 if TINY else 4))
lengths = [int(n) for n in os.environ.get("TIDEMILL_BENCH_TOKENS", "64 512").split()]
name = shape("134M")
table = Table(f"{name}, commit_steps {EVERY}, {commits} commits", "tokens", "update", "step s", "commit s", "step before s",
              "step after s", "cost of each           ", "median ", "MiB written")


def logged(path, values):
    """Seconds of each step, from 1 on, and by the step that they end, of each commit: seconds, bytes."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    expect(Run(["train", path, "--quiet", "--resume", "never", *sets(values)]), "train")
    lines = [json.loads(line) for line in (WORK / "out" / "log.jsonl").read_text().splitlines()]
    shutil.rmtree(WORK / "out", ignore_errors=True)
    return ({line["step"]: line["step_seconds"] for line in lines if "event" not in line and "step_seconds" in line},
            {line["step"]: (line["seconds"], line["commit_write_bytes"]) for line in lines if line.get("event") == "commit"})


for tokens in lengths:
    path = config(name, tokens, steps=EVERY * commits + AROUND + 1, commit_steps=EVERY, memory_slots=2, memory_cache="none",
                  save_steps=0)
    budget = int(minimum(path) * 1.3)
    for update in os.environ.get("TIDEMILL_BENCH_UPDATES", "auto").split():
        step, committed = logged(path, {"memory.host_budget": budget, "memory.update": update})
        each = []
        for at in range(EVERY, EVERY * commits + 1, EVERY):
            around = [step[i] for i in (*range(at - AROUND, at), *range(at + 2, at + 2 + AROUND)) if i in step]
            typical, (itself, written) = statistics.mean(around), committed[at]
            each.append((typical, itself, step[at], step[at + 1],
                         (itself + step[at] + step[at + 1] - 2 * typical) / (EVERY * typical), written))
        typical, itself, before, after, cost, written = (median(column) for column in zip(*each))
        table.row(tokens, update, f"{typical:.3f}", f"{itself:.3f}", f"{before:.3f}", f"{after:.3f}",
                  " ".join(f"{e[4]:+.4f}" for e in each), f"{cost:+.4f}", mib(int(written)), ok=cost <= 0.035)
table.done()
PY
