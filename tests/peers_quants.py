"""Our quantised GGUF files against llama_model_quantize's of the same F16 file: peers_quants.py BINARY FIXTURES WORK
(called by peers_gguf.sh). Random models of many architectures: the types of all tensors and their bytes. SmolLM2: sizes, and
what llama.cpp finds as its perplexity on tinyshakespeare, within 1%."""
import json
import os
import pathlib
import subprocess
import sys

import gguf
import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "fixtures/gguf_mixtures"))
import make  # noqa: E402

BINARY, FIXTURES, WORK = sys.argv[1:]
SHARED = ROOT.parent.parent / "shared"
FILE_TYPES = make.FILE_TYPES | {"q4_1": 3, "q5_0": 8}
TOKENS, CONTEXT = 2048, 512


def export(source, to, dtype):
    out = subprocess.run([BINARY, "export", source, to, "--dtype", dtype, "--json"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def errors_are_true(report, source, ours):
    """The error that is printed of each tensor, from gguf-py's values of both files."""
    before = {t.name: t for t in gguf.GGUFReader(source).tensors}
    for t in gguf.GGUFReader(ours).tensors:
        if t.name.startswith("rope_"):  # no weights, and made, not read
            continue
        a = gguf.dequantize(before[t.name].data, before[t.name].tensor_type).astype(np.float64)
        b = gguf.dequantize(t.data, t.tensor_type).astype(np.float64)
        want = np.sqrt(((a - b) ** 2).sum() / max((a**2).sum(), 1e-300))
        said = next(r for r in report["tensors"] if r["name"] == t.name)
        assert said["type"] == t.tensor_type.name and said["bytes"] == t.n_bytes, said
        assert abs(said["error"] - want) <= 1e-6 * want + 1e-12, (t.name, said["error"], want)


def compare(source, dtype):
    """(tensors, those of another type, those of other bytes) of our file and llama.cpp's, which are left in WORK."""
    paths = [os.path.join(WORK, f) for f in ("ours.gguf", "theirs.gguf")]
    for p in paths:
        if os.path.exists(p):
            os.unlink(p)
    report = export(source, paths[0], dtype)
    make.quantise(source, paths[1], FILE_TYPES[dtype])
    errors_are_true(report, source, paths[0])
    ours, theirs = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in paths)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    other = [n for n in ours if ours[n].tensor_type != theirs[n].tensor_type]
    bytes_differ = [n for n in ours if n not in other and ours[n].data.tobytes() != theirs[n].data.tobytes()]
    return len(ours), other, bytes_differ


def perplexity(path, text):
    model = llama_cpp.Llama(path, n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=2, logits_all=True, verbose=False)
    ids = model.tokenize(text, add_bos=False)[:TOKENS]
    total = count = 0
    for at in range(0, len(ids), CONTEXT):
        part = ids[at:at + CONTEXT]
        model.reset()
        model.eval(part)
        scores = np.asarray(model.scores[:len(part) - 1], np.float64)
        scores -= scores.max(-1, keepdims=True)
        total += (np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(part) - 1), part[1:]]).sum()
        count += len(part) - 1
    model.close()
    return float(np.exp(total / count))


def random_models():
    bad = 0
    for name, (fixture, sizes) in make.CASES.items():
        work = os.path.join(WORK, "random " + name)
        os.mkdir(work)
        source = make.make_model(BINARY, make.config_of(os.path.join(FIXTURES, fixture), sizes), work)
        n = 0
        for dtype in FILE_TYPES:
            tensors, other, differ = compare(source, dtype)
            n += tensors
            for t in other + differ:
                print(f"{name}, {dtype}: '{t}' is not llama.cpp's")
                bad += 1
        print(f"{name}: {n} tensors as llama.cpp quantises them")
    return bad


def smollm2(model, text):
    source, bad = os.path.join(WORK, "smollm2-f16.gguf"), 0
    subprocess.run([BINARY, "convert", str(model), source, "--dtype", "f16"], check=True)
    print(f"SmolLM2, f16: perplexity {perplexity(source, text):.4f}")
    for dtype in FILE_TYPES:
        tensors, other, differ = compare(source, dtype)
        ours, theirs = (os.path.join(WORK, f) for f in ("ours.gguf", "theirs.gguf"))
        sizes = os.path.getsize(ours), os.path.getsize(theirs)
        found = perplexity(ours, text), perplexity(theirs, text)
        print(f"SmolLM2, {dtype}: {sizes[0]} bytes, perplexity {found[0]:.4f}; llama.cpp {sizes[1]}, {found[1]:.4f}; of {tensors} "
              f"tensors {len(other)} have another type, {len(differ)} other bytes")
        if abs(sizes[0] / sizes[1] - 1) > 0.01 or abs(found[0] / found[1] - 1) > 0.01 or other or differ:
            bad += 1
    return bad


if __name__ == "__main__":
    llama_cpp.llama_log_set(make.silent, None)
    failures = random_models()
    model, text = SHARED / "models/SmolLM2-135M-Instruct.Q4_1.gguf", SHARED / "data/tinyshakespeare/input.txt"
    if model.exists() and text.exists():
        failures += smollm2(model, text.read_bytes()[:40000])
    else:
        print(f"peers: SKIP quantised SmolLM2: {model} or {text} is not there", file=sys.stderr)
    sys.exit(bool(failures))
