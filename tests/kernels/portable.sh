#!/bin/sh
# The kernels where this machine's instructions are not: src/kernels and optim compile for aarch64 (a cross compiler is
# needed: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross), and a build without any column but ref passes the tests of kernels
# and models.
#   portable.sh [BUILD_DIR]     a missing cross compiler is said and left out
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=gnu17 -O2 -Wall -Wextra -ffp-contract=off -fno-math-errno -fno-strict-aliasing -fopenmp -D_GNU_SOURCE"
flags="$flags -DTIDEMILL_VERSION=\"0\" -DTIDEMILL_FAULTS=1 -I$root -I$root/src"

result=0
if command -v aarch64-linux-gnu-gcc > /dev/null; then
    failed=
    for file in "$root"/src/base/*.c "$root"/src/kernels/*.c "$root"/optim/*.c; do
        # shellcheck disable=SC2086
        aarch64-linux-gnu-gcc $flags -Werror -c "$file" -o "$work/x.o" 2> "$work/log" || failed="$failed ${file#"$root"/}"
    done
    if [ -z "$failed" ]; then
        echo "aarch64: src/base, src/kernels and optim compile"
    else
        echo "aarch64: does not compile:$failed"
        result=1
    fi
else
    echo "aarch64: no cross compiler, left out"
fi

build=${1:-$work/build}
cmake -S "$root" -B "$build" -G Ninja -DTIDEMILL_PORTABLE=ON "-DTIDEMILL_ONLY=src/base;src/kernels;src/model;tests" > "$work/log"
ninja -C "$build" test_kernels test_kernels_leaves test_gemm test_model test_golden >> "$work/log" || { cat "$work/log"; exit 1; }
ctest --test-dir "$build" --output-on-failure -R '^(test_kernels|test_kernels_leaves|test_gemm|test_model|test_golden)$' > "$work/log" || { cat "$work/log"; exit 1; }
echo "portable build: kernels and model pass"
exit $result
