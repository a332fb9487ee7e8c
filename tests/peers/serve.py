#!/usr/bin/env python3
"""serve.py BINARY MODEL [NAME=ADAPTER]: `tidemill serve` beside OpenAI's Python client, and lm-evaluation-harness where it
is installed (local-completions on a task file made here, beside the log-likelihoods of `probe`).

MODEL has a tokenizer and a chat template. What a greedy answer has to be, `generate` says."""
import concurrent.futures, importlib.util, json, os, pathlib, re, signal, subprocess, sys, tempfile

import httpx, openai

CLIENTS = 64
QUESTION = [{"role": "user", "content": "What is a tide mill?"}]


class Server:
    def __init__(self, binary, *arguments):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([binary, "serve", "--port", "0", *arguments], stderr=self.log)
        while not (m := re.search(r"http://127\.0\.0\.1:(\d+)", self.text())):
            assert self.process.poll() is None, self.text()
            try:
                self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
        self.url = f"http://127.0.0.1:{m[1]}"

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def client(self, **more):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="none", timeout=600, **more)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        assert status == 0, (status, self.text())


def generated(binary, model, *more):
    """The greedy answer to QUESTION, as the command gives it."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump({"messages": QUESTION}, f)
        f.flush()
        out = subprocess.run([binary, "generate", "--model", model, "--messages", f.name, "--json", *more], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def check_chat(binary, model, c):
    want = generated(binary, model, "--max-new-tokens", "24")
    ask = dict(model=c.models.list().data[0].id, messages=QUESTION, temperature=0, max_tokens=24)
    whole = c.chat.completions.create(**ask)
    assert whole.choices[0].message.content == want["text"], (whole, want)
    assert whole.usage.prompt_tokens == len(want["prompt_ids"]) and whole.usage.completion_tokens == len(want["ids"])
    pieces = list(c.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == want["text"]
    assert pieces[-1].usage == whole.usage and pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    stop = want["text"].split()[3]
    cut = c.chat.completions.create(**ask, stop=[stop, "never"])
    assert cut.choices[0].message.content == want["text"].split(stop)[0] and cut.choices[0].finish_reason == "stop"
    return want


def check_logprobs(c, model, want):
    ask = dict(model=model, messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=5)
    tokens = c.chat.completions.create(**ask).choices[0].logprobs.content
    assert len(tokens) == 8 and all(len(t.top_logprobs) == 5 and t.logprob == t.top_logprobs[0].logprob for t in tokens)
    assert want["text"].startswith(b"".join(bytes(t.bytes) for t in tokens).decode())
    streamed = [t for p in c.chat.completions.create(**ask, stream=True) for t in (p.choices[0].logprobs.content if p.choices[0].logprobs else [])]
    assert streamed == tokens
    text = c.completions.create(model=model, prompt=[want["prompt_ids"], want["prompt_ids"][:5]], max_tokens=1, temperature=0, logprobs=1, echo=True)
    for choice, n in zip(text.choices, (len(want["prompt_ids"]), 5), strict=True):
        lists = choice.logprobs
        assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset) == n + 1
        assert lists.token_logprobs[0] is None and lists.text_offset == sorted(lists.text_offset)


def check_sampling(c, model):
    ask = dict(model=model, prompt="The tide", max_tokens=12, temperature=1, n=4)
    a, b = (c.completions.create(**ask, seed=7) for _ in range(2))
    assert [x.text for x in a.choices] == [x.text for x in b.choices] and len({x.text for x in a.choices}) > 1
    one = c.completions.create(**{**ask, "n": 1}, seed=8)
    assert one.choices[0].text == a.choices[1].text  # answer i draws with seed + i
    narrow = c.completions.create(**{**ask, "n": 1}, extra_body={"top_k": 1, "ignore_eos": True})
    greedy = c.completions.create(**{**ask, "n": 1, "temperature": 0}, extra_body={"ignore_eos": True})
    assert narrow.choices[0].text == greedy.choices[0].text


def check_errors(c, model):
    def refused(kind, **ask):
        try:
            c.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 2, **ask})
        except kind as e:
            return e.body
        raise AssertionError(ask)
    assert refused(openai.NotFoundError, model="none")["code"] == "model_not_found"
    assert refused(openai.BadRequestError, temperature=9)["param"] == "temperature"
    assert refused(openai.BadRequestError, extra_body={"guided_json": {}})["code"] == "unknown_parameter"
    assert refused(openai.BadRequestError, max_tokens=10**6)["code"] == "context_length_exceeded"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert refused(openai.BadRequestError, tools=tools)["param"] == "tools"


def check_many(server, model):
    """Streams and bodies side by side; some go away in the middle. Greedy answers do not depend on the others."""
    def one(i):
        c = server.client(max_retries=20)
        ask = dict(model=model, messages=[{"role": "user", "content": f"Count from {i % 4}."}], temperature=0, max_tokens=6)
        if i % 8 == 7:
            with c.chat.completions.create(**{**ask, "max_tokens": 200}, stream=True) as s:
                next(iter(s))
            return i % 4, None
        if i % 2:
            return i % 4, "".join(p.choices[0].delta.content or "" for p in c.chat.completions.create(**ask, stream=True))
        return i % 4, c.chat.completions.create(**ask).choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = [a for a in pool.map(one, range(CLIENTS)) if a[1] is not None]
    assert len(answers) == CLIENTS - CLIENTS // 8 and len(set(answers)) == 4, set(answers)


def check_adapter(binary, model, server, adapter):
    name, folder = adapter.split("=", 1)
    c = server.client()
    assert [m.id for m in c.models.list().data][1] == name
    want = generated(binary, model, "--max-new-tokens", "16", "--adapter", folder)
    got = c.chat.completions.create(model=name, messages=QUESTION, temperature=0, max_tokens=16)
    assert got.choices[0].message.content == want["text"], (got, want)


def task(folder):
    """Sums with three answers each, as a task of the harness."""
    rows = []
    for i in range(24):
        a, b = i % 7 + 1, i * 5 % 9 + 1
        answers = [a + b, a + b + 1, a * b + 3]
        gold = i % 3
        answers[0], answers[gold] = answers[gold], answers[0]
        rows.append({"question": f"Question: What is {a} plus {b}?\nAnswer:", "choices": [f" {x}" for x in answers], "gold": gold})
    pathlib.Path(folder, "sums.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    pathlib.Path(folder, "sums.yaml").write_text(f"""task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/sums.jsonl}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
""")


def harness(folder, name, kind, arguments):
    """The harness's scores, and the log-likelihood of each choice."""
    out = pathlib.Path(folder, name)
    run = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", arguments, "--tasks", "sums", "--include_path", folder,
                          "--output_path", out, "--log_samples", "--device", "cpu"], capture_output=True, text=True, env={**os.environ, "HF_DATASETS_OFFLINE": "1"})
    assert run.returncode == 0, run.stderr[-2000:]
    scores = json.loads(next(out.rglob("results_*.json")).read_text())["results"]["sums"]
    rows = [json.loads(line) for line in next(out.rglob("samples_*.jsonl")).read_text().splitlines()]
    return (scores["acc,none"], scores["acc_norm,none"]), {r["doc_id"]: [float(x[0]) for x in r["filtered_resps"]] for r in rows}


def check_harness(model, server):
    """Through the server, and in PyTorch."""
    with tempfile.TemporaryDirectory() as folder:
        task(folder)
        name = server.client().models.list().data[0].id
        ours = harness(folder, "ours", "local-completions",
                       f"model={name},base_url={server.url}/v1/completions,tokenizer={os.path.abspath(model)},num_concurrent=8,max_length=511")
        theirs = harness(folder, "theirs", "hf", f"pretrained={os.path.abspath(model)},dtype=float32")
    worst = max(abs(a - b) for i, row in ours[1].items() for a, b in zip(row, theirs[1][i], strict=True))
    assert ours[0] == theirs[0] and worst < 1e-3, (ours[0], theirs[0], worst)
    print(f"serve: lm-evaluation-harness: acc {ours[0][0]:.4f}, acc_norm {ours[0][1]:.4f}, in transformers the same; log-likelihoods within {worst:.2g}")


def main():
    binary, model, *adapters = sys.argv[1:]
    server = Server(binary, "--model", model, "--sequences", "16", "--positions", "512", "--precision", "fp32", *(x for a in adapters for x in ("--adapter", a)))
    c = server.client()
    name = c.models.list().data[0].id
    want = check_chat(binary, model, c)
    check_logprobs(c, name, want)
    check_sampling(c, name)
    check_errors(c, name)
    check_many(server, name)
    for a in adapters:
        check_adapter(binary, model, server, a)
    if importlib.util.find_spec("lm_eval") and importlib.util.find_spec("torch"):
        check_harness(model, server)
    else:
        print("serve: SKIP lm-evaluation-harness: lm_eval and torch are not installed", file=sys.stderr)
    assert httpx.get(server.url + "/health").json()["status"] == "ok"
    server.stop()
    print(f"serve: OpenAI's client {openai.__version__} has generate's answers: chat, stream, stop, logprobs, n, seed, errors, {CLIENTS} clients"
          + (", an adapter" if adapters else ""))


if __name__ == "__main__":
    main()
