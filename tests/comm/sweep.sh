#!/bin/sh
# sweep.sh PROGRAM [N] [SEED]: N jobs of three ranks (20) in which one is stopped, killed or fails at a random call of MPI.
# Each has to end by itself, soon, and not with 0. PROGRAM: test_comm_failure. Not part of ctest: 3 s a job.
set -eu
program=$1
n=${2:-20}
seed=${3:-1}
here=$(dirname "$0")
export TIDEMILL_COMM_PATIENCE=1.5
awk -v n="$n" -v seed="$seed" 'BEGIN {
    srand(seed)
    calls = split("mpi_isend mpi_irecv mpi_testsome mpi_test start:mpi_init start:mpi_comm_split start:mpi_allgather " \
                  "start:mpi_comm_dup start:mpi_bcast start:mpi_allreduce", call, " ")
    kinds = split("stop kill error", kind, " ")
    for (i = 0; i < n; i++) {
        c = call[1 + int(rand() * calls)]
        k = kind[1 + int(rand() * kinds)]
        if (c ~ /^start/) k = k == "stop" ? "kill" : k # before the first sign of life only the launcher watches
        most = c ~ /^start/ ? 1 : c == "mpi_test" ? 6 : 200 # mpi_test: once a second
        print c ":" (1 + int(rand() * most)) ":" k ":once"
    }
}' | {
    bad=0
    while read -r fault; do
        start=$(date +%s)
        rc=0
        timeout 30 sh "$here/mpirun.sh" 3 0 "$program" "$fault" > sweep.log 2>&1 < /dev/null || rc=$?
        took=$(($(date +%s) - start))
        if [ "$rc" -eq 0 ] || [ "$rc" -eq 124 ] || [ "$took" -gt 20 ]; then
            bad=$((bad + 1))
            echo "FAILED $fault: exit $rc after $took s"
            cat sweep.log
        fi
    done
    rm -f sweep.log
    echo "$n faults, $bad not handled"
    [ "$bad" -eq 0 ]
}
