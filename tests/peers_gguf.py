"""Our GGUF files against gguf-py's tables and llama.cpp: peers_gguf.py BINARY FIXTURES WORK (called by peers_gguf.sh).
WORK/models may hold folders made by peers_gguf_models.py."""
import ctypes
import json
import math
import os
import subprocess
import sys

import gguf
import llama_cpp
import numpy as np

BINARY, FIXTURES, WORK = sys.argv[1:]
EXACT, TABLE = 1e-5, 2e-3  # llama.cpp's GELU is a table of float16 values
NEAR = 1e-3                # with that table: a value that is rounded the other way
# Folder and what may be between the logits; None: llama.cpp has a fixed value where this fixture has another one.
CASES = {"arch_llama": EXACT, "arch_llama_tied_rope3": EXACT, "arch_llama_linear": EXACT, "arch_llama_yarn": EXACT,
         "arch_mistral": None, "arch_qwen2": EXACT, "arch_qwen3": EXACT, "arch_phi3": EXACT, "arch_phi4mini": EXACT,
         "arch_smollm3": None, "arch_olmo2": EXACT, "arch_granite": EXACT, "arch_glm4": EXACT, "arch_gemma2": TABLE,
         "arch_gemma3": TABLE, "arch_gpt2": TABLE, "arch_gemma4": 2 * TABLE}
# What share of a fixture's texts llama.cpp cuts as transformers does: it has no NFC, and an older Unicode.
TOKENIZERS = {"tok_gpt2": 0.98, "tok_llama3": 1, "tok_qwen2": 0.8, "tok_spm": 1}
FAMILIES = {"llama2, metaspace first": 0.65, "llama2, metaspace always": 0.75}  # GGUF has one way of prefixing
# Adapters that llama.cpp can take, and their bases; a tied base has one tensor for two places.
ADAPTERS = {"peft_lora": "peft_base", "peft_rslora": "peft_base", "peft_patterns": "peft_qwen3_base",
            "peft_embedding": "peft_qwen3_base", "peft_pissa": "peft_qwen3_base"}
ADAPTED = 5e-5  # the fixtures' own logits_max_abs is 2e-5 to 6e-5
# Bases that no such fixture has, with a random adapter of every matrix: merged by us and added by llama.cpp are one model.
RANDOM = {"arch_gpt2": 2 * TABLE, "arch_phi3": ADAPTED, "arch_glm4": ADAPTED, "arch_llama_tied_rope3": ADAPTED}
OURS = {"smollm3.rope.layer_pattern"}  # keys that are not llama.cpp's; README of src/format


def tensors(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32}
    head = {k: v for k, v in json.loads(raw[8:8 + n]).items() if k != "__metadata__"}
    return {k: np.frombuffer(raw[8 + n:][slice(*v["data_offsets"])], types[v["dtype"]]).reshape(v["shape"])
            for k, v in head.items()}


def write_tensors(path, named):
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for k, v in named.items():
        head[k] = {"dtype": "F32", "shape": v.shape, "data_offsets": [at, at + v.nbytes]}
        at += v.nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in named.values()))


def folder_of(name):
    """The fixture; Gemma 2's and 3's with queries scaled, so that query_pre_attn_scalar is head_dim, as llama.cpp has it."""
    source, to = os.path.join(FIXTURES, name), os.path.join(WORK, name)
    if name not in ("arch_gemma2", "arch_gemma3"):
        return source
    os.makedirs(to)
    config = json.load(open(source + "/config.json"))
    scale = np.float32(math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"]))
    config["query_pre_attn_scalar"] = config["head_dim"]
    json.dump(config, open(to + "/config.json", "w"))
    named = tensors(source + "/model.safetensors")
    for k in named:
        if name == "arch_gemma2" and k.endswith("q_proj.weight"):
            named[k] = named[k] * scale
        if name == "arch_gemma3" and k.endswith("q_norm.weight"):
            named[k] = (1 + named[k]) * scale - 1
    write_tensors(to + "/model.safetensors", named)
    return to


def check_names(path, folder):
    """Every tensor is one of its architecture's, called as gguf-py calls the HF tensor; every key is in its list."""
    reader = gguf.GGUFReader(path)
    arch = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[number]}
    names = gguf.get_tensor_name_map(number, 8)
    bad = []
    for t in reader.tensors:
        stem = t.name.rsplit(".", 1)[0]
        parts = ["{bid}" if p.isdigit() else p for p in stem.split(".")]
        if ".".join(parts) not in known:
            bad.append("tensor " + t.name)
    written = {t.name: tuple(reversed([int(d) for d in t.shape])) for t in reader.tensors}
    for k, v in tensors(folder + "/model.safetensors").items():
        ours = names.get_name(k if k.endswith((".weight", ".bias")) else k + ".weight", try_suffixes=(".weight", ".bias"))
        shapes = (v.shape, v.shape[::-1]) if arch == "gpt2" else (v.shape,)
        if ours not in written or written[ours] not in shapes:
            bad.append(f"{k} as {ours}")
    keys = {v.replace("{arch}", arch) for c in vars(gguf.Keys).values() if isinstance(c, type)
            for v in vars(c).values() if isinstance(v, str)}
    bad += ["key " + k for k in reader.fields if not k.startswith("GGUF.") and k not in keys | OURS]
    return bad


def llama_logits(model, ids, vocab, yarn, adapter=None):
    p = llama_cpp.llama_context_default_params()
    p.n_ctx = p.n_batch = p.n_ubatch = max(32, len(ids))
    p.n_threads = p.n_threads_batch = 1
    p.type_k = p.type_v = 0  # float32
    p.flash_attn_type = 0
    if yarn:
        p.yarn_beta_fast, p.yarn_beta_slow = yarn  # llama.cpp takes them from here, not from the file
    context = llama_cpp.llama_init_from_model(model, p)
    if adapter:
        scales = (ctypes.c_float * 1)(1.0)
        assert llama_cpp.llama_set_adapters_lora(context, (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter), 1, scales) == 0
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, t in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(t), i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    out = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(len(ids), vocab)).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return out


def distance(path, place, adapter=None, golden_of=None):
    golden = tensors(os.path.join(place, "golden.safetensors"))
    rope = json.load(open(os.path.join(place, "config.json"))).get("rope_parameters", {})
    yarn = (rope["beta_fast"], rope["beta_slow"]) if rope.get("rope_type") == "yarn" else None
    p = llama_cpp.llama_model_default_params()
    p.n_gpu_layers, p.use_mmap = 0, False
    model = llama_cpp.llama_model_load_from_file(path.encode(), p)
    if not model:
        return math.inf
    ids, mask, want = golden["input_ids"][0], golden["attention_mask"][0], golden["logits"]
    worst, lora = 0.0, None
    if adapter:
        lora = llama_cpp.llama_adapter_lora_init(model, adapter.encode())
        if not lora:
            return math.inf
        want = tensors(os.path.join(golden_of, "golden.safetensors"))["logits"]
    for r in range(len(ids)):
        n = int(mask[r].sum())
        worst = max(worst, float(np.abs(llama_logits(model, ids[r][:n], want.shape[-1], yarn, lora) - want[r][:n]).max()))
    llama_cpp.llama_model_free(model)
    return worst


def logits_of(path, adapter, place):
    golden = tensors(os.path.join(place, "golden.safetensors"))
    p = llama_cpp.llama_model_default_params()
    p.n_gpu_layers, p.use_mmap = 0, False
    model = llama_cpp.llama_model_load_from_file(path.encode(), p)
    lora = llama_cpp.llama_adapter_lora_init(model, adapter.encode()) if adapter else None
    n = int(golden["attention_mask"][0][0].sum())
    out = llama_logits(model, golden["input_ids"][0][0][:n], golden["logits"].shape[-1], None, lora)
    llama_cpp.llama_model_free(model)
    return out


def between(base, adapter, merged, place):
    return float(np.abs(logits_of(base, adapter, place) - logits_of(merged, None, place)).max())


def random_adapter(name, base):
    """LoRA of rank 4 on all matrices of the blocks; Conv1D's are [in, out]."""
    to, rng, named = os.path.join(WORK, name), np.random.default_rng(5), {}
    os.makedirs(to)
    for k, v in tensors(base + "/model.safetensors").items():
        if v.ndim == 2 and ("layers." in k or ".h." in k):
            out, width = v.shape if name != "lora_gpt2" else v.shape[::-1]
            stem = "base_model.model." + k[:-len(".weight")]
            named[stem + ".lora_A.weight"] = (0.2 * rng.standard_normal((4, width))).astype(np.float32)
            named[stem + ".lora_B.weight"] = (0.1 * rng.standard_normal((out, 4))).astype(np.float32)
    write_tensors(to + "/adapter_model.safetensors", named)
    targets = sorted({k.split(".")[-3] for k in named})
    json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": targets,
               "base_model_name_or_path": base}, open(to + "/adapter_config.json", "w"))
    return to


def tokenizer_folder(name, spec):
    """A one-block model with this tokenizer.json."""
    to = os.path.join(WORK, name)
    os.makedirs(to)
    json.dump(spec, open(to + "/tokenizer.json", "w"))
    vocab = 1 + max(max(spec["model"]["vocab"].values()), max(t["id"] for t in spec["added_tokens"]))
    config = {"model_type": "llama", "vocab_size": vocab, "hidden_size": 8, "intermediate_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 1, "tie_word_embeddings": True}
    json.dump(config, open(to + "/config.json", "w"))
    block = "model.layers.0."
    square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
              "mlp.up_proj", "mlp.down_proj"]
    named = {block + k + ".weight": np.zeros((8, 8), np.float32) for k in square}
    for k in (block + "input_layernorm", block + "post_attention_layernorm", "model.norm"):
        named[k + ".weight"] = np.ones(8, np.float32)
    named["model.embed_tokens.weight"] = np.zeros((vocab, 8), np.float32)
    write_tensors(to + "/model.safetensors", named)
    return to


def same_ids(path, rows):
    """For how many of the rows llama.cpp gives the golden ids."""
    p = llama_cpp.llama_model_default_params()
    p.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), p)
    if not model:
        return -1
    vocab, same = llama_cpp.llama_model_get_vocab(model), 0
    for row in rows:
        text = row["text"].encode("utf-8", "surrogatepass")
        ids = (llama_cpp.llama_token * (len(text) + 8))()
        n = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), False, True)
        same += list(ids[:max(n, 0)]) == row["ids"]
    llama_cpp.llama_model_free(model)
    return same


def tokenizers():
    """Name, tokenizer.json, rows, share of them that must agree."""
    for name, share in TOKENIZERS.items():
        lines = open(os.path.join(FIXTURES, name, "encode.jsonl"))
        yield name, json.load(open(os.path.join(FIXTURES, name, "tokenizer.json"))), list(map(json.loads, lines)), share
    for line in open(os.path.join(os.path.dirname(__file__), "fixtures/tok_families/cases.jsonl")):
        case = json.loads(line)
        yield case["name"], case["tokenizer"], case["rows"], FAMILIES.get(case["name"], 0.9)


quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
llama_cpp.llama_backend_init()
failed = False
models = os.path.join(WORK, "models")
cases = [(name, folder_of(name), os.path.join(FIXTURES, name), bound) for name, bound in CASES.items()]
cases += [(name, os.path.join(models, name), os.path.join(models, name), NEAR)
          for name in sorted(os.listdir(models) if os.path.isdir(models) else [])]
for name, folder, place, bound in cases:
    path = os.path.join(WORK, name + ".gguf")
    subprocess.run([BINARY, "convert", folder, path], check=True, capture_output=True)
    bad = check_names(path, folder)
    far = distance(path, place)
    print(f"{name}: llama.cpp {far:.2g} from the golden logits"
          + ("" if bound else ", fixed values differ") + "".join("\n  unknown: " + b for b in bad))
    failed |= bool(bad) or (far > bound if bound else math.isinf(far))
for name, base in ADAPTERS.items():
    model, adapter = os.path.join(WORK, base + ".gguf"), os.path.join(WORK, name + ".gguf")
    place, lora = os.path.join(FIXTURES, base), os.path.join(FIXTURES, name)
    if not os.path.exists(model):
        subprocess.run([BINARY, "convert", place, model], check=True, capture_output=True)
    subprocess.run([BINARY, "convert", lora, adapter], check=True, capture_output=True)
    far, alone = distance(model, place, adapter, lora), distance(model, place)
    print(f"{name}: llama.cpp with our adapter {far:.2g} from PEFT's logits; the base {alone:.2g} from its own")
    failed |= not far < ADAPTED
for name, bound in RANDOM.items():
    place, lora = os.path.join(FIXTURES, name), random_adapter(name.replace("arch", "lora"), os.path.join(FIXTURES, name))
    paths = [os.path.join(WORK, f"{name}.{what}.gguf") for what in ("base", "lora", "merged")]
    for words in (["convert", place, paths[0]], ["convert", lora, paths[1]], ["export", lora, paths[2], "--merge-adapter"]):
        subprocess.run([BINARY] + words, check=True, capture_output=True)
    far, base = between(paths[0], paths[1], paths[2], place), between(paths[0], None, paths[2], place)
    print(f"{name}: a random adapter in llama.cpp {far:.2g} from our merged model, the base {base:.2g}")
    failed |= not far < bound or base < 100 * bound
for i, (name, spec, rows, share) in enumerate(tokenizers()):
    path = os.path.join(WORK, f"tokenizer{i}.gguf")
    done = subprocess.run([BINARY, "convert", tokenizer_folder(f"tokenizer{i}", spec), path], capture_output=True)
    if done.returncode:
        print(f"{name}: {done.stderr.decode().strip()}")
        continue
    same = same_ids(path, rows)
    print(f"{name}: llama.cpp gives the golden ids of {same} of {len(rows)} texts")
    failed |= same < share * len(rows)
raise SystemExit(failed)
