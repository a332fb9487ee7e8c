#!/bin/sh
# What `tidemill plan` says against what happens, over 24 settings: peak memory within 2%, bytes equal, seconds a step
# within 10% (median) and 25% (worst). Forty minutes on a quiet machine whose disk was measured (tidemill tune io).
# Settings: lib.py; TIDEMILL_BENCH_SHAPES="134M 1.26B" and TIDEMILL_BENCH_TOKENS="128 512" leave the others out, and then there may
# be fewer than 20 settings.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import itertools
from lib import *

table = Table("foresight: planned and measured", "shape ", "tokens ", "budget MiB", "variant     ", "peak MiB planned", "VmHWM MiB", "bytes", "s planned", "s measured", "ratio")
settings = [("134M", 64, 1), ("134M", 512, 1), ("134M", 512, 4), ("134M-152k", 256, 1), ("1.26B", 128, 1), ("1.26B", 512, 1)]
variants = [(0.03, {}), (0.15, {"memory.update": "U"}), (0.3, {"memory.activations": "recompute"}), (0.7, {"memory.update": "F", "memory.activations": "keep"}),
            (0.2, {"memory.update": "B", "max_grad_norm": 0})]
only = os.environ.get("TIDEMILL_BENCH_SHAPES", "").split()
lengths = [int(n) for n in os.environ.get("TIDEMILL_BENCH_TOKENS", "").split()]
settings = [s for s in settings if (not only or s[0] in only) and (not lengths or s[1] in lengths)]
if TINY:
    settings, variants = [("tiny", 64, 1)], variants[:3]
peaks, ratios = [], []
for (name, tokens, accumulation), (part, values) in itertools.product(settings, variants):
    if name == "1.26B" and values.get("memory.activations") == "keep":
        continue
    path = config(name, tokens, accumulation, steps=5 if name != "1.26B" else 4)
    budget = int(minimum(path, values) + part * 14 * parameters(name))
    values = {**values, "memory.host_budget": budget}
    p = plan(path, values)
    run = expect(train(path, values), "train")
    step = run.steps[-2]
    seconds = median([s["step_seconds"] for s in run.steps[1:-1]] or [step["step_seconds"]])
    peak = max(run.peak_bytes, step["host_peak_bytes"])
    equal = p["read_bytes_per_step"] == step["read_bytes"] and p["write_bytes_per_step"] == step["write_bytes"]
    peaks.append(abs(peak / p["host_peak_bytes"] - 1))
    ratios.append(abs(p["seconds_per_step"] / seconds - 1))
    what = " ".join(str(v) for k, v in values.items() if k not in ("memory.host_budget", "max_grad_norm")) or "auto"
    table.row(name, f"{accumulation}x{tokens}", mib(budget), what, mib(p["host_peak_bytes"]), mib(peak), "equal" if equal else "differ",
              f"{p['seconds_per_step']:.3f}", f"{seconds:.3f}", f"{p['seconds_per_step'] / seconds:.3f}", ok=equal and peaks[-1] <= 0.02 and ratios[-1] <= 0.25)
table.check(len(ratios) >= 20 or TINY or bool(only or lengths), f"{len(ratios)} settings")
table.check(max(peaks) <= 0.02, f"peak: worst {100 * max(peaks):.1f}% off")
table.check(median(ratios) <= 0.10, f"seconds: median {100 * median(ratios):.1f}% off")
table.check(max(ratios) <= 0.25, f"seconds: worst {100 * max(ratios):.1f}% off")
table.done()
PY
