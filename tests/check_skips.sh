#!/bin/sh
# No skip that nobody sees: in C tests skip() and exit status 77 come from tests/support/skip.h alone, in scripts that ctest runs
# from tests/support/skip.sh.
set -eu
cd "${1:-$(dirname "$0")/..}"
if grep -rnE '\bskip\(\)|return 77;|SKIP:' tests --include='*.c' --include='*.h' | grep -v '^tests/support/skip\.h:'; then
    echo "these leave something out without tests/support/skip.h, so that no summary lists it" >&2
    exit 1
fi
# shellcheck disable=SC2046
for script in $(cat tests/CMakeLists.txt tests/*/CMakeLists.txt | grep -oE '[a-z_]+\.(sh|py)' | sort -u); do
    if grep -nE 'exit\(?[ (]?77' $(find tests -name "$script" ! -name skip.sh) /dev/null; then
        echo "this leaves by 77 without tests/support/skip.sh, so that no summary lists it" >&2
        exit 1
    fi
done
