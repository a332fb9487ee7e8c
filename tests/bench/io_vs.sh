#!/bin/bash
# `tidemill bench io` beside another benchmark of disks: same folder, block, depth and size, direct; alternating, so that a
# disk that changes its mind does so to both. Prints medians and the median of the ratios; fails below LEAST.
#
#   [PAGES=small|huge] tests/bench/io_vs.sh fio TIDEMILL FOLDER [ROUNDS=5] [SIZE=2GiB] [BLOCK=1MiB] [DEPTH=8] [LEAST=0.97]
#   TIDEMILL_PEERS=DIR tests/bench/io_vs.sh ds_io TIDEMILL FOLDER [...]
#
# fio: io_uring, read, write and mixed. tidemill's buffers are in huge pages, as the trainer's are, and fio's are not: a
# request of 1 MiB is then a few segments instead of 256, which is twice the rate on a virtual disk. PAGES=small forbids
# huge pages to both, PAGES=huge makes the C library ask for them for fio as well: the engines alone.
#
# ds_io: DeepSpeed's, libaio, read and write. It moves a whole file to or from one page-locked tensor, several times. DIR
# holds its Python environment (tests/bench/deepspeed.sh makes it); its first start compiles its module (minutes;
# libaio-dev, ninja).
set -euo pipefail
if [ "${PAGES:-}" = small ]; then # PR_SET_THP_DISABLE is inherited
    PAGES= exec python3 -c 'import ctypes, os, sys
if ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) != 0: sys.exit("prctl failed")
os.execv(sys.argv[1], sys.argv[1:])' "$0" "$@"
fi
peer=$1 tidemill=$(realpath "$2") folder=$3 rounds=${4:-5} size=${5:-2GiB} block=${6:-1MiB} depth=${7:-8} least=${8:-0.97}
work=$(mktemp -d "$folder/io_vs.XXXXXX")
trap 'rm -rf "$work"' EXIT
short() { echo "${1%iB}" | tr -d ' '; } # both write 1MiB as 1M

field() { # JSON on stdin; python expression over d
    python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"
}
ours() {
    "$tidemill" bench io "$work" --rw "$1" --block "$block" --depth "$depth" --size "$size" --json |
        field 'd["read_bytes_per_second"] + d["write_bytes_per_second"]'
}
run_fio() {
    fio --name=t --filename="$work/fio" --ioengine=io_uring --direct=1 --rw="${1/mixed/rw}" --rwmixread=50 \
        --bs="$(short "$block")" --iodepth="$depth" --size="$(short "$size")" --output-format=json |
        sed -n '/^{/,$p' | field 'd["jobs"][0]["read"]["bw_bytes"] + d["jobs"][0]["write"]["bw_bytes"]'
}
run_ds_io() { # the rate that it prints
    ds_io --folder "$work" --io_size "$(short "$size")" --block_size "$(short "$block")" --queue_depth "$depth" --loops 3 \
        $([ "$1" = read ] && echo --read) 2>> "$work/ds_io.log" | tee -a "$work/ds_io.log" | python3 -c 'import re, sys
rates = re.findall(r"Task \w+ Speed = ([0-9.]+) GB/sec", sys.stdin.read())
sys.exit("ds_io printed no rate") if not rates else print(float(rates[-1]) * 2**30)' ||
        { tail -5 "$work/ds_io.log" >&2; return 1; }
}

case $peer in
fio)
    command -v fio > /dev/null || { echo "SKIP: fio is not installed (apt install fio)"; exit 77; }
    [ "${PAGES:-}" = huge ] && export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    loads="read write mixed" ;;
ds_io)
    peers=${TIDEMILL_PEERS:-}
    [ -x "$peers/bin/ds_io" ] || { echo "SKIP: no DeepSpeed in TIDEMILL_PEERS ('$peers')"; exit 77; }
    export PATH=$peers/bin:$PATH TORCH_EXTENSIONS_DIR=$peers/extensions DS_ACCELERATOR=cpu
    loads="read write" ;;
*) echo "io_vs.sh: '$peer': expected fio or ds_io" >&2; exit 2 ;;
esac

"run_$peer" write > /dev/null # its file exists before it is timed, as ours does
status=0
for rw in $loads; do
    : > "$work/ours"
    : > "$work/theirs"
    for ((i = 0; i < rounds; i++)); do
        ((i % 2)) && ours "$rw" >> "$work/ours"
        "run_$peer" "$rw" >> "$work/theirs"
        ((i % 2)) || ours "$rw" >> "$work/ours"
    done
    python3 - "$rw" "$peer" "$work/ours" "$work/theirs" "$least" <<'PY' || status=1
import statistics, sys
name, peer, least = sys.argv[1], sys.argv[2], float(sys.argv[5])
a, b = ([float(x) for x in open(f)] for f in sys.argv[3:5])
ratio = statistics.median(x / y for x, y in zip(a, b))
print(f"{name:6} tidemill {statistics.median(a) / 1e6:8.1f} MB/s  {peer} {statistics.median(b) / 1e6:8.1f} MB/s  median of "
      f"ratios {ratio:.3f}  (tidemill {[round(x / 1e6) for x in a]}, {peer} {[round(x / 1e6) for x in b]})")
sys.exit(ratio < least)
PY
done
exit $status
