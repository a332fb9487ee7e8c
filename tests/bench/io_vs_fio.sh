#!/bin/bash
# `tidemill bench io` beside fio: same folder, block, depth and size, io_uring, direct; alternating, so that a disk that
# changes its mind does so to both. Prints medians and ratios; fails below the ratio that is wanted.
#
#   [PAGES=small|huge] tests/bench/io_vs_fio.sh TIDEMILL FOLDER [ROUNDS=5] [SIZE=2GiB] [BLOCK=1MiB] [DEPTH=8] [LEAST=0.97]
#
# tidemill's buffers are in huge pages, as the trainer's are, and fio's are not: a request of 1 MiB is then a few segments
# instead of 256, which is twice the rate on a virtual disk. PAGES=small forbids huge pages to both, PAGES=huge makes the C
# library ask for them for fio as well: the engines alone.
set -euo pipefail
if [ "${PAGES:-}" = small ]; then # PR_SET_THP_DISABLE is inherited
    PAGES= exec python3 -c 'import ctypes, os, sys
if ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) != 0: sys.exit("prctl failed")
os.execv(sys.argv[1], sys.argv[1:])' "$0" "$@"
fi
[ "${PAGES:-}" = huge ] && export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
tidemill=$1 folder=$2 rounds=${3:-5} size=${4:-2GiB} block=${5:-1MiB} depth=${6:-8} least=${7:-0.97}
command -v fio > /dev/null || { echo "SKIP: fio is not installed (apt install fio)"; exit 77; }
work=$(mktemp -d "$folder/io_vs_fio.XXXXXX")
trap 'rm -rf "$work"' EXIT
short() { echo "${1%iB}" | tr -d ' '; } # fio writes 1MiB as 1M

fio_run() { # rw
    fio --name=t --filename="$work/fio" --ioengine=io_uring --direct=1 --rw="$1" --rwmixread=50 --bs="$(short "$block")" \
        --iodepth="$depth" --size="$(short "$size")" --output-format=json
}
field() { # JSON on stdin; python expression over d
    python3 -c "import json,sys; d=json.loads(sys.stdin.read()[slice(0,None)]); print($1)"
}
ours() {
    "$tidemill" bench io "$work" --rw "$1" --block "$block" --depth "$depth" --size "$size" --json |
        field 'd["read_bytes_per_second"] + d["write_bytes_per_second"]'
}
theirs() {
    fio_run "$1" | sed -n '/^{/,$p' | field 'd["jobs"][0]["read"]["bw_bytes"] + d["jobs"][0]["write"]["bw_bytes"]'
}

fio_run write > /dev/null # its file exists before it is timed, as ours does
status=0
for rw in read write mixed; do
    kind=$rw
    [ "$rw" = mixed ] && kind=rw
    : > "$work/ours"
    : > "$work/fio.rates"
    for ((i = 0; i < rounds; i++)); do
        if ((i % 2)); then
            ours "$rw" >> "$work/ours"
            theirs "$kind" >> "$work/fio.rates"
        else
            theirs "$kind" >> "$work/fio.rates"
            ours "$rw" >> "$work/ours"
        fi
    done
    python3 - "$rw" "$work/ours" "$work/fio.rates" "$least" <<'PY' || status=1
import statistics, sys
name, a, b, least = sys.argv[1], *([float(x) for x in open(f)] for f in sys.argv[2:4]), float(sys.argv[4])
ratio = statistics.median(x / y for x, y in zip(a, b))
print(f"{name:6} tidemill {statistics.median(a) / 1e6:8.1f} MB/s  fio {statistics.median(b) / 1e6:8.1f} MB/s  "
      f"ratio of medians {statistics.median(a) / statistics.median(b):.3f}, median of ratios {ratio:.3f}  "
      f"(tidemill {[round(x / 1e6) for x in a]}, fio {[round(x / 1e6) for x in b]})")
sys.exit(ratio < least)
PY
done
exit $status
