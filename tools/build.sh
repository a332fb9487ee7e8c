#!/bin/sh
# tools/build.sh FOLDER [TARGET]: builds in a folder that is configured (for Ninja). Prints how far it is, a line for
# each quarter; all of the compiler's words are in FOLDER/build.log, of which the end is printed if it fails.
set -eu
folder=$1
log=$folder/build.log
set -- --build "$folder" ${2:+--target "$2"}
{ NINJA_STATUS='[%f/%t] ' cmake "$@" 2>&1 || echo 'the build failed'; } | tee "$log" | awk -v folder="$folder" '
    /^\[[0-9]+\/[0-9]+\]/ {
        split(substr($1, 2), count, /[\/\]]/)
        if (int(count[1] * 4 / count[2]) > quarter) print "building " folder ": " count[1] "/" count[2]
        quarter = int(count[1] * 4 / count[2])
        fflush()
    }'
[ "$(tail -n 1 "$log")" != 'the build failed' ] || {
    tail -n 40 "$log" >&2
    echo "tools/build.sh: the build failed; all its output is in $log" >&2
    exit 1
}
