/* Were we started by a launcher? By the environment alone, so that a process on its own never touches MPI. */
#include "comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

/* One launcher, one variable: the number of ranks, or something that is there only under the launcher. */
typedef struct launcher {
    const char *variable;
    bool is_size;
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", true}, /* Open MPI's mpirun */
    {"MPI_LOCALNRANKS", false},     /* MPICH's Hydra, where PMI is not used */
    {"PMI_SIZE", true},             /* MPICH, Intel MPI, MVAPICH: PMI-1; Slurm's pmi2 */
    {"PMIX_RANK", false},           /* any PMIx launcher: PRRTE, srun --mpi=pmix, Flux */
    {"SLURM_STEP_NUM_TASKS", true}, /* srun; the batch script itself has no step of several tasks */
};

bool tm_comm_launched(void) {
    const char *forced = getenv("TIDEMILL_MPI");
    if (forced && *forced) return strcmp(forced, "0") != 0;
    for (size_t i = 0; i < TM_COUNT(launchers); i++) {
        const char *value = getenv(launchers[i].variable);
        if (!value || !*value) continue;
        return !launchers[i].is_size || strtol(value, NULL, 10) > 1; /* the first that is there knows best */
    }
    return false;
}
