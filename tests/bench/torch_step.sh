#!/bin/sh
# Beside PyTorch 2.13 (transformers' Llama of the same shape, SDPA, fused AdamW, clipping, two threads): tokens a second of
# whole training steps (forward, backward, clip, AdamW) with everything in memory, the two programs alternating, medians.
# Where the CPU has no bf16 instructions PyTorch's bf16 is many times slower than its fp32; then bf16 is set beside
# PyTorch's fp32 as well. Model FLOPs (nothing recomputed: 6 a weight and token, and attention's) are set beside the peak of
# `tidemill bench gemm`.
# Targets: bf16 1.5, fp32 1.2; 1.26B with recomputation 1.3 (21 GB for PyTorch in fp32; not among the cases unless asked
# for: "1.26B bf16 1 512 1 1.3 fp32"). Where both programs do not fit beside each other, PyTorch begins anew each round.
#   TIDEMILL_PEERS=DIR      keeps the Python environment there (1 GB is downloaded otherwise)
#   TIDEMILL_TORCH_CASES    "SHAPE PRECISION BATCH TOKENS RECOMPUTE TARGET PEER_PRECISION; ..."
#   TIDEMILL_TORCH_ROUNDS   rounds (3), each of
#   TIDEMILL_TORCH_STEPS    timed steps of PyTorch, then as many of ours (3)
# Other settings: lib.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TIDEMILL_PEERS="${TIDEMILL_PEERS:-$(mktemp -d)}"
if ! "$TIDEMILL_PEERS/bin/python" -c 'import torch, transformers' 2> /dev/null; then
    echo "torch_step.sh: PyTorch and transformers into $TIDEMILL_PEERS" >&2
    python3 -m venv "$TIDEMILL_PEERS"
    "$TIDEMILL_PEERS/bin/pip" install -q torch==2.13.0 transformers
fi
export OMP_NUM_THREADS=2
PYTHONPATH=$here exec "$TIDEMILL_PEERS/bin/python" - "$@" <<'PY'
from lib import *
from torch_peer import Peer

CASES = os.environ.get("TIDEMILL_TORCH_CASES") or ("134M fp32 1 512 0 1.2 fp32; 134M fp32 4 512 0 1.2 fp32; "
    "134M bf16 1 512 0 1.5 fp32; 134M bf16 4 512 0 1.5 fp32; 134M bf16 1 512 0 1.5 bf16; 134M bf16 4 512 0 1.5 bf16")
ROUNDS = int(os.environ.get("TIDEMILL_TORCH_ROUNDS", "3"))
STEPS = int(os.environ.get("TIDEMILL_TORCH_STEPS", "3"))


def available():
    """Bytes of memory that are free for programs."""
    return next(int(line.split()[1]) * 1024 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))


def ours(path, values):
    """The steps of a short run, its first left out."""
    return [s["step_seconds"] for s in expect(train(path, values), "train").steps[1:]]


def model_flops(name, batch, tokens):
    """Of a step: every product three times, causal attention as well; embedding rows are only looked up."""
    hidden, _, layers, _, _, vocabulary = SHAPES[name]
    weights = parameters(name) - vocabulary * hidden
    return batch * tokens * (6 * weights + 6 * layers * hidden * (tokens + 1))


def peak():
    out = json.loads(expect(Run(["bench", "gemm", "--json", "--milliseconds", "0", "--threads", "2"]), "bench gemm").out)
    return out["peak_flops_per_second"]


PEAK = peak()
print(f"peak of 2 threads: {PEAK / 1e9:.0f} GFLOP/s, fp32 multiply-adds on registers")
table = Table("beside PyTorch, tokens a second, everything in memory", "shape ", "precision", "batch ", "tokens", "recompute",
              "PyTorch", "of it in", "of peak", "tidemill", "of peak", "ratio", "target")
for case in ([c.split() for c in CASES.split(";")] if not TINY else [["tiny", "fp32", "1", "64", "0", "0", "fp32"]]):
    name, precision, batch, tokens, recompute, target, peer_precision = case
    batch, tokens, recompute, target = int(batch), int(tokens), int(recompute), float(target)
    path = config(name, tokens, 1, batch=batch, steps=STEPS + 1, precision=precision,
                  memory_activations="recompute" if recompute else "keep")
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "zero_optimization"}))
    apart = 2 * 17 * parameters(name) > available()
    theirs, mine, peer = [], [], None
    for _ in range(ROUNDS):
        if not peer:
            peer = Peer(model(name), peer_precision, batch, tokens, recompute)
            peer.step()
        theirs += [peer.step() for _ in range(STEPS)]
        if apart:
            peer = peer.close()
        mine += ours(path, {"memory.host_budget": "unlimited"})
    if peer:
        peer.close()
    rate = lambda seconds: batch * tokens / median(seconds)
    part = lambda seconds: f"{100 * model_flops(name, batch, tokens) / median(seconds) / PEAK:.0f}%"
    table.row(name, precision, batch, tokens, "yes" if recompute else "no", f"{rate(theirs):.1f}", peer_precision, part(theirs),
              f"{rate(mine):.1f}", part(mine), f"{rate(mine) / rate(theirs):.2f}", target,
              ok=TINY or rate(mine) >= target * rate(theirs))
table.done()
PY
