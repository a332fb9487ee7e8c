"""Quantised folders of `export`, as transformers loads them: exports.py BINARY MODEL... (called by peers.sh).

compressed-tensors' pack-quantized (int8, int4, gptq, awq) is read here from the format's definition: the values are those that
the compressed-tensors package makes of it, and of int8 and int4 as near to the model's as rounding to nearest allows. bitsandbytes' nf4: its own
dequantised values are those of our reader. Each loads in transformers and has the logits of its values."""
import json
import pathlib
import subprocess
import sys

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BINARY, *MODELS = sys.argv[1:]
TEXT = "The mill lets the sea fill a pond at high water and sends it back, a sluice at a time, through one wheel that grinds the corn."


def export(source, to, dtype):
    rows = ["--calibrate", "calibrate.safetensors"] if dtype in ("gptq", "awq") else []
    out = subprocess.run([BINARY, "export", source, to, "--dtype", dtype, "--json", *rows], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def unpack(words, bits, width):
    """int32 words [rows, n] to codes [rows, width]: the first in the lowest bits, 2^(bits - 1) more than the code."""
    words = words.numpy().view(np.uint32)[:, :, None]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (words >> shifts) & np.uint32(2**bits - 1)
    return codes.reshape(len(words), -1)[:, :width].astype(np.int32) - 2 ** (bits - 1)


def values_of(folder):
    """Every tensor, dequantised in float32 by the definition; and of each that was packed the scale of its elements."""
    quantised = json.load(open(folder + "/config.json"))["quantization_config"]
    weights = quantised["config_groups"]["group_0"]["weights"]
    named, scales = {}, {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        tensors = load_file(path)
        for name, t in tensors.items():
            if name.endswith("_packed"):
                stem = name[: -len("_packed")]
                rows, width = tensors[stem + "_shape"].tolist()
                scale = tensors[stem + "_scale"].float().numpy()
                if weights["strategy"] == "group":
                    assert scale.shape == (rows, width // weights["group_size"]), scale.shape
                scale = np.repeat(scale, width // scale.shape[1], 1)
                scales[stem] = scale
                named[stem] = torch.from_numpy(unpack(t, weights["num_bits"], width).astype(np.float32) * scale)
            elif not name.endswith(("_scale", "_shape")):
                named[name] = t
    return named, scales


def near(model, named, scales, bits, report):
    """Rounded to nearest: half a step; the largest magnitude at the end that has a code less, a whole one."""
    for stem, scale in scales.items():
        x, v = model[stem].float().numpy(), named[stem].numpy()
        step = np.abs(x - v) / np.where(scale > 0, scale, 1)
        clipped = x / np.where(scale > 0, scale, 1) > 2 ** (bits - 1) - 1
        assert (step[~clipped] <= 0.5 + 1e-4).all() and (step[clipped] <= 0.5 + 2**-6 * 2 ** (bits - 1)).all(), (stem, step.max())
        error = np.sqrt(((x - v).astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum())
        said = next(r["error"] for r in report["tensors"] if r["name"] == stem)
        assert abs(said - error) <= 1e-5 * error, (stem, said, error)


def logits(model, source):
    with torch.no_grad():
        return model(ids_of(source)).logits.float()


def ids_of(source):
    if pathlib.Path(source, "tokenizer.json").exists():
        return AutoTokenizer.from_pretrained(source)(TEXT, return_tensors="pt").input_ids
    return torch.arange(3, 67)[None] % 60


def apart(ours, theirs):
    return float((ours - theirs).abs().max() / ours.abs().max())


def check_packed(source, dtype, bits):
    report = export(source, "packed-" + dtype, dtype)
    named, scales = values_of("packed-" + dtype)
    plain = {k: v for path in pathlib.Path(source).glob("*.safetensors") for k, v in load_file(path).items()}
    if dtype.startswith("int"):
        near(plain, named, scales, bits, report)
    else:
        assert all(0 < r["output_error"] < r["error"] for r in report["tensors"] if r["type"] == "INT4")
    loaded = AutoModelForCausalLM.from_pretrained("packed-" + dtype, dtype=torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    state = reference.state_dict()
    for name, v in named.items():
        state[name].copy_(v.float())
    return len(scales), apart(logits(reference, source), logits(loaded, source)), 1e-5


def check_nf4(source):
    import bitsandbytes.functional as bnb
    export(source, "nf4", "nf4")
    subprocess.run([BINARY, "convert", "nf4", "nf4-plain", "--dtype", "f32"], check=True)
    plain, n, odd = load_file("nf4-plain/model.safetensors"), 0, 0
    stored = load_file("nf4/model.safetensors")
    for name in [k for k in stored if k.endswith(".quant_state.bitsandbytes__nf4")]:
        stem = name[: -len(".quant_state.bitsandbytes__nf4")]
        parts = {k[len(stem) + 1:]: v for k, v in stored.items() if k.startswith(stem + ".")}
        state = bnb.QuantState.from_dict(parts, device=torch.device("cpu"))
        state.dtype = torch.float32
        odd += state.shape[1] % state.blocksize != 0
        if state.shape[1] % state.blocksize == 0:  # else bitsandbytes' CPU kernels are wrong
            theirs = bnb.dequantize_4bit(stored[stem], state)
            assert (theirs - plain[stem]).abs().max() <= 1e-6 * plain[stem].abs().max(), stem
            n += 1
    loaded = AutoModelForCausalLM.from_pretrained("nf4", dtype=torch.float32)
    kinds = {type(m).__name__ for m in loaded.modules()}
    assert "Linear4bit" in kinds, kinds
    if odd:  # nor do they multiply
        return n, 0.0, 0.0
    plain = AutoModelForCausalLM.from_pretrained("nf4-plain", dtype=torch.float32)
    return n, apart(logits(plain, source), logits(loaded, source)), 3e-2  # bfloat16 there


bad = 0
ids = torch.randint(3, 60, (16, 48), generator=torch.Generator().manual_seed(1))
save_file({"input_ids": ids, "labels": ids.clone()}, "calibrate.safetensors")
for source in MODELS:
    for dtype, check in (("int8", lambda: check_packed(source, "int8", 8)), ("int4", lambda: check_packed(source, "int4", 4)),
                         ("gptq", lambda: check_packed(source, "gptq", 4)), ("awq", lambda: check_packed(source, "awq", 4)),
                         ("nf4", lambda: check_nf4(source))):
        subprocess.run(["rm", "-rf", "packed-int8", "packed-int4", "packed-gptq", "packed-awq", "nf4", "nf4-plain"], check=True)
        n, off, bound = check()
        print(f"{pathlib.Path(source).name}, {dtype}: {n} matrices by the definition, logits {off:.2g} apart")
        bad += off > bound or n == 0
raise SystemExit(bool(bad))
