"""The parts of tests/gpu.sh, which says what they are."""
import importlib.util
import math
import pathlib
import subprocess
import time

from lib import *

DEVICE = os.environ.get("TIDEMILL_DEVICE", "cuda:0")
PLACES = [pathlib.Path(BINARY).parent, pathlib.Path(BINARY).parents[1] / "tests"]  # of a bundle, of a build
KERNELS = [next((p / name for p in PLACES if (p / name).exists()), PLACES[0] / name)
           for name in ("test_cuda_rows_device", "test_cuda_attention_device", "test_cuda_optim_device")]
FIXTURES = ROOT / "tests" / "fixtures"
SHAPES["micro"] = (64, 176, 2, 4, 2, 1000)
figures, verdicts = {}, {}


class Failed(Exception):
    pass


def need(ok, text):
    if not ok:
        raise Failed(text)


def note(name, value, target=None, least=True):
    """A figure; with a target a miss is remembered."""
    figures.setdefault(part_now, {})[name] = value
    missed = target is not None and not TINY and not (value >= target if least else value <= target)
    shown = f"{value:.4g}" if isinstance(value, float) else value
    print(f"  {name}: {shown}" + (f" (target {target})" if target is not None else "") + ("   <- missed" if missed else ""), flush=True)
    if missed:
        verdicts[part_now] = "missed"


def shaped(name):
    return "micro" if TINY else name


def on_device(**more):
    return {"memory.device": DEVICE, **{k.replace("__", "."): v for k, v in more.items()}}


def steps_of(run, what):
    """Seconds of the steps of a run but its first two: algorithms are chosen there, and code is loaded."""
    need(run.status == 0, f"{what}: exit {run.status}\n{run.err[-1500:]}")
    seconds = [s["step_seconds"] for s in run.steps]
    return seconds[2:] or seconds[-1:]


# ---- numbers without a library ------------------------------------------------------------------------------------

def tensors(path):
    raw = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    code = {"F32": "f", "I32": "i", "I64": "q", "F64": "d"}
    out = {}
    for name, about in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__" and about["dtype"] in code:
            a, b = about["data_offsets"]
            size = struct.calcsize(code[about["dtype"]])
            out[name] = (about["shape"], struct.unpack(f"<{(b - a) // size}{code[about['dtype']]}", raw[8 + n + a:8 + n + b]))
    return out


def write_rows(path, golden, index):
    """Batch `index` of a fixture as tidemill probe takes it."""
    shape, _ = golden["input_ids"]
    n = shape[1] * shape[2]
    body, header, at = b"", {}, 0
    for name in ("input_ids", "labels", "attention_mask"):
        if name in golden:
            values = golden[name][1][index * n:(index + 1) * n]
            body += struct.pack(f"<{n}i", *values)
            header[name] = {"dtype": "I32", "shape": shape[1:], "data_offsets": [at, at + 4 * n]}
            at += 4 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


# ---- parts --------------------------------------------------------------------------------------------------------

def doctor():
    run = Run(["doctor"])
    print(run.out)
    need(run.status == 0 and DEVICE in run.out, f"doctor does not find {DEVICE}\n{run.err}")


def kernels():
    for test in KERNELS:
        began = time.time()
        r = subprocess.run([test], capture_output=True, text=True)
        need(r.returncode == 0, f"{test.name}: exit {r.returncode}\n{(r.stdout + r.stderr)[-3000:]}")
        note(test.name, round(time.time() - began, 1))


def sanitizer():
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(tool, os.X_OK):
        raise Failed("compute-sanitizer is not there")
    for test in KERNELS:
        for check in ("memcheck", "racecheck", "synccheck"):
            began = time.time()
            try:
                r = subprocess.run([tool, "--tool", check, "--error-exitcode", "9", test], capture_output=True, text=True, timeout=170)
            except subprocess.TimeoutExpired:
                note(f"{test.name} {check}", "not done in 170 s")
                verdicts[part_now] = "missed"
                continue
            text = r.stdout + r.stderr
            need(r.returncode == 0, f"{test.name} under {check}: exit {r.returncode}\n{text[-3000:]}")
            note(f"{test.name} {check}", round(time.time() - began, 1))


def probe(folder, rows, out, *more):
    run = Run(["probe", "--model", folder, "--input", rows, "--output", out, "--grads", *more])
    need(run.status == 0, f"probe {folder}: exit {run.status}\n{run.err}")
    return tensors(out)


def refusal(run):
    """Why this program does not compute the model: what the device's kernels lack, or that it knows no such model."""
    known = any(why in run.err for why in ("its kernels lack", "is not supported"))
    return run.err.strip().splitlines()[-1] if run.status == 2 and known else None


def fixtures():
    done = 0
    for folder in sorted(FIXTURES.glob("arch_*")):
        golden = tensors(folder / "golden.safetensors")
        about = json.loads((folder / "golden.json").read_text())
        rows, out = WORK / "rows.safetensors", WORK / "probe.safetensors"
        write_rows(rows, golden, 0)
        device = ("--device", DEVICE, "--device-budget", "256MiB")
        why = refusal(Run(["probe", "--model", folder, "--input", rows, "--output", out, *device]))
        if why:
            note(f"{folder.name} left out", why)
            continue
        done += 1
        got = probe(folder, rows, out, *device)
        error = abs(got["loss"][1][0] - about["scalars"]["loss"])
        note(f"{folder.name} loss", error)
        need(error <= about["tolerances"]["loss_abs"], "the loss is not transformers'")
        worst, where = 0, ""
        for name, (_, want) in golden.items():
            if name.startswith("grad.") and name in got:
                size = math.sqrt(sum(x * x for x in want))
                far = distance(got[name][1], want) / size if size > 0 else 0
                worst, where = max((worst, where), (far, name))
        note(f"{folder.name} gradients", worst)
        need(worst <= about["tolerances"]["grad_rel_l2"], f"{where} is not transformers'")
        here = probe(folder, rows, out, "--precision", "bf16")
        there = probe(folder, rows, out, "--precision", "bf16", *device)
        note(f"{folder.name} bf16 loss, device beside CPU", abs(here["loss"][1][0] / there["loss"][1][0] - 1))
        need(abs(here["loss"][1][0] / there["loss"][1][0] - 1) <= 5e-3, "the device's bf16 is not the CPU's")
    need(done >= 5, f"{done} models were computed")


def hash_of(run, what):
    need(run.status == 0, f"{what}: exit {run.status}\n{run.err[-1500:]}")
    return run.end["state_hash"]


def budgets():
    name = shaped("1.26B")
    path = config(name, 16 if TINY else 512, accumulation=2, steps=2, save_steps=0)
    first = None
    ways = [("unlimited", "none"), ("24GiB", "cpu"), ("8GiB", "nvme"), ("8GiB", "cpu"), ("4GiB", "cpu"), ("2GiB", "nvme")]
    if TINY:
        ways = [("unlimited", "none"), ("64MiB", "cpu"), ("4MiB", "nvme")]
    for budget, place in ways:
        run = train(path, on_device(memory__device_budget=budget, zero_optimization__offload_optimizer__device=place))
        if run.status == 2 and "memory.device_budget" in run.err:
            print(f"  {budget}, {place}: {run.err.strip()}")
            continue
        value = hash_of(run, f"{budget}, {place}")
        first = first or value
        note(f"{budget}, states on {place}", value)
        need(value == first, "the hash depends on the budget")
        shutil.rmtree(WORK / "offload", ignore_errors=True)
        (WORK / "offload").mkdir()
    # A commit, and the rest from it. Half the steps first: the hash is that of the whole.
    out = ["--set", f"output_dir={WORK / 'parts'}", "--set", "commit_steps=1", "--set", "memory.slots=2", "--set", "keep_state=true",
           "--set", "lr_scheduler_type=constant", *sets(on_device())]
    for steps in (1, 2):
        r = Run(["train", path, "--quiet", *out, "--set", f"max_steps={steps}"])
        need(r.status == 0, f"going on: exit {r.status}\n{r.err[-1500:]}")
    whole = Run(["train", path, "--quiet", "--set", f"output_dir={WORK / 'whole'}", "--set", "lr_scheduler_type=constant", *sets(on_device())])
    need(whole.status == 0, f"in one go: exit {whole.status}\n{whole.err[-1500:]}")
    ends = [json.loads((WORK / d / "log.jsonl").read_text().splitlines()[-1])["state_hash"] for d in ("parts", "whole")]
    note("in two parts, in one", " ".join(ends))
    need(ends[0] == ends[1], "a run that went on has other bits")


def link():
    run = Run(["bench", "device", "--device", DEVICE, "--json", *(["--device-budget", "32MiB"] if TINY else [])])
    need(run.status == 0, f"bench device: exit {run.status}\n{run.err}")
    out = json.loads(run.out)
    note("limit, GB/s", {k: round(v * 1e-9, 2) for k, v in out["limit"].items() if k.endswith("per_second")})
    for row in out["results"]:
        for way in ("in", "out", "both"):
            note(f"{row['bytes'] >> 10} KiB {way}, of limit", row[f"{way}_of_limit"], 0.9 if row["bytes"] >= 4 * MIB else None)


def rates():
    """Each kernel beside the device's memory and products: what is far below 1 and takes long is where time goes."""
    shape = ["--hidden", 64, "--inner", 96, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "--seq", 32, "--rows", 2, "--vocab", 500,
             "--milliseconds", 0] if TINY else []
    run = Run(["kernels", "--device", DEVICE, "--json", *map(str, shape)], binary=BINARY + "-bench")
    need(run.status == 0, f"tidemill-bench kernels: exit {run.status}\n{run.err}")
    out = json.loads(run.out)
    note("memory, GB/s", round(out["memory_bytes_per_second"] * 1e-9, 1))
    note("products, Tflop/s", round(out["product_flops_per_second"] * 1e-12, 2))
    for row in out["results"]:
        note(f"{row['kernel']}, {row['seconds'] * 1e6:.0f} us, of limit", row["of_limit"])


def in_device(name, tokens, batch, steps=8, accumulation=1):
    path = config(name, tokens, accumulation, batch=batch, steps=steps, memory_activations="auto", save_steps=0)
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "zero_optimization"}))
    return path


def speed():
    name, tokens, batch = shaped("1.26B"), 16 if TINY else 2048, 1 if TINY else 4
    path = in_device(name, tokens, batch)
    torch = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")
    theirs, ours = [], []
    peer = None
    if torch and not TINY:
        peer = subprocess.Popen([sys.executable, ROOT / "tests" / "bench" / "torch_step.py", model(name), "bf16", str(batch), str(tokens), "0", "cuda"],
                                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        note("PyTorch", (peer.stdout.readline().split() or ["?"])[-1])
    for _ in range(1 if TINY else 2):
        ours += steps_of(train(path, on_device()), "in the device")
        for k in range(8 if peer else 0):
            peer.stdin.write("\n")
            peer.stdin.flush()
            line = peer.stdout.readline().split()
            need(line, f"PyTorch: {peer.stderr.read()[-1500:] if peer.poll() is not None else 'no answer'}")
            if k > 1:
                theirs.append(float(line[0]))
    if peer:
        peer.kill()
    note("tidemill, tokens/s", batch * tokens / median(ours))
    if theirs:
        note("PyTorch, tokens/s", batch * tokens / median(theirs))
        note("of PyTorch", median(theirs) / median(ours), 0.9)
    else:
        print("  python3 has no torch and transformers: not beside PyTorch")
        if not TINY:
            verdicts[part_now] = "missed"


def offload():
    name, tokens = shaped("1.26B"), 16 if TINY else 2048
    rows = 1 if TINY else 4
    path = in_device(name, tokens, rows, steps=5, accumulation=2)
    small = on_device(memory__device_budget="4MiB" if TINY else "8GiB", zero_optimization__offload_optimizer__device="cpu",
                      zero_optimization__offload_param__device="cpu")
    whole, streamed = [], []
    for _ in range(1 if TINY else 2):
        whole += steps_of(train(path, on_device()), "in the device")
        streamed += steps_of(train(path, small), "streamed")
    note("in the device, tokens/s", 2 * rows * tokens / median(whole))
    note("streamed, tokens/s", 2 * rows * tokens / median(streamed))
    note("of in the device", median(whole) / median(streamed), 0.8)


def foretold():
    name, tokens, rows = shaped("1.26B"), 16 if TINY else 2048, 1 if TINY else 4
    path = in_device(name, tokens, rows, steps=5, accumulation=2)
    for what, values in (("in the device", on_device()),
                         ("streamed", on_device(memory__device_budget="4MiB" if TINY else "8GiB",
                                                zero_optimization__offload_optimizer__device="cpu",
                                                zero_optimization__offload_param__device="cpu"))):
        said = plan(path, values)
        print(f"  {said['seconds_basis']}")
        took = median(steps_of(train(path, values), what))
        note(f"{what}, plan / run", said["seconds_per_step"] / took, 0.85)
        note(f"{what}, run / plan", took / said["seconds_per_step"], 0.85)
        here = WORK / "here.json"
        again = plan(path, values, more=["--save-hardware", here])
        note(f"{what}, plan after that run / run", again["seconds_per_step"] / took)
        there = plan(path, values, more=["--hardware", here])
        note(f"{what}, plan by a hardware file of this machine / run", there["seconds_per_step"] / took, 0.85)
        note(f"{what}, run / that", took / there["seconds_per_step"], 0.85)


def large():
    name = shaped("7B")
    path = config(name, 16 if TINY else 2048, 2, batch=1, steps=3, save_steps=0)
    values = on_device(memory__device_budget="4MiB" if TINY else "16GiB", memory__host_budget="1GiB" if TINY else "96GiB")
    said = plan(path, values)
    note("foretold s/step", said["seconds_per_step"])
    run = train(path, values)
    need(run.status == 0, f"exit {run.status}\n{run.err[-2000:]}")
    last = run.steps[-1]
    note("s/step", last["step_seconds"])
    note("device peak", last["device_peak_bytes"], 16 * GIB, least=False)
    note("host peak", last["host_peak_bytes"])
    note("losses", [round(s["loss"], 4) for s in run.steps])


PARTS = {"doctor": doctor, "kernels": kernels, "sanitizer": sanitizer, "fixtures": fixtures, "budgets": budgets, "link": link, "rates": rates,
         "speed": speed, "offload": offload, "plan": foretold, "large": large}

chosen = sys.argv[1:] or list(PARTS)
for unknown in [p for p in chosen if p not in PARTS]:
    sys.exit(f"gpu.sh: there is no part {unknown}; there are {', '.join(PARTS)}")
for part_now in chosen:
    began = time.time()
    verdicts[part_now] = "passed"
    print(f"{part_now}:", flush=True)
    try:
        PARTS[part_now]()
    except (Failed, SystemExit, KeyError, ValueError, OSError) as e:
        verdicts[part_now] = "FAILED"
        print(f"  {type(e).__name__ if not isinstance(e, Failed) else ''} {e}")
    print(f"{part_now}: {verdicts[part_now]}, {time.time() - began:.0f} s", flush=True)
    if os.environ.get("TIDEMILL_GPU_JSON"):
        pathlib.Path(os.environ["TIDEMILL_GPU_JSON"]).write_text(json.dumps({"verdicts": verdicts, "figures": figures}, indent=1))
sys.exit(1 if set(verdicts.values()) != {"passed"} else 0)
