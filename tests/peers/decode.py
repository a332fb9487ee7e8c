#!/usr/bin/env python3
"""Speed of generation beside llama.cpp's, on the same files, taking turns: tokens a second of one sequence and of 16, seconds to
the first token of a long prompt.

    decode.py TIDEMILL FILE.gguf... [--rounds 3] [--threads 2] [--tokens 64] [--prompt 512]

llama.cpp comes by llama-cpp-python; built for the machine (CMAKE_ARGS=-DGGML_NATIVE=ON), or it is no fair peer. Run it alone
on the machine."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SHORT = 4  # tokens of the prompts whose answers are timed


class Peer:
    """A model and a context of llama.cpp's, by its C functions."""

    def __init__(self, path, a, sequences):
        import ctypes
        import llama_cpp as L

        self.L, self.sequences = L, sequences
        self.quiet = L.llama_log_callback(lambda level, text, user: None)
        L.llama_log_set(self.quiet, ctypes.c_void_p(0))
        m = L.llama_model_default_params()
        m.use_extra_bufts = False  # with AMX in int8 the 0.3.36 wheel ends by a signal
        self.model = L.llama_model_load_from_file(path.encode(), m)
        c = L.llama_context_default_params()
        c.n_ctx = sequences * (SHORT + a.tokens + 8) + a.prompt + 8
        c.n_batch = c.n_ubatch = max(a.prompt, 512)
        c.n_threads = c.n_threads_batch = a.threads
        c.n_seq_max = sequences
        c.kv_unified = True
        self.context = L.llama_init_from_model(self.model, c)
        self.batch = L.llama_batch_init(max(a.prompt, sequences * SHORT), 0, sequences)

    def decode(self, items):
        b = self.batch
        b.n_tokens = len(items)
        for i, (token, position, sequence, logits) in enumerate(items):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, logits
            b.seq_id[i][0] = sequence
        if self.L.llama_decode(self.context, b) != 0:
            sys.exit("llama_decode failed")
        self.L.llama_get_logits_ith(self.context, len(items) - 1)[0]

    def clear(self):
        self.L.llama_memory_clear(self.L.llama_get_memory(self.context), True)

    def first(self, prompt):
        best = None
        for _ in range(2):
            self.clear()
            began = time.perf_counter()
            self.decode([(3 + i * 7 % 200, i, 0, i == prompt - 1) for i in range(prompt)])
            seconds = time.perf_counter() - began
            best = seconds if best is None else min(best, seconds)
        return best

    def rate(self, tokens):
        self.clear()
        for s in range(self.sequences):
            self.decode([(3 + (i * 7 + s * 11) % 200, i, s, i == SHORT - 1) for i in range(SHORT)])
        self.decode([(5 + s, SHORT, s, True) for s in range(self.sequences)])
        began = time.perf_counter()
        for k in range(1, tokens):
            self.decode([(5 + (k * 13 + s) % 200, SHORT + k, s, True) for s in range(self.sequences)])
        return self.sequences * (tokens - 1) / (time.perf_counter() - began)


def peer(path, a, sequences):
    p = Peer(path, a, sequences)
    print(json.dumps({"tokens_per_second": p.rate(a.tokens), "first_token_seconds": p.first(a.prompt)}))


def run(command, a):
    env = dict(os.environ, OMP_NUM_THREADS=str(a.threads))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def turns(path, a, sequences):
    ours, theirs = [], []
    sizes = ["--tokens", str(a.tokens), "--prompt", str(a.prompt)]
    for _ in range(a.rounds):
        ours.append(run([a.tidemill, "bench", "generate", "--model", path, "--json", "--precision", "bf16", "--sequences",
                         str(sequences)] + sizes, a))
        theirs.append(run([sys.executable, __file__, a.tidemill, path, "--peer", str(sequences), "--threads",
                           str(a.threads)] + sizes, a))
    return ours, theirs


def middle(results, key):
    return statistics.median(r[key] for r in results)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tidemill")
    p.add_argument("files", nargs="+")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--peer", type=int, default=0, help="run llama.cpp with so many sequences")
    a = p.parse_args()
    if a.peer:
        peer(a.files[0], a, a.peer)
        return
    print("file sequences | tokens/s llama.cpp ratio | first token s llama.cpp ratio | weights GB/s memory GB/s")
    for path in a.files:
        for n in (1, 16):
            ours, theirs = turns(path, a, n)
            rate, peers = middle(ours, "tokens_per_second"), middle(theirs, "tokens_per_second")
            first, peers_first = middle(ours, "first_token_seconds"), middle(theirs, "first_token_seconds")
            print(f"{os.path.basename(path)} {n} | {rate:.1f} {peers:.1f} {rate / peers:.2f} | {first:.3f} "
                  f"{peers_first:.3f} {first / peers_first:.2f} | "
                  f"{middle(ours, 'weight_bytes_per_second') * 1e-9:.1f} "
                  f"{middle(ours, 'memory_bytes_per_second') * 1e-9:.1f}", flush=True)


main()
