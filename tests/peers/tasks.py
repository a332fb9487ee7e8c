"""eval --task beside lm-evaluation-harness with transformers: tasks.py TIDEMILL MODEL-FOLDER GSM8K-FOLDER [ROWS]

ROWS (200) questions of gsm8k answered greedily, and as many with four answers to choose from, made of the same data, both in fp32: the same texts, the
same choices, the same scores and standard errors as the harness; and of some of its own samples the same answers and scores again. A row may differ only where the two best logits (or
the two best choices) lie within 1e-3 of each other; such rows are listed.
"""
import json
import pathlib
import random
import re
import subprocess
import sys

import torch
import transformers
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM

NEAR = 1e-3
AGAIN = 40  # samples of the harness that are put again
tidemill, folder, gsm8k = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
wanted = int(sys.argv[4]) if len(sys.argv) > 4 else 200
transformers.logging.set_verbosity_error()

GSM = {
    "task": "gsm", "output_type": "generate_until", "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{answer}}",
    "num_fewshot": 0,
    "generation_kwargs": {"until": ["Question:", "\n\n"], "do_sample": False, "temperature": 0.0, "max_gen_toks": 64},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True, "ignore_punctuation": False,
                     "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"]}],
    "filter_list": [{"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": "#### (\\-?[0-9\\.\\,]+)"}, {"function": "take_first"}]},
                    {"name": "flexible-extract", "filter": [{"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"},
                                                            {"function": "take_first"}]}],
}
PICK = {"task": "pick", "output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer: The result is", "doc_to_target": "gold",
        "doc_to_choice": "choices", "num_fewshot": 0,
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm", "acc_bytes", "exact_match")]}


def make_rows():
    rows = [json.loads(line) for line in open(gsm8k / "test.jsonl")][:wanted]
    shots = [json.loads(line) for line in open(gsm8k / "train.jsonl")][:8]
    draw = random.Random(11)
    numbers = [re.search(r"#### (.*)", r["answer"]).group(1) for r in rows]
    for row, number in zip(rows, numbers):
        others = draw.sample(sorted(set(numbers) - {number}), 3)
        row["gold"] = draw.randrange(4)
        row["choices"] = others[: row["gold"]] + [number] + others[row["gold"]:]
    for name, lines in (("test", rows), ("train", shots)):
        pathlib.Path(f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))


def ours(*more):
    out = subprocess.run([tidemill, "eval", "--model", folder, "--json", "--samples", "ours.jsonl", *more], check=True, capture_output=True, text=True)
    return json.loads(out.stdout), [json.loads(line) for line in open("ours.jsonl")]


def theirs(model):
    files = {k: str(pathlib.Path(f"{k}.jsonl").resolve()) for k in ("test", "train")}
    configs = [{**c, "dataset_path": "json", "test_split": "test", "fewshot_split": "train", "dataset_kwargs": {"data_files": files}} for c in (GSM, PICK)]
    return simple_evaluate(model=model, tasks=configs, log_samples=True, bootstrap_iters=1000)


def same_scores(got, wanted_, what):
    """Values and standard errors; True: all are the same."""
    bad = [(k, v, got.get(k)) for k, v in wanted_.items() if "," in k and isinstance(v, float) and abs(v - got.get(k, 9e9)) > 1e-12]
    for k, v, g in bad:
        print(f"tasks: {what}: {k} is {g}, the harness has {v}")
    return not bad


def gap_where_texts_part(model, prompt, a, b):
    """Between the two best logits at the first token at which two answers part."""
    ids = model.tokenizer(prompt).input_ids
    one, two = (model.tokenizer(prompt + t).input_ids[len(ids):] for t in (a, b))
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    with torch.no_grad():
        best = model.model(torch.tensor([ids + one[:same]])).logits[0, -1].topk(2).values
    return (best[0] - best[1]).item()


def again(samples):
    """The harness's own samples as task files: what each was answered and scored; True: as before."""
    for name, config in (("gsm", GSM), ("pick", PICK)):
        keys = ("metric_list", "filter_list") if name == "gsm" else ("metric_list",)
        task = {"task": name, "data": f"theirs_{name}.jsonl", **{k: config[k] for k in keys}}
        pathlib.Path(f"again_{name}.json").write_text(json.dumps(task))
    _, second = ours("--task", "again_gsm.json", "--task", "again_pick.json")
    scores = ("resps", "filtered_resps", "exact_match", "acc", "acc_norm", "acc_bytes")

    def known(all_):
        return {(s["task"], s["doc_id"], s.get("filter")): [s.get(k) for k in scores] for s in all_}

    before, now = known(samples), known(second)
    bad = [k for k, v in now.items() if v != before.get(k)]
    for k in bad:
        print(f"tasks: {k}, put as the harness's sample: {now[k]}, was {before.get(k)}")
    print(f"tasks: {len(now)} scores of the harness's samples put again, {len(bad)} differ")
    return not bad and len(now) > 0


def main():
    make_rows()
    for config in (GSM, PICK):
        pathlib.Path(config["task"] + ".json").write_text(json.dumps({**config, "data": "test.jsonl", "fewshot_data": "train.jsonl"}))
    scores, samples = ours("--task", "gsm.json", "--task", "pick.json")
    model = HFLM(pretrained=transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
                 tokenizer=transformers.AutoTokenizer.from_pretrained(folder), batch_size=50)
    harness = theirs(model)
    failed, near = 0, 0
    for name in ("gsm", "pick"):
        mine = {s["doc_id"]: s for s in samples if s["task"] == name}
        differ = 0
        for s in harness["samples"][name]:
            m = mine[s["doc_id"]]
            if name == "gsm":
                a, b = m["resps"][0][0], s["resps"][0][0]
                if a == b or s["filter"] != "strict-match":
                    continue
                gap = gap_where_texts_part(model, s["arguments"][0][0] if isinstance(s["arguments"], list) else s["arguments"]["gen_args_0"]["arg_0"], a, b)
            else:
                a, b = ([float(r[0][0]) for r in x["resps"]] for x in (m, s))
                if max(abs(x - y) for x, y in zip(a, b)) > 1e-2:
                    print(f"tasks: pick {s['doc_id']}: {a}, the harness has {b}")
                    failed = 1
                lengths = [1] * 4, [len(c) for c in s["doc"]["choices"]]
                best = [[max(range(4), key=lambda i: v[i] / n[i]) for n in lengths] for v in (a, b)]
                if best[0] == best[1] and [r[0][1] == "True" for r in m["resps"]] == [str(r[0][1]) == "True" for r in s["resps"]]:
                    continue
                gap = min(sorted(v / n for v, n in zip(b, c))[-1] - sorted(v / n for v, n in zip(b, c))[-2] for c in lengths)
            differ += 1
            print(f"tasks: {name} {s['doc_id']} differs; the two best lie {gap:.2g} apart")
            failed |= gap > NEAR
        near += differ
        got, harness_scores = scores["results"][name], harness["results"][name]
        agreed = differ > 0 or same_scores(got, harness_scores, name)
        failed |= not agreed
        print(f"tasks: {name}: {len(mine)} rows, {differ} differ; " + ", ".join(f"{k} {got[k]:.4f}" for k in got))
        some = [s for s in harness["samples"][name] if s["doc_id"] < AGAIN]
        pathlib.Path(f"theirs_{name}.jsonl").write_text("".join(json.dumps(s, default=str) + "\n" for s in some))
    failed |= not again(samples)
    print("tasks: agreed" if not failed else "tasks: DIFFER")
    return failed


sys.exit(main())
