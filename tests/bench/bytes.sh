#!/bin/sh
# Bytes a parameter and step, by the kernel's counts, with nothing cached: at most 30 with clipping (update F), 26
# without (B), for 1, 4 and 16 micro-batches alike, activations apart, page overhead under 1%; planned = counted; falling
# with the budget. 134 M parameters; about ten minutes. Settings: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
from lib import *

name = shape("134M")
n, tokens = parameters(name), 64
table = Table(f"{name}: {n} parameters, {tokens} tokens a micro-batch, memory.cache none",
              "update", "micro-batches", "budget MiB", "bytes/param", "kernel's  ", "target", "planned = counted")
for update, clip, target in (("F", 1.0, 30), ("B", 0, 26)):
    for accumulation in (1, 4, 16):
        path = config(name, tokens, accumulation, steps=5, memory_cache="none", memory_update=update, max_grad_norm=clip)
        budget = minimum(path) + 2 * 2 * block_parameters(name)
        values = {"memory.host_budget": budget}
        short = expect(train(path, {**values, "max_steps": 3}), "train")
        long = expect(train(path, values), "train")
        step = long.steps[-2]
        kernel = (long.read_bytes + long.write_bytes - short.read_bytes - short.write_bytes) / 2
        activations = moved(step) - moved(step, "-activation")
        equal = all(s["read_bytes"] == s["planned_read_bytes"] and s["write_bytes"] == s["planned_write_bytes"] for s in long.steps)
        counted, by_kernel = moved(step, "-activation") / n, (kernel - activations) / n
        table.row(update, accumulation, mib(budget), f"{counted:.3f}", f"{by_kernel:.3f}", target, "yes" if equal else "no",
                  ok=counted <= target * 1.01 and by_kernel <= target * 1.01 and equal)

print("\nfalling with the budget (update F, by plan): 3 bytes a resident byte for the first 2 a parameter, then 2")
path = config(name, 512, 1, memory_update="F", memory_activations="recompute")
least = minimum(path)
for part in (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.3):
    budget = int(least + part * 14 * n)
    p = plan(path, {"memory.host_budget": budget})
    resident = p["resident_bytes"] / n
    formula = max(0, 30 - 3 * min(resident, 2) - 2 * max(0, resident - 2))
    state = (p["read_bytes_per_step"] + p["write_bytes_per_step"]) / n
    table.check(part < 1.3 or state == 0, f"budget {mib(budget)} MiB: {resident:.2f} resident a parameter, {state:.2f} moved, by the rule {formula:.2f}")
table.done()
PY
