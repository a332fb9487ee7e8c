#!/usr/bin/env python3
"""soak.py [--seconds 3600] [--every 60] [--seed 1]: one long job that meets a fault a minute and ends with the bits of one
that nobody disturbed. Strikes, drawn at random:
    kill, term, int, usr1   SIGKILL at any instant; the signals that ask for a commit
    stop, slow              stopped for some seconds; given a quarter of its time for some seconds
    fault                   ended, and started again with a TIDEMILL_FAULT: a call, allocation or clock reading that fails,
                            falls short, lies or is the last, while it starts, restores, trains and commits
    size, files             no file may grow beyond what the log has now (to it a full disk); no further descriptor
    flip                    a bit of its live state changes in a file
After each the same command goes on. Right is that no committed step is done twice, that a run which ends says why in one
line, that nothing of a dead run stays, and that in each life memory (VmRSS at equal distances of steps) and descriptors
stand still. In the middle third it only meets what a process survives, so that one life is long. What it waits for is
progress, not the clock: the job may itself be held back by whoever needs the machine. At the end as many steps are done
again, in memory and undisturbed: that hash is the one to come to. Exit 0: all of that, with a line of figures.

    TIDEMILL=build/tests/tidemill python3 tests/bench/soak.py    (the test build: TIDEMILL_FAULT has no say in the other)
"""
import argparse
import collections
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time

import lib

lib.SHAPES["soak"] = (64, 176, 4, 4, 2, 4096)
COMMIT, SAVE, WARM, SAMPLE = 20, 400, 60, 20  # steps: between commits, checkpoints; before the first sample, between two
DRIFT = 0.01
PASSING, ERRORS, NOW = ("eintr", "eagain", "short"), ("eio", "enospc"), ("now",)
# Calls by name: kinds, and an index that a life of a minute comes to.
CALLS = {"io_read": (PASSING + ERRORS + ("flip", "misdirect"), 5000), "io_write": (PASSING + ERRORS, 5000),
         "pread": (PASSING + ERRORS, 60), "pwrite": (PASSING + ERRORS, 60), "write": (PASSING + ERRORS, 120),
         "openat": (ERRORS, 80), "fsync": (ERRORS, 10), "fdatasync": (ERRORS, 8), "rename": (ERRORS, 8), "fstat": (ERRORS, 40),
         "alloc": (("fail",), 3000), "clock": (("forward", "back"), 20000), "kill_op": (NOW, 5000),
         "kill_write_back": (NOW, 2000), "kill_before_sync": (NOW, 6), "kill_in_manifest": (NOW, 6),
         "kill_before_rename": (NOW, 6), "kill_after_rename": (NOW, 6), "kill_restore": (NOW, 1)}
ASKS = {"term": signal.SIGTERM, "int": signal.SIGINT, "usr1": signal.SIGUSR1}
HARMLESS = ("stop", "slow")
STRIKES = ("kill", *ASKS, "fault", "fault", "fault", "size", "files", "flip", *HARMLESS)


def last_step(output):
    """Of the log: what was done last; 0: nothing yet."""
    try:
        with open(output / "log.jsonl", "rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 8192))
            lines = f.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return 0
    steps = [json.loads(line)["step"] for line in lines[1:] or lines if b'"loss"' in line and b'"event"' not in line]
    return steps[-1] if steps else 0


class Job:
    """The command, from life to life, and what is noted about it."""

    def __init__(self, seed):
        self.config = lib.config("soak", tokens=512, accumulation=2, steps=1 << 40, commit_steps=COMMIT, save_steps=SAVE,
                                 save_state=True, save_total_limit=2, lr_scheduler_type="constant", memory_slots=2,
                                 memory_cache="none")
        self.output, self.offload = lib.WORK / "out", lib.WORK / "offload"
        self.random, self.process = random.Random(seed), None
        self.counts, self.outcomes = collections.Counter(), collections.Counter()
        self.lives, self.reached, self.readings, self.files = [], 0, [], None

    def fail(self, text):
        said, kept = self.said(), lib.WORK.rename(lib.WORK.parent / f"soak-failed-{os.getpid()}")
        print(f"all is kept in {kept}", file=sys.stderr)
        sys.exit(f"{said[-3000:]}\nsoak: FAILED: {text}")

    def said(self):
        return (lib.WORK / "stderr").read_text(errors="replace")

    def start(self, *more, fault=None):
        env = dict(os.environ, OMP_NUM_THREADS="1", **({"TIDEMILL_FAULT": fault} if fault else {}))
        with open(lib.WORK / "stderr", "w") as errors:
            self.process = subprocess.Popen([lib.BINARY, "train", str(self.config), "--quiet", "--grace", "300", *more],
                                            env=env, stdout=subprocess.DEVNULL, stderr=errors)
        self.awaited = fault
        self.lives.append([])
        self.readings = []

    def over(self):
        return self.process.poll() is not None

    def end(self):
        if not self.over():
            self.process.kill()
            self.process.wait()

    # ---- what it holds

    def held(self):
        """(resident bytes, descriptors) now; nothing of a process that is ending."""
        try:
            descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))
            with open(f"/proc/{self.process.pid}/status") as f:
                resident = [int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS")]
            return (resident[0], descriptors) if resident else None  # memory goes before descriptors do
        except OSError:
            return None

    def sample(self):
        """(step, resident bytes, descriptors), if SAMPLE steps were done since the last one. A file that is being written
        is open for a moment and no leak: counted is what most readings since the last sample, or the warm-up, found."""
        step, life, now = last_step(self.output), self.lives[-1], self.held()
        self.reached = max(self.reached, step)
        if not life:
            life.append((step + WARM, 0, 0))  # its own first steps come after where it began
        if now is None or step < life[0][0]:
            return
        self.readings.append(now[1])
        if step >= life[-1][0] + SAMPLE:
            life.append((step, now[0], statistics.mode(self.readings)))
            self.readings = []

    def follow(self, seconds):
        """Watches for so long, or until it ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.over():
            self.sample()
            time.sleep(0.1)

    def progress(self, steps):
        """Until it has done so many more steps, or ends. Nothing for ten minutes of its own time is a hang."""
        target, idle = last_step(self.output) + steps, 0
        while last_step(self.output) < target and not self.over():
            before = self.reached
            self.follow(1)
            idle = 0 if self.reached > before else idle + 1
            if idle > 600:
                self.fail("no step in ten minutes")

    def await_end(self, what):
        for _ in range(6000):
            if self.over():
                return
            time.sleep(0.1)
        self.fail(f"{what}: it goes on")

    # ---- strikes: what came of it

    def kill(self):
        self.process.kill()
        self.process.wait()
        return "killed"

    def ask(self, number):
        self.process.send_signal(number)
        self.await_end(number)
        if self.awaited and self.process.returncode != 3:  # a fault that had not struck so far
            return self.outcome(1, died=self.awaited.startswith("kill_"))
        if self.process.returncode != 3 or "is committed" not in self.said():
            self.fail(f"exit {self.process.returncode} on {number!r}")
        return "committed"

    def hold(self, slow):
        for _ in range(self.random.randint(5, 40) if slow else 1):
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(0.15 if slow else self.random.uniform(1, 15))
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        self.progress(5)
        return self.outcome(0)

    def fault(self):
        call, mode = self.random.choice(sorted(CALLS)), self.random.choice(("once", "once", "sticky"))
        kinds, most = CALLS[call]
        kind = self.random.choice(kinds)
        spec = f"{call}:{self.random.randint(1, most)}:{kind}:{mode}"
        self.ask(signal.SIGTERM)
        self.start(fault=spec)
        self.progress(60 + 2 * COMMIT)
        print(f"    {spec}: ", end="")
        passes = kind in PASSING and mode == "once" and call in ("io_read", "io_write", "pread", "pwrite", "write")
        return self.outcome(0 if passes else 1, died=call.startswith("kill_"))

    def outcome(self, worst, died=False):
        """It may have ended, with one line that says why; 0: it must not."""
        if not self.over():
            return "went on"
        status, said = self.process.returncode, [l for l in self.said().split("\n") if l.startswith("tidemill: ")]
        if died and status == -signal.SIGKILL:
            return "killed"
        if not worst or status not in (1, 2) or len(said) != 1:
            self.fail(f"exit {status}, {len(said)} errors")
        return "ended: " + said[0][10:150]

    def limit(self, which):
        size = (self.output / "log.jsonl").stat().st_size if which == resource.RLIMIT_FSIZE else 3
        soft, hard = resource.prlimit(self.process.pid, which)
        resource.prlimit(self.process.pid, which, (size, hard))
        self.progress(2 * COMMIT)
        result = self.outcome(1)
        if not self.over():
            resource.prlimit(self.process.pid, which, (soft, hard))
        return result

    def flip(self):
        self.process.send_signal(signal.SIGSTOP)
        file = self.random.choice(sorted(p for p in self.offload.rglob("*") if p.is_file() and p.stat().st_size > 65536))
        at = self.random.randrange(file.stat().st_size)
        with open(file, "r+b") as f:
            f.seek(at)
            byte = f.read(1)[0]
            f.seek(at)
            f.write(bytes([byte ^ 1 << self.random.randrange(8)]))
        self.process.send_signal(signal.SIGCONT)
        self.progress(2 * COMMIT)
        print(f"    {file.name} at {at}: ", end="")
        return self.outcome(1)

    def strike(self, what):
        if what in ASKS:
            return self.ask(ASKS[what])
        if what in HARMLESS:
            return self.hold(what == "slow")
        if what in ("size", "files"):
            return self.limit(resource.RLIMIT_FSIZE if what == "size" else resource.RLIMIT_NOFILE)
        return getattr(self, what)()

    # ---- going on

    def go_on(self):
        """The same command; from a full checkpoint where the committed state itself was damaged."""
        before = last_step(self.output)
        self.start()
        self.progress(2)
        if self.over() and "is not what was written" in self.said():
            saved = max(self.output.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
            self.start("--resume", str(saved))
            self.progress(2)
            self.went_back()
        elif "going back" in self.said():
            self.went_back()
        elif last_step(self.output) < before - COMMIT:
            self.fail(f"step {before} was done, it goes on before {last_step(self.output)}")
        if self.over():
            self.fail(f"exit {self.process.returncode} of a run that nobody disturbs")
        self.no_leftovers()

    def went_back(self):
        """What the run was before stays for whoever wants it, until it is cleaned away."""
        self.outcomes["back to a full checkpoint"] += 1
        subprocess.run([lib.BINARY, "clean", str(self.offload), "--yes", "--all"], check=True, stdout=subprocess.DEVNULL)

    def no_leftovers(self):
        """As many files as after the first commit, whatever died since."""
        now = sum(len(files) for _, _, files in os.walk(self.offload))
        self.files = self.files or now
        if now != self.files:
            self.fail(f"{now} files in the offload folder, there were {self.files}")

    def finish(self):
        """To an end that only now is known; then the same undisturbed, in memory."""
        self.ask(signal.SIGTERM)
        steps = last_step(self.output) + 2 * COMMIT
        end = lib.sets({"max_steps": steps})
        self.start(*end)
        self.await_end("the last life")
        disturbed, left = self.hash(), sum(len(files) for _, _, files in os.walk(self.offload))
        names = sorted(p.name for p in self.output.iterdir() if not p.name.startswith("checkpoint-"))
        print(f"{steps} steps, state {disturbed}; now undisturbed", flush=True)
        self.output = lib.WORK / "reference"
        self.start(*end, *lib.sets({"output_dir": str(self.output), "save_state": False, "save_steps": 0, "commit_steps": 0,
                                    "memory.cache": "auto", "memory.host_budget": "unlimited"}))
        self.process.wait()
        if disturbed != self.hash():
            self.fail(f"state {disturbed}, undisturbed {self.hash()}")
        if left or names != sorted(p.name for p in self.output.iterdir()):
            self.fail(f"{left} files stay in the offload folder; in the output folder: {names}")
        return steps

    def hash(self):
        """Of the finished run, whose log has every step once."""
        if self.process.returncode != 0:
            self.fail(f"exit {self.process.returncode} of the last life")
        lines = [json.loads(line) for line in (self.output / "log.jsonl").read_text().splitlines()]
        steps = [line["step"] for line in lines if "loss" in line and "event" not in line]
        if steps != list(range(1, len(steps) + 1)):
            self.fail("the log has not every step once")
        return lines[-1]["state_hash"]

    @staticmethod
    def settled(life):
        """The samples of a life after its first full checkpoint, which takes pages once that the process keeps; those
        before it where it did not live long enough."""
        first = (life[0][0] // SAVE + 1) * SAVE
        after = [sample for sample in life[1:] if sample[0] > first]
        return after if len(after) > 3 else [sample for sample in life[1:] if sample[0] <= first]

    def drift(self):
        """The most that memory grew in a life, after its warm-up, and between the lives of the first and last quarter;
        the samples. Descriptors may not differ at all."""
        lives = [self.settled(life) for life in self.lives if len(life) > 3]
        lives = [life for life in lives if len(life) > 2]
        held = [statistics.median(rss for _, rss, _ in life) for life in lives]
        if len(lives) < 4:
            self.fail("too few samples")
        quarter = max(1, len(held) // 4)
        across = statistics.median(held[-quarter:]) / statistics.median(held[:quarter]) - 1
        within = max(statistics.mean(r for _, r, _ in life[-2:]) / statistics.mean(r for _, r, _ in life[:2]) - 1
                     for life in lives)
        (lib.WORK.parent / "soak-samples.json").write_text(json.dumps(self.lives))
        descriptors = sorted({fds for life in lives for _, _, fds in life})
        longest = max(lives, key=len)
        print(f"memory {held[0] / 2**20:.2f} MiB; at most {within:+.2%} in a life, {across:+.2%} from the first to the last "
              f"lives; longest life {longest[-1][0] - longest[0][0]} steps; descriptors {descriptors}", flush=True)
        return max(within, across), descriptors


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=3600)
    p.add_argument("--every", type=float, default=60)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    job = Job(a.seed)
    job.start()
    job.progress(COMMIT + 2)
    job.no_leftovers()
    began = time.monotonic()
    while (now := time.monotonic() - began) < a.seconds:
        job.follow(a.every * job.random.uniform(0.7, 1.3))
        calm = a.seconds / 3 <= now < 2 * a.seconds / 3
        what = job.random.choice(HARMLESS if calm else STRIKES)
        step, result = last_step(job.output), job.strike(what)
        print(f"{now:6.0f} s, step {step}: {what}: {result}", flush=True)
        job.counts[what] += 1
        job.outcomes[result.split(":")[0]] += 1
        if what == "fault" and not job.over():
            job.ask(signal.SIGTERM)
        if job.over():
            job.go_on()
    drift, descriptors = job.drift()
    steps = job.finish()
    print(f"seed {a.seed}: {sum(job.counts.values())} strikes {dict(job.counts)}, {dict(job.outcomes)}; {steps} steps, the "
          "undisturbed hash")
    if drift >= DRIFT or len(descriptors) != 1:
        sys.exit("soak: FAILED: memory or descriptors grow")


if __name__ == "__main__":
    main()
