"""Greedy answers of `tidemill generate`, several prompts side by side, in fp32, beside transformers' generate on the CPU:
the same texts. A row may differ only where the two best logits of the first token that differs lie within 1e-3; such
rows are listed.

    generate.py TIDEMILL MODEL_FOLDER PROMPTS.jsonl [ROWS]     each line has "question"
"""
import json
import subprocess
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tidemill, folder, path = sys.argv[1:4]
rows = int(sys.argv[4]) if len(sys.argv) > 4 else 50
NEW, TOGETHER = 48, 25
prompts = ["Question: " + json.loads(line)["question"] + "\nAnswer:" for line in open(path)][:rows]
assert len(prompts) == rows

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
model.eval()

ours = []
for at in range(0, rows, TOGETHER):
    options = [o for p in prompts[at:at + TOGETHER] for o in ("--prompt", p)]
    r = subprocess.run([tidemill, "generate", "--model", folder, "--precision", "fp32", "--max-new-tokens", str(NEW), "--json",
                        *options], capture_output=True, text=True, check=True)
    ours += json.loads(r.stdout)["answers"]

same = near = 0
for i, (prompt, got) in enumerate(zip(prompts, ours)):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    assert ids[0].tolist() == got["prompt_ids"], f"row {i}: prompts are tokenised otherwise"
    with torch.no_grad():
        want = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1]:].tolist()
    if want == got["ids"]:
        same += 1
        continue
    k = next(k for k in range(min(len(want), len(got["ids"]))) if want[k] != got["ids"][k])
    with torch.no_grad():
        logits = model(torch.cat([ids, torch.tensor([want[:k]], dtype=torch.long)], 1)).logits[0, -1]
    best = torch.topk(logits, 2).values
    gap = float(best[0] - best[1])
    print(f"row {i} differs at token {k}: the two best logits lie {gap:.2e} apart")
    assert gap <= 1e-3, f"row {i}: transformers answers otherwise"
    near += 1
print(f"greedy answers in fp32: {same} of {rows} are transformers', {near} differ where two logits are equal to 1e-3")
