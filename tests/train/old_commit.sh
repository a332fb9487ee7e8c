#!/bin/sh
# A run whose state an earlier program committed goes on with this one, to the bits that the earlier program itself comes to
# (tests/fixtures/old_commit/make.sh). In another folder, as after a move: run.json names its directories by their full paths.
set -eu
tm=$1 from=$2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cp -r "$from/model" "$from/rows.safetensors" "$from/config.json" "$work" && cd "$work"
tar -xzf "$from/out.tar.gz"
sed -i "s#/tmp/tidemill-old-commit/#$work/#" out/run.json
export OMP_NUM_THREADS=1 TIDEMILL_ISA=ref TIDEMILL_GEMM=builtin TIDEMILL_PROFILE="$work/profile.json"
"$tm" train config.json --set max_steps=4 2> err || { cat err >&2; exit 1; }
grep -q "going on from step 2" err || { echo "it did not go on from the old commit:" >&2; cat err >&2; exit 1; }
got=$(sed -n 's/.*"event": "end", "step": 4, "state_hash": "\([0-9a-f]*\)".*/\1/p' out/log.jsonl)
[ "$got" = "$(cat "$from/state_hash")" ] || { echo "state_hash $got, of the old program $(cat "$from/state_hash")" >&2; exit 1; }
