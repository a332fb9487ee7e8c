"""Our quantised GGUF files against llama_model_quantize's of the same F16 file: peers_quants.py BINARY FIXTURES WORK
(called by peers_gguf.sh). Random models of many architectures: the types of all tensors and their bytes. SmolLM2: sizes, and
what llama.cpp finds as its perplexity on tinyshakespeare, within 1%; the same with `--calibrate` beside the importance matrix
that llama.cpp's own computation gives of the same rows, summed here as llama-imatrix does."""
import ctypes
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


CALIBRATED, ROWS = ["q4_k_m", "q5_k_m", "q4_0", "q5_1"], 4  # rows of CONTEXT tokens


def export(source, to, dtype, *more):
    out = subprocess.run([BINARY, "export", source, to, "--dtype", dtype, "--json", *more], check=True, capture_output=True, text=True)
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


def compare(source, dtype, importance=None, *more):
    """(tensors, those of another type, those of other bytes) of our file and llama.cpp's, which are left in WORK; and what share
    of the latter's bytes differ."""
    paths = [os.path.join(WORK, f) for f in ("ours.gguf", "theirs.gguf")]
    for p in paths:
        if os.path.exists(p):
            os.unlink(p)
    report = export(source, paths[0], dtype, *more)
    make.quantise(source, paths[1], FILE_TYPES[dtype], importance)
    errors_are_true(report, source, paths[0])
    ours, theirs = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in paths)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    other = [n for n in ours if ours[n].tensor_type != theirs[n].tensor_type]
    bytes_differ = [n for n in ours if n not in other and ours[n].data.tobytes() != theirs[n].data.tobytes()]
    apart = [(ours[n].data.reshape(-1).view(np.uint8) != theirs[n].data.reshape(-1).view(np.uint8)).mean() for n in bytes_differ]
    return len(ours), other, bytes_differ, float(np.mean(apart)) if apart else 0.0


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
            tensors, other, differ, _ = compare(source, dtype)
            n += tensors
            for t in other + differ:
                print(f"{name}, {dtype}: '{t}' is not llama.cpp's")
                bad += 1
        print(f"{name}: {n} tensors as llama.cpp quantises them")
    return bad


class Tensor(ctypes.Structure):
    """The front of ggml's struct ggml_tensor (ggml.h of 0.25)."""
    _fields_ = [("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
                ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10),
                ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64)]


def importance_of(path, rows):
    """{tensor: mean square of what each of its columns is multiplied by} over rows of ids, as llama.cpp computes."""
    sums, tokens = {}, sum(map(len, rows))

    def product(address, ask, _):
        t = Tensor.from_address(address)
        if not t.src[0] or not t.src[1]:
            return not ask
        matrix, x = Tensor.from_address(t.src[0]), Tensor.from_address(t.src[1])
        name = matrix.name.decode()
        if not (name.startswith("blk.") and name.endswith(".weight") and x.type == 0 and matrix.ne[1] > 1 and matrix.ne[0] == x.ne[0]):
            return not ask
        if not ask:
            values = np.ctypeslib.as_array((ctypes.c_float * (x.ne[0] * x.ne[1])).from_address(x.data)).reshape(x.ne[1], x.ne[0])
            assert x.nb[1] == 4 * x.ne[0] and x.ne[2] == x.ne[3] == 1, name
            sums[name] = sums.get(name, 0) + (values.astype(np.float64) ** 2).sum(0)
        return True

    model_params, params = llama_cpp.llama_model_default_params(), llama_cpp.llama_context_default_params()
    model_params.use_extra_bufts = False
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 2
    params.cb_eval = llama_cpp.ggml_backend_sched_eval_callback(product)
    model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
    context = llama_cpp.llama_init_from_model(model, params)
    for ids in rows:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        array = (llama_cpp.llama_token * len(ids))(*ids)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(ids))) == 0
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return {k: (v / tokens).astype(np.float32) for k, v in sums.items()}


def rows_of(path, text, to):
    """Rows of ids, and the file of them."""
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    ids = model.tokenize(text, add_bos=False)[:ROWS * CONTEXT]
    model.close()
    flat, n = np.asarray(ids, np.int32).tobytes(), 4 * len(ids)
    head = json.dumps({k: {"dtype": "I32", "shape": [ROWS, CONTEXT], "data_offsets": [i * n, i * n + n]}
                       for i, k in enumerate(("input_ids", "labels"))}).encode()
    pathlib.Path(to).write_bytes(len(head).to_bytes(8, "little") + head + flat + flat)
    return [ids[i:i + CONTEXT] for i in range(0, len(ids), CONTEXT)]


def judge(what, found, text, same_bytes):
    """Sizes and perplexities of the two files in WORK; True: they are as they should be."""
    tensors, other, differ, apart = found
    paths = [os.path.join(WORK, f) for f in ("ours.gguf", "theirs.gguf")]
    size, perplexities = [os.path.getsize(p) for p in paths], [perplexity(p, text) for p in paths]
    print(f"SmolLM2, {what}: {size[0]} bytes, perplexity {perplexities[0]:.4f}; llama.cpp {size[1]}, {perplexities[1]:.4f}; of {tensors} "
          f"tensors {len(other)} have another type, {len(differ)} other bytes ({100 * apart:.2f}% of theirs)", flush=True)
    close = abs(size[0] / size[1] - 1) <= 0.01 and abs(perplexities[0] / perplexities[1] - 1) <= 0.01
    return close and not other and not (differ and same_bytes)


def smollm2(model, text, calibration):
    source, rows_path, bad = os.path.join(WORK, "smollm2-f16.gguf"), os.path.join(WORK, "rows.safetensors"), 0
    subprocess.run([BINARY, "convert", str(model), source, "--dtype", "f16"], check=True)
    print(f"SmolLM2, f16: perplexity {perplexity(source, text):.4f}")
    for dtype in FILE_TYPES:
        bad += not judge(dtype, compare(source, dtype), text, True)
    importance = importance_of(source, rows_of(source, calibration, rows_path))
    print(f"importance of {len(importance)} tensors by llama.cpp, {ROWS} rows of {CONTEXT} tokens")
    more = ["--calibrate", rows_path, "--calibrate-length", str(CONTEXT)]
    for dtype in CALIBRATED:
        bad += not judge(f"{dtype} with importance", compare(source, dtype, importance, *more), text, False)
    return bad


if __name__ == "__main__":
    llama_cpp.llama_log_set(make.silent, None)
    failures = random_models()
    model, text = SHARED / "models/SmolLM2-135M-Instruct.Q4_1.gguf", SHARED / "data/tinyshakespeare/input.txt"
    if model.exists() and text.exists():
        failures += smollm2(model, text.read_bytes()[:40000], text.read_bytes()[40000:90000])
    else:
        print(f"peers: SKIP quantised SmolLM2: {model} or {text} is not there", file=sys.stderr)
    sys.exit(bool(failures))
