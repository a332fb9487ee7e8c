#!/bin/sh
# Everything that needs a GPU, on a machine that has one and may have nothing else.
#
#   tests/gpu.sh bundle FOLDER [ARCHITECTURES]   here, where nvcc and the packages of tools/deps.sh are: builds, and puts
#                                                program, module, tests of kernels, scripts, fixtures and libraries into
#                                                FOLDER (some 30 MB). ARCHITECTURES: as TIDEMILL_CUDA_ARCHITECTURES (90)
#   FOLDER/tests/gpu.sh [PART...]                there: the parts named, or all, each under ten minutes:
#       doctor      what is there
#       kernels     each kernel beside the reference (ctest -L gpu)
#       sanitizer   the same under compute-sanitizer: memcheck, racecheck, synccheck
#       fixtures    models beside transformers' numbers, bf16 beside the CPU
#       budgets     one hash over device budgets and placements; a run that goes on from a commit
#       link        copies as training makes them, beside one large copy
#       rates       each kernel beside the memory and the products of the device
#       speed       all in the device, beside PyTorch (bf16, SDPA, fused AdamW) where python3 has it
#       offload     states on the host, weights streamed, a small device budget, beside all in the device
#       plan        seconds that `plan` foretells beside those of runs
#       large       7B in 16 GiB of the device
# Each part ends with "PART: passed", "missed" (a figure below its target, or no PyTorch to stand beside) or "FAILED";
# exit 1 unless all passed. A word of
# each figure goes to stdout, JSON of all of them to $TIDEMILL_GPU_JSON if that is set.
#   TIDEMILL_DEVICE=cuda:0        TIDEMILL_BENCH_TINY=1: shapes to try the script with
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)

# Libraries that are not the C library's own.
libraries() {
    ldd "$@" | awk '$3 ~ /^\// { print $3 }' | sort -u |
        grep -Ev '/(libc|libm|libpthread|libdl|librt|libgcc_s|ld-linux[^/]*)\.so' || :
}

bundle() {
    to=$1
    build=$root/build-gpu
    cmake -S "$root" -B "$build" -G Ninja -DTIDEMILL_CUDA_ARCHITECTURES="${2:-90}" > "$root/build-gpu.log"
    ninja -C "$build" > "$root/build-gpu.log" || { tail -20 "$root/build-gpu.log" >&2; exit 1; }
    rm "$root/build-gpu.log"
    mkdir -p "$to/bin" "$to/lib/tidemill" "$to/lib/needed" "$to/tests/bench" "$to/tests/fixtures"
    cp "$build/bin/tidemill" "$build/bin/tidemill-bench" "$to/bin"
    cp "$build/lib/tidemill/libtidemill_cuda.so" "$to/lib/tidemill"
    cp "$build"/tests/test_cuda_*_device "$to/bin"
    strip "$to"/bin/* "$to/lib/tidemill/libtidemill_cuda.so"
    # shellcheck disable=SC2046
    cp $(libraries "$to"/bin/*) "$to/lib/needed"
    cp "$root/tests/gpu.sh" "$to/tests"
    cp "$root/tests/bench/lib.py" "$root/tests/bench/gpu.py" "$root/tests/bench/torch_step.py" "$to/tests/bench"
    cp -r "$root"/tests/fixtures/arch_* "$to/tests/fixtures"
    du -sh "$to"
}

if [ "${1:-}" = bundle ]; then
    [ $# -ge 2 ] || { echo "usage: tests/gpu.sh bundle FOLDER [ARCHITECTURES]" >&2; exit 2; }
    shift
    bundle "$@"
    exit
fi
[ -d "$root/lib/needed" ] && export LD_LIBRARY_PATH="$root/lib/needed${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if [ -z "${TIDEMILL:-}" ]; then
    TIDEMILL=$root/bin/tidemill
    [ -x "$TIDEMILL" ] || TIDEMILL=$root/build/bin/tidemill
    export TIDEMILL
fi
PYTHONPATH=$root/tests/bench exec python3 -u "$root/tests/bench/gpu.py" "$@"
