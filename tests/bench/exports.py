#!/usr/bin/env python3
"""Perplexity and size of SmolLM2 in every type that `export` writes, on tinyshakespeare, as a table.

    exports.py [BINARY]          default: build/bin/tidemill; prints the table
    exports.py --readme [BINARY] puts it into README.md
    exports.py --only awq,gptq   of bf16 and these types; `gguf:f16` is a file's
    TIDEMILL_EXPORTS=DIR         keeps the model that is measured in DIR for the next time

The model at hand is itself a Q4_1 file, whose weights lie on a grid of 4 bits that flatters some types and punishes others. So all of
it is trained on the first nine tenths of the text for some steps, and then what each channel is multiplied by is moved between the two
matrices, or norm and matrix, that it joins: by a factor of its own from 2/3 to 3/2, which changes no result and leaves no grid (numpy is
needed for that). Perplexity is of the last tenth, in rows of 512 tokens, by `eval`
in fp32; what is calibrated is so on rows of the part that was trained on. `error` is what `export` prints: of all weights, the root
mean square of what they lost over that of their values. Without the model the script says so and does nothing."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
GGUF, TEXT = SHARED / "models/SmolLM2-135M-Instruct.Q4_1.gguf", SHARED / "data/tinyshakespeare/input.txt"
BEGIN, END = "<!-- exports: printed by tests/bench/exports.py -->", "<!-- /exports -->"
FOLDERS = ["bf16", "f16", "int8", "nf4", "int4", "awq", "gptq"]
FILES = ["f16", "q8_0", "q6_k", "q5_k_m", "q5_1", "q5_0", "q4_k_m", "q4_1", "q4_0"]
CALIBRATED = ["awq", "gptq"]
STEPS, ROW, ROWS = 24, 512, 5


def run(binary, *arguments, **more):
    r = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, **more)
    if r.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))}: exit {r.returncode}\n{r.stderr}")
    return r.stdout


def write_rows(path, ids, rows):
    """Rows of ids, each its own labels."""
    flat = struct.pack(f"<{rows * ROW}i", *ids[:rows * ROW])
    shape, n = [rows, ROW], len(flat)
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": shape, "data_offsets": [0, n]},
                         "labels": {"dtype": "I32", "shape": shape, "data_offsets": [n, 2 * n]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + flat + flat)


def tokens(binary, model, text):
    return json.loads(run(binary, "tokenize", "--model", model, input=json.dumps({"text": text})))["ids"]


def read_bf16(path):
    """{name: float32 array} of a file of BF16."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        assert t["dtype"] == "BF16", name
        words = np.frombuffer(raw, np.uint16, (t["data_offsets"][1] - t["data_offsets"][0]) // 2, 8 + n + t["data_offsets"][0])
        out[name] = (words.astype(np.uint32) << 16).view(np.float32).reshape(t["shape"])
    return out


def write_bf16(path, tensors):
    header, at, parts = {}, 0, []
    for name, x in tensors.items():
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        parts.append(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes())
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def off_the_grid(folder):
    """What is divided out of a matrix' columns goes into what comes before them."""
    path, random = folder / "model.safetensors", np.random.default_rng(7)
    config = json.loads((folder / "config.json").read_text())
    shared = config["num_attention_heads"] // config["num_key_value_heads"]
    t = read_bf16(path)

    def factors(n):
        return np.exp(random.uniform(np.log(2 / 3), np.log(3 / 2), n)).astype(np.float32)

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for norm, matrices in (("input_layernorm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj"), ("post_attention_layernorm", "mlp.gate_proj mlp.up_proj")):
            f = factors(len(t[at + norm + ".weight"]))
            t[at + norm + ".weight"] = t[at + norm + ".weight"] * f
            for m in matrices.split():
                t[at + m + ".weight"] = t[at + m + ".weight"] / f
        for before, after in (("self_attn.v_proj", "self_attn.o_proj"), ("mlp.up_proj", "mlp.down_proj")):
            f = factors(len(t[at + before + ".weight"]))
            t[at + before + ".weight"] = t[at + before + ".weight"] * f[:, None]
            if before.endswith("v_proj"):  # one head of values serves several of queries
                f = np.repeat(f.reshape(config["num_key_value_heads"], -1), shared, 0).reshape(-1)
            t[at + after + ".weight"] = t[at + after + ".weight"] / f
    write_bf16(path, t)


def make_model(binary, work):
    """All of it trained, and the rows that it is judged and calibrated by."""
    text = TEXT.read_text()
    cut = len(text) * 9 // 10
    run(binary, "convert", GGUF, work / "base")
    (work / "train.jsonl").write_text(json.dumps({"text": text[:cut]}) + "\n")
    config = {"model": str(work / "base"), "output_dir": str(work / "model"), "precision": "bf16", "save_dtype": "bf16",
              "data": {"train": str(work / "train.jsonl"), "seq_len": 256}, "objective": {"type": "pretrain"},
              "per_device_train_batch_size": 2, "max_steps": STEPS, "learning_rate": 4e-4, "warmup_steps": 3, "save_steps": 0, "seed": 7}
    (work / "train.json").write_text(json.dumps(config))
    print(f"exports: training for {STEPS} steps", file=sys.stderr)
    run(binary, "train", work / "train.json", "--quiet")
    write_rows(work / "held.safetensors", tokens(binary, work / "base", text[cut:]), ROWS)
    write_rows(work / "calibrate.safetensors", tokens(binary, work / "base", text[:cut // 4]), ROWS)
    shutil.rmtree(work / "base")
    off_the_grid(work / "model")
    (work / "ready").touch()


def bytes_of(path):
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.glob("*.safetensors"))


def judge(binary, work, dtype, gguf):
    out = work / ("out.gguf" if gguf else "out")
    calibrate = ["--calibrate", work / "calibrate.safetensors"] if dtype in CALIBRATED else []
    r = subprocess.run([binary, "export", work / "model", out, "--dtype", dtype, "--json", *calibrate], capture_output=True, text=True)
    if r.returncode == 2 and (f"'{dtype}'" in r.stderr or "--calibrate" in r.stderr):
        print(f"exports: SKIP {dtype}: this program does not write it", file=sys.stderr)
        return None
    if r.returncode:
        raise SystemExit(f"export {dtype}: exit {r.returncode}\n{r.stderr}")
    found = json.loads(run(binary, "eval", "--model", out, "--data", work / "held.safetensors", "--json"))
    row = (f"`{'OUT.gguf ' if gguf else ''}{dtype}`", bytes_of(out), json.loads(r.stdout)["error"], found["perplexity"])
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    print(f"exports: {row}", file=sys.stderr)
    return row


def table(rows, commit):
    plain = rows[0][3]
    lines = [BEGIN, f"SmolLM2-135M, trained for {STEPS} steps on tinyshakespeare, its weights on no grid of 4 bits; perplexity of {ROWS * ROW} "
             f"held-out tokens in fp32 ({commit}).", "", "| `export ... --dtype` | MB | error | perplexity | of bf16's |", "|---|---|---|---|---|"]
    for name, size, error, perplexity in rows:
        lines.append(f"| {name} | {size / 1e6:.1f} | {error:.5f} | {perplexity:.3f} | {perplexity / plain:.4f} |")
    return "\n".join([*lines, END])


def into_readme(text):
    readme = ROOT / "README.md"
    was = readme.read_text()
    readme.write_text(was[:was.index(BEGIN)] + text + was[was.index(END) + len(END):])


def main():
    words = [w for w in sys.argv[1:] if w != "--readme"]
    only = words.pop(words.index("--only") + 1).split(",") if "--only" in words else None
    words = [w for w in words if w != "--only"]
    binary = str(pathlib.Path(words[0] if words else ROOT / "build/bin/tidemill").resolve())
    if not GGUF.exists() or not TEXT.exists():
        print(f"exports: SKIP: {GGUF} or {TEXT} is not there, so NOTHING was measured", file=sys.stderr)
        return
    kept = os.environ.get("TIDEMILL_EXPORTS")
    work = pathlib.Path(kept or tempfile.mkdtemp())
    try:
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "ready").exists():
            make_model(binary, work)
        types = [(d, False) for d in FOLDERS] + [(d, True) for d in FILES]
        if only:
            types = [t for t in types if t == ("bf16", False) or ("gguf:" if t[1] else "") + t[0] in only]
        rows = [judge(binary, work, d, gguf) for d, gguf in types]
        commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        text = table([r for r in rows if r], commit)
        print(text)
        if "--readme" in sys.argv and not only:
            into_readme(text)
    finally:
        if not kept:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
