#!/bin/sh
# The budget holds: VmHWM at or under it and at least 90% of it where the state exceeds it, enforced by memory cgroups
# (root; v1 or v2): 134 M parameters in 320 MiB, 1.26 B in 1 GiB at 8 x 512 tokens, 3 B with one slot in 2 GiB; one
# byte below the minimum is refused; 152k words of vocabulary are no jump; the minimum of 7 B by plan. Half an hour and
# 50 GB of disk; what the disk has no room for is skipped. Settings: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *

table = Table("memory", "shape       ", "tokens    ", "limit MiB", "least MiB", "VmHWM MiB", "used ", "status")
CASES = [("134M", 512, 1, 320 * MIB, 3), ("134M", 512, 8, 320 * MIB, 2), ("1.26B", 512, 8, 1 * GIB, 2), ("3B", 512, 1, 2 * GIB, 1)]
if TINY:
    CASES = [("tiny", 64, 2, 64 * MIB, 2)]
for name, tokens, accumulation, limit, steps in CASES:
    path = config(name, tokens, accumulation, steps=steps)
    p = plan(path, {"memory.host_budget": limit}, fits=False)
    if p["disk_bytes"] > shutil.disk_usage(WORK).free * 0.9:
        print(f"{name}: SKIP, {p['disk_bytes'] / GIB:.0f} GiB of disk are not free")
        continue
    least = minimum(path)
    group = cgroup(limit)
    if not group:
        print("no memory cgroup can be made here (it takes root): the limit is not enforced by the kernel")
    run = train(path, {"memory.host_budget": limit}, group)
    if group:
        remove_cgroup(group)
    peak = max([run.peak_bytes] + [s["host_peak_bytes"] for s in run.steps])
    binds = 12 * parameters(name) > limit
    table.row(name, f"{accumulation} x {tokens}", mib(limit), mib(least), mib(peak), f"{100 * peak / limit:.0f}%", run.status,
              ok=run.status == 0 and peak <= limit and (peak >= 0.9 * limit or not binds))
    if run.status != 0:
        print(run.err.strip())
    below = Run(["train", path, "--resume", "never", *sets({"memory.host_budget": least - 1})])
    table.check(below.status == 2, f"{name}: one byte below the least: exit {below.status}")

name = shape("134M")
path = config(name, 512 if not TINY else 64, 1, steps=2)
least = minimum(path)
group = cgroup(least + 64 * MIB)
run = train(path, {"memory.host_budget": least}, group)
if group:
    remove_cgroup(group)
table.check(run.status == 0, f"{name}: at the least, {mib(least)} MiB, in a cgroup of 64 MiB more: exit {run.status}")
if not TINY:
    words = minimum(config("134M-152k", 512, 1))
    table.check(words < least + 32 * MIB, f"152k words: least {mib(words)} MiB, 32k {mib(least)} MiB")
    seven = minimum(config("7B", 512, 8))
    table.check(seven <= 2.2 * GIB, f"7 B at 8 x 512: least {seven / GIB:.2f} GiB, target 2.2")
table.done()
PY
