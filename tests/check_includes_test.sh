#!/bin/sh
# The include check must accept what is allowed and refuse each kind of violation: small trees, one line each.
set -eu
check=$(dirname "$0")/check_includes.sh
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

# try accept|refuse FILE LINE
try() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/$(dirname "$2")" "$tree/src/base"
    echo '#include <stdint.h>' > "$tree/src/base/base.h"
    printf '%s\n' "$3" > "$tree/$2"
    if output=$(sh "$check" "$tree" 2>&1); then verdict=accept; else verdict=refuse; fi
    [ "$verdict" = "$1" ] && return
    echo "expected $1 of $3 in $2: $output"
    failed=1
}

try accept io/a.c '#include "base/base.h"'
try accept io/a.c '#include "io/io_internal.h"'
try accept io/a.c '#include <liburing.h>'
try accept offload/plan/a.c '#include "io/io.h"'
try accept src/train/resume/a.c '#include "offload/store/store.h"'
try accept src/train/objective/a.c '#include "train/train_internal.h"'
try accept io/run/a.c '#include "io/io_internal.h"'
try accept src/device/cuda/a.cuh '#include "device/device.h"'
try accept src/device/cpu/a.c '#include "device/device.h"'
try accept tools/a.c '#include "io/io.h"'
try accept tests/io/a.c '#include "io/io_internal.h"'
try accept src/text/tokenizer/a.c '#include <pcre2.h>'
try accept src/data/a.c '// #include "io/io.h" is not an include'
try refuse src/base/a.c '#include "io/io.h"'
try refuse io/a.c '#include "offload/plan/plan.h"'
try refuse io/a.c '#include "io/file/file.h"'
try refuse io/file/a.c '#include "io/run/run.h"'
try refuse offload/plan/a.c '#include "offload/store/store.h"'
try refuse offload/exec/a.c '#include "offload/store/store_internal.h"'
try refuse src/config/a.c '#include "train/trainer.h"'
try refuse src/device/cuda/a.cuh '#include "model/model.h"'
try refuse io/a.c '  #  include "kernels/kernels.h"'
try refuse src/model/a.c '#include "io/io.h"'
try refuse src/data/a.c '#include "io/io.h"'
try refuse optim/a.c '#include "model/model.h"'
try refuse src/train/a.c '#include "tools/tools.h"'
try refuse offload/a.c '#include "io/io_internal.h"'
try refuse tools/a.c '#include "io/io_internal.h"'
try refuse tests/offload/a.c '#include "io/io_internal.h"'
try refuse offload/a.c '#include <liburing.h>'
try refuse src/train/a.c '#include <mpi.h>'
try refuse src/model/a.c '#include "../../io/io.h"'
try refuse src/model/a.c '#include "absent.h"'
try refuse src/model/a.c '#include "nowhere/nowhere.h"'
try refuse src/newcomer/a.c '#include "base/base.h"'
exit $failed
