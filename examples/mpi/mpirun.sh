#!/bin/sh
# mpirun.sh RANKS STRATEGY [ARGUMENT]...: trains examples/mpi/STRATEGY.json on this machine. From the repository.
#   sh examples/mpi/mpirun.sh 4 zero3 --set memory.host_budget=256MiB
# As many threads a rank as there are cores for it; TIDEMILL_NODE_SIZE=2 imitates nodes of two ranks.
set -eu
[ $# -ge 2 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
ranks=$1
config=examples/mpi/$2.json
shift 2
[ -e "$config" ] || { echo "$0: there is no $config" >&2; exit 2; }
cores=$(nproc)
threads=$((cores > ranks ? cores / ranks : 1))
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$threads}
export OMP_NUM_THREADS
flags=
case $(mpirun --version) in
*"Open MPI"* | *OpenRTE*)
    flags='--oversubscribe --bind-to none'
    if [ "$(id -u)" -eq 0 ]; then # containers, mostly
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    fi
    ;;
esac
# shellcheck disable=SC2086
exec mpirun $flags -n "$ranks" "${TIDEMILL:-build/bin/tidemill}" train "$config" "$@"
