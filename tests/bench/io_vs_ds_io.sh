#!/bin/bash
# `tidemill bench io` beside DeepSpeed's own benchmark of its I/O module (`ds_io`, libaio): same folder, block, depth and
# size, alternating. ds_io reads or writes a whole file from one page-locked tensor, several times, and has no mixed load.
# Prints medians and ratios; fails where tidemill is slower than LEAST times ds_io.
#
#   TIDEMILL_PEERS=DIR tests/bench/io_vs_ds_io.sh TIDEMILL FOLDER [ROUNDS=3] [SIZE=1GiB] [BLOCK=1MiB] [DEPTH=8] [LEAST=1.0]
#
# DIR holds the Python environment (tests/bench/deepspeed.sh makes it); ds_io compiles its module at its first start
# (minutes; libaio-dev, ninja).
set -euo pipefail
tidemill=$(realpath "$1") folder=$2 rounds=${3:-3} size=${4:-1GiB} block=${5:-1MiB} depth=${6:-8} least=${7:-1.0}
peers=${TIDEMILL_PEERS:-}
[ -x "$peers/bin/ds_io" ] || { echo "SKIP: no DeepSpeed in TIDEMILL_PEERS ('$peers')"; exit 77; }
export PATH=$peers/bin:$PATH TORCH_EXTENSIONS_DIR=$peers/extensions DS_ACCELERATOR=cpu
work=$(mktemp -d "$folder/io_vs_ds_io.XXXXXX")
trap 'rm -rf "$work"' EXIT
short() { echo "${1%iB}" | tr -d ' '; } # ds_io writes 1MiB as 1M

ours() {
    "$tidemill" bench io "$work" --rw "$1" --block "$block" --depth "$depth" --size "$size" --json |
        python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["read_bytes_per_second"] + d["write_bytes_per_second"])'
}
theirs() { # the rate that it prints, in bytes a second
    local flag=
    [ "$1" = read ] && flag=--read
    ds_io --folder "$work" --io_size "$(short "$size")" --block_size "$(short "$block")" --queue_depth "$depth" --loops 3 \
        $flag 2>> "$work/ds_io.log" | tee -a "$work/ds_io.log" |
        python3 -c 'import re, sys
rates = re.findall(r"Task \w+ Speed = ([0-9.]+) GB/sec", sys.stdin.read())
sys.exit("ds_io printed no rate") if not rates else print(float(rates[-1]) * 2**30)' || { tail -5 "$work/ds_io.log" >&2; return 1; }
}

theirs write > /dev/null # its module is compiled, its file exists
status=0
for rw in read write; do
    : > "$work/ours"
    : > "$work/theirs"
    for ((i = 0; i < rounds; i++)); do
        if ((i % 2)); then
            ours "$rw" >> "$work/ours"
            theirs "$rw" >> "$work/theirs"
        else
            theirs "$rw" >> "$work/theirs"
            ours "$rw" >> "$work/ours"
        fi
    done
    python3 - "$rw" "$work/ours" "$work/theirs" "$least" <<'PY' || status=1
import statistics, sys
name, a, b, least = sys.argv[1], *([float(x) for x in open(f)] for f in sys.argv[2:4]), float(sys.argv[4])
ratio = statistics.median(x / y for x, y in zip(a, b))
print(f"{name:6} tidemill {statistics.median(a) / 1e6:8.1f} MB/s  ds_io {statistics.median(b) / 1e6:8.1f} MB/s  median of "
      f"ratios {ratio:.3f}  (tidemill {[round(x / 1e6) for x in a]}, ds_io {[round(x / 1e6) for x in b]})")
sys.exit(ratio < least)
PY
done
exit $status
