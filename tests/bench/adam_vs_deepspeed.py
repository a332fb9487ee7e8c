"""AdamW in memory: libtidemill_optim against DeepSpeedCPUAdam and torch's fused AdamW, turn about in one process, on the very
same arrays, and against DeepSpeed's sequence of passes for a bf16 run.

    DS_ACCELERATOR=cpu python adam_vs_deepspeed.py [LIBRARY] [PARAMETERS] [ROUNDS]

Needs torch and deepspeed (whose cpu_adam is compiled on the first run, which takes minutes) and build/bin/tidemill for the
plain loops. Targets: fp32 at least 1.25 x both, a whole bf16 update at least 1.6 x DeepSpeed's passes, 0.9 of a plain loop.
"""
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "optim"))

import curve
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build" / "lib" / "libtidemill_optim.so")
N = int(sys.argv[2]) if len(sys.argv) > 2 else 64_000_000
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 9
LR, BETAS, EPS, DECAY = 1e-5, (0.9, 0.95), 1e-8, 0.1
lib = curve.load(LIBRARY)
lib.tm_clip_factor.restype, lib.tm_clip_factor.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
lib.tm_sum_blocks.restype, lib.tm_sum_blocks.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_size_t]
lib.tm_norm_blocks_bf16.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
lib.tm_split_f32.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def huge(n, dtype):
    """A tensor of zeros in huge pages where the kernel has them, as tidemill's slab is; torch's own arrays are not."""
    bytes_ = n * torch.empty(0, dtype=dtype).element_size()
    storage = torch.empty(bytes_ + (2 << 20), dtype=torch.uint8)
    skip = -storage.data_ptr() % (2 << 20)
    ctypes.CDLL(None).madvise(ctypes.c_void_p(storage.data_ptr() + skip), ctypes.c_size_t(bytes_), 14)
    return storage[skip:skip + bytes_].view(dtype).zero_()


class Ours:
    def __init__(self):
        self.row, self.opts = lib.tm_optimizer_find(b"adamw"), curve.Opts()
        lib.tm_optim_defaults(self.row, self.opts)
        for key, value in (("beta1", BETAS[0]), ("beta2", BETAS[1]), ("eps", EPS), ("weight_decay", DECAY)):
            lib.tm_optim_set(self.row, self.opts, key.encode(), value)
        self.constants, self.t = ctypes.create_string_buffer(lib.tm_optim_sizeof(b"tm_optim_step")), 0

    def step(self, span, scale):
        self.t += 1
        lib.tm_optim_step_init(self.constants, self.row, self.opts, LR, self.t, scale)
        if lib.tm_optim_run(self.constants, span):
            sys.exit("a weight is not finite")


def timed(function):
    t0 = time.perf_counter()
    function()
    return time.perf_counter() - t0


def compare(title, contenders):
    """Medians of each, turn about, after one round that warms up; ours is the first."""
    seconds = {name: [] for name, _ in contenders}
    for r in range(ROUNDS + 1):
        for name, function in contenders:
            s = timed(function)
            if r:
                seconds[name].append(s)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    first = contenders[0][0]
    print(f"\n{title}")
    for name, s in medians.items():
        ratio = statistics.median(x / y for x, y in zip(seconds[name], seconds[first]))
        print(f"  {name:<44} {s * 1e3:8.1f} ms  {N / s * 1e-6:8.1f} M parameters/s  {ratio:6.2f} x our time", flush=True)
    return {name: statistics.median(x / y for x, y in zip(seconds[name], seconds[first])) for name in seconds}


def filled(allocate):
    w, m, v, g = (allocate(N, torch.float32) for _ in range(4))
    w.normal_().mul_(0.02)
    g.normal_().mul_(0.01)
    return w, m, v, g


def plain(n, dtype):
    return torch.zeros(n, dtype=dtype)


def fp32(title, allocate):
    w, m, v, g = filled(allocate)
    p = torch.nn.Parameter(w)
    p.grad = g
    deepspeed = DeepSpeedCPUAdam([p], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, adamw_mode=True)
    deepspeed.state[p].update(step=0, exp_avg=m, exp_avg_sq=v)
    fused = torch.optim.AdamW([p], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    fused.state[p].update(step=torch.tensor(0.0), exp_avg=m, exp_avg_sq=v)
    ours = Ours()
    span = curve.Span(weight=w.data_ptr(), grad=g.data_ptr(), n=N)
    span.state[0], span.state[1] = m.data_ptr(), v.data_ptr()
    return compare(title, [("tidemill", lambda: ours.step(span, 1.0)), ("DeepSpeedCPUAdam", deepspeed.step),
                           ("torch AdamW(fused=True)", fused.step)])


def bf16():
    """From the rounded bf16 gradient to new bf16 weights, the norm known in one case of two as in the other: DeepSpeed keeps
    fp32 gradients beside the fp32 master, unscales and clips them in a pass, updates, and copies the master to bf16."""
    w, m, v, g = filled(plain)
    g16 = g.bfloat16()
    weights16 = w.bfloat16()
    p = torch.nn.Parameter(w)
    p.grad = g
    deepspeed = DeepSpeedCPUAdam([p], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, adamw_mode=True)
    deepspeed.state[p].update(step=0, exp_avg=m, exp_avg_sq=v)

    def passes():
        p.grad.copy_(g16)                   # the fp32 gradient that belongs to the master
        p.grad.mul_(0.5)                    # unscale_and_clip_grads
        deepspeed.step()
        weights16.copy_(p.data)

    hi, lo, m2, v2, g2 = (allocate for allocate in (huge(N, torch.uint16), huge(N, torch.uint16), huge(N, torch.float32),
                                                    huge(N, torch.float32), huge(N, torch.bfloat16)))
    lib.tm_split_f32(w.data_ptr(), hi.data_ptr(), lo.data_ptr(), N)
    g2.copy_(g16)
    ours = Ours()
    span = curve.Span(weight_hi=hi.data_ptr(), weight_lo=lo.data_ptr(), grad=g2.data_ptr(), n=N, grad_type=1)
    span.state[0], span.state[1] = m2.data_ptr(), v2.data_ptr()
    return compare("bf16 gradient to bf16 weights: unscale, clip, AdamW, new bf16 weights",
                   [("tidemill, one pass", lambda: ours.step(span, 0.5)), ("DeepSpeed's passes", passes)])


def bench(*arguments):
    binary = os.environ.get("TIDEMILL", ROOT / "build" / "bin" / "tidemill")
    out = subprocess.run([binary, "bench", "adam", "--params", str(N), "--rounds", str(ROUNDS), "--json", *arguments],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    print(f"{N} parameters, {torch.get_num_threads()} threads, row {lib.tm_optim_isa().decode()}, medians of {ROUNDS}")
    missed = []

    def judge(what, value, target):
        print(f"  {what}: {value:.2f} (target {target})" + ("" if value >= target else "   <- missed"))
        if value < target:
            missed.append(what)

    for title, allocate in (("fp32, torch's arrays", plain), ("fp32, the same arrays in huge pages", huge)):
        ratios = fp32(title, allocate)
        judge("over DeepSpeedCPUAdam", ratios["DeepSpeedCPUAdam"], 1.25)
        judge("over torch's fused AdamW", ratios["torch AdamW(fused=True)"], 1.25)
    judge("over DeepSpeed's passes", bf16()["DeepSpeed's passes"], 1.6)
    print()
    for arguments in ([], ["--form", "split"]):
        b = bench(*arguments)
        print(f"{b['form']} weights, {b['gradient']} gradient: {b['bytes_per_second'] * 1e-9:.1f} GB/s, plain loops up to "
              f"{b['plain_bytes_per_second'] * 1e-9:.1f}")
        judge("over the best plain loop", b["ratio"], 0.9)
    sys.exit(1 if missed else 0)


main()
