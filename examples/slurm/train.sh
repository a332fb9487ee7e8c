#!/bin/sh
# sbatch examples/slurm/train.sh STRATEGY [ARGUMENT]...: two nodes, two ranks on each. From the repository.
#SBATCH --job-name=tidemill
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
# Slurm sends SIGTERM two minutes before the end, or when it wants the nodes for others: training stops at the next step
# with a commit and ends with exit status 3. The same command goes on from there: Slurm starts a job that it preempted
# again by itself, this script one that ran out of its time.
set -eu
strategy=${1:?a strategy: ddp, zero1, zero2, zero3, fsdp, hsdp, hpz, zeropp or zero3-nvme}
shift
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS
# --mpi=pmix suits Open MPI, --mpi=pmi2 MPICH; `srun --mpi=list` shows what there is. With the wrong one every task would
# find itself alone: tidemill notices and says so. Who ends first must not get the others killed, they commit as well
# (--kill-on-bad-exit=0); who is left alone ends a minute later at the most (--wait).
status=0
srun --mpi="${TIDEMILL_SRUN_MPI:-pmix}" --kill-on-bad-exit=0 --wait=60 \
    "${TIDEMILL:-build/bin/tidemill}" train "examples/mpi/$strategy.json" "$@" || status=$?
# Any other status is an error that the next start would meet again.
if [ $status -eq 3 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi
exit $status
