#!/bin/sh
# Line and branch coverage of what everything else trusts: io/, offload/, commits and resume, the parsers.
#   tests/coverage.sh [BUILD-FOLDER]      default build-coverage; needs gcovr (Debian, PyPI)
# Builds, runs the tests of those folders one after the other, prints a line a folder and the worst files; all of them are
# in BUILD-FOLDER/files.txt. Goes on where it stopped: a test that ended (BUILD-FOLDER/ended) is not run again until a
# source changes, of the product or of a test. For a busy machine:
#   TIDEMILL_COVERAGE_SECONDS=N   no test begins later than that; counts what ran so far
#   TIDEMILL_COVERAGE_TESTS=E     another pattern of names; TIDEMILL_COVERAGE_WITHOUT=E leaves names out
#   TIDEMILL_WALK=N               of each call of a walk the places that fail (40)
# What counts: branches of the code as it is written; branches that only an assert of ours takes, or none (inlined
# checks of the compiler's), do not. A process that another one kills takes its counts with it; one that dies at a named
# point, or in place of a call, leaves them.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build-coverage}
command -v gcovr > /dev/null || { echo "coverage.sh: gcovr is missing; apt-get install gcovr" >&2; exit 77; }
began=$(date +%s)
# What computes is not counted, so that jobs end in their time.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_C_FLAGS="--coverage -O1 -fno-inline -fprofile-update=atomic -fprofile-exclude-files='.*/(kernels|model|optim)/.*'" \
  -DCMAKE_EXE_LINKER_FLAGS="--coverage -Wl,-u,__gcov_dump" > /dev/null
pattern=${TIDEMILL_COVERAGE_TESTS:-'base_|io_|test_(plan|commit|crash|machine|stripe|simulate|trace|mutants|pages|resume_paths|filesystems|load|exec|shared|lower)|format_|test_(dataset|tokenizer|chat|data_faults)|replay_|config|train_(commit|checkpoints|resume|diagnosis|faults|numerics|ways|bytes|outputs|wrong_input|plan_tool|ranks|kills_ranks|start|optimizers_ranks)|tools_|cli'}
tests=$(ctest --test-dir "$build" -N -LE bench -R "$pattern" -E "${TIDEMILL_COVERAGE_WITHOUT:-^\$}" | sed -n 's/^ *Test *#[0-9]*: //p')
ninja -C "$build" -t targets all | sed -n 's/:.*//p' | sort > "$build/known.txt"
# shellcheck disable=SC2046
ninja -C "$build" tidemill $(printf '%s\n' "$tests" | sed 's/^replay_//' | sort -u | comm -12 - "$build/known.txt") > "$build/build.log" || { tail -20 "$build/build.log" >&2; exit 1; }

# Counts of other sources are not comparable, and gcov refuses them.
git ls-files -z '*.[ch]' '*CMakeLists.txt' | xargs -0 cat | sha256sum > "$build/of.now"
if ! cmp -s "$build/of.now" "$build/of"; then
  find "$build" -name '*.gcda' -delete
  : > "$build/ended"
  mv "$build/of.now" "$build/of"
fi
for test in $tests; do
  ! grep -q "^$test " "$build/ended" || continue
  [ $(($(date +%s) - began)) -lt "${TIDEMILL_COVERAGE_SECONDS:-1000000}" ] || break
  how=passed
  TIDEMILL_WALK=${TIDEMILL_WALK:-40} ctest --test-dir "$build" -LE bench --timeout 600 -R "^$test\$" > "$build/ctest.log" 2>&1 ||
    { how=FAILED; tail -15 "$build/ctest.log" >&2; }
  echo "$test $how" >> "$build/ended"
done

find "$build/CMakeFiles" -path '*CompilerId*' -name '*.gcno' -delete # of no source of ours
# A loop of billions of rounds is no error of gcov's.
gcovr -r . --gcov-ignore-parse-errors --object-directory "$build" --exclude-throw-branches --exclude-unreachable-branches \
  --exclude-lines-by-pattern '.*TM_ASSERT.*' -f 'io/' -f 'offload/' -f 'src/format/' -f 'src/data/' -f 'src/text/' -f 'src/base/' \
  -f 'src/config/' -f 'src/step/elastic' -f 'src/session/ranks' -f 'src/train/resume/' -f 'src/train/(trainer_commit|trainer_save|trainer_ranks|replay|diagnose)' \
  --csv "$build/coverage.csv" "$build" > /dev/null
awk -F, 'NR > 1 {
    folder = $1; sub(/\/[^\/]*$/, "", folder)
    if (folder == "src/train" || folder == "src/step") folder = "src/train: commits, resume, ..."
    lines[folder] += $2; hit[folder] += $3; branches[folder] += $5; taken[folder] += $6
    printf "%6.1f%% %6.1f%% %5d  %s\n", $5 ? 100 * $6 / $5 : 100, $2 ? 100 * $3 / $2 : 100, $5 - $6, $1 > "/dev/stderr"
} END {
    for (f in lines) {
        printf "%6.1f%% of %5d branches %6.1f%% of %5d lines  %s\n", 100 * taken[f] / branches[f], branches[f],
            100 * hit[f] / lines[f], lines[f], f
        b += branches[f]; t += taken[f]; l += lines[f]; h += hit[f]
    }
    printf "%6.1f%% of %5d branches %6.1f%% of %5d lines  all\n", 100 * t / b, b, 100 * h / l, l
}' "$build/coverage.csv" 2> "$build/files.txt"
echo "$(wc -l < "$build/ended") of $(printf '%s\n' "$tests" | wc -l) tests ran, $(grep -c FAILED "$build/ended" || true) failed"
echo "worst files (branches, lines, branches not taken):"
sort -n "$build/files.txt" | head -20
