#!/bin/sh
# All set-up and all tests, on a bare Debian 12 or anywhere the packages of tools/deps.sh are:
#   1. installs what is missing;
#   2. builds build/ (release) and runs every test there, the checks of includes and layout among them;
#   3. builds build-dev/ (address and undefined-behaviour sanitizers), runs unit and golden tests there, and a sample of
#      those of ranks, faults and budgets (budgets are not judged there);
#   4. of build-tsan/ (ThreadSanitizer) and build-fuzz/ (libFuzzer) the programs that it runs: tests of threads, and every
#      parser for a few thousand inputs;
#   5. runs a sample of 2 under other products and kernels than those that this CPU prefers.
# --quick leaves out 3 to 5. TIDEMILL_LONG=1, before a release: what there is no time for in continuous integration as well,
# then 2 again under every product back-end and every column of kernels that this CPU has (hours).
# Exit 0: all passed. The last lines: what was left out and why, then ctest's summaries, that of 2 last.
set -eu
quick=
case ${1:-} in
--quick) quick=1 ;;
'') ;;
*)
    echo "usage: tests/run.sh [--quick]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
deps=all
[ -z "$quick" ] || deps=test
tools/deps.sh $deps
long=${TIDEMILL_LONG:-}
[ "$long" != 0 ] || long=

build() { # PRESET FOLDER [TARGET]
    mkdir -p "$2"
    cmake --preset "$1" > "$2/configure.log" 2>&1 || { cat "$2/configure.log"; exit 1; }
    # Nobody waits for these tests: they may take as long as they need.
    [ -z "$long" ] || find "$2" -name CTestTestfile.cmake -exec sed -i 's/TIMEOUT "[0-9]*"/TIMEOUT "28800"/' {} +
    tools/build.sh "$2" ${3:+"$3"} || exit 1
}

# suite TITLE FOLDER CTEST-ARGUMENTS...: tests; the summary is added to the last words.
suite() {
    title=$1
    folder=$2
    shift 2
    echo "== $title"
    rm -f "$folder/failed" "$folder/skips.txt"
    { TIDEMILL_SKIPS=$PWD/$folder/skips.txt ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" 2>&1 ||
        : > "$folder/failed"; } | tee "$folder/ctest.log"
    if [ -s "$folder/skips.txt" ]; then
        echo "== left out: $title (program: test: why)"
        sort -u "$folder/skips.txt"
    fi >> "$words"
    {
        echo "== summary: $title"
        sed -n '/% tests passed/,$p' "$folder/ctest.log"
    } >> "$words"
    [ ! -e "$folder/failed" ]
}

# under WAY CTEST-ARGUMENTS...: a suite of the release build with TIDEMILL_WAY set, where this machine has it.
under() {
    way=$1
    shift
    if ! env "TIDEMILL_$way" build/bin/tidemill-bench attention --positions 512 > /dev/null 2> build/way.txt; then
        echo "== left out: release, TIDEMILL_$way: $(head -n 1 build/way.txt)" >> "$words"
        return 0
    fi
    export "TIDEMILL_$way"
    passed=0
    suite "release, TIDEMILL_$way" build -j 2 "$@" || passed=1
    unset "TIDEMILL_${way%%=*}"
    return $passed
}

result=0
words=$PWD/build/words.txt
mkdir -p build
: > "$words"
if [ -z "$quick" ]; then
    build dev build-dev
    suite dev build-dev -L 'unit|golden|sample' -LE 'budget' -j 3 || result=1
    build tsan build-tsan race_tests
    suite tsan build-tsan -L race -j 2 || result=1
    build fuzz build-fuzz fuzzers
    suite fuzz build-fuzz -L fuzz -j 2 || result=1
fi
build release build
if [ -z "$long$quick" ]; then
    under GEMM=builtin -R '^(test_golden|train_golden|train_plan_tool)$' || result=1
    for way in GEMM=amx GEMM=avx512bf16 GEMM=openblas ISA=ref; do
        under "$way" -R '^(test_golden|train_golden)$' || result=1
    done
fi
if [ -n "$long" ]; then
    # every product back-end and every column of kernels that is to be had on this machine
    for way in GEMM=builtin GEMM=amx GEMM=avx512bf16 GEMM=openblas ISA=ref ISA=avx2 ISA=avx512; do
        export TIDEMILL_LONG=
        under "$way" || result=1
        export TIDEMILL_LONG=1
    done
fi
suite release build -j 3 || result=1 # three at a time: most of a test is waiting, or one thread's work
if [ -n "$long" ]; then
    { # commit, date and CPU, to be kept with the result
        echo "# The last run of \`TIDEMILL_LONG=1 tests/run.sh\`"
        echo
        echo "Commit $(git rev-parse --short HEAD), $(date -u +%F),$(sed -n '/^model name/{s/.*://p;q}' /proc/cpuinfo), exit $result."
        echo
        echo '```'
        cat "$words"
        echo '```'
    } > build/LONG.md
    echo "== build/LONG.md is the record of this run"
fi
cat "$words"
exit $result
