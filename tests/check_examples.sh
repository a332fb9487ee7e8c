#!/bin/sh
# check_examples.sh SOURCE CC: the examples in the headers' manuals compile. A file of tests/examples has what stands
# around them, and a line "//@ HEADER START" where the example is put that begins with START. Every line of an example
# (" *     ", with a call of tm_...) of a header that is installed has to be in one.
set -eu
root=$1
cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
for frame in tests/examples/*.c; do
    awk -v used="$work/used" '
    function put(header, start,   line, on, n) {
        while ((getline line < header) > 0) {
            n++
            if (!on && index(line, " *     " start) == 1) on = 1
            if (!on) continue
            if (line !~ /^ \*     /) break
            print header ":" n >> used
            print substr(line, 8)
        }
        close(header)
        if (!on) { print FILENAME ": " header " has no example that begins with " start > "/dev/stderr"; exit 1 }
    }
    /\/\/@ / {
        header = $2
        start = $0
        sub(/^ *\/\/@ [^ ]+ /, "", start)
        put(header, start)
        next
    }
    { print }' "$frame" > "$work/$(basename "$frame")"
    "$cc" -std=c17 -D_GNU_SOURCE -c -o "$work/out.o" -Wall -Wextra -Werror -Wno-unused-variable \
        -Wno-unused-but-set-variable -Wno-misleading-indentation -I. -Isrc "$work/$(basename "$frame")"
done
# shellcheck disable=SC2046
missing=$(grep -HnE '^ \*     .*\btm_[a-z0-9_]+\(.*;' $(find io offload optim src/base src/kernels src/device src/model src/format src/text src/adapter src/data src/comm src/config \
    -name '*.h' ! -name '*_internal.h') | cut -d: -f1,2 | grep -vxFf "$work/used" || true)
[ -z "$missing" ] || { printf 'no file of tests/examples compiles these examples:\n%s\n' "$missing" >&2; exit 1; }
