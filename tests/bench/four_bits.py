#!/usr/bin/env python3
"""four_bits.py [--rows 2] [--values 40000]: what a gradient loses in four bits, by its levels and by how many values have a
scale. The gradient is SmolLM2-135M's on rows of examples/skill (`tidemill probe --grads`, fp32); of each matrix of blocks
0, 14 and 29 and of the embedding whole rows, evenly spread, of about so many values. The table is the medians over the
matrices: the part of the energy (sum of squares) that is lost, and of the values that become zero though they were not.

Exit 1 where what qgZ uses (src/comm/quant.c: marked) loses more than 2% of the energy, or more than half of what evenly
spaced levels of as many bytes lose. 77: the model (../shared/models, or TIDEMILL_SMOLLM2) is not there.

    TIDEMILL=build/bin/tidemill python3 tests/bench/four_bits.py
"""
import argparse
import array
import bisect
import json
import math
import os
import statistics
import struct
import subprocess
import sys

import lib

EVEN = (0, 1, 2, 3, 4, 5, 6, 7)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)
GROWN = (0, 1, 2, 4, 6, 9, 13, 18)


def fp32(scale):
    return scale


def bf16(scale):
    """Up, so that the largest value is within the largest level."""
    bits = (struct.unpack("<I", struct.pack("<f", scale))[0] + 0xffff) >> 16 << 16
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def power_of_two(scale):
    return 2.0 ** math.ceil(math.log2(scale))


# name, levels, values a scale (0: a row of the matrix), how the scale is stored, its bytes, whether qgZ uses it
WAYS = (("even, in rows", EVEN, 0, fp32, 4, False), ("even", EVEN, 256, fp32, 4, False), ("even", EVEN, 64, bf16, 2, False),
        ("E2M1", E2M1, 64, bf16, 2, False), ("0 1 2 4 6 9 13 18", GROWN, 64, bf16, 2, True),
        ("the same", GROWN, 32, bf16, 2, False), ("the same, power of two", GROWN, 32, power_of_two, 1, False))


def model():
    path = os.environ.get("TIDEMILL_SMOLLM2", lib.ROOT.parent / "shared" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    if os.path.exists(path):
        return str(path)
    print(f"SKIP: {path} is not there; TIDEMILL_SMOLLM2 names the model", file=sys.stderr)
    sys.exit(77)


def write_rows(path, rows):
    """input_ids, labels and attention_mask, padded right to the longest row."""
    length = max(len(r["ids"]) for r in rows)
    tensors = {"input_ids": [r["ids"] + [0] * (length - len(r["ids"])) for r in rows],
               "labels": [[t if m else -100 for t, m in zip(r["ids"], r["loss_mask"])] + [-100] * (length - len(r["ids"]))
                          for r in rows],
               "attention_mask": [[1] * len(r["ids"]) + [0] * (length - len(r["ids"])) for r in rows]}
    header, data = {}, b""
    for name, values in tensors.items():
        bytes_of = array.array("i", [v for row in values for v in row]).tobytes()
        header[name] = {"dtype": "I32", "shape": [len(rows), length], "data_offsets": [len(data), len(data) + len(bytes_of)]}
        data += bytes_of
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def gradients(count):
    """The file of the gradients of the first rows."""
    with open(lib.ROOT / "examples" / "skill" / "train.jsonl") as f:
        lines = [next(f) for _ in range(count)]
    said = subprocess.run([lib.BINARY, "chat", "--model", model()], input="".join(lines), capture_output=True, text=True,
                          check=True).stdout
    rows, out = lib.WORK / "rows.safetensors", lib.WORK / "gradients.safetensors"
    write_rows(rows, [json.loads(line) for line in said.splitlines()])
    lib.output_of([lib.BINARY, "probe", "--model", model(), "--input", str(rows), "--output", str(out), "--grads"])
    return out


def matrices(path, values):
    """Rows of each matrix, evenly spread over it."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        for name, tensor in header.items():
            wanted = name.startswith("grad.") and ("embed_tokens" in name or any(f".layers.{b}." in name for b in (0, 14, 29)))
            if not wanted or len(tensor["shape"]) != 2:
                continue
            rows, columns = tensor["shape"]
            take = min(rows, max(1, values // columns))
            found = []
            for i in range(take):
                f.seek(8 + size + tensor["data_offsets"][0] + 4 * columns * (i * rows // take))
                found.append(array.array("f", f.read(4 * columns)))
            yield found


def lost(rows, levels, block, store):
    """Of the energy; of the values that are not zero, those that become it."""
    middles = [(a + b) / 2 for a, b in zip(levels, levels[1:])]
    error = energy = zeros = some = 0.0
    for row in rows:
        for at in range(0, len(row), block or len(row)):
            values = [abs(x) for x in row[at:at + (block or len(row))]]
            most = max(values)
            if most == 0:
                continue
            scale = store(most / levels[-1])
            for x in values:
                level = levels[bisect.bisect_left(middles, x / scale)]
                error += (x - scale * level) ** 2
                energy += x * x
                zeros += x > 0 and level == 0
                some += x > 0
    return error / energy, zeros / some


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=2)
    p.add_argument("--values", type=int, default=40000)
    a = p.parse_args()
    found = [m for m in matrices(gradients(a.rows), a.values) if any(any(row) for row in m)]
    table = lib.Table(f"{len(found)} matrices, {sum(len(r) for m in found for r in m)} values", "levels                ",
                      "a scale for", "bytes a value", "energy lost", "made zero")
    even = {}
    for name, levels, block, store, scale_bytes, used in WAYS:
        each = [lost(m, levels, block, store) for m in found]
        energy, zeros = (statistics.median(x[i] for x in each) for i in range(2))
        bytes_a_value = 0.5 + statistics.median(scale_bytes / (block or len(m[0])) for m in found)
        even.update({round(bytes_a_value, 3): energy} if levels == EVEN else {})
        table.row(name + (" <" if used else ""), block or "a row", f"{bytes_a_value:.3f}", f"{100 * energy:.1f}%", f"{100 * zeros:.0f}%",
                  ok=not used or energy <= min(0.02, even[round(bytes_a_value, 3)] / 2))
    table.done()


if __name__ == "__main__":
    main()
