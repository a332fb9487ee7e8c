#!/bin/sh
# optim_install.sh BUILD CC EXAMPLES: installs the optimizers alone into an empty prefix, builds the example against them with
# pkg-config, and runs it and the Python one. The library must export what its header declares, and nothing else.
set -eu
build=$1
cc=$2
examples=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" --component optim > "$work/install.log"
pc=$(find "$work/prefix" -name tidemill-optim.pc)
library=$(find "$work/prefix" -name 'libtidemill_optim.so')
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

# shellcheck disable=SC2046
$cc -std=c17 -O2 "$examples/curve.c" -o "$work/curve" $(pkg-config --cflags --libs tidemill-optim) -lm
LD_LIBRARY_PATH=$(dirname "$library") "$work/curve"
python3 "$examples/curve.py" "$library"

header=$work/prefix/include/tidemill/optim/optimizer.h
if command -v c++ > /dev/null; then
    echo "#include <tidemill/optim/optimizer.h>" > "$work/header.cc"
    # shellcheck disable=SC2046
    c++ -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags tidemill-optim) "$work/header.cc"
fi
sed -n 's/^TM_OPTIM_API.*[ *]\(tm_[a-z0-9_]*\)(.*/\1/p' "$header" | sort > "$work/declared"
nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sort > "$work/exported"
diff "$work/declared" "$work/exported" || { echo "left: declared in optimizer.h; right: exported" >&2; exit 1; }
[ "$(wc -l < "$work/exported")" -gt 20 ]
