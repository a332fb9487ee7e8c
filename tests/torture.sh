#!/bin/sh
# The long form of the fault tests: kills at random instants and named points, failing calls, crash states; each round
# with the next seed. Goes on where it stopped: the next seed lies in BUILD/torture/next.
#   tests/torture.sh [--seconds N] [--seed S] [--build DIR]
# One line a round goes to BUILD/torture/log; any failure ends it with the seed to repeat it by.
set -eu
seconds=600 seed= build=build
while [ $# -gt 1 ]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --seed) seed=$2 ;;
    --build) build=$2 ;;
    *) echo "torture.sh: $1: expected --seconds N, --seed S or --build DIR" >&2; exit 2 ;;
  esac
  shift 2
done
[ $# -eq 0 ] || { echo "torture.sh: $1: a value is missing" >&2; exit 2; }
commit=$(git -C "$(dirname "$0")" rev-parse --short HEAD 2>/dev/null || echo unknown)
build=$(cd "$build" && pwd) || exit 2
for test in train_commit train_faults test_crash; do
  [ -x "$build/tests/$test" ] || { echo "torture.sh: $build/tests/$test is missing; build first" >&2; exit 2; }
done
mkdir -p "$build/torture"
cd "$build/torture"
[ -n "$seed" ] || seed=$(cat next 2>/dev/null || echo 1)

one() { # name of the round, variables, program
  what=$1 program=$2
  shift 2
  if ! env "$@" "$build/tests/$program" > "last-$program" 2>&1; then
    echo "$commit seed $seed: FAILED: env $* tests/$program" | tee -a log >&2
    tail -20 "last-$program" >&2
    exit 1
  fi
  echo "$commit seed $seed: $what" >> log
}

end=$(($(date +%s) + seconds))
rounds=0
while [ "$(date +%s)" -lt "$end" ]; do
  one "100 kills" train_commit TIDEMILL_KILLS=100 TIDEMILL_KILL_SEED="$seed"
  one "100 failing calls" train_faults TIDEMILL_FAULT_CASES=100 TIDEMILL_FAULT_SEED="$seed"
  one "900 crash states" test_crash TIDEMILL_CRASH_STATES=900 TIDEMILL_CRASH_SEED="$seed"
  seed=$((seed + 1)) rounds=$((rounds + 1))
  echo "$seed" > next
done
echo "torture.sh: $rounds rounds without a failure; of this commit so far:" \
  "$(grep -c "^$commit .*kills" log) x 100 kills, $(grep -c "^$commit .*calls" log) x 100 failing calls," \
  "$(grep -c "^$commit .*states" log) x 900 crash states"
