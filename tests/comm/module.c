/* A module of ranks that is none: of another version, or without its symbol (NO_SYMBOL). */
#include "comm/mpi_internal.h"

#ifdef NO_SYMBOL
extern const int tm_of_something_else;
__attribute__((visibility("default"))) const int tm_of_something_else = 1;
#else
extern const comm_mpi_table tm_comm_mpi;
__attribute__((visibility("default")))
const comm_mpi_table tm_comm_mpi = {.version = COMM_MPI_VERSION + 1, .bytes = sizeof(comm_mpi_table)};
#endif
