#!/usr/bin/env python3
"""chat.py BINARY TEMPLATES [NAME...]: renders conversations (conversations.py, and ten that are drawn) by transformers and by `tidemill
chat`, for each template of a folder (*.jinja), and compares text, ids and mask. A template with {% generation %} has its mask by transformers; the mask of one
that has a twin NAME_training.jinja is held against that of the twin where both print the same text: ours goes from
the end of the generation prompt to the end-of-turn token, theirs often takes white space beside it as well."""
import json, pathlib, re, subprocess, sys, tempfile

from tokenizers import AddedToken, Tokenizer

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fixtures" / "tok_families"))
import make
from transformers import PreTrainedTokenizerFast
from conversations import CONVERSATIONS, drawn

SPECIAL = re.compile(r"<[|｜][^|｜>\s']{1,40}[|｜]>|<\|?/?(?:start_of_turn|end_of_turn|bos|eos|s|start_of_image)\|?>|"
                     r"\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|gMASK|ARGS|CALL_ID|THINK)\]|<\|?turn\|?>|<turn\|>|</s>|<sop>")
# Where the twin's mask has to be ours; other twins take more or less of the generation prompt.
MASKED = re.compile(r"(qwen2_5|qwen3|qwen3_instruct_2507|gemma|gemma3|phi3|phi3_5|glm4moe|llama3|llama3_1|llama3_2)(_training)?$")
ENDS = [("phi", "<|endoftext|>"), ("gemma", "<eos>"), ("diffusion", "<eos>"), ("llama3", "<|eot_id|>"), ("glm", "<|endoftext|>"), ("mistral", "</s>"),
        ("granite", "<|end_of_text|>"), ("olmo", "<|endoftext|>"), ("deepseek", "<｜end▁of▁sentence｜>"), ("cohere", "<|END_OF_TURN_TOKEN|>"),
        ("command", "<|END_OF_TURN_TOKEN|>"), ("aya", "<|END_OF_TURN_TOKEN|>"), ("zephyr", "</s>"), ("llava", "</s>"), ("pixtral", "</s>"),
        ("gptoss", "<|return|>"), ("llama4", "<|eot|>")]
BEGINS = [("gemma", "<bos>"), ("llama3", "<|begin_of_text|>"), ("mistral", "<s>"), ("pixtral", "<s>")]


def pick(table, name, otherwise):
    return next((token for part, token in table if part in name), otherwise)


# Whose tokenizer a template gets: tests/fixtures/tok_families/make.py.
BASES = [("phi3", "phi-3"), ("gemma", "gemma2, gemma3"), ("mistral", "mistral tekken, ministral"), ("llama3", "llama3, smollm3"), ("glm", "glm4"),
         ("phi", "phi-4-mini, gpt-4o"), ("granite", "granite, smollm2"), ("llava", "llama2, metaspace first")]


def tokenizer_for(name, template, families):
    t = Tokenizer.from_str(families[pick(BASES, name, "qwen2, qwen3")].to_str())
    eos, bos = pick(ENDS, name, "<|im_end|>"), pick(BEGINS, name, "<s>")
    tokens = sorted(set(SPECIAL.findall(template)) | {eos, bos})
    t.add_special_tokens([AddedToken(x, normalized=False, special=True, rstrip="phi3" in name) for x in tokens])
    t.add_tokens([AddedToken(x, normalized=False) for x in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    return PreTrainedTokenizerFast(tokenizer_object=t, bos_token=bos, eos_token=eos)


def theirs(t, template, row, **more):
    kwargs = dict(row.get("chat_template_kwargs", {}), **more)
    try:
        return t.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=template, **kwargs)
    except Exception as e:
        return e


def ours(binary, folder, row, *flags):
    p = subprocess.run([binary, "chat", "--model", folder, *flags], input=json.dumps(row), capture_output=True, text=True)
    return json.loads(p.stdout) if p.returncode == 0 else p.stderr.strip()


def cut_short(t, ids, mine, other):
    """transformers finds the first token of a block's last character; its other tokens are not in the mask there."""
    return len(mine) == len(other) and all(m == o or (m and t.decode(i) == "\ufffd") for i, m, o in zip(ids, mine, other))


def same_but_space(t, ids, mine, other):
    """The masks are equal, but for white space, and an eos_token after the end of the turn, that only the other one has."""
    return len(mine) == len(other) and all(m == o or (o and (i == t.eos_token_id or not t.decode(i).strip())) for i, m, o in zip(ids, mine, other))


def loses_nothing(row, text):
    """Ours does not learn a turn whose calls the template does not print, or whose thoughts it leaves out."""
    if row in CONVERSATIONS:
        return all(c["function"]["name"] in text for m in row["messages"] for c in m.get("tool_calls", []))
    return not any(m.get("tool_calls") or m.get("reasoning_content") or "<think>" in m["content"] for m in row["messages"])


def show(t, ids, mask):
    return "".join(f"⟦{t.decode(i)}⟧" if m else t.decode(i) for i, m in zip(ids, mask))


def compare(binary, path, families, work, count):
    name, template, bad = path.stem, path.read_text(), 0
    t = tokenizer_for(name, template, families)
    folder = work / name
    folder.mkdir()
    t.backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": t.bos_token, "eos_token": t.eos_token}))
    twin = path.with_name(name + "_training.jinja")
    for number, row in enumerate(ROWS):
        def report(what, *values):
            print(f"{name} {number}: {what}", *values, sep="\n    ")
        mine = ours(binary, folder, row)
        text = theirs(t, template, row, tokenize=False)
        prompt, my_prompt = theirs(t, template, row, tokenize=False, add_generation_prompt=True), ours(binary, folder, row, "--generation-prompt")
        if isinstance(text, Exception) or isinstance(mine, str):
            count["refused"] += 1
            if not isinstance(text, Exception) or not isinstance(mine, str):
                bad += 1
                report("one refuses", repr(text)[:300], repr(mine)[:300])
            continue
        count["rendered"] += 1
        ids = t(text, add_special_tokens=False).input_ids
        if text != mine["text"] or ids != mine["ids"] or isinstance(my_prompt, str) or prompt != my_prompt["text"]:
            bad += 1
            report("text, ids or prompt differ", repr(text), repr(mine["text"]))
            continue
        own = re.search(r"\{%-?\s*generation", template) is not None
        marked = template if own else twin.read_text() if twin.exists() and MASKED.match(name) else None
        if marked is None:
            if "-v" in sys.argv:
                report("mask", show(t, ids, mine["loss_mask"]))
            continue
        other = theirs(t, marked, row, return_dict=True, return_assistant_tokens_mask=True)
        if isinstance(other, Exception) or other["input_ids"] != ids:
            count["twin prints otherwise"] += 1
            if "-v" in sys.argv:
                report("mask", show(t, ids, mine["loss_mask"]))
            continue
        mask = other["assistant_masks"]
        if not own and not loses_nothing(row, text):
            count["may lose calls or thoughts"] += 1
            continue
        equal = mask == mine["loss_mask"] or cut_short(t, ids, mine["loss_mask"], mask)
        count["mask equal" if equal else "mask equal but for white space"] += 1
        if not equal and (own or not same_but_space(t, ids, mine["loss_mask"], mask)):
            bad += 1
            report("mask differs", show(t, ids, mask), show(t, ids, mine["loss_mask"]))
    return bad


ROWS = CONVERSATIONS + list(drawn(10, 1, make.PIECES))


def main():
    binary, folder, *names = [a for a in sys.argv[1:] if a != "-v"]
    families = make.families()
    paths = sorted(p for p in pathlib.Path(folder).glob("*.jinja") if not names or p.stem in names)
    count = dict.fromkeys(("rendered", "refused", "mask equal", "mask equal but for white space", "twin prints otherwise", "may lose calls or thoughts"), 0)
    bad = {}
    with tempfile.TemporaryDirectory() as work:
        for p in paths:
            n = compare(binary, p, families, pathlib.Path(work), count)
            if n:
                bad[p.stem] = n
    print(f"chat templates: {len(paths)} templates, {len(ROWS)} conversations; " + ", ".join(f"{v} {k}" for k, v in count.items()) +
          f"; {sum(bad.values())} differ {bad or ''}")
    raise SystemExit(bool(bad))


main()
