#!/usr/bin/env python3
"""Prints docs/MEASURED.md and README's table of measured rows from measured.jsonl, and measures rows anew.

    measured.py                 prints both files again (after a row was edited by hand)
    measured.py --check         says whether they are as they would be printed; changes nothing
    measured.py --list          the rows that this script can measure
    measured.py --run ID...     measures these rows (all: every one that it can), writes figure, CPU and commit, prints both files

A row of measured.jsonl: id, what, figure, command, cpu, commit (of the program that was measured), and where they are given
`note` and `readme` (true: README.md quotes the row). A row whose `by` is "hand" was read off the command's output by a
person; "script": by this script. Settings of the benches: lib.py; with TIDEMILL_BENCH_TINY=1 figures are shown and not written.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROWS = HERE / "measured.jsonl"
PAGE = ROOT / "docs" / "MEASURED.md"
README = ROOT / "README.md"
TINY = os.environ.get("TIDEMILL_BENCH_TINY", "") not in ("", "0")
BEGIN, END = "<!-- measured: printed by tests/bench/measured.py -->", "<!-- /measured -->"
HEAD = """# Measured

Printed by `tests/bench/measured.py` from `tests/bench/measured.jsonl`; do not edit. `measured.py --run ID` measures a row anew.
The commit is that of the program that was measured. *hand*: the figure was read off the command's output by a person, at the commit in the row, which may be
older than this page; *script*: by the script. Machines are shared: times are rough, and ratios matter more. What is behind `TIDEMILL_LONG=1` continuous integration
leaves out and says so; rows with SmolLM2 need it in `../shared/models`.

"""


def shell(command, **more):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **more)


def cpu():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return "unknown"


def commit():
    changed = shell(["git", "status", "--porcelain", "--", "src", "io", "offload", "optim", "tools"]).stdout
    return shell(["git", "rev-parse", "--short=7", "HEAD"]).stdout.strip() + (" and changes" if changed else "")


def tables(script, **settings):
    """The rows of every Table that the script prints, each as {column: cell}."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
        run = subprocess.run([HERE / script], env={**os.environ, **settings, "TIDEMILL_BENCH_ROWS": out.name}, stdout=sys.stderr)
        rows = [json.loads(line) for line in out]
        if not rows:
            sys.exit(f"{script}: exit {run.returncode}, no rows")
        return rows


def least_budgets():
    sys.path.insert(0, str(HERE))
    import lib
    names = ["tiny"] if TINY else ["134M", "1.26B", "7B"]
    return " / ".join(f"{n}: {lib.mib(lib.minimum(lib.config(n, 512, 8)))} MiB" for n in names)


def bytes_a_parameter():
    rows = tables("bytes.sh")
    return "; ".join(f"{u}: " + " / ".join(r["bytes/param"] for r in rows if r.get("update") == u and "bytes/param" in r) for u in "FB")


def memory(shape):
    def figure():
        row = next(r for r in tables("memory.sh") if r["shape"].strip() in (shape, "tiny"))
        return f"exit {row['status']}; {row['VmHWM MiB']} MiB at the peak of {row['limit MiB']}"
    return figure


def hashes():
    rows = tables("hashes.sh")
    return f"{len(rows)} hashes, of " + " and ".join(r["runs"] for r in rows) + " runs (with clipping, without)"


def commits():
    return "; ".join(f"{r['tokens']} tokens a step: {100 * float(r['median']):+.2f}%" for r in tables("commit_cost.sh"))


def overlap():
    rows = tables("overlap.sh")
    over = sorted(float(r["over bound"]) for r in rows)
    return f"{over[0]:.2f} to {over[-1]:.2f} over {len(rows)} rows"


MEASURES = {
    "least": least_budgets, "bytes-counted": bytes_a_parameter, "memory-134M": memory("134M"), "memory-1.26B": memory("1.26B"),
    "memory-3B": memory("3B"), "hashes": hashes, "commits": commits, "overlap-134M": overlap,
}


def cell(text):
    return text.replace("|", "\\|")


def page(rows):
    text = HEAD + "| what | figure | command | CPU | commit | by |\n|---|---|---|---|---|---|\n"
    for r in rows:
        figure = r["figure"] + (f" ({r['note']})" if r.get("note") else "")
        text += f"| {cell(r['what'])} | {cell(figure)} | {cell(r['command'])} | {r['cpu']} | {r['commit']} | {r['by']} |\n"
    return text


def quotes(rows):
    text = BEGIN + "\n| what | figure | command | commit |\n|---|---|---|---|\n"
    for r in rows:
        if r.get("readme"):
            text += f"| {cell(r['what'])} | {cell(r['figure'])} | {cell(r['command'])} | {r['commit']} |\n"
    return text + END


def readme(rows):
    old = README.read_text()
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: quotes(rows), old, flags=re.S)


def measure(rows, names):
    known = {r["id"]: r for r in rows}
    for name in MEASURES if names == ["all"] else names:
        if name not in MEASURES or name not in known:
            sys.exit(f"{name}: no row that this script measures; --list names them")
        figure = MEASURES[name]()
        print(f"{name}: {figure}", file=sys.stderr)
        if not TINY:
            known[name].update(figure=figure, cpu=cpu(), commit=commit(), by="script")
            known[name].pop("note", None)
    if not TINY:
        ROWS.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows))


def main():
    words = sys.argv[1:]
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    if words == ["--list"]:
        print("\n".join(MEASURES))
        return
    if words[:1] == ["--run"] and len(words) > 1:
        measure(rows, words[1:])
    elif words not in ([], ["--check"]):
        sys.exit(__doc__)
    files = {PAGE: page(rows), README: readme(rows)}
    for path, text in files.items():
        if words == ["--check"]:
            if path.read_text() != text:
                sys.exit(f"{path.relative_to(ROOT)} is not what tests/bench/measured.py prints: run it")
        else:
            path.write_text(text)


main()
