#!/bin/sh
# One job, started again and again by several at once, killed, supervised and cleaned beside: no model is lost and no
# hand is needed.
#
#     tests/torture_starts.sh [--build DIR] [--starts N] [--kills N] [--seed S]
#
#   starts  N starts of one job (200) by threes and fours together, a third of them killed at a random instant, `clean
#           --yes` in a loop beside; then one more start, which has to come to the known bits
#   kills   `until tidemill train c.json; do :; done` over N kills (50), with the same loop beside; whenever the job is
#           done it begins anew
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$here/../build starts=200 kills=50 seed=1
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2 ;;
    --starts) starts=$2 ;;
    --kills) kills=$2 ;;
    --seed) seed=$2 ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | sed '$d' >&2 && exit 2 ;;
    esac
    shift 2
done
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTHONDONTWRITEBYTECODE=1 exec python3 - "$build/bin/tidemill" "$here/fixtures/arch_llama" "$starts" "$kills" "$seed" <<'PY'
import json, pathlib, random, shutil, struct, subprocess, sys, tempfile, threading, time

program, model, starts, kills, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
draw = random.Random(seed)
work = pathlib.Path(tempfile.mkdtemp(prefix="tidemill-starts-"))
offload, out = work / "offload", work / "out"
offload.mkdir()
rows, length = 8, 32
ids = struct.pack(f"<{rows * length}i", *(draw.randrange(1, 64) for _ in range(rows * length)))
head = json.dumps({k: {"dtype": "I32", "shape": [rows, length], "data_offsets": [i * len(ids), (i + 1) * len(ids)]}
                   for i, k in enumerate(("input_ids", "labels"))}).encode()
head += b" " * (-len(head) % 8)
(work / "rows.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + ids + ids)
nvme = {"device": "nvme", "nvme_path": str(offload)}
(work / "c.json").write_text(json.dumps({
    "model": model, "init": "random", "data": {"train": str(work / "rows.safetensors"), "seq_len": length}, "output_dir": str(out),
    "max_steps": 60, "commit_steps": 3, "save_steps": 20, "learning_rate": 1e-3, "gradient_accumulation_steps": 2,
    "memory": {"cache": "none"}, "zero_optimization": {"offload_param": nvme, "offload_optimizer": nvme}}))


def begin(*more):
    return subprocess.Popen([program, "train", str(work / "c.json"), "--quiet", *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def state_hash():
    last = (out / "log.jsonl").read_text().splitlines()[-1]
    return json.loads(last)["state_hash"]


began = time.time()
job = begin()
if job.wait() != 0:
    sys.exit(f"the job does not run: {job.stderr.read().decode()}")
want, whole = state_hash(), time.time() - began
cleaned, over = 0, threading.Event()


def clean_beside():
    global cleaned
    while not over.is_set():
        done = subprocess.run([program, "clean", str(offload), "--yes"], capture_output=True)
        if done.returncode:
            print(f"clean: exit {done.returncode}: {done.stderr.decode().strip()}")
        cleaned += 1
        time.sleep(0.02)


beside = threading.Thread(target=clean_beside)
beside.start()
wrong = []


def check(what):
    if not (out / "model.safetensors").exists() or state_hash() != want:
        wrong.append(f"{what}: no model, or other bits")


exits, shots, jobs, n = {}, 0, 0, 0
while n < starts:
    if jobs and draw.random() < 0.5 or n == 0:
        shutil.rmtree(out, ignore_errors=True)
    crowd = [begin() for _ in range(draw.choice((3, 4)))]
    n += len(crowd)
    for one in crowd:
        if draw.random() < 0.34:
            time.sleep(draw.random() * whole)
            one.kill()
    for one in crowd:
        said = one.stderr.read().decode()
        code = one.wait()
        shots += code == -9
        exits[code] = exits.get(code, 0) + 1
        if code not in (0, -9) and "in use by" not in said and "another process writes there" not in said:
            wrong.append(f"exit {code}: {said.strip()[-300:]}")
    last = begin()
    said = last.stderr.read().decode()
    if last.wait() != 0:
        wrong.append(f"the start after them: exit {last.returncode}: {said.strip()[-300:]}")
    else:
        check("after a crowd")
    jobs += 1
print(f"starts: {n} by threes and fours ({jobs} crowds), {shots} killed, exits {exits}, clean {cleaned} times beside")

done, shots, lives, last_clean = 0, 0, 0, cleaned
while shots < kills:
    shutil.rmtree(out, ignore_errors=True)
    while True:
        one = begin()
        lives += 1
        try:
            said = one.communicate(timeout=draw.random() * whole if shots < kills else None)[1].decode()
        except subprocess.TimeoutExpired:
            one.kill()
            said = one.communicate()[1].decode()
        shots += one.returncode == -9
        if one.returncode == 0:
            break
        if one.returncode not in (-9, 3):
            wrong.append(f"supervised: exit {one.returncode}: {said.strip()[-300:]}")
            break
    check("supervised")
    done += 1
print(f"supervised: {lives} lives, {shots} kills, {done} jobs done, clean {cleaned - last_clean} times beside")
over.set()
beside.join()
left = sum(1 for _ in offload.iterdir())
if left:
    print(f"{left} directories left in the offload path: {sorted(p.name for p in offload.iterdir())}")
for line in wrong:
    print("WRONG:", line)
print("every model there" if not wrong else f"{len(wrong)} wrong")
shutil.rmtree(work)
sys.exit(bool(wrong))
PY
