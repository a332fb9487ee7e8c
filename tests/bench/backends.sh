#!/bin/sh
# What `tidemill plan` says that a run takes of host memory, against VmHWM, for 20 drawn settings on each product
# back-end that is to be had: never under, and within 2% or 4 MiB, whichever is more. Some minutes on a quiet machine.
# backends.sh [NUMBER [SEED]]: so many settings, another draw. TIDEMILL_BENCH_BACKENDS="builtin openblas": those alone.
# Settings of the scripts: lib.py.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import random
from lib import *

count, seed = (int(sys.argv[1]) if len(sys.argv) > 1 else 3 if TINY else 20), (int(sys.argv[2]) if len(sys.argv) > 2 else 24)
table = Table("host memory, planned and found", "back-end", "shape             ", "tokens  ", "budget MiB", "variant                                          ",
              "planned", "VmHWM  ", "over ")
draw = random.Random(seed)
settings = []
for i in range(count):
    width, blocks, words = draw.choice([256, 384, 512]), draw.choice([2, 4, 6]), draw.choice([4000, 12000, 32000])
    SHAPES[f"{width}x{blocks}, {words}"] = (width, 3 * width, blocks, 4, draw.choice([2, 4]), words)
    precision = draw.choice(["bf16", "bf16", "fp32", "fp16"])
    optim = draw.choice(["adamw_torch", "adamw_torch", "adamw_8bit", "sgd", "lion_32bit", "adafactor"])
    settings.append((f"{width}x{blocks}, {words}", draw.choice([32, 64, 200, 512]), draw.choice([1, 2, 5]), draw.choice([1, 2]),
                     draw.choice([0, 0.05, 0.2, 0.5, 2]),
                     {"precision": precision, "optim": optim, "memory.update": "auto" if optim == "adafactor" else draw.choice(["auto", "U", "F"]),
                      "memory.activations": draw.choice(["auto", "keep", "recompute", "spill"]), "memory.io_engine": draw.choice(["auto", "threads", "uring"])}))

worst = {}
for backend in os.environ.get("TIDEMILL_BENCH_BACKENDS", "builtin amx avx512bf16 openblas").split():
    os.environ["TIDEMILL_GEMM"] = backend
    there = Run(["plan", config("tiny", 32), "--json"])
    if "is not to be had here" in there.err:
        print(f"{backend}: left out: {there.err.strip()}")
        continue
    expect(there, "plan")
    for name, tokens, accumulation, batch, part, values in settings:
        path = config(name, tokens, accumulation, batch, steps=2)
        least = plan(path, {**values, "memory.host_budget": 1}, fits=False).get("minimum_host_bytes")
        if not least:
            table.check(False, f"{backend}: no plan")
            break
        values = {**values, "memory.host_budget": int(least + part * 14 * parameters(name))}
        p = plan(path, values)
        run = expect(train(path, values), "train")
        peak = max([run.peak_bytes] + [s["host_peak_bytes"] for s in run.steps])
        over = p["host_peak_bytes"] - peak
        ok = 0 <= over <= max(0.02 * peak, 4 * MIB)
        worst[backend] = max(worst.get(backend, 0), over)
        table.row(backend, name, f"{accumulation}x{batch}x{tokens}", mib(values["memory.host_budget"]),
                  " ".join(str(v) for k, v in values.items() if k != "memory.host_budget"), mib(p["host_peak_bytes"]), mib(peak), mib(over), ok=ok)
for backend, over in worst.items():
    print(f"{backend}: at most {mib(over)} MiB more than found")
table.done()
PY
