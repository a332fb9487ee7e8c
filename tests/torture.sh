#!/bin/sh
# The long form of the fault tests. Goes on where it stopped, and writes one line a round to BUILD/torture/log; any
# failure ends it with what repeats it. tests/TORTURE.md sums the runs.
#   tests/torture.sh [--seconds N] [--seed S] [--build DIR]          kills at random instants and named points, failing
#                                          calls, crash states, each round with the next seed (BUILD/torture/next)
#   tests/torture.sh faults [--seconds N] [--way W] [--build DIR]    every call of a small job, every kind of fault, once
#                                          and from then on, in 256 parts (BUILD/torture/part-W); W: 0 to 11
#   tests/torture.sh ranks [--seconds N] [--seed S] [--build DIR]    a rank of 2 and of 4 killed at every point of a
#                                          commit's phases and at random instants (BUILD/torture/next-ranks)
set -eu
what=rounds
case ${1:-} in
  faults | ranks) what=$1; shift ;;
esac
seconds=600 seed= build=build way=0
while [ $# -gt 1 ]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --seed) seed=$2 ;;
    --way) way=$2 ;;
    --build) build=$2 ;;
    *) echo "torture.sh: $1: expected --seconds N, --seed S, --way W or --build DIR" >&2; exit 2 ;;
  esac
  shift 2
done
[ $# -eq 0 ] || { echo "torture.sh: $1: a value is missing" >&2; exit 2; }
commit=$(git -C "$(dirname "$0")" rev-parse --short HEAD 2>/dev/null || echo unknown)
build=$(cd "$build" && pwd) || exit 2
for test in train_commit train_checkpoints train_faults test_crash test_pages train_kills_ranks; do
  [ -x "$build/tests/$test" ] || { echo "torture.sh: $build/tests/$test is missing; build first" >&2; exit 2; }
done
mkdir -p "$build/torture"
cd "$build/torture"

one() { # name of the round, program, variables
  name=$1 program=$2
  shift 2
  if ! env "$@" "$build/tests/$program" > "last-$program" 2>&1; then
    echo "$commit $name: FAILED: env $* tests/$program" | tee -a log >&2
    tail -20 "last-$program" >&2
    exit 1
  fi
  echo "$commit $name" >> log
}

end=$(($(date +%s) + seconds))
rounds=0
if [ $what = faults ]; then
  part=$(cat "part-$way" 2>/dev/null || echo 0)
  while [ "$part" -lt 256 ] && [ "$(date +%s)" -lt "$end" ]; do
    one "way $way: part $part/256 of every fault" train_faults TIDEMILL_FAULT_CALL=all TIDEMILL_FAULT_WAY="$way" \
      TIDEMILL_FAULT_PART="$part/256"
    part=$((part + 1)) rounds=$((rounds + 1))
    echo "$part" > "part-$way"
  done
  echo "torture.sh: $rounds parts without a failure; $part of 256 of way $way are done"
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
[ -n "$seed" ] || seed=$(cat next 2>/dev/null || echo 1)
while [ "$(date +%s)" -lt "$end" ]; do
  one "seed $seed: 100 kills" train_commit TIDEMILL_KILLS=100 TIDEMILL_KILL_SEED="$seed"
  one "seed $seed: 20 kills with the best checkpoint" train_checkpoints TIDEMILL_KILLS=20 TIDEMILL_KILL_SEED="$seed"
  one "seed $seed: 1000 failing calls" train_faults TIDEMILL_FAULT_CASES=1000 TIDEMILL_FAULT_SEED="$seed"
  one "seed $seed: 200000 pages flipped, swapped or old" test_pages TIDEMILL_TRIALS=200000 TIDEMILL_TRIAL_SEED="$seed"
  one "seed $seed: 900 crash states" test_crash TIDEMILL_CRASH_STATES=900 TIDEMILL_CRASH_SEED="$seed"
  seed=$((seed + 1)) rounds=$((rounds + 1))
  echo "$seed" > next
done
echo "torture.sh: $rounds rounds without a failure; of this commit so far:" \
  "$(grep -c "^$commit .*: 100 kills" log) x 100 kills, $(grep -c "^$commit .*calls" log) x 1000 failing calls," \
  "$(grep -c "^$commit .*states" log) x 900 crash states"
