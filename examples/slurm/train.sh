#!/bin/sh
# sbatch examples/slurm/train.sh STRATEGY [ARGUMENT]...: two nodes, two ranks on each. From the repository.
#SBATCH --job-name=tidemill
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --signal=TERM@120
# Slurm sends SIGTERM two minutes before the end: training stops at the next step with a commit, and the same command
# goes on from there.
set -eu
strategy=${1:?a strategy: ddp, zero1, zero2, zero3, fsdp, hsdp, hpz, zeropp or zero3-nvme}
shift
OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS
# --mpi=pmix suits Open MPI, --mpi=pmi2 MPICH; `srun --mpi=list` shows what there is. With the wrong one every task would
# find itself alone: tidemill notices and says so.
exec srun --mpi="${TIDEMILL_SRUN_MPI:-pmix}" --kill-on-bad-exit=1 \
    "${TIDEMILL:-build/bin/tidemill}" train "examples/mpi/$strategy.json" "$@"
