/* What makes a program the test build: TIDEMILL_FAULT and TIDEMILL_CHECKSUMS count in it. Before main, so that the
 * first allocation is counted. Linked into build/tests/tidemill, never into what is installed. */
#include "base/base.h"

#include <dlfcn.h>

extern void __gcov_dump(void) __attribute__((weak));

__attribute__((constructor)) static void take_environment(void) {
    tm_fault_use_environment();
}

/* Of a rank that ends its job, what ran until here counts (tests/coverage.sh): what Open MPI does next leaves nothing.
 * The module's call comes here, since the program's symbols come first; a communicator is a pointer or an int. */
int MPI_Abort(intptr_t comm, int status);
__attribute__((visibility("default"))) int MPI_Abort(intptr_t comm, int status) {
    int (*abort_ranks)(intptr_t, int) = (int (*)(intptr_t, int))dlsym(RTLD_DEFAULT, "PMPI_Abort");
    if (__gcov_dump) __gcov_dump();
    return abort_ranks ? abort_ranks(comm, status) : status;
}
