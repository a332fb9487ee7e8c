#!/bin/sh
# The long form of the fault tests. Goes on where it stopped, and writes one line a round to BUILD/torture/log; any
# failure ends it with what repeats it. docs/TORTURE.md sums the runs.
#   tests/torture.sh [--seconds N] [--seed S] [--build DIR]          kills at random instants and named points, failing
#                                          calls, crash states, each round with the next seed (BUILD/torture/next)
#   tests/torture.sh kills [--seconds N] [--seed S] [--build DIR]    of those rounds the kills alone (BUILD/torture/next-kills)
#   tests/torture.sh faults [--seconds N] [--way W] [--build DIR]    every call of a small job, every kind of fault, once
#                                          and from then on, in 256 parts (BUILD/torture/part-W); W: 0 to 11, or all
#                                          of them, one after the other
#   tests/torture.sh ranks [--seconds N] [--seed S] [--build DIR]    a rank of 2 and of 4 killed at every point of a
#                                          commit's phases and at random instants (BUILD/torture/next-ranks)
#   tests/torture.sh soak [--seconds N] [--seed S] [--build DIR]     one long job that meets a fault a minute (an hour:
#                                          3600; tests/bench/soak.py), then as many steps undisturbed
#   tests/torture.sh fuzz [--seconds N] [--parser P] [--runs N] --build BUILD-FUZZ    every parser (P: those) under
#                                          libFuzzer in turn, the one with the fewest executions of this commit next
#                                          (BUILD-FUZZ/torture/fuzz-COMMIT), or with --runs one after the other until each
#                                          has N; what was found interesting is kept from commit to commit. Every fourth
#                                          minute inputs are up to 2 KiB long, else 512 bytes. The preset fuzz-fast makes
#                                          two to four times as many as fuzz, whose tracing of comparisons finds more
#   tests/torture.sh starts [--starts N] [--kills N] [--seed S] [--build DIR]    one job started by threes and fours,
#                                          killed, supervised, cleaned beside: tests/torture_starts.sh
set -eu
what=rounds
if [ "${1:-}" = starts ]; then
  shift
  exec "$(dirname "$0")/torture_starts.sh" "$@"
fi
case ${1:-} in
  kills | faults | ranks | soak | fuzz) what=$1; shift ;;
esac
seconds=600 seed= build=build way=0 parser= runs=
while [ $# -gt 1 ]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --seed) seed=$2 ;;
    --way) way=$2 ;;
    --build) build=$2 ;;
    --parser) parser=$2 ;;
    --runs) runs=$2 ;;
    *) echo "torture.sh: $1: expected --seconds N, --seed S, --way W, --parser P, --runs N or --build DIR" >&2; exit 2 ;;
  esac
  shift 2
done
[ $# -eq 0 ] || { echo "torture.sh: $1: a value is missing" >&2; exit 2; }
commit=$(git -C "$(dirname "$0")" rev-parse --short HEAD 2>/dev/null || echo unknown)
build=$(cd "$build" && pwd) || exit 2
source=$(cd "$(dirname "$0")" && pwd)
parsers='json safetensors index gguf hf_tokenizer manifest config tokenizer chat data prefer csv list packed adapter bnb ints peft'
needed='train_commit train_checkpoints train_faults test_crash test_pages test_commit_flips train_kills_ranks tidemill'
[ $what != fuzz ] || needed=$(printf 'fuzz_%s ' ${parser:-$parsers})
for test in $needed; do
  [ -x "$build/tests/$test" ] || { echo "torture.sh: $build/tests/$test is missing; build first" >&2; exit 2; }
done
mkdir -p "$build/torture"
cd "$build/torture"

one() { # name of the round, program, variables; $only: of its tests those with such a name
  name=$1 program=$2
  shift 2
  if ! env "$@" "$build/tests/$program" ${only:+"$only"} > "last-$program" 2>&1; then
    echo "$commit $name: FAILED: env $* tests/$program ${only:-}" | tee -a log >&2
    tail -20 "last-$program" >&2
    exit 1
  fi
  echo "$commit $name" >> log
}

end=$(($(date +%s) + seconds))
rounds=0 only=

# One line a piece: parser, executions, seconds.
sums() { # parsers
  for p in $1; do
    awk -v p="$p" '$1 == p { n += $2; s += $3 } END { printf "%d %s %d\n", n, p, s }' "fuzz-$commit"
  done
}

next_parser() {
  if [ -n "$runs" ]; then
    sums "${parser:-$parsers}" | awk -v runs="$runs" '$1 < runs { print $2; exit }'
  else
    sums "${parser:-$parsers}" | sort -n | head -1 | cut -d' ' -f2
  fi
}

# An execution's limit is a second of CPU (fuzz.c); this one is of the clock, in which the fuzzer may be held back.
fuzz_piece() { # parser, seconds, length of inputs
  corpus=$build/fuzz_$1-corpus log=last-fuzz-$1 began=$(date +%s)
  mkdir -p "$corpus"
  if ! "$build/tests/fuzz_$1" -max_total_time="$2" -max_len="$3" -entropic=0 -reload=0 -timeout=1200 -malloc_limit_mb=80 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="$build/torture/$1-" "$corpus" "$source/fuzz/fuzz_$1-seeds" > "$log" 2>&1; then
    echo "$commit fuzz $1: FAILED: $build/tests/fuzz_$1 and the file that is named in $build/torture/$log" | tee -a log >&2
    tail -30 "$log" >&2
    exit 1
  fi
  units=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$1 $units $(($(date +%s) - began))" >> "fuzz-$commit"
}

if [ $what = fuzz ]; then
  touch "fuzz-$commit"
  while left=$((end - $(date +%s))) && [ "$left" -gt 0 ]; do
    next=$(next_parser)
    [ -n "$next" ] || break
    fuzz_piece "$next" $((left < 60 ? left : 60)) $((rounds % 4 == 3 ? 2048 : 512))
    rounds=$((rounds + 1))
  done
  echo "torture.sh: $rounds pieces without a finding; of commit $commit so far:"
  sums "${parser:-$parsers}" | awk '{ printf "%-12s %10d executions in %6d s, %d a second\n", $2, $1, $3, $3 ? $1 / $3 : 0 }'
  exit 0
fi
if [ $what = soak ]; then
  export TIDEMILL="$build/tests/tidemill" TIDEMILL_BENCH_DIR="$build/torture" TIDEMILL_PROFILE="$build/torture/profile.json"
  exec python3 "$source/bench/soak.py" --seconds "$seconds" --seed "${seed:-1}"
fi
if [ $what = faults ]; then
  [ "$way" != all ] || way='0 1 2 3 4 5 6 7 8 9 10 11'
  for w in $way; do
    part=$(cat "part-$w" 2>/dev/null || echo 0)
    while [ "$part" -lt 256 ] && [ "$(date +%s)" -lt "$end" ]; do
      one "way $w: part $part/256 of every fault" train_faults TIDEMILL_FAULT_CALL=all TIDEMILL_FAULT_WAY="$w" \
        TIDEMILL_FAULT_PART="$part/256"
      part=$((part + 1)) rounds=$((rounds + 1))
      echo "$part" > "part-$w"
    done
    echo "torture.sh: $part of 256 parts of way $w are done"
  done
  echo "torture.sh: $rounds parts without a failure"
  exit 0
fi
if [ $what = ranks ]; then
  [ -n "$seed" ] || seed=$(cat next-ranks 2>/dev/null || echo 1)
  while [ "$(date +%s)" -lt "$end" ]; do
    one "seed $seed: 60 kills at points, 40 random of ranks" train_kills_ranks TIDEMILL_KILLS=20 TIDEMILL_KILL_SEED="$seed"
    seed=$((seed + 1)) rounds=$((rounds + 1))
    echo "$seed" > next-ranks
  done
  echo "torture.sh: $rounds rounds of 100 killed ranks without a failure"
  exit 0
fi

kills() {
  only='kills_*'
  one "seed $seed: 100 kills" train_commit TIDEMILL_KILLS=100 TIDEMILL_KILL_SEED="$seed"
  one "seed $seed: 20 kills with the best checkpoint" train_checkpoints TIDEMILL_KILLS=20 TIDEMILL_KILL_SEED="$seed"
  only=
}

if [ $what = kills ]; then
  [ -n "$seed" ] || seed=$(cat next-kills 2>/dev/null || echo 1)
  while [ "$(date +%s)" -lt "$end" ]; do
    kills
    seed=$((seed + 1)) rounds=$((rounds + 1))
    echo "$seed" > next-kills
  done
  echo "torture.sh: $rounds rounds of 120 kills without a failure"
  exit 0
fi
[ -n "$seed" ] || seed=$(cat next 2>/dev/null || echo 1)
while [ "$(date +%s)" -lt "$end" ]; do
  kills
  one "seed $seed: 1000 failing calls" train_faults TIDEMILL_FAULT_CASES=1000 TIDEMILL_FAULT_SEED="$seed"
  one "seed $seed: 200000 pages flipped, swapped or old" test_pages TIDEMILL_TRIALS=200000 TIDEMILL_TRIAL_SEED="$seed"
  one "seed $seed: 100000 flips in a commit of 1 GiB" test_commit_flips TIDEMILL_FLIPS=100000 TIDEMILL_FLIP_MIB=1024 \
    TIDEMILL_FLIP_SEED="$seed"
  one "seed $seed: 900 crash states" test_crash TIDEMILL_CRASH_STATES=900 TIDEMILL_CRASH_SEED="$seed"
  seed=$((seed + 1)) rounds=$((rounds + 1))
  echo "$seed" > next
done
echo "torture.sh: $rounds rounds without a failure; of this commit so far:" \
  "$(grep -c "^$commit .*: 100 kills" log) x 100 kills, $(grep -c "^$commit .*calls" log) x 1000 failing calls," \
  "$(grep -c "^$commit .*states" log) x 900 crash states"
