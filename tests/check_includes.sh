#!/bin/sh
# Checks every #include "..." below DIR (default: this checkout) against the arrows between folders, and prints one line
# for each that points elsewhere. Exit 0: none; 1: some; 2: nothing to check.
#   - a folder includes only the folders on its line below, src/base and itself;
#   - X_internal.h files are included only inside their folder (and by that folder's tests; those of train, where all
#     folders meet, see every folder's);
#   - a folder with C files that has no line is an error;
#   - the libraries that belong to one folder are included there only.
set -eu
cd "${1:-$(dirname "$0")/..}"

arrows='
base
io
kernels
device   kernels
model    kernels
optim    kernels
offload  io device
format   io
data
comm
train    model data format comm offload optim io kernels
tools    *
examples *
tests    *
'
owners='
liburing.h  io
mpi.h       comm
pcre2.h     data
utf8proc.h  data
'

files=$(find src io offload optim examples tests tools -name '*.[ch]' 2>/dev/null | sort)
[ -n "$files" ] || { echo "no C files below $PWD" >&2; exit 2; }

# shellcheck disable=SC2086
awk -v arrows="$arrows" -v owners="$owners" '
# The folder that owns a path of the tree, or the target of an include.
function folder_of(path,   parts) {
    split(path, parts, "/")
    return parts[1] == "src" ? parts[2] : parts[1]
}
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
    from = folder_of(FILENAME)
    directory = FILENAME
    sub(/\/[^\/]*$/, "", directory)
    tested = "" # the folder whose tests these are
    if (from == "tests") { split(FILENAME, parts, "/"); tested = parts[2] }
    if (!(from in known)) complain("folder " from " has no line in tests/check_includes.sh")
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    header = $0
    sub(/^[^<]*</, "", header); sub(/>.*/, "", header)
    if (header in owner && from != owner[header] && from != "tests")
        complain("<" header "> belongs to " owner[header] " only")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    header = $0
    sub(/^[^"]*"/, "", header); sub(/".*/, "", header)
    if (header ~ /\.\./) { complain("\"" header "\": paths start at the root or at src"); next }
    to = header ~ /\// ? folder_of(header) : from
    if (header !~ /\// && system("test -e " directory "/" header) != 0) complain("\"" header "\" is not beside this file")
    if (!(to in known)) { complain("\"" header "\": unknown folder " to); next }
    if (!((from, to) in allowed) && !((from, "*") in allowed)) complain(from " must not include " to " (\"" header "\")")
    if (header ~ /_internal\.h$/ && from != to && tested != to && tested != "train" && tested != "fuzz")
        complain("\"" header "\" is private to " to)
}
END { if (bad) { print bad " includes point where they must not"; exit 1 } }
' $files
