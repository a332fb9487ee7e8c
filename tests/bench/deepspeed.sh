#!/bin/sh
# Beside DeepSpeed 0.19.8 (ZeRO-3, parameters and optimizer on NVMe, CPU accelerator): seconds a step and peak resident
# size, the same shapes and tokens, the programs alternating, tidemill at DeepSpeed's memory and at a twentieth of it.
# Target: five times faster, and still faster at a twentieth (or at tidemill's minimum where that is more).
#   TIDEMILL_PEERS=DIR           keeps the Python environment there (3 GB are downloaded otherwise; libaio-dev is needed)
#   TIDEMILL_BENCH_SHAPES        "134M 1.26B"; the second takes 22 GiB of memory and half an hour
#   TIDEMILL_BENCH_LENGTHS       "512", tokens a step
#   PRECISION                    "bf16" or "fp32", of both programs. Without it: bf16 where the CPU has instructions for it; where it
#                                has none PyTorch multiplies bf16 matrices in plain loops of one thread, and fp32 is the fair peer
# Other settings: lib.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TIDEMILL_PEERS="${TIDEMILL_PEERS:-$(mktemp -d)}"
if [ ! -e "$TIDEMILL_PEERS/deepspeed-ready" ]; then
    echo "deepspeed.sh: PyTorch, transformers and DeepSpeed into $TIDEMILL_PEERS" >&2
    [ -e "$TIDEMILL_PEERS/bin/python" ] || python3 -m venv "$TIDEMILL_PEERS"
    "$TIDEMILL_PEERS/bin/pip" install -q torch==2.13.0 transformers setuptools wheel ninja
    DS_BUILD_OPS=0 "$TIDEMILL_PEERS/bin/pip" install -q --no-build-isolation deepspeed==0.19.8
    touch "$TIDEMILL_PEERS/deepspeed-ready"
fi
PATH=$TIDEMILL_PEERS/bin:$PATH # ninja, for the extensions that DeepSpeed compiles at its first start
export TORCH_EXTENSIONS_DIR="$TIDEMILL_PEERS/extensions"
find "$TIDEMILL_PEERS/extensions" -name lock -delete 2> /dev/null || true # of a start that was killed: the next waits for it
PYTHONPATH=$here exec "$TIDEMILL_PEERS/bin/python" - "$@" <<'PY'
import itertools
from lib import *

ROUNDS, STEPS, PATIENCE = 2, 4, 1500
flags = pathlib.Path("/proc/cpuinfo").read_text()
PRECISION = os.environ.get("PRECISION") or ("bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "fp32")


def deepspeed(name, tokens, accumulation):
    nvme = WORK / "nvme"
    nvme.mkdir(exist_ok=True)
    script = ROOT / "tests" / "bench" / "deepspeed_run.py"
    try:
        run = subprocess.run([sys.executable, script, model(name), nvme, str(tokens), str(accumulation), str(STEPS)], text=True,
                             timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**os.environ, "DS_ACCELERATOR": "cpu", "PRECISION": PRECISION})
    except subprocess.TimeoutExpired:
        print(f"deepspeed: {STEPS} steps did not end within {PATIENCE} s")
        return None
    finally:
        shutil.rmtree(nvme, ignore_errors=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
    if run.returncode != 0 or not lines:
        print(f"deepspeed: exit {run.returncode}: " + run.stderr.strip().splitlines()[-1])
        return None
    return json.loads(lines[-1])


def tidemill(path, budget):
    run = expect(train(path, {"memory.host_budget": budget}), "train")
    return median([s["step_seconds"] for s in run.steps[1:-1]]), max(run.peak_bytes, run.steps[-1]["host_peak_bytes"]), moved(run.steps[-2])


table = Table(f"beside DeepSpeed, {PRECISION}", "shape ", "tokens ", "round", "program          ", "s/step  ", "peak MiB", "bytes/param", "times as fast")
names = ["tiny"] if TINY else os.environ.get("TIDEMILL_BENCH_SHAPES", "134M 1.26B").split()
for name, tokens in itertools.product(names, map(int, os.environ.get("TIDEMILL_BENCH_LENGTHS", "512").split())):
    accumulation = 1
    path = config(name, tokens, accumulation, steps=STEPS, precision=PRECISION)
    memory, best = None, {}
    for number in range(ROUNDS):
        d = deepspeed(name, tokens, accumulation)
        if d:
            memory = memory or d["host_peak_bytes"]
            best["d"] = min(best.get("d", d["step_seconds"]), d["step_seconds"])
            table.row(name, tokens, number + 1, f"DeepSpeed {d['version']}", f"{d['step_seconds']:.2f}", mib(d["host_peak_bytes"]),
                      f"{(d['read_bytes'] + d['write_bytes']) / d['parameters']:.1f}", "")
        for what, budget in (("its memory", memory), ("a twentieth", memory and max(memory // 20, minimum(path)))):
            if not budget:
                continue
            seconds, peak, bytes_moved = tidemill(path, budget)
            best[what] = min(best.get(what, seconds), seconds)
            table.row(name, tokens, number + 1, f"tidemill, {what}", f"{seconds:.2f}", mib(peak), f"{bytes_moved / parameters(name):.1f}",
                      f"{best['d'] / seconds:.2f}")
    if "d" not in best:
        table.check(False, f"{name} x {tokens}: DeepSpeed did not run")
        continue
    table.check(best["d"] >= 5 * best["its memory"], f"{name} x {tokens}: {best['d'] / best['its memory']:.2f} times as fast at DeepSpeed's memory (target 5)")
    table.check(best["d"] >= best["a twentieth"], f"{name} x {tokens}: {best['d'] / best['a twentieth']:.2f} times as fast at a twentieth (target 1)")
table.done()
PY
