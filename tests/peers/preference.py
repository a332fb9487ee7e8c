"""Preference training against TRL's own trainers: preference.py BINARY FIXTURES, in a folder that may be filled.

`steps`: three steps of AdamW in fp32 on the same batches; losses, metrics of the same names, gradient norms and what the weights have
moved by. Rows are ids for us and, for TRL, numbers as text, which its own preparation and a tokenizer of whole words make the same
ids of. TRL takes means over a micro-batch, and KTO's KL over the rows of one: its step is one micro-batch here, ours one and several.
Not compared: label_smoothing of DPO's sigmoid, which this TRL passes over.
`adapter`: the same of a LoRA that TRL holds against its base, as it does where it makes the adapter itself; of one that it is given it
keeps a copy as the reference. `text`: what TRL's preparation makes of text and conversations, as the log-probability that a random
model gives each row; a row of other ids or labels has another. A long row loses the beginning of its prompt (keep_end). CPOTrainer and
ORPOTrainer have a preparation of their own (BOS before, EOS after a conversation), whose rows of ids alone are compared."""
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import warnings

BINARY, FIXTURES = sys.argv[1:]
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import datasets
import torch
import transformers
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

logging.disable(logging.WARNING)
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()
STEPS, BATCH = 3, 4
# Both sides compute in fp32 and add in another order: some 1e-6 of a value. Rewards and KL are differences of log-probabilities, so they are
# held against their size. AdamW moves a weight by g / (|g| + epsilon), so that noise in a gradient near 0 would count whole: epsilon is
# above that noise (1e-8), and what is compared is the length of all movements.
RATE, EPSILON = 1e-3, 1e-6
CLOSE = {"loss": 5e-6, "metric": 1e-5, "grad_norm": 5e-6, "moved": 1e-4}
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies", "logps/chosen", "logps/rejected", "kl", "nll_loss"]
bad = 0


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def recorded(trainer):
    """The trainer, which takes rows in order and keeps its losses and what it logs."""

    class Recorded(trainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            self.losses = getattr(self, "losses", []) + [float(loss)]
            return loss

        def log(self, logs, start_time=None):
            super().log(logs, start_time)
            self.logged = getattr(self, "logged", []) + [logs]

        def train(self):
            self.remove_callback(transformers.PrinterCallback)
            super().train()

    return Recorded


def args_of(config, batch=BATCH, **more):
    return config(output_dir="trl", use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", save_strategy="no",
                  disable_tqdm=True, logging_steps=1, max_steps=STEPS, per_device_train_batch_size=batch, learning_rate=RATE, adam_epsilon=EPSILON,
                  weight_decay=0.0, max_grad_norm=1.0, lr_scheduler_type="constant", **more)


def run(config, out):
    config = {"learning_rate": RATE, "adam_epsilon": EPSILON, "adam_beta2": 0.999, "max_grad_norm": 1.0, "precision": "fp32",
              "save_dtype": "fp32", "lr_scheduler_type": "constant", "weight_decay": 0, "logging_steps": 1, "memory": {"cache": "none"},
              "output_dir": out} | config
    shutil.rmtree(out, ignore_errors=True)
    json.dump(config, open("config.json", "w"))
    done = subprocess.run([BINARY, "train", "config.json", "--quiet"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{config}: {done.stderr}")
    return [line for line in map(json.loads, open(f"{out}/log.jsonl")) if "event" not in line and "loss" in line]


def compare(name, ours, trainer, after, before, theirs_after):
    """Of all steps the largest distances, each in parts of what it is held against; the worst of all metrics is named."""
    global bad
    far = {"loss": 0.0, "metric": 0.0, "grad_norm": 0.0}
    worst, seen = "", set()
    theirs = [line for line in trainer.logged if "grad_norm" in line]
    for a, b, loss in zip(ours, theirs, trainer.losses, strict=True):
        far["loss"] = max(far["loss"], abs(a["loss"] - loss) / max(1, abs(loss)))
        far["grad_norm"] = max(far["grad_norm"], abs(a["grad_norm"] - b["grad_norm"]) / b["grad_norm"])
        for key in METRICS:
            if (key in a) != (key in b) and key != "nll_loss":  # TRL has it of DPO nowhere, and 0 of CPO without it
                bad = 1
                print(f"{name}: {key} is logged by one only")
            if key in a and key in b:
                seen.add(key)
                size = max(1, abs(b[key]), abs(b.get("logps/chosen", 0)) if key != "nll_loss" else 0)
                far_now = abs(a[key] - b[key]) / size
                if far_now >= far["metric"]:
                    far["metric"], worst = far_now, key
    length = sum(float(((theirs_after[k] - before[k]) ** 2).sum()) for k in before) ** 0.5
    far["moved"] = sum(float(((after[k] - theirs_after[k]) ** 2).sum()) for k in before) ** 0.5 / length
    most = max(float((after[k] - theirs_after[k]).abs().max()) for k in before)
    wrong = [k for k, v in far.items() if not v <= CLOSE[k]]
    print(f"{name}: loss {trainer.losses[0]:.6f} .. {trainer.losses[-1]:.6f}, {far['loss']:.1g} off; {len(seen)} metrics {far['metric']:.1g} "
          f"({worst}); norm {theirs[0]['grad_norm']:.4f}, {far['grad_norm']:.1g}; movement {far['moved']:.1g}, a weight by {most:.1g}"
          f"{'  WRONG: ' + ', '.join(wrong) if wrong else ''}")
    bad |= bool(wrong)


# ---- rows of ids ---------------------------------------------------------------------------------------------------


def whole_words(vocab):
    """The text "12 7" is the ids 12 and 7. Id 0 is no word: PyTorch would not let what reads it learn."""
    t = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "<eos>": 2} | {str(i): i for i in range(3, vocab)}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<pad>")


def draw_pairs(n):
    draw = random.Random(5)
    words = lambda least, most: " ".join(str(draw.randrange(3, 256)) for _ in range(draw.randint(least, most)))
    return [{"prompt": words(2, 9), "chosen": " " + words(1, 12), "rejected": " " + words(1, 12)} for _ in range(n)]


def padded(prefix, rows):
    """Rows as (prompt, completion) -> the tensors of our token files."""
    longest = max(len(p) + len(c) for p, c in rows)
    fill = lambda values, pad: torch.tensor([v + [pad] * (longest - len(v)) for v in values])
    return {prefix + "input_ids": fill([p + c for p, c in rows], 0), prefix + "labels": fill([[-100] * len(p) + c for p, c in rows], -100),
            prefix + "attention_mask": fill([[1] * (len(p) + len(c)) for p, c in rows], 0)}


def write_pairs(rows, path):
    """Of what TRL has prepared."""
    sides = {}
    for side in ("chosen", "rejected"):
        if side + "_ids" in rows[0]:
            parts = [(r["prompt_ids"], r[side + "_ids"]) for r in rows]
        else:
            border = [r[side + "_labels"].count(-100) for r in rows]
            parts = [(r[side + "_input_ids"][:n], r[side + "_input_ids"][n:]) for r, n in zip(rows, border)]
        sides |= padded(side + "_", parts)
    save_file(sides, path)


def write_labelled(rows, path):
    tensors = padded("", [(r["prompt_ids"], r["completion_ids"]) for r in rows])
    tensors |= padded("kl_", [(r["prompt_ids"], r["KL_completion_ids"]) for r in rows])
    save_file(tensors | {"desirable": torch.tensor([int(r["label"]) for r in rows])}, path)


def labelled_of(pairs):
    return [{"prompt": p["prompt"], "completion": p["chosen" if i % 3 else "rejected"], "label": bool(i % 3)} for i, p in enumerate(pairs)]


REFERENCE = ("dpo", "kto")
TRAINERS = {"dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig), "cpo": (CPOTrainer, CPOConfig), "simpo": (CPOTrainer, CPOConfig),
            "orpo": (ORPOTrainer, ORPOConfig)}
# What is minimised; our keys; TRL's. A step of ours as micro-batches.
CASES = [
    ("cpo", dict(), dict(), (1, 4)),
    ("cpo", dict(cpo_alpha=0), dict(cpo_alpha=0.0), (1,)),
    ("cpo", dict(cpo_alpha=0.5, beta=0.3, label_smoothing=0.1), dict(cpo_alpha=0.5, beta=0.3, label_smoothing=0.1), (1, 2)),
    ("simpo", dict(), dict(loss_type="simpo", beta=2.0, simpo_gamma=1.0, cpo_alpha=0.0), (1,)),
    ("simpo", dict(cpo_alpha=0.5, beta=2.5, simpo_gamma=1.4, label_smoothing=0.2),
     dict(loss_type="simpo", cpo_alpha=0.5, beta=2.5, simpo_gamma=1.4, label_smoothing=0.2), (1, 4)),
    ("orpo", dict(), dict(), (1, 4)),
    ("orpo", dict(beta=0.5), dict(beta=0.5), (1,)),
    ("dpo", dict(), dict(), (1, 4)),
    ("dpo", dict(loss_type="ipo", beta=0.2), dict(loss_type="ipo", beta=0.2), (1,)),
    ("dpo", dict(loss_type="hinge", beta=0.5), dict(loss_type="hinge", beta=0.5), (1,)),
    ("dpo", dict(loss_type="robust", label_smoothing=0.1), dict(loss_type="robust", label_smoothing=0.1), (1,)),
    ("dpo", dict(loss_type="apo_zero"), dict(loss_type="apo_zero"), (1,)),
    ("dpo", dict(loss_type="sigmoid_norm", beta=1.5), dict(loss_type="sigmoid_norm", beta=1.5), (1,)),
    ("dpo", dict(rpo_alpha=0.7), dict(loss_type=["sigmoid", "sft"], loss_weights=[1.0, 0.7]), (1, 2)),
    ("kto", dict(), dict(), (1, 2, 4)),
    ("kto", dict(beta=0.3, desirable_weight=1.5, undesirable_weight=0.8), dict(beta=0.3, desirable_weight=1.5, undesirable_weight=0.8), (1,)),
]


def steps():
    policy, reference = FIXTURES + "/pref_policy", FIXTURES + "/pref_reference"
    before = {k: v for k, v in load(policy).state_dict().items() if k != "lm_head.weight"}
    pairs = draw_pairs(STEPS * BATCH)
    for kind, keys, theirs, divisions in CASES:
        trainer, config = TRAINERS[kind]
        more = {"ref_model": load(reference)} if kind in REFERENCE else {}
        trainer = recorded(trainer)(load(policy), args=args_of(config, **theirs), processing_class=whole_words(256), **more,
                                    train_dataset=datasets.Dataset.from_list(labelled_of(pairs) if kind == "kto" else pairs))
        prepared = list(trainer.train_dataset)
        (write_labelled if kind == "kto" else write_pairs)(prepared, "rows.safetensors")
        trainer.train()
        objective = {"type": kind, **keys, **({"reference": reference} if more else {})}
        for micro_batches in divisions:
            ours = run({"model": policy, "data": {"train": "rows.safetensors", "seq_len": 64}, "objective": objective, "max_steps": STEPS,
                        "per_device_train_batch_size": BATCH // micro_batches, "gradient_accumulation_steps": micro_batches}, "ours")
            words = ", ".join([kind] + [f"{k} {v}" for k, v in keys.items()] + [f"{micro_batches} micro-batches"] * (micro_batches > 1))
            compare(words, ours, trainer, load_file("ours/model.safetensors"), before, trainer.model.state_dict())


def adapter():
    """TRL makes the adapter, which is then shifted: with B at 0, reference and policy would be the same at first."""
    policy, pairs = FIXTURES + "/pref_policy", draw_pairs(STEPS * BATCH)
    for kind, rows in ("dpo", pairs), ("kto", labelled_of(pairs)):
        trainer, config = TRAINERS[kind]
        trainer = recorded(trainer)(load(policy), args=args_of(config), processing_class=whole_words(256),
                                    train_dataset=datasets.Dataset.from_list(rows),
                                    peft_config=LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"))
        torch.manual_seed(3)
        with torch.no_grad():
            for p in trainer.model.parameters():
                if p.requires_grad:
                    p.add_(torch.randn_like(p) * 0.05)
        trainer.model.save_pretrained("adapter")
        before = load_file("adapter/adapter_model.safetensors")
        (write_labelled if kind == "kto" else write_pairs)(list(trainer.train_dataset), "rows.safetensors")
        trainer.train()
        trainer.model.save_pretrained("adapter-after")
        ours = run({"model": policy, "adapter": {"path": "adapter"}, "data": {"train": "rows.safetensors", "seq_len": 64},
                    "objective": {"type": kind}, "max_steps": STEPS, "per_device_train_batch_size": BATCH}, "ours")
        compare(f"{kind}, LoRA held against its base", ours, trainer, load_file("ours/adapter_model.safetensors"), before,
                load_file("adapter-after/adapter_model.safetensors"))


# ---- text and conversations ----------------------------------------------------------------------------------------


def ask(*turns):
    return [{"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(turns)]


def answer(text):
    return [{"role": "assistant", "content": text}]


FORMS = {
    "text": [
        {"prompt": "What is 2 + 2?", "chosen": " It is 4.", "rejected": " It is 5, or 22, or whatever you like."},
        {"prompt": "hel", "chosen": "lo there", "rejected": "icopter"},
        {"prompt": "The tide comes in twice a day, and ", "chosen": "the mill turns", "rejected": "  then  it\n goes"},
        {"prompt": "\u00fcber \u2603 \U0001F30A", "chosen": "\u0301 e\u0301", "rejected": "\u00e9 \U0001F30A\u200d"},
        {"prompt": "2024 was a leap year, 2023", "chosen": " was not", "rejected": "45 was one too, so they say"},
    ],
    "text without a prompt": [
        {"chosen": "Human: hi\n\nAssistant: good morning", "rejected": "Human: hi\n\nAssistant: good evening to all of you"},
        {"chosen": "a sea of tea", "rejected": "a sea of salt"},
        {"chosen": "once upon a time there was a mill", "rejected": "once upon a time there was none"},
    ],
    "messages": [
        {"prompt": ask("Hi"), "chosen": answer("Hello!"), "rejected": answer("What do you want from me at this hour?")},
        {"prompt": ask("1+1", "2", "2+2"), "chosen": answer("4"), "rejected": answer(" four, I think\n")},
        {"prompt": [{"role": "system", "content": "Be brief."}] + ask("caf\u00e9 \u2603"), "chosen": answer("na\u00efve \U0001F30A"),
         "rejected": answer("\t tabs")},
    ],
    "messages without a prompt": [
        {"chosen": ask("Who?", "Me.", "Why?", "So."), "rejected": ask("Who?", "Me.", "Why?", "Because of all that.")},
        {"chosen": ask("Who?", "Me."), "rejected": ask("Who?", "You.")},
    ],
}
LABELLED = [
    {"prompt": p, "completion": c, "label": i % 3 != 1}
    for i, (p, c) in enumerate([("hel", "lo there"), ("What is 2 + 2?", " It is 5."), ("Tides", " come and go"), ("A mill", " is a machine"),
                                ("Say ", "nothing"), ("Name a sea.", " The North Sea"), ("hel", "icopter"), ("10, 9, 8", ", 7, 6"),
                                ("Who?", " Me."), ("Why?", " So."), ("caf\u00e9", " na\u00efve"), ("x =", " [i**2 for i in y]")])
]


def make_model(folder, tokenizer):
    """Its config.json names another end of text than its tokenizer, whose is meant."""
    torch.manual_seed(11)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         vocab_size=len(tokenizer), max_position_embeddings=256, initializer_range=0.2, eos_token_id=1)
    AutoModelForCausalLM.from_config(config).save_pretrained("model-" + folder)
    for name in os.listdir(f"{FIXTURES}/{folder}"):
        if "token" in name or "template" in name:
            shutil.copy(f"{FIXTURES}/{folder}/{name}", "model-" + folder)
    return "model-" + folder


def write_lines(lines, path):
    with open(path, "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def log_probability(model, ids, prompt):
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)[range(len(ids) - 1), ids[1:]][max(prompt, 1) - 1 :].sum())


def rows_of(trainer, line):
    """What TRL's collator makes of a line, chosen and rejected, as (prompt, completion). It cuts each row by itself; where the shorter
    completion leaves more of the prompt, this is cut, since a pair compares two answers to the same."""
    batch = trainer.data_collator([line])
    rows = []
    for ids, mask, completion in zip(*(batch[k].tolist() for k in ("input_ids", "attention_mask", "completion_mask"))):
        n, border = sum(mask), completion.index(1)
        rows.append((ids[:border], ids[border:n]))
    kept = min(len(p) for p, _ in rows)
    return [(p[len(p) - kept :], c) for p, c in rows]


def text():
    global bad
    for folder in ("chat_chatml", "chat_llama3", "chat_qwen", "chat_zephyr"):
        tokenizer = AutoTokenizer.from_pretrained(f"{FIXTURES}/{folder}")
        model = make_model(folder, tokenizer)
        network = load(model)
        for form, lines in FORMS.items():
            write_lines(lines, "lines.jsonl")
            seq_len, cut, far, tokens = None, 0, 0.0, 0
            for _ in range(2):
                args = args_of(DPOConfig, max_length=seq_len, truncation_mode="keep_end")
                trainer = recorded(DPOTrainer)(load(model), args=args, processing_class=tokenizer,
                                               train_dataset=datasets.Dataset.from_list(lines))
                ours = run({"model": model, "data": {"train": "lines.jsonl", "seq_len": seq_len or 256, "shuffle": False},
                            "objective": {"type": "cpo", "cpo_alpha": 0}, "per_device_train_batch_size": 1, "max_steps": len(lines),
                            "learning_rate": 0.0}, "ours")
                for step, line in zip(ours, trainer.train_dataset, strict=True):
                    whole = len(line["prompt_ids"]) + max(len(line["chosen_ids"]), len(line["rejected_ids"]))
                    cut += seq_len is not None and whole > seq_len
                    for side, (prompt, completion) in zip(("chosen", "rejected"), rows_of(trainer, line), strict=True):
                        want = log_probability(network, prompt + completion, len(prompt))
                        tokens += len(prompt + completion)
                        far = max(far, abs(step["logps/" + side] - want) / max(1, abs(want)))
                # the shortest rows that every completion fits in, with a token of its prompt
                seq_len = max(len(line[side]) for line in trainer.train_dataset for side in ("chosen_ids", "rejected_ids")) + 1
            print(f"{folder}, {form}: {len(lines)} pairs, whole and cut to {seq_len} ({cut} are), {tokens} tokens: log-probabilities {far:.1g} off")
            bad |= not far <= 1e-5
        talked = [{"prompt": ask(r["prompt"]), "completion": answer(r["completion"]), "label": r["label"]} for r in LABELLED]
        for form, lines in ("text", LABELLED), ("messages", talked):
            trainer = recorded(KTOTrainer)(load(model), args=args_of(KTOConfig), processing_class=tokenizer,
                                           train_dataset=datasets.Dataset.from_list(lines))
            before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
            trainer.train()
            write_lines(lines, "lines.jsonl")
            ours = run({"model": model, "data": {"train": "lines.jsonl", "seq_len": 256, "shuffle": False}, "objective": {"type": "kto"},
                        "per_device_train_batch_size": 2, "gradient_accumulation_steps": BATCH // 2, "max_steps": STEPS}, "ours")
            compare(f"{folder}, kto of {form}, 2 micro-batches", ours, trainer, load_file("ours/model.safetensors"), before,
                    trainer.model.state_dict())


if __name__ == "__main__":
    steps()
    adapter()
    text()
    raise SystemExit(bad)
