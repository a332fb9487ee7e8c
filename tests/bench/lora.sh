#!/bin/sh
# LoRA beside PEFT 0.21 on PyTorch 2.13 (transformers, SDPA, fused AdamW of what learns, clipping, two threads): rank 16 on all linear
# layers of a bf16 base, in bf16 steps with nothing recomputed, the two programs taking turns, medians of all rounds; then ours at half
# of PEFT's peak memory, and where half of the base has no room and is read anew at every visit. Beside both the bound: one forward and one backward
# product a weight (4 operations a weight and token; embedding rows are only looked up) at the fastest rate of a bf16 product that
# `tidemill bench gemm` finds in the same rounds. Peaks are of resident memory, with the program itself (PyTorch alone has some 400 MiB).
# Targets, tokens a second over PEFT's: SmolLM2-135M 1.3, 1.26B 1.15; at half its memory, and with half of the base read, 1.0. On a busy machine the ratio of
# the fastest steps says more, and that of the seconds of processor a step ("CPU": PEFT's over ours), which waits do not enter.
#   TIDEMILL_PEERS=DIR        keeps the Python environment there (1 GB is downloaded otherwise)
#   TIDEMILL_LORA_SHAPES      names of them ("SmolLM2 1.26B")
#   TIDEMILL_LORA_PEER        the type of PEFT's matrices A and B (bf16, its fastest; fp32 is its default)
#   TIDEMILL_LORA_ROUNDS      rounds (3), each of
#   TIDEMILL_LORA_STEPS       timed steps of PEFT, then as many of ours, three times (4)
#   TIDEMILL_LORA_TOKENS      tokens of a row (512); TIDEMILL_LORA_BATCH rows (1)
# Other settings: lib.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TIDEMILL_PEERS="${TIDEMILL_PEERS:-$(mktemp -d)}"
if ! "$TIDEMILL_PEERS/bin/python" -c 'import torch, transformers, peft' 2> /dev/null; then
    echo "lora.sh: PyTorch, transformers and PEFT into $TIDEMILL_PEERS" >&2
    python3 -m venv "$TIDEMILL_PEERS"
    "$TIDEMILL_PEERS/bin/pip" install -q torch==2.13.0 transformers==5.23.0 peft==0.21.2
fi
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads that spin would count what they wait for
PYTHONPATH=$here exec "$TIDEMILL_PEERS/bin/python" - "$@" <<'PY'
from lib import *
from torch_peer import Peer

RANK = 16
SHAPES["SmolLM2"] = (576, 1536, 30, 9, 3, 49152)  # SmolLM2-135M's config.json
TIED = {"SmolLM2"}
TARGETS = {"SmolLM2": 1.3, "1.26B": 1.15}
NAMES = os.environ.get("TIDEMILL_LORA_SHAPES", "SmolLM2 1.26B").split() if not TINY else ["tiny"]
PEER = os.environ.get("TIDEMILL_LORA_PEER", "bf16")
setting = lambda name, many, few: int(os.environ.get(f"TIDEMILL_LORA_{name}", few if TINY else many))
ROUNDS, STEPS, TOKENS, BATCH = setting("ROUNDS", 3, 1), setting("STEPS", 4, 1), setting("TOKENS", 512, 64), setting("BATCH", 1, 1)


def base(name):
    """A folder with random weights of the shape in bf16."""
    bare, out = model(name), WORK / f"base-{name}"
    if not out.exists():
        path = bare / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": name in TIED}))
        expect(Run(["convert", bare, out, "--init", "random", "--dtype", "bf16"]), "convert")
    return out


def job(name):
    path = config(name, TOKENS, 1, batch=BATCH, steps=STEPS + 1, memory_activations="keep", model=str(base(name)),
                  adapter={"r": RANK, "lora_alpha": 2 * RANK, "target_modules": "all-linear"})
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "init"}))
    return path


def fastest_product():
    out = json.loads(expect(Run(["bench", "gemm", "--json", "--milliseconds", "100", "--threads", "2"]), "bench gemm").out)
    return max(r["flops_per_second"] for r in out["results"] if r["type"] == "bf16" and r["used"])


def products(name):
    """Operations of a step's products with the base: forward, and what goes back to the inputs."""
    hidden, vocabulary = SHAPES[name][0], SHAPES[name][5]
    return 4 * BATCH * TOKENS * (SHAPES[name][2] * block_parameters(name) + vocabulary * hidden)


def timed(to, path, budget, what):
    """Adds to `to`: the seconds of the steps but the first, of processor a step; the most memory; what a step read of the base."""
    start = expect(train(path, {"memory.host_budget": budget, "max_steps": 1}), what)
    run = expect(train(path, {"memory.host_budget": budget}), what)
    to.seconds += [s["step_seconds"] for s in run.steps[1:]]
    to.busy.append((run.cpu_seconds - start.cpu_seconds) / STEPS)
    to.peak = max(to.peak, run.peak_bytes)
    to.paged = run.steps[-1]["bytes_by_kind"].get("frozen", {}).get("read", 0)


class Series:
    def __init__(self):
        self.seconds, self.busy, self.peak, self.paged = [], [], 0, 0

    def rate(self):
        return BATCH * TOKENS / median(self.seconds)


def row(name, what, target, theirs, mine):
    bound = products(name) / gemm[name]
    ratio = mine.rate() / theirs.rate()
    table.row(name.ljust(7), what.ljust(11), f"{theirs.rate():.1f}", mib(theirs.peak), f"{mine.rate():.1f}", mib(mine.peak),
              mib(mine.paged), f"{ratio:.2f}", target, f"{min(theirs.seconds) / min(mine.seconds):.2f}",
              f"{median(theirs.busy) / median(mine.busy):.2f}", f"{median(mine.busy) / (2 * bound):.2f}",
              f"{median(theirs.busy) / (2 * bound):.2f}", ok=TINY or ratio >= target)


gemm = {}
table = Table(f"LoRA of rank {RANK} beside PEFT ({PEER}), tokens a second, {BATCH} x {TOKENS} tokens, nothing recomputed", "shape  ",
              "ours       ", "  PEFT", "its MiB", "  ours", "our MiB", "base read, MiB", "ratio", "target", "fastest steps", " CPU",
              "our CPU over bound", "PEFT's")
for name in NAMES:
    path, theirs, whole, half, paged, rates = job(name), Series(), Series(), Series(), Series(), []
    for _ in range(ROUNDS):
        peer = Peer(base(name), PEER, BATCH, TOKENS, 0, "cpu", RANK, PEER)
        peer.step()
        for _ in range(STEPS):
            theirs.seconds.append(peer.step())
            theirs.busy.append(peer.cpu_seconds)
        theirs.peak = max(theirs.peak, peer.peak_bytes)
        peer.close()
        timed(whole, path, "unlimited", name)
        timed(half, path, theirs.peak // 2, f"{name} in half")
        timed(paged, path, min(theirs.peak // 2, whole.peak - parameters(name)), f"{name} with half of the base")
        rates.append(fastest_product())
    gemm[name] = max(rates)
    row(name, "in memory", TARGETS.get(name, 0), theirs, whole)
    row(name, "half of it", 1.0, theirs, half)
    row(name, "base read", 1.0, theirs, paged)
print("fastest products, GFLOP/s: " + ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in gemm.items()))
table.done()
PY
