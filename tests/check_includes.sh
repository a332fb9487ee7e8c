#!/bin/sh
# Checks every #include "..." below DIR (default: this checkout) against the arrows between folders, and prints one line
# for each that points elsewhere. Exit 0: none; 1: some; 2: nothing to check.
#   - a room (a folder, or a folder in it) includes only the rooms on its line below, src/base and itself;
#   - X_internal.h files are included only in their room and the rooms in it (and by the tests of its top folder; those of
#     train, where all rooms meet, and of fuzz see every room's);
#   - a folder with C files that has no line is an error;
#   - the libraries that belong to one folder are included there only.
set -eu
cd "${1:-$(dirname "$0")/..}"

arrows='
base
io
io/file          io
io/run           io io/file
kernels
device           kernels
model            kernels
optim            kernels
offload          offload/machine offload/plan offload/store
offload/machine  io/file device
offload/plan     offload offload/machine io device
offload/store    offload offload/plan offload/machine io io/file io/run
offload/exec     offload offload/plan offload/store io device
offload/sim      offload offload/plan offload/exec offload/machine offload/store io/file
format           adapter kernels io io/file
text
text/tokenizer   text
text/chat        text text/tokenizer
adapter          text
data             text text/tokenizer text/chat
comm
task             data text text/chat
objective        model
config           adapter optim model data
job              objective model format comm offload offload/plan offload/store offload/exec offload/machine optim device io io/run io/file adapter
step             job objective model format comm offload offload/plan offload/store offload/exec offload/machine optim kernels device io io/run io/file adapter
session          step job objective config data text/tokenizer text/chat model format comm kernels device offload/machine optim io/file io/run adapter
planner          report session step job objective config model format comm offload/plan offload/store offload/exec offload/machine offload/sim optim kernels device io io/file data adapter
report           io/file
reference        planner session step job objective config data model comm kernels io/file
train            report reference planner session step job objective config model data text/tokenizer text/chat format comm offload/plan offload/store offload/exec offload/machine offload/sim optim kernels device io io/file io/run train/resume adapter
train/resume     train session step job objective config model data comm offload/plan offload/store optim io io/file io/run adapter
infer            report task reference planner comm session step job objective config model data text text/tokenizer text/chat format offload/plan offload/exec offload/machine offload/sim optim kernels io io/file io/run adapter
serve            infer session text text/tokenizer text/chat
quantise         session config data text/tokenizer text/chat model format kernels io io/file
tools            *
bench            tools data format device kernels io/file
examples         *
tests            *
'
owners='
liburing.h  io
mpi.h       comm
pcre2.h     text
utf8proc.h  text
yaml.h      config
zlib.h      data
zstd.h      data
microhttpd.h serve
'

files=$(find src io offload optim examples tests tools bench \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
[ -n "$files" ] || { echo "no C files below $PWD" >&2; exit 2; }

# shellcheck disable=SC2086
awk -v arrows="$arrows" -v owners="$owners" '
# The room of a path of the tree, or of the target of an include: the longest folder that has a line, else the first.
function room_of(path,   parts, n, i, room, best) {
    sub(/^src\//, "", path)
    n = split(path, parts, "/")
    room = best = parts[1]
    for (i = 2; i < n; i++) {
        room = room "/" parts[i]
        if (room in known) best = room
    }
    return best
}
function top_of(room,   parts) { split(room, parts, "/"); return parts[1] }
function is_in(room, other) { return room == other || index(room, other "/") == 1 }
function complain(text) { print FILENAME ":" FNR ": " text; bad++ }
BEGIN {
    n = split(arrows, lines, "\n")
    for (i = 1; i <= n; i++) {
        m = split(lines[i], words, " ")
        if (m == 0) continue
        known[words[1]] = 1
        allowed[words[1], words[1]] = allowed[words[1], "base"] = 1
        for (k = 2; k <= m; k++) allowed[words[1], words[k]] = 1
    }
    n = split(owners, lines, "\n")
    for (i = 1; i <= n; i++) if (split(lines[i], words, " ") == 2) owner[words[1]] = words[2]
}
FNR == 1 {
    from = room_of(FILENAME)
    directory = FILENAME
    sub(/\/[^\/]*$/, "", directory)
    tested = "" # the folder whose tests these are
    if (from == "tests") { split(FILENAME, parts, "/"); tested = parts[2] }
    if (!(from in known)) complain("folder " from " has no line in tests/check_includes.sh")
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    header = $0
    sub(/^[^<]*</, "", header); sub(/>.*/, "", header)
    if (header in owner && top_of(from) != owner[header] && from != "tests")
        complain("<" header "> belongs to " owner[header] " only")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    header = $0
    sub(/^[^"]*"/, "", header); sub(/".*/, "", header)
    if (header ~ /\.\./) { complain("\"" header "\": paths start at the root or at src"); next }
    to = header ~ /\// ? room_of(header) : from
    if (header !~ /\// && system("test -e " directory "/" header) != 0) complain("\"" header "\" is not beside this file")
    if (!(to in known)) { complain("\"" header "\": unknown folder " to); next }
    if (header ~ /_internal\.h$/ && !is_in(from, to)) {
        if (tested != top_of(to) && tested != "train" && tested != "fuzz" && !(tested == "data" && top_of(to) == "text"))
            complain("\"" header "\" is private to " to)
    } else if (!((from, to) in allowed) && !((from, "*") in allowed)) complain(from " must not include " to " (\"" header "\")")
}
END { if (bad) { print bad " includes point where they must not"; exit 1 } }
' $files
