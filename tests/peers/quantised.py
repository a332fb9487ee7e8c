"""Quantised folders that others write, as we read them: quantised.py BINARY MODEL... (called by peers.sh).

Each model is rounded to nearest here and written as compressed-tensors' pack-quantized (by that package), as AutoGPTQ's and as
AutoAWQ's form (from the formats' definitions: auto_gptq/nn_modules/qlinear, awq/utils/packing_utils). What we read is what a
reader finds that is written here from the definitions, and for compressed-tensors what the package itself makes of it; logits
of `probe` are those of transformers on these values."""
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the row of 8 that nibble i is of
IDS = torch.arange(3, 67)[None] % 60


# ---- rounding ----

def rounded(w, bits, group, symmetric, order=None):
    """Codes [rows, width] and, by group, scales (float16) and zeros [rows, groups]. order: the group of each column."""
    rows, width = w.shape
    top, groups = 2**bits - 1, -(-width // group)
    order = np.arange(width) // group if order is None else order
    scale, zero = np.zeros((rows, groups), np.float16), np.zeros((rows, groups), np.int64)
    codes = np.zeros((rows, width), np.int64)
    for g in range(groups):
        x = w[:, order == g].astype(np.float64)
        low, high = np.minimum(x.min(1), 0), np.maximum(x.max(1), 0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale[:, g] = np.maximum((high - low) / top, 1e-4).astype(np.float16)
        step = scale[:, g].astype(np.float64)
        zero[:, g] = 2 ** (bits - 1) if symmetric else np.clip(np.rint(-low / step), 0, top)
        codes[:, order == g] = np.clip(np.rint(x / step[:, None]) + zero[:, g][:, None], 0, top)
    return codes, scale, zero, order


# ---- packing, and reading what was packed: from the definitions ----

def pack(codes, bits, axis):
    """Along an axis, 32 / bits to a word, the first in the lowest bits; what is missing at the end is 0."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    per = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % per)])
    codes = codes.reshape(*codes.shape[:-1], -1, per)
    words = (codes << (np.arange(per, dtype=np.uint64) * np.uint64(bits))).sum(-1).astype(np.uint32)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


def unpack(words, bits, axis, n):
    words = np.moveaxis(words.numpy().view(np.uint32), axis, -1)[..., None]
    codes = (words >> np.arange(0, 32, bits, dtype=np.uint32)) & np.uint32(2**bits - 1)
    return np.moveaxis(codes.reshape(*codes.shape[:-2], -1)[..., :n], -1, axis).astype(np.int64)


def awq_reordered(a, inverse):
    """Of each 8 along the last axis: row AWQ_ORDER[i] into place i, or back."""
    order = np.argsort(AWQ_ORDER) if inverse else np.array(AWQ_ORDER)
    return a.reshape(*a.shape[:-1], -1, 8)[..., order].reshape(a.shape)


def values(codes, zero, scale, order):
    return (codes - zero[:, order]).astype(np.float32) * scale.astype(np.float32)[:, order]


def write_gptq(stem, codes, scale, zero, order, bits, v2):
    words = pack(zero.T, bits, 1)
    if not v2:  # 1 less each, as the whole word is taken off
        words = torch.from_numpy((words.numpy().view(np.uint32) - np.uint32(sum(1 << b for b in range(0, 32, bits)))).view(np.int32))
    return {stem + "qweight": pack(codes.T, bits, 0), stem + "qzeros": words,
            stem + "scales": torch.from_numpy(np.ascontiguousarray(scale.T)), stem + "g_idx": torch.from_numpy(order.astype(np.int32))}


def read_gptq(t, stem, bits, v2):
    order, scale = t[stem + "g_idx"].numpy(), t[stem + "scales"].numpy().T
    zero = unpack(t[stem + "qzeros"], bits, 1, scale.shape[0]).T + (0 if v2 else 1)
    return values(unpack(t[stem + "qweight"], bits, 0, len(order)).T, zero, scale, order)


def write_awq(stem, codes, scale, zero):
    return {stem + "qweight": pack(awq_reordered(codes.T, False), 4, 1), stem + "qzeros": pack(awq_reordered(zero.T, False), 4, 1),
            stem + "scales": torch.from_numpy(np.ascontiguousarray(scale.T))}


def read_awq(t, stem, group):
    scale = t[stem + "scales"].numpy().T
    codes = awq_reordered(unpack(t[stem + "qweight"], 4, 1, scale.shape[0]), True).T
    zero = awq_reordered(unpack(t[stem + "qzeros"], 4, 1, scale.shape[0]), True).T
    return values(codes, zero, scale, np.arange(codes.shape[1]) // group)


def scheme_of(f):
    group = {"strategy": "group", "group_size": f["group"]} if f["group"] else {"strategy": "channel"}
    weights = QuantizationArgs(num_bits=f["bits"], type="int", symmetric=f["symmetric"], **group)
    return QuantizationScheme(targets=["Linear"], weights=weights)


def write_packed(stem, w, codes, scale, zero, f):
    """By the package: it rounds the values of the codes, which gives the codes again."""
    middle = 2 ** (f["bits"] - 1)
    order = np.arange(w.shape[1]) // (f["group"] or w.shape[1])
    state = {"weight": torch.from_numpy(values(codes, zero, scale, order)), "weight_scale": torch.from_numpy(scale).float(),
             "weight_zero_point": torch.from_numpy(zero - middle).to(torch.int8)}
    packed = PackedQuantizationCompressor.compress(state, scheme_of(f))
    packed["weight_scale"] = packed["weight_scale"].half()
    return {stem + k: v.contiguous() for k, v in packed.items()}


def read_packed(t, stem, f):
    rows, width = t[stem + "weight_shape"].tolist()
    scale, middle = t[stem + "weight_scale"].numpy(), 2 ** (f["bits"] - 1)
    zero = np.full(scale.shape, middle)
    if stem + "weight_zero_point" in t:
        zero = unpack(t[stem + "weight_zero_point"], f["bits"], 0, rows)
    assert f["symmetric"] or stem + "weight_zero_point" in t
    ours = values(unpack(t[stem + "weight_packed"], f["bits"], 1, width), zero, scale, np.arange(width) // (f["group"] or width))
    parts = {k[len(stem):]: v for k, v in t.items() if k.startswith(stem)}
    parts["weight_scale"] = parts["weight_scale"].float()
    theirs = PackedQuantizationCompressor.decompress(parts, scheme_of(f))["weight"].numpy()
    assert (theirs == ours).all(), (stem, np.abs(theirs - ours).max())
    return ours


# ---- folders ----

FORMS = {
    "packed int4": dict(kind="packed", bits=4, group=32, symmetric=True),
    "packed int4 asymmetric": dict(kind="packed", bits=4, group=32, symmetric=False),
    "packed int8 channel": dict(kind="packed", bits=8, group=0, symmetric=True),
    "packed int8 asymmetric": dict(kind="packed", bits=8, group=0, symmetric=False),
    "gptq 4": dict(kind="gptq", bits=4, group=32, symmetric=True, v2=False),
    "gptq 4 desc_act": dict(kind="gptq", bits=4, group=16, symmetric=True, v2=False, ordered=True),
    "gptq 4 v2 asymmetric": dict(kind="gptq", bits=4, group=32, symmetric=False, v2=True),
    "gptq 8": dict(kind="gptq", bits=8, group=-1, symmetric=True, v2=False),
    "awq": dict(kind="awq", bits=4, group=32, symmetric=False),
}


def config_of(f):
    if f["kind"] == "packed":
        weights = {"num_bits": f["bits"], "type": "int", "symmetric": f["symmetric"], "dynamic": False,
                   "strategy": "group" if f["group"] else "channel", "group_size": f["group"] or None}
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}
    if f["kind"] == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": f["group"], "version": "gemm", "zero_point": True}
    return {"quant_method": "gptq", "bits": f["bits"], "group_size": f["group"], "desc_act": f.get("ordered", False),
            "sym": f["symmetric"], "checkpoint_format": "gptq_v2" if f["v2"] else "gptq"}


def is_linear(name, t):
    return t.ndim == 2 and ".layers." in name and name.endswith("_proj.weight")


def write_folder(source, folder, f):
    """The quantised folder, and what a reader of the definition finds in it."""
    plain = {k: v for path in pathlib.Path(source).glob("model*.safetensors") for k, v in load_file(path).items()}
    rng, out, read = np.random.default_rng(5), {}, {}
    for name, t in plain.items():
        if not is_linear(name, t):
            out[name] = read[name] = t
            continue
        stem, w = name[: -len("weight")], t.float().numpy()
        group = f["group"] if f["group"] > 0 else w.shape[1]
        order = rng.permutation(np.arange(w.shape[1]) // group) if f.get("ordered") else None
        codes, scale, zero, order = rounded(w, f["bits"], group, f["symmetric"], order)
        if f["kind"] == "packed":
            parts = write_packed(stem, w, codes, scale, zero, f)
            read[name] = read_packed(parts, stem, f)
        elif f["kind"] == "gptq":
            parts = write_gptq(stem, codes, scale, zero, order, f["bits"], f["v2"])
            read[name] = read_gptq(parts, stem, f["bits"], f["v2"])
        else:
            parts = write_awq(stem, codes, scale, zero)
            read[name] = read_awq(parts, stem, group)
        assert (read[name] == values(codes, zero, scale, order)).all(), name
        read[name] = torch.from_numpy(np.ascontiguousarray(read[name]))
        out |= parts
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=lambda d, names: [n for n in names if not n.endswith(".json")])
    config = json.load(open(folder + "/config.json"))
    config["quantization_config"] = config_of(f)
    json.dump(config, open(folder + "/config.json", "w"))
    save_file(out, folder + "/model.safetensors")
    return read


def apart(ours, theirs):
    return float((ours - theirs).abs().max() / theirs.abs().max())


def check(binary, source, name, f):
    folder = "quantised"
    read = write_folder(source, folder, f)
    shutil.rmtree("plain", ignore_errors=True)
    subprocess.run([binary, "convert", folder, "plain", "--dtype", "f32"], check=True)
    plain = load_file("plain/model.safetensors")
    assert plain.keys() == read.keys(), plain.keys() ^ read.keys()
    differ = [k for k in read if not torch.equal(plain[k], read[k].float())]
    save_file({"input_ids": IDS.to(torch.int32).contiguous()}, "ids.safetensors")
    subprocess.run([binary, "probe", "--model", folder, "--input", "ids.safetensors", "--output", "logits.safetensors"], check=True)
    ours = load_file("logits.safetensors")["logits"]
    model = AutoModelForCausalLM.from_pretrained("plain", dtype=torch.float32)
    with torch.no_grad():
        off = apart(ours, model(IDS).logits)
        # Of zero points transformers 5.23 expects other shapes than compressed-tensors 0.20 writes, and refuses them.
        loads = f["kind"] == "packed" and f["symmetric"]
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits.float() if loads else None
    also = "" if theirs is None else f", {apart(ours, theirs):.2g} from transformers' of the folder itself"
    n = sum(is_linear(k, v) for k, v in read.items())
    print(f"{pathlib.Path(source).name}, {name}: {n} matrices, {len(differ)} differ; logits {off:.2g} apart{also}")
    return bool(differ) or n == 0 or off > 1e-5 or (theirs is not None and apart(ours, theirs) > 1e-5)


if __name__ == "__main__":
    binary, *models = sys.argv[1:]
    bad = [check(binary, source, name, f) for source in models for name, f in FORMS.items()]
    raise SystemExit(any(bad))
