/* What makes a program the test build: TIDEMILL_FAULT and TIDEMILL_CHECKSUMS count in it. Before main, so that the
 * first allocation is counted. Linked into build/tests/tidemill, never into what is installed. */
#include "base/base.h"

#include <mpi.h>

extern void __gcov_dump(void) __attribute__((weak));

__attribute__((constructor)) static void take_environment(void) {
    tm_fault_use_environment();
}

/* Of a rank that ends its job, what ran until here counts (tests/coverage.sh): what Open MPI does next leaves nothing.
 */
int MPI_Abort(MPI_Comm comm, int status) {
    if (__gcov_dump) __gcov_dump();
    return PMPI_Abort(comm, status);
}
