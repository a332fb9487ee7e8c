#!/bin/sh
# All set-up and all tests, on a bare Debian 12 or anywhere the packages of tools/deps.sh are:
#   1. installs what is missing;
#   2. builds build/ (release) and runs every test there, the checks of includes and layout among them;
#   3. builds build-dev/ (address and undefined-behaviour sanitizers), runs unit and golden tests there.
# --quick leaves out 3. Exit 0: all passed. The last lines are ctest's summary of 2.
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
tools/deps.sh test

# suite PRESET FOLDER CTEST-ARGUMENTS...: builds, tests; the summary stays in FOLDER/summary.txt
suite() {
    preset=$1
    folder=$2
    shift 2
    echo "== $preset"
    mkdir -p "$folder"
    cmake --preset "$preset" > "$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; exit 1; }
    cmake --build "$folder" -- --quiet || exit 1
    rm -f "$folder/failed"
    { ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" 2>&1 || : > "$folder/failed"; } |
        tee "$folder/ctest.log"
    sed -n '/% tests passed/,$p' "$folder/ctest.log" > "$folder/summary.txt"
    [ ! -e "$folder/failed" ]
}

result=0
suite release build -j 2 || result=1 # two at a time: most of a test is waiting, or one thread's work
if [ -z "$quick" ]; then
    suite dev build-dev -L 'unit|golden' -LE budget -j 2 || result=1
    echo "== summary: dev"
    cat build-dev/summary.txt
fi
echo "== summary: release"
cat build/summary.txt
exit $result
