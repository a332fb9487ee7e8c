#!/bin/sh
# GPTQ under a budget: `export --dtype gptq` of a shape of 1.26 B parameters (random weights, bf16) in a memory cgroup of 1 GiB
# (root; v1 or v2) to its end, the activations in a file: seconds, and those that it foretold; then what a 7B's takes by what
# `export` says before its first block, of a file without weights, where it is stopped. Settings: lib.py; --rows N (16) and
# --length N (2048) of what is calibrated on; --plan: only what it says of both beforehand. 6 GB of disk.
PYTHONPATH=$(dirname "$0") exec python3 - "$@" <<'PY'
import argparse
import re
import time

from lib import *

options = argparse.ArgumentParser()
options.add_argument("--rows", type=int, default=4 if TINY else 16)
options.add_argument("--length", type=int, default=64 if TINY else 2048)
options.add_argument("--plan", action="store_true")
a = options.parse_args()
PLANNED = re.compile(r"calibrating on .* of memory, least (.*), about ([0-9:]+)")


def empty_model(name):
    """A folder whose tensors are a hole in a file."""
    folder, at, header = model(name), 0, {}
    hidden, intermediate, layers, heads, kv, vocabulary = SHAPES[name]
    own = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden * kv // heads, hidden),
           "self_attn.v_proj": (hidden * kv // heads, hidden), "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (intermediate, hidden),
           "mlp.up_proj": (intermediate, hidden), "mlp.down_proj": (hidden, intermediate), "input_layernorm": (hidden,),
           "post_attention_layernorm": (hidden,)}
    shapes = {"model.embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden), "model.norm": (hidden,)}
    shapes.update({f"model.layers.{i}.{k}": v for i in range(layers) for k, v in own.items()})
    for key, dims in shapes.items():
        size = 2 * dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[key + ".weight"] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return folder


def arguments(folder, budget):
    return ["export", folder, WORK / "quantised", "--dtype", "gptq", "--calibrate", rows(a.rows, a.length), "--calibrate-rows", a.rows,
            "--calibrate-length", a.length, "--host-budget", budget]


def seconds(text):
    return sum(int(x) * 60 ** i for i, x in enumerate(reversed(text.split(":"))))


def foretold(folder, budget):
    """What the line says; no block is begun but the first."""
    process = subprocess.Popen([BINARY, *map(str, arguments(folder, budget))], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found = next((m for m in map(PLANNED.search, process.stderr) if m), None)
    process.send_signal(signal.SIGINT)
    process.communicate()
    return found or sys.exit("nothing was planned")


def plan_row(name):
    planned = foretold(empty_model(name), 4 * GIB)
    table.row(name, "-", planned.group(1), "-", seconds(planned.group(2)), "-")


def quantise(name, limit):
    expect(Run(["convert", model(name), WORK / "random", "--init", "random", "--dtype", "bf16"]), "convert")
    group = cgroup(limit)
    if not group:
        print("no memory cgroup can be made here (it takes root): the limit is not enforced by the kernel")
    began = time.monotonic()
    run = expect(Run(arguments(WORK / "random", limit - 24 * MIB), group), "export")  # the cgroup also counts tables of pages
    took = time.monotonic() - began
    if group:
        remove_cgroup(group)
    planned = PLANNED.search(run.err)
    table.row(name, mib(limit), planned.group(1), mib(run.peak_bytes), seconds(planned.group(2)), f"{took:.0f}", ok=run.peak_bytes <= limit)
    print(f"{sum(p.stat().st_size for p in (WORK / 'quantised').glob('*.safetensors')) / 1e6:.0f} MB written")
    shutil.rmtree(WORK / "random")
    shutil.rmtree(WORK / "quantised")


table = Table(f"gptq, {a.rows} rows of {a.length} tokens", "shape", "limit MiB", "least     ", "VmHWM MiB", "s planned", "s       ")
if a.plan:
    plan_row(shape("1.26B"))
else:
    quantise(shape("1.26B"), 160 * MIB if TINY else GIB)
plan_row(shape("7B"))
table.done()
PY
