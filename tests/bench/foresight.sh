#!/bin/sh
# What `tidemill plan` says against what happens, over 20 configurations that are drawn anew by their seed: peak memory
# within 2% (4 MiB where that is more) and never under, bytes equal, seconds a step within 10% (median) and 25% (worst).
# Each is planned with nothing of it in the profile (the operations are timed then and there), trained, and planned again
# with what the run has taught. Half of them have JSONL data with rows of unequal lengths. Seconds are compared as a ratio
# to a calibration in the same minute: the rate of matrix products beside the plan, and beside the run. That is told beside the
# plain ratio: where neighbours come and go by the second, a calibration says little of the minute that a run takes. An hour
# on a quiet machine whose disk was measured (tidemill tune io).
#   TIDEMILL_BENCH_COUNT=20   configurations     TIDEMILL_BENCH_SEED=1   of what is drawn
#   TIDEMILL_BENCH_SHAPES="134M 134M-152k 1.26B"  of lib.py
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import math
import random
from lib import *

COUNT = int(os.environ.get("TIDEMILL_BENCH_COUNT", "4" if TINY else "20"))
SEED = int(os.environ.get("TIDEMILL_BENCH_SEED", "1"))
NAMES = ["tiny"] if TINY else os.environ.get("TIDEMILL_BENCH_SHAPES", "134M 134M 134M-152k 1.26B").split()
WAYS = [{}, {}, {"memory.update": "U"}, {"memory.activations": "recompute"}, {"memory.update": "F"},
        {"memory.update": "F", "memory.activations": "keep"}, {"memory.update": "B", "max_grad_norm": 0}]
PROFILE = WORK / "profile.json"
USERS = pathlib.Path(os.environ.get("TIDEMILL_PROFILE") or pathlib.Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tidemill" / "profile.json")
os.environ["TIDEMILL_PROFILE"] = str(PROFILE)
draw = random.Random(SEED)


def forget():
    """Disks stay as `tune` found them; what operations take, and what training found of disks, is not known."""
    known = json.loads(USERS.read_text()) if USERS.exists() else {"version": 1}
    for disk in known.get("disks", []):
        disk.pop("in_training", None)
    PROFILE.write_text(json.dumps({**{k: v for k, v in known.items() if k != "seconds"}, "seconds": {}}))


def calibrate():
    """FLOP/s of the products of a training step, now."""
    best = {}
    for r in json.loads(expect(Run(["bench", "gemm", "--milliseconds", 10, "--json"]), "bench gemm").out)["results"]:
        if not r["used"]:
            continue
        key = (r["m"], r["n"], r["k"], r["type"])
        best[key] = max(best.get(key, 0), r["flops_per_second"])
    return statistics.geometric_mean(best.values())


def unequal(folder, lines, longest):
    """Text of the tiny example's words; most lines are short, few are cut at `longest` tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(ROOT / "examples" / "tiny" / name, folder)
    path = WORK / f"unequal-{lines}x{longest}.jsonl"
    lengths = random.Random(lines * 4096 + longest)
    path.write_text("".join(json.dumps({"text": " ".join(["tide"] * max(2, int(lengths.lognormvariate(math.log(longest / 6), 0.8))))}) + "\n"
                            for _ in range(lines)))
    return path


def drawn():
    name = draw.choice(NAMES)
    large = name == "1.26B"
    tokens, batch = draw.choice([64, 128, 256, 512]), draw.choice([1, 1, 2] if large else [1, 2, 4])
    accumulation, way = draw.choice([1, 2] if large else [1, 2, 4]), draw.choice(WAYS)
    if large and way.get("memory.activations") == "keep":
        way = {}
    part, lengths, steps = draw.choice([0.03, 0.1, 0.2, 0.4, 0.7]), draw.random() < 0.5, 4 if large else 6
    more = {}
    if lengths:
        accumulation *= 2
        more["data"] = {"train": str(unequal(model(name), batch * accumulation * steps, tokens)), "seq_len": tokens, "format": "text"}
    return name, tokens, batch, accumulation, part, way, config(name, tokens, accumulation, batch, steps, **more), lengths


def seconds_of(run, tokens_per_step):
    """A step's, for as many tokens as a step of the whole run has."""
    steps = run.steps[1:-1] or run.steps
    return sum(s["step_seconds"] for s in steps) / sum(s["tokens"] for s in steps) * tokens_per_step


table = Table(f"foresight: planned and found, seed {SEED}", "shape    ", "tokens  ", "rows   ", "budget MiB", "way           ", "peak MiB planned", "VmHWM MiB", "bytes ",
              "s planned", "s found", "plain", "machine", "ratio", "learned")
peaks, plain, firsts, learned = [], [], [], []
for _ in range(COUNT):
    name, tokens, batch, accumulation, part, way, path, lengths = drawn()
    forget()
    values = {**way, "memory.host_budget": int(minimum(path, way) + part * 14 * parameters(name))}
    forget()  # `minimum` may have timed
    at_plan = calibrate()
    p = plan(path, values)
    before = calibrate()
    run = expect(train(path, values), "train")
    after = calibrate()
    again = plan(path, values)
    machine = (before + after) / 2 / at_plan  # > 1: faster while it trained than while it was planned
    step, found = run.steps[-2], seconds_of(run, p["tokens_per_step"])
    peak = max(run.peak_bytes, step["host_peak_bytes"])
    equal = p["read_bytes_per_step"] == step["read_bytes"] and p["write_bytes_per_step"] == step["write_bytes"]
    off = max(p["host_peak_bytes"] - peak - max(0.02 * peak, 4 * MIB), peak - p["host_peak_bytes"])
    first, second = p["seconds_per_step"] / (found * machine), again["seconds_per_step"] / found
    peaks.append(off)
    plain.append(abs(p["seconds_per_step"] / found - 1))
    firsts.append(abs(first - 1))
    learned.append(abs(second - 1))
    table.row(name, f"{accumulation}x{batch}x{tokens}", "unequal" if lengths else "alike", mib(values["memory.host_budget"]),
              " ".join(str(v) for k, v in way.items() if k != "max_grad_norm") or "auto", mib(p["host_peak_bytes"]), mib(peak),
              "equal" if equal else "differ", f"{p['seconds_per_step']:.3f}", f"{found:.3f}", f"{p['seconds_per_step'] / found:.3f}", f"{machine:.2f}", f"{first:.3f}", f"{second:.3f}",
              ok=equal and off <= 0 and firsts[-1] <= 0.25)
table.check(len(firsts) >= 20 or TINY or "TIDEMILL_BENCH_COUNT" in os.environ, f"{len(firsts)} configurations")
table.check(max(peaks) <= 0, "peak: " + ("within 2% or 4 MiB, and never under" if max(peaks) <= 0 else f"{mib(max(peaks))} MiB beyond that"))
for name, of, limit in (("median", median, 0.10), ("worst", max, 0.25)):
    table.check(of(firsts) <= limit, f"seconds: {name} {100 * of(firsts):.1f}% off; "
                f"without the calibration {100 * of(plain):.1f}%; learned {100 * of(learned):.1f}%")
table.done()
PY
