#!/bin/sh
# Compares with transformers and PyTorch: an output folder of `train` loads there and has the loss that `eval` gives,
# fp32 and bf16; a converted model has their token ids; published chat templates (those that TRL's wheel holds) print the
# same and mark the same text; small tokenizers of the shapes of published ones have the same ids; PEFT's adapters are merged as PEFT
# merges them and have its logits here, and it has our loss with what a run leaves; TRL's trainers make the same rows of preferences
# and take the same steps; quantised folders load in transformers, with the values of their formats' definitions, and those that others
# make are read with theirs; OpenAI's client talks to `serve`, and lm-evaluation-harness has the scores through it that it has in transformers and in `eval --task`; greedy answers in fp32 are transformers'.
# Not part of ctest: it downloads about 3 GB.
#
#   tests/peers.sh [BINARY]          default: build/bin/tidemill
#   TIDEMILL_PEERS=DIR               keeps the Python environment in DIR for the next time
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
tidemill=$(realpath "${1:-$root/build/bin/tidemill}")
fixture=$root/tests/fixtures/arch_llama
shared=$root/../shared
[ -x "$tidemill" ] || { echo "peers: $tidemill is not there; build it, or name it" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
venv=${TIDEMILL_PEERS:-$work/venv}
if [ ! -e "$venv/ready" ]; then
    echo "peers: PyTorch and transformers into $venv" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q torch==2.13.0 transformers==5.23.0 safetensors numpy
    touch "$venv/ready"
fi
python=$venv/bin/python
"$python" -c "import peft" 2>/dev/null || "$venv/bin/pip" install -q peft==0.21.2
"$python" -c "import trl" 2>/dev/null || "$venv/bin/pip" install -q trl==1.16.0 datasets==5.2.0 accelerate==1.15.0
templates=$("$python" -c 'import pathlib, trl; print(pathlib.Path(trl.__file__).parent / "chat_templates")')
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TQDM_DISABLE=1
cd "$work"

"$python" "$root/tests/peers/chat.py" "$tidemill" "$templates"
"$python" "$root/tests/peers/tokens.py" "$tidemill"
mkdir adapters
(cd adapters && "$python" "$root/tests/peers/adapters.py" "$tidemill" && "$python" "$root/tests/peers/adapters_train.py" "$tidemill")
mkdir preferences
(cd preferences && "$python" "$root/tests/peers/preference.py" "$tidemill" "$root/tests/fixtures")

"$python" -c "import compressed_tensors, bitsandbytes" 2>/dev/null || "$venv/bin/pip" install -q compressed-tensors==0.20.0 bitsandbytes==0.50.2
mkdir exports
(cd exports && "$python" "$root/tests/peers/exports.py" "$tidemill" "$root/tests/fixtures/arch_qwen2" "$root/tests/fixtures/arch_llama_tied_rope3")
mkdir quantised
(cd quantised && "$python" "$root/tests/peers/quantised.py" "$tidemill" "$root/tests/fixtures/arch_qwen2" "$root/tests/fixtures/peft_base")

"$python" - "$fixture" <<'EOF'
import sys
from safetensors.torch import load_file, save_file
golden = load_file(sys.argv[1] + "/golden.safetensors")
save_file({k: golden[k].flatten(0, 1).contiguous() for k in ("input_ids", "labels", "attention_mask")}, "rows.safetensors")
EOF

for precision in fp32 bf16; do
    cat > config.json <<EOF
{"model": "$fixture", "precision": "$precision", "data": {"train": "rows.safetensors"}, "max_steps": 2,
 "per_device_train_batch_size": 2, "learning_rate": 1e-3, "output_dir": "out-$precision",
 "memory": {"cache": "none", "host_budget": "256MiB"}}
EOF
    "$tidemill" train config.json --quiet
    "$tidemill" eval --model "out-$precision" --data rows.safetensors --json > "eval-$precision.json"
done

"$python" - <<'EOF'
import json, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

rows = load_file("rows.safetensors")
bad = 0
for precision in ("fp32", "bf16"):
    model, info = AutoModelForCausalLM.from_pretrained(f"out-{precision}", dtype="auto", output_loading_info=True)
    stored = next(model.parameters()).dtype
    assert stored == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision], stored
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    # The weights as stored, computed on in fp32: what `eval` does. Loaded so, the rotary frequencies stay in fp32.
    model = AutoModelForCausalLM.from_pretrained(f"out-{precision}", dtype=torch.float32, attn_implementation="eager")
    total, count = 0.0, 0
    with torch.no_grad():
        for i in range(len(rows["input_ids"])):
            ids, labels, mask = (rows[k][i : i + 1] for k in ("input_ids", "labels", "attention_mask"))
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].flatten(0, 1)
            total += torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum").double().item()
            count += (labels[:, 1:] != -100).sum().item()
    ours = json.load(open(f"eval-{precision}.json"))
    difference = abs(ours["loss"] - total / count)
    print(f"{precision}: transformers {total / count:.8f}, eval {ours['loss']:.8f}, difference {difference:.2g}, {count} labels")
    if difference > 1e-5 or ours["tokens"] != count:
        bad = 1
raise SystemExit(bad)
EOF

mkdir families
(cd families && "$python" "$root/tests/peers_families.py" "$tidemill" "$root/tests/fixtures")

gguf=$shared/models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -e "$gguf" ]; then
    echo "peers: SKIP the converted SmolLM2: $gguf is not there" >&2
    exit 0
fi
"$tidemill" convert "$gguf" smollm2
"$python" - "$root" > texts.jsonl <<'EOF'
import json, pathlib, sys
texts = ["The tide comes in.", "  spaces   and\ttabs\n\n\nlines ", "1234567890 3.14159", "naïve café — “quoted” 🙂🌊", "", "潮汐 прилив المد",
         "<|im_start|>user\nhello<|im_end|>\n", "x = [i**2 for i in range(10)]\n    # indented"]
texts += [p.read_text()[:2000] for p in sorted(pathlib.Path(sys.argv[1], "tools").glob("*.c"))]
for t in texts:
    print(json.dumps({"text": t}))
EOF
"$tidemill" tokenize --model smollm2 < texts.jsonl > ids.jsonl
echo '{"messages": [{"role": "user", "content": "What is a tide mill?"}, {"role": "assistant", "content": "A mill that the sea drives."}]}' > chat.jsonl
"$tidemill" chat --model smollm2 < chat.jsonl > chat-ids.jsonl
"$python" - <<'EOF'
import json, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("smollm2")
texts = [json.loads(line)["text"] for line in open("texts.jsonl")]
ids = [json.loads(line)["ids"] for line in open("ids.jsonl")]
differ = [t for t, i in zip(texts, ids, strict=True) if tokenizer(t, add_special_tokens=False).input_ids != i]
chat, ours = json.loads(open("chat.jsonl").readline()), json.loads(open("chat-ids.jsonl").readline())
theirs = tokenizer.apply_chat_template(chat["messages"], tokenize=False)
same_chat = theirs == ours["text"] and tokenizer(theirs, add_special_tokens=False).input_ids == ours["ids"]
model = AutoModelForCausalLM.from_pretrained("smollm2")
print(f"SmolLM2: {len(texts)} texts, {sum(map(len, ids))} ids, {len(differ)} texts differ; chat {'the same' if same_chat else 'differs'}; "
      f"{sum(p.numel() for p in model.parameters())} parameters")
raise SystemExit(bool(differ) or not same_chat)
EOF
"$python" -c "import httpx, openai, lm_eval" 2>/dev/null || "$venv/bin/pip" install -q httpx==0.28.1 openai==3.57.0 "lm-eval[api]==0.4.13" tiktoken
"$python" "$root/tests/peers/serve.py" "$tidemill" smollm2

# 50 questions answered greedily in fp32, the same texts.
"$python" "$root/tests/peers/generate.py" "$tidemill" smollm2 "$shared/data/gsm8k/test.jsonl"

# 200 questions of gsm8k answered, 200 to choose from: transformers through lm-evaluation-harness.
"$python" -c "import lm_eval" 2>/dev/null || "$venv/bin/pip" install -q lm-eval==0.4.13 accelerate==1.15.0
mkdir tasks
(cd tasks && "$python" "$root/tests/peers/tasks.py" "$tidemill" ../smollm2 "$shared/data/gsm8k")
echo "peers: agreed"
