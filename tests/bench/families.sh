#!/bin/sh
# Families of models beside PyTorch 2.13 (transformers, SDPA, fused AdamW, clipping, two threads): tokens a second of whole
# training steps in bf16 with everything in memory, one shape of 100 to 200 M parameters (vocabulary 32,000) of each, the two
# programs alternating, medians. What is judged is our part: a family's ratio to PyTorch is at least 0.95 of Llama's in the
# same run, so that what only Llama is fast at shows. On a busy machine the ratio of the fastest steps says more.
#   TIDEMILL_PEERS=DIR         keeps the Python environment there (1 GB is downloaded otherwise)
#   TIDEMILL_FAMILIES          names of them ("llama qwen3 gemma3 gpt2")
#   TIDEMILL_FAMILIES_PEER     PyTorch's precision (bf16; without bf16 instructions that is many times slower than fp32)
#   TIDEMILL_FAMILIES_ROUNDS   rounds (3) over all families, each of
#   TIDEMILL_FAMILIES_STEPS    timed steps of PyTorch, then as many of ours (3)
#   TIDEMILL_FAMILIES_TOKENS   tokens of a row (512); TIDEMILL_FAMILIES_BATCH rows (1)
# Other settings: lib.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export TIDEMILL_PEERS="${TIDEMILL_PEERS:-$(mktemp -d)}"
if ! "$TIDEMILL_PEERS/bin/python" -c 'import torch, transformers' 2> /dev/null; then
    echo "families.sh: PyTorch and transformers into $TIDEMILL_PEERS" >&2
    python3 -m venv "$TIDEMILL_PEERS"
    "$TIDEMILL_PEERS/bin/pip" install -q torch==2.13.0 transformers==5.23.0
fi
export OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
PYTHONPATH=$here exec "$TIDEMILL_PEERS/bin/python" - "$@" <<'PY'
from lib import *
from torch_peer import Peer

COMMON = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 32000,
          "max_position_embeddings": 4096, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = {
    "llama": {"model_type": "llama", **COMMON, "num_attention_heads": 12, "num_key_value_heads": 12, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", **COMMON, "num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 128,
              "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True},
    "gemma3": {"model_type": "gemma3_text", **COMMON, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
               "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
               "sliding_window": 512, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
               "layer_types": [("full" if i % 6 == 5 else "sliding") + "_attention" for i in range(12)],
               "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_inner": 3072, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "vocab_size": 32000, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.0,
             "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True},
}
SMALL = {"hidden_size": 192, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}
SMALL_GPT2 = {"n_embd": 96, "n_inner": 256, "n_layer": 2, "vocab_size": 1000}
NAMES = os.environ.get("TIDEMILL_FAMILIES", "llama qwen3 gemma3 gpt2").split()
PEER = os.environ.get("TIDEMILL_FAMILIES_PEER", "bf16")
setting = lambda name, many, few: int(os.environ.get(f"TIDEMILL_FAMILIES_{name}", few if TINY else many))
ROUNDS, STEPS, TOKENS, BATCH = setting("ROUNDS", 3, 1), setting("STEPS", 3, 1), setting("TOKENS", 512, 64), setting("BATCH", 1, 1)


def family(name):
    """A folder with the config.json of the family's shape."""
    values = dict(FAMILIES[name])
    if TINY:
        values.update(SMALL_GPT2 if name == "gpt2" else SMALL)
        if "layer_types" in values:
            values["layer_types"] = values["layer_types"][-2:]
    folder = WORK / f"family-{name}"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def job(name):
    path = config("tiny", TOKENS, 1, batch=BATCH, steps=STEPS + 1, precision="bf16", memory_activations="keep")
    values = {k: v for k, v in json.loads(path.read_text()).items() if k != "zero_optimization"}
    path.write_text(json.dumps({**values, "model": str(family(name))}))
    return path


jobs = {name: job(name) for name in NAMES}
theirs, mine = {name: [] for name in NAMES}, {name: [] for name in NAMES}
for _ in range(ROUNDS):
    for name in NAMES:
        peer = Peer(family(name), PEER, BATCH, TOKENS, 0)
        peer.step()
        theirs[name] += [peer.step() for _ in range(STEPS)]
        mine[name] += [s["step_seconds"] for s in expect(train(jobs[name], {"memory.host_budget": "unlimited"}), name).steps[1:]]
        peer.close()
rate = lambda seconds: BATCH * TOKENS / median(seconds)
ratio = {name: rate(mine[name]) / rate(theirs[name]) for name in NAMES}
table = Table(f"families beside PyTorch ({PEER}), tokens a second of bf16 steps, {BATCH} x {TOKENS}, everything in memory",
              "family", "PyTorch", "tidemill", "ratio", "of Llama's", "target", "fastest steps")
for name in NAMES:
    part = ratio[name] / ratio[NAMES[0]]
    table.row(name.ljust(6), f"{rate(theirs[name]):.1f}", f"{rate(mine[name]):.1f}", f"{ratio[name]:.2f}", f"{part:.2f}", 0.95,
              f"{min(theirs[name]) / min(mine[name]):.2f}", ok=TINY or part >= 0.95)
table.done()
PY
