"""Makes tests/fixtures/sampling/golden.json: what transformers' logits processors, one after the other in the order of
src/infer/engine.h, make of logits; OpenAI's two penalties, which transformers has not, by their definition
(https://platform.openai.com/docs/api-reference: logit - count * frequency - (count > 0) * presence).

    python3 tests/peers/sampling.py > tests/fixtures/sampling/golden.json
"""
import json
import torch
from transformers import (LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                          TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper)

VOCABULARY = 96
CASES = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 40, "temperature": 1.3},
    {"top_p": 0.8},
    {"top_p": 0.3, "temperature": 0.9},
    {"min_p": 0.1},
    {"typical_p": 0.7},
    {"typical_p": 0.2, "temperature": 1.2},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.5},
    {"presence_penalty": -0.5, "frequency_penalty": -0.25, "top_k": 12},
    {"temperature": 1.4, "typical_p": 0.95, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2,
     "presence_penalty": 0.3, "frequency_penalty": 0.1},
]


def probabilities(logits, prompt, answer, s):
    x = logits.clone()[None]
    ids = torch.tensor([prompt + answer])
    if "repetition_penalty" in s:
        x = RepetitionPenaltyLogitsProcessor(s["repetition_penalty"])(ids, x)
    for t in set(answer):
        x[0, t] -= answer.count(t) * s.get("frequency_penalty", 0) + s.get("presence_penalty", 0)
    warpers = LogitsProcessorList()
    if "temperature" in s:
        warpers.append(TemperatureLogitsWarper(s["temperature"]))
    if "typical_p" in s:
        warpers.append(TypicalLogitsWarper(s["typical_p"]))
    if "top_k" in s:
        warpers.append(TopKLogitsWarper(s["top_k"]))
    if "top_p" in s:
        warpers.append(TopPLogitsWarper(s["top_p"]))
    if "min_p" in s:
        warpers.append(MinPLogitsWarper(s["min_p"]))
    return torch.softmax(warpers(ids, x).double(), -1)[0]


torch.manual_seed(29)
out = {"made_by": "tests/peers/sampling.py", "vocabulary": VOCABULARY, "cases": []}
for case in CASES:
    logits = (torch.randn(VOCABULARY) * 2.5).float()
    prompt = torch.randint(0, VOCABULARY, (8,)).tolist()
    answer = torch.randint(0, VOCABULARY, (6,)).tolist()
    answer += answer[:2] + [int(logits.argmax())]
    p = probabilities(logits, prompt, answer, case)
    out["cases"].append({"sampling": case, "prompt": prompt, "answer": answer, "logits": logits.tolist(), "p": p.tolist()})
print(json.dumps(out))
