/* A witness between this program and MPI: it counts what is handed to MPI_Isend and MPI_Iallreduce, by MPI's profiling
 * interface, and knows nothing of src/comm's counters. */
#ifndef TESTS_COMM_WITNESS_H
#define TESTS_COMM_WITNESS_H

#include <stdint.h>

typedef struct witnessed {
    uint64_t messages, bytes; /* that this process has posted so far, signs of life apart */
} witnessed;
witnessed witness(void); /* any thread, while no operation is under way */

#endif
