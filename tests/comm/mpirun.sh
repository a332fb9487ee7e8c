#!/bin/sh
# mpirun.sh RANKS NODE_SIZE PROGRAM...: starts so many ranks on this machine, as nodes of NODE_SIZE (0: as they are).
# 77: there is no mpirun.
set -eu
ranks=$1
node_size=$2
shift 2
command -v mpirun > /dev/null || exec sh "$(dirname "$0")/../support/skip.sh" "$(basename "$1") on $ranks ranks" "no mpirun"
flags=
case $(mpirun --version 2> /dev/null) in
*"Open MPI"* | *OpenRTE*)
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    flags='--oversubscribe --bind-to none --mca btl self,vader --mca pml ob1'
    ;;
esac
[ "$node_size" -eq 0 ] || export TIDEMILL_NODE_SIZE="$node_size"
export TM_TEST_RANKS="$ranks" ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI's own are not ours
# shellcheck disable=SC2086
exec mpirun $flags -n "$ranks" "$@"
