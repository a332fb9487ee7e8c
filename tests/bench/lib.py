"""What the benchmark scripts share: shapes, configurations and rows made on the fly, runs of tidemill, tables.

Only the standard library. Settings come from the environment:
    TIDEMILL            the program (build/bin/tidemill)
    TIDEMILL_BENCH_DIR  a folder on the disk to be used; a folder of its own is made in it and removed (.)
    TIDEMILL_BENCH_TINY 1: shapes and counts small enough to see that a script works; targets are then not judged
"""
import atexit
import json
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.path.abspath(os.environ.get("TIDEMILL", ROOT / "build" / "bin" / "tidemill"))
TINY = os.environ.get("TIDEMILL_BENCH_TINY", "") not in ("", "0")
MIB, GIB = 1 << 20, 1 << 30

#         hidden, intermediate, layers, heads, key-value heads, vocabulary
SHAPES = {
    "134M": (768, 2048, 12, 12, 12, 32000),
    "134M-152k": (768, 2048, 12, 12, 12, 152000),
    "1.26B": (2048, 5632, 22, 32, 32, 32000),
    "3B": (3200, 8640, 26, 32, 32, 32000),
    "7B": (4096, 11008, 32, 32, 32, 32000),
    "tiny": (256, 768, 6, 4, 2, 12000),
}

if not os.access(BINARY, os.X_OK):
    sys.exit(f"{BINARY} is not there; build it, or set TIDEMILL")
WORK = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-bench-", dir=os.environ.get("TIDEMILL_BENCH_DIR", ".")))
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda *_: sys.exit(1))


def shape(name):
    return "tiny" if TINY else name


def model(name):
    """A folder with the config.json of the shape."""
    hidden, intermediate, layers, heads, kv, vocabulary = SHAPES[name]
    folder = WORK / f"model-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocabulary,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "initializer_range": 0.02}))
    return folder


def parameters(name):
    hidden, intermediate, layers, heads, kv, vocabulary = SHAPES[name]
    return layers * block_parameters(name) + (2 * vocabulary + 1) * hidden


def block_parameters(name):
    hidden, intermediate, layers, heads, kv, vocabulary = SHAPES[name]
    return hidden * hidden * 2 + 2 * hidden * hidden * kv // heads + 3 * hidden * intermediate + 2 * hidden


def rows(count, length):
    """A .safetensors file of made-up input_ids and labels, [count, length]."""
    path = WORK / f"rows-{count}x{length}.safetensors"
    if path.exists():
        return path
    n = count * length
    ids = struct.pack(f"<{n}i", *((i * 31 + i // length * 17) % 997 for i in range(n)))
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": [count, length], "data_offsets": [0, 4 * n]},
                         "labels": {"dtype": "I32", "shape": [count, length], "data_offsets": [4 * n, 8 * n]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + ids + ids)
    return path


def config(name, tokens=512, accumulation=1, batch=1, steps=3, **more):
    """A configuration; `more`: top-level keys, and memory_KEY for those of the memory block."""
    memory = {k[7:]: v for k, v in more.items() if k.startswith("memory_")}
    memory = {"slots": 1, **memory}
    path = WORK / f"config-{len(list(WORK.glob('config-*')))}.json"
    (WORK / "offload").mkdir(exist_ok=True)
    path.write_text(json.dumps({
        "model": str(model(name)), "init": "random", "precision": "bf16",
        "data": {"train": str(rows(batch * accumulation * min(steps, 4), tokens)), "seq_len": tokens}, "max_steps": steps,
        "per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, "commit_steps": 0,
        "zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": str(WORK / "offload")}},
        "output_dir": str(WORK / "out"), "memory": memory,
        **{k: v for k, v in more.items() if not k.startswith("memory_")}}))
    return path


def sets(values):
    return [word for key, value in values.items()
            for word in ("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}")]


class Run:
    """One run of the program: status, out, err, the kernel's counts of blocks, seconds of processor."""

    def __init__(self, arguments, group=None, binary=BINARY):
        def join():
            if group:
                (pathlib.Path(group) / "cgroup.procs").write_text("0")
        process = subprocess.Popen([binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, preexec_fn=join)
        atexit.register(lambda: process.returncode is None and process.kill())
        errors = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        self.out = process.stdout.read()
        reader.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.err = errors[0]
        self.read_bytes, self.write_bytes = usage.ru_inblock * 512, usage.ru_oublock * 512
        self.peak_bytes, self.cpu_seconds = usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime


def expect(run, what):
    if run.status != 0:
        sys.exit(f"{what}: exit status {run.status}\n{run.err}")
    return run


def train(path, values=None, group=None):
    """Trains; the run, with its step lines in .steps and the last line in .end."""
    shutil.rmtree(WORK / "out", ignore_errors=True)
    run = Run(["train", path, "--quiet", "--resume", "never", *sets(values or {})], group)
    log = WORK / "out" / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if run.status == 0 else []
    run.steps = [line for line in lines if "event" not in line]
    run.end = lines[-1] if lines else {}
    shutil.rmtree(WORK / "out", ignore_errors=True)
    return run


def plan(path, values=None, fits=True, more=()):
    run = Run(["plan", path, "--json", *more, *sets(values or {})])
    if fits:
        expect(run, "plan")
    return json.loads(run.out)


def minimum(path, values=None):
    p = plan(path, {**(values or {}), "memory.host_budget": 1}, fits=False)
    if not p["minimum_host_bytes"]:  # refused for something else
        sys.exit(f"{path}: no least budget: {p['limit']} is too small here ({p['disk_bytes']} bytes of disk needed, {p['disk_free_bytes']} free)")
    return p["minimum_host_bytes"]


def bench_step(path, values=None, steps=3):
    return json.loads(expect(Run(["bench", "step", path, "--json", "--steps", steps, *sets(values or {})]), "bench step").out)


def output_of(command, environment=None, what=None):
    """What the command prints. Where it fails this script ends, with 77 where the command says that it cannot run here."""
    r = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if r.returncode == 77:
        print(r.stderr.strip() or "skipped", file=sys.stderr)
        sys.exit(77)
    if r.returncode != 0:
        sys.exit(f"{what or ' '.join(command)}: exit {r.returncode}\n{r.stderr[-2000:]}")
    return r.stdout


def cgroup(limit):
    """A memory cgroup (v2 or v1) of `limit` bytes; None where that is not allowed."""
    for root, name, swap, swap_value in (("/sys/fs/cgroup", "memory.max", "memory.swap.max", "0"),
                                         ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", str(limit))):
        path = pathlib.Path(root) / f"tidemill-bench-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        if not (path / name).exists():  # no memory controller here
            path.rmdir()
            continue
        (path / name).write_text(str(limit))
        if (path / swap).exists():
            (path / swap).write_text(swap_value)
        atexit.register(lambda: path.exists() and path.rmdir())
        return path
    return None


def remove_cgroup(path):
    path.rmdir()


def median(values):
    return statistics.median(values)


def moved(step, *kinds):
    """Bytes of a step line, of some kinds or of all but them ('-activation')."""
    by = step["bytes_by_kind"]
    left_out = [k[1:] for k in kinds if k.startswith("-")]
    return sum(v["read"] + v["write"] for k, v in by.items() if k not in left_out)


class Table:
    """Prints rows as they come, remembers what misses its target, and ends the script."""

    def __init__(self, title, *columns):
        print(f"{title}\n" + "  ".join(columns), flush=True)
        self.columns, self.widths = [c.strip() for c in columns], [len(c) for c in columns]
        self.missed = []

    def row(self, *cells, ok=True):
        if os.environ.get("TIDEMILL_BENCH_ROWS"):  # measured.py
            with open(os.environ["TIDEMILL_BENCH_ROWS"], "a") as out:
                out.write(json.dumps(dict(zip(self.columns, map(str, cells)))) + "\n")
        text = "  ".join(str(c).rjust(w) if i else str(c).ljust(w) for i, (c, w) in enumerate(zip(cells, self.widths)))
        print(text + ("" if ok else "   <- missed"), flush=True)
        if not ok:
            self.missed.append(text.strip())

    def check(self, ok, text):
        print(text + ("" if ok else "   <- missed"), flush=True)
        if not ok:
            self.missed.append(text)

    def done(self):
        if TINY:
            print("tiny shapes: nothing is judged")
        elif self.missed:
            sys.exit(1)


def mib(n):
    return f"{n / MIB:.1f}"
