#!/usr/bin/env python3
"""tokens.py BINARY [COUNT]: ids and decoded text of `tidemill tokenize` and of tokenizers, for each family of
tests/fixtures/tok_families/make.py, over COUNT strings (default 400)."""
import json, pathlib, subprocess, sys, tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fixtures" / "tok_families"))
import make


def ours(binary, folder, lines, *flags):
    p = subprocess.run([binary, "tokenize", "--model", folder, *flags], input="".join(json.dumps(x) + "\n" for x in lines), capture_output=True, text=True)
    if p.returncode != 0:
        return [p.stderr]
    return [json.loads(x) for x in p.stdout.splitlines()]


def main():
    binary, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400
    bad = total = 0
    for i, (name, t) in enumerate(make.families().items()):
        want = list(make.rows(t, make.strings(count, 1000 + i)))
        with tempfile.TemporaryDirectory() as folder:
            t.save(folder + "/tokenizer.json")
            texts = [{"text": w["text"]} for w in want]
            got = {"ids": [x.get("ids") if isinstance(x, dict) else x for x in ours(binary, folder, texts)],
                   "ids_with_special": [x.get("ids") if isinstance(x, dict) else x for x in ours(binary, folder, texts, "--special")],
                   "decoded": [x.get("text") if isinstance(x, dict) else x for x in ours(binary, folder, [{"ids": w["ids"]} for w in want], "--decode")],
                   "decoded_skip_special": [x.get("text") if isinstance(x, dict) else x for x in
                                            ours(binary, folder, [{"ids": w["ids_with_special"]} for w in want], "--decode", "--skip-special")]}
        for n, w in enumerate(want):
            total += 1
            for key, list_ in got.items():
                if n < len(list_) and list_[n] == w[key]:
                    continue
                bad += 1
                if bad < 20:
                    print(f"{name}: {key} of {w['text']!r}:\n    {w[key]!r}\n    {list_[n] if n < len(list_) else list_[-1:]!r}")
    print(f"tokenizers: {i + 1} families, {total} strings, {bad} differ")
    raise SystemExit(bool(bad))


main()
