/* MPI is a module: found, checked and loaded where a launcher is, once. */
#include "comm/mpi_internal.h"
#include "comm/remote_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

const comm_mpi_table *comm_mpi;

#define TO_DO "install MPI's headers (tools/deps.sh ranks) and build again"

/* Global: MPI loads plugins of its own, which look for the symbols of their library. Never unloaded. */
static tm_status load(void) {
    char path[TM_MODULE_PATH];
    if (!tm_module_find("mpi", path))
        return tm_fail(TM_EUNSUPPORTED, "this build is for one rank (there is no %s): " TO_DO, path);
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!module)
        return tm_fail(
            TM_EUNSUPPORTED,
            "MPI cannot be loaded: %s; install it (Debian: apt-get install openmpi-bin), or build again with "
            "this machine's own",
            dlerror());
    const comm_mpi_table *table = dlsym(module, COMM_MPI_SYMBOL);
    if (!table) return tm_fail(TM_EUNSUPPORTED, "%s is no module of ranks; build or install tidemill again", path);
    if (table->version != COMM_MPI_VERSION || table->bytes != sizeof *table)
        return tm_fail(TM_EUNSUPPORTED, "%s is of another version of tidemill; build or install it again", path);
    comm_mpi = table;
    return TM_OK;
}

tm_status comm_mpi_load(void) {
    return comm_mpi ? TM_OK : load();
}

tm_status tm_comm_available(char *text, size_t cap) {
    TM_TRY(comm_mpi_load());
    comm_mpi->library(text, cap);
    return TM_OK;
}
