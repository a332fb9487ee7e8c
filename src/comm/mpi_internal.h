/* What this folder uses of MPI, as a table of functions. libtidemill_mpi.so (mpi/table.c, the only file that includes
 * mpi.h) has one; it is built where MPI's headers are, and loaded in a process that a launcher started, never before.
 * seam.c makes the calls.
 *
 * MPI's handles are pointers in one library and numbers in another; here they are pointers that nobody follows.
 * Functions that return int return MPI's error code: 0 is success. Bytes are what travels; a communicator made here
 * returns its errors. */
#ifndef TIDEMILL_COMM_MPI_INTERNAL_H
#define TIDEMILL_COMM_MPI_INTERNAL_H

#include "base/base.h"

typedef struct comm_mpi_comm *comm_mpi_comm;       /* MPI_Comm */
typedef struct comm_mpi_request *comm_mpi_request; /* MPI_Request */
typedef struct comm_mpi_win *comm_mpi_win;         /* MPI_Win */

/* Requests that are looked at together; `from` any rank. */
enum { COMM_MPI_BATCH = 64, COMM_MPI_ANY = -1 };

/* The module's one symbol, `const comm_mpi_table tm_comm_mpi`. The version rises with what the size does not tell. */
enum { COMM_MPI_VERSION = 1 };
#define COMM_MPI_SYMBOL "tm_comm_mpi"

typedef struct comm_mpi_table {
    uint32_t version, bytes; /* COMM_MPI_VERSION, sizeof(comm_mpi_table) */
    comm_mpi_comm world;
    comm_mpi_request no_request;
    comm_mpi_win no_win;
    int other_error;                         /* a code, for faults */
    void (*library)(char *text, size_t cap); /* "Open MPI v4.1.4"; before init as well */
    int (*init)(void);                       /* MPI_THREAD_FUNNELED is enough */
    bool (*is_up)(void);                     /* after init, before finalize */
    void (*world_size)(int *size, int *rank);
    int (*finalize)(void);
    void (*abort)(int status);
    /* The library's words; true: a message was longer than its receive. */
    bool (*explain)(int code, char *text, size_t cap);
    int (*isend)(const void *buf, int bytes, int to, int tag, comm_mpi_comm comm, comm_mpi_request *out);
    int (*irecv)(void *buf, int bytes, int from, int tag, comm_mpi_comm comm, comm_mpi_request *out);
    int (*test)(comm_mpi_request *request, int *done); /* done: *request is no_request */
    /* One pass over n <= COMM_MPI_BATCH requests: *done of them completed now (index[], bytes[] received), -1: none was
     * active. */
    int (*testsome)(int n, comm_mpi_request *request, int *done, int *index, int *bytes);
    int (*cancel)(comm_mpi_request *request);
    void (*progress)(comm_mpi_comm comm);
    int (*iallreduce_f32)(const void *send, void *recv, int n, comm_mpi_comm comm, comm_mpi_request *out);
    int (*allgather)(const void *mine, void *all, int bytes, comm_mpi_comm comm);
    int (*least)(int mine, int *least); /* of all ranks */
    int (*bcast)(void *buf, int bytes, int root, comm_mpi_comm comm);
    int (*split)(comm_mpi_comm comm, int colour, int key, comm_mpi_comm *out);
    int (*split_shared)(comm_mpi_comm comm, int key, comm_mpi_comm *out);
    int (*dup)(comm_mpi_comm comm, comm_mpi_comm *out);
    void (*free)(comm_mpi_comm comm);
    int (*win_allocate)(int64_t bytes, comm_mpi_comm comm, void **base, comm_mpi_win *out);
    int (*win_query)(comm_mpi_win win, int rank, int64_t *bytes, void **base);
    int (*win_free)(comm_mpi_win *win);
} comm_mpi_table;

/* The table, once it is loaded. */
extern const comm_mpi_table *comm_mpi;
/* TM_EUNSUPPORTED: not in this build, of another one, or its MPI is not to be loaded; the text says what to do. */
tm_status comm_mpi_load(void);

#endif
