#!/usr/bin/env python3
"""kill_ranks.py [--rounds 100] [--ranks 3] [--seed 1] [--patience 6] [--limit 60]: kills, stops (SIGSTOP) and slows down a
random rank of a training job at random instants. After each: the job ends within the limit (slowed down: it goes on), no
rank is left behind, the same command goes on from the last commit, and whenever a run comes to its end its state hash is
that of a run that nobody disturbed. --training: no strike before the first step is in the log. Exit 0: all of that, with
one line of figures. 77: no mpirun here.

    TIDEMILL=build/bin/tidemill python3 tests/bench/kill_ranks.py --rounds 100
"""
import argparse
import atexit
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import lib

# More ranks than cores, none bound, as root: Open MPI has to be told; MPICH's launcher takes no notice.
MPI_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
           "OMPI_MCA_hwloc_base_binding_policy": "none", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "PRTE_MCA_hwloc_default_binding_policy": "none", "OMP_NUM_THREADS": "1"}


def settings():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=100)
    p.add_argument("--ranks", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--patience", type=float, default=6)
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--limit", type=float, default=60)
    p.add_argument("--training", action="store_true")
    return p.parse_args()


def write_config(steps):
    path = lib.WORK / "ranks.json"
    path.write_text(json.dumps({
        "model": str(lib.model("tiny")), "init": "random", "precision": "bf16", "strategy": "zero3",
        "data": {"train": str(lib.rows(96, 24))}, "max_steps": steps, "commit_steps": 2, "learning_rate": 1e-3,
        "per_device_train_batch_size": 1, "save_steps": 0,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}},
        "memory": {"cache": "none"}}))
    return path


jobs = []  # the one that was started last
hung_launchers = []  # strikes after which mpirun alone was left, and stayed


def end_all(output):
    """However this script ends: a stopped rank, and the launcher that waits for it, would stay for ever."""
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    for pid in ranks_of(output).values():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def start(a, config, output):
    env = dict(os.environ, TIDEMILL_COMM_PATIENCE=str(a.patience), **MPI_ENV)
    log = open(lib.WORK / "last.log", "w")
    job = subprocess.Popen(["mpirun", "-n", str(a.ranks), lib.BINARY, "train", str(config), "--quiet", "--set",
                            f"output_dir={output}"], env=env, stdout=log, stderr=log, start_new_session=True)
    jobs[:] = [job]
    return job


def ranks_of(output):
    """Processes of the job by their rank: nobody else has this output folder among the arguments."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                arguments = f.read().split(b"\0")
            with open(f"/proc/{pid}/environ", "rb") as f:
                environment = f.read().split(b"\0")
        except OSError:
            continue
        if f"output_dir={output}".encode() not in arguments or not arguments[0].endswith(b"tidemill"):
            continue
        for word in environment:
            if word.startswith(b"OMPI_COMM_WORLD_RANK=") or word.startswith(b"PMI_RANK="):
                found[int(word.split(b"=")[1])] = int(pid)
    return found


def fail(text):
    print((lib.WORK / "last.log").read_text()[-3000:], file=sys.stderr)
    sys.exit(f"kill_ranks: FAILED: {text}")


def state_of(pid):
    """What a process is at: R, S, T (stopped), Z, and where in the kernel each of its threads waits."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            state = f.read().rsplit(")", 1)[1].split()[0]
        waits = set()
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/wchan") as f:
                waits.add(f.read())
        return f"{state} {' '.join(sorted(waits))}"
    except OSError:
        return "gone"


def ends(job, output, what, limit):
    began = time.monotonic()
    try:
        job.wait(limit)
    except subprocess.TimeoutExpired:
        left = sorted(ranks_of(output).items())
        if not left:  # Open MPI 4.1 now and then (src/comm/README.md); counted, in the line of figures
            print(f"{what}: the ranks have ended, mpirun has not within {limit} s: killed", file=sys.stderr)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            hung_launchers.append(what)
            return limit
        states = {"launcher": state_of(job.pid), **{f"rank {rank}": state_of(pid) for rank, pid in left}}
        fail(f"{what}: the job did not end within {limit} s; still there: {states}")
    took = time.monotonic() - began
    while ranks_of(output):
        if time.monotonic() - began > took + limit:
            break
        time.sleep(0.1)
    else:
        return took
    fail(f"{what}: ranks {sorted(ranks_of(output))} are left")


def switches(pid):
    """How often the threads of a process were given a core and left it again."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/status") as f:
                count += sum(int(line.split()[1]) for line in f if "ctxt_switches" in line)
        except (ProcessLookupError, FileNotFoundError):  # one that has ended
            pass
    return count


def slow_down(pid, seconds):
    """A quarter of its time, and however busy the machine, enough of it to be heard: slow is not silent."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.15)
            before, patience = switches(pid), time.monotonic() + 5
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)
            while switches(pid) < before + 20 and time.monotonic() < patience:
                time.sleep(0.05)
    except (ProcessLookupError, FileNotFoundError):
        pass


def end_hash(output):
    with open(output / "log.jsonl") as f:
        last = json.loads(f.readlines()[-1])
    return last.get("state_hash") if last.get("event") == "end" else None


def steps_of(output):
    try:
        with open(output / "log.jsonl") as f:
            return [line["step"] for line in map(json.loads, f) if "loss" in line and "event" not in line]
    except (OSError, json.JSONDecodeError):
        return []


def finished(job, output, want):
    if job.returncode != 0:
        fail(f"exit {job.returncode} of a run that nobody disturbed")
    if end_hash(output) != want:
        fail(f"state hash {end_hash(output)}, undisturbed {want}")
    steps = steps_of(output)
    if steps != list(range(1, len(steps) + 1)):
        fail("log.jsonl has not each step once")
    shutil.rmtree(output)


def strike(a, job, output, what, generator):
    """False: the job was over before."""
    found = {}
    while not found and job.poll() is None:
        found = ranks_of(output) if not a.training or steps_of(output) else {}
        time.sleep(0.02)
    time.sleep(generator.uniform(0.0, 1.5))
    found = ranks_of(output)
    if job.poll() is not None or not found:
        return False
    pid = found[generator.choice(sorted(found))]
    try:
        if what == "slow":
            slow_down(pid, generator.uniform(0.5, 2.0))
        else:
            os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


def main():
    a = settings()
    if not shutil.which("mpirun"):
        skip = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "skip.sh")
        os.execvp("sh", ["sh", skip, "train_ranks_struck", "no mpirun"])
    config, output = write_config(a.steps), lib.WORK / "out"
    atexit.register(end_all, output)
    generator = random.Random(a.seed)
    job = start(a, config, output)
    ends(job, output, "the undisturbed run", 900)
    want = end_hash(output) if job.returncode == 0 else fail("the undisturbed run")
    shutil.rmtree(output)
    done, longest, runs, job = {"kill": 0, "stop": 0, "slow": 0}, 0.0, 0, None
    while sum(done.values()) < a.rounds:
        what = ("stop", "slow", "kill")[sum(done.values()) % 3]
        job = job if job and job.poll() is None else start(a, config, output)
        if not strike(a, job, output, what, generator):
            ends(job, output, "its own end", 900)
            finished(job, output, want)
            runs += 1
            continue
        done[what] += 1
        if what == "slow":
            if job.poll() not in (None, 0):
                fail(f"a rank that was slowed down ended the job with {job.returncode}")
            continue
        took = ends(job, output, what, a.limit)
        if job.returncode == 0:
            finished(job, output, want)
            runs += 1
            continue
        longest = max(longest, took)
    while True:
        if not job or job.poll() is not None:
            job = start(a, config, output)
        ends(job, output, "the last run", 900)
        break
    finished(job, output, want)
    print(f"{a.ranks} ranks, seed {a.seed}: {done['kill']} killed, {done['stop']} stopped, {done['slow']} slowed down; "
          f"{runs + 1} runs came to their end with the undisturbed hash; ended within {longest:.1f} s (patience {a.patience:g}); "
          f"{len(hung_launchers)} times mpirun itself did not end")


if __name__ == "__main__":
    main()
