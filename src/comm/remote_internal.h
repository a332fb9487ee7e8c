/* The back-end over MPI: one thread that makes every MPI call. remote.c (the thread and its queue), start.c (MPI_Init
 * to the first barrier), life.c (signs of life, abort), transfer.c (messages and waiting for them), pieces.c,
 * collective.c, gather.c and small.c (the operations), seam.c (MPI's calls), module.c (finds MPI). */
#ifndef TIDEMILL_COMM_REMOTE_INTERNAL_H
#define TIDEMILL_COMM_REMOTE_INTERNAL_H

#include "comm/comm_internal.h"
#include "comm/mpi_internal.h"
#include "comm/sum_internal.h"

#include <pthread.h>

/* Messages that are under way together. Two sets, so that one piece travels while another is summed. */
typedef struct comm_lane {
    comm_mpi_request *request; /* [capacity]; completed ones become no_request */
    int *expected;             /* bytes of a receive, -1 of a send */
    int *peer;                 /* world rank */
    int n, left, capacity;
    char *memory; /* this lane's half of the workspace */
} comm_lane;

/* Signs of life go around in a ring: every rank tells the next one, and listens to the one before. */
typedef struct comm_life {
    comm_mpi_comm comm;
    comm_mpi_request beat_out, beat_in, abort_in;
    int in, out, abort_status;
    bool started, leaving, heard_last;
    uint64_t last_tick_ns, next_beat_ns;
    uint64_t silent_ns; /* since the rank before was heard of; only time in which this process ran */
} comm_life;

/* Work for the thread that is not an operation of the public table: `run` is called there, in the order of the queue.
 */
typedef struct comm_errand {
    tm_status (*run)(tm_comm *c, void *arg);
    void *arg;
} comm_errand;
enum { COMM_ERRAND = TM_COMM_CODES }; /* op.code of one; op.ctx: comm_errand */

struct comm_remote {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, finished; /* the thread waits for work, others for something finished */
    /* under the lock: */
    tm_comm_op *head, *tail;
    bool closing, opened, ended, failed;
    tm_status open_status;
    tm_error error; /* why open, or the first operation, failed */
    /* any thread: */
    atomic_int abort_status;                /* not 0: the job is to end */
    atomic_uint_least64_t blocked_since_ns; /* the thread is inside a call of MPI that blocks; 0: it is not */
    _Atomic(const char *) blocked_in;
    /* the thread's: */
    const tm_comm_opts *opts;   /* during open */
    const tm_comm_op *executed; /* whose messages are posted; NULL: an errand's, or none of an operation */
    comm_mpi_comm data, group[TM_COMM_MAX_GROUPS];
    comm_lane lane[2];
    uint64_t *begin;     /* [size + 1] where slices begin, of the operation under way */
    const void **source; /* [size] of a sum */
    comm_life life;
};

/* ---- remote.c ---- */
tm_status comm_remote_open(tm_comm *c, const tm_comm_opts *opts);
void comm_remote_submit(tm_comm *c, tm_comm_op *op);
void comm_remote_wait(tm_comm *c, const tm_comm_op *op);
void comm_remote_error(tm_comm *c, tm_error *out);
void comm_remote_close(tm_comm *c);
_Noreturn void comm_remote_abort(tm_comm *c, int exit_status);
tm_status comm_run_errand(tm_comm *c, tm_status (*run)(tm_comm *c, void *arg), void *arg);

/* ---- start.c: on the thread ---- */
tm_status comm_start(tm_comm *c);
void comm_stop(tm_comm *c);                                                  /* MPI_Finalize */
tm_status comm_make_group_comm(tm_comm *c, uint32_t group, uint32_t colour); /* collective over WORLD */

/* ---- life.c: on the thread ---- */
tm_status comm_life_start(tm_comm *c);
tm_status comm_life_stop(tm_comm *c);
void comm_life_tick(tm_comm *c); /* often; does not return if the job ends */
/* Around calls that block: who waits for the thread notices when they do not come back. */
#define COMM_INIT "MPI_Init" /* waits for all ranks to be started: they get half as much time again */
void comm_block_begin(tm_comm *c, const char *what);
void comm_block_end(tm_comm *c);
bool comm_block_too_long(const tm_comm *c, char *why, size_t cap); /* under the lock */

/* siblings.c: the rank that the launcher says this process is (UINT32_MAX: it does not); "rank 2 (pid 123) is stopped",
 * of a process that the same launcher started here. */
uint32_t comm_launch_rank(void);
bool comm_stopped_sibling(char *text, size_t cap);
/* The job ends, and the launcher may wait for them: kills them. A rank under a debugger ("t") is left. */
void comm_end_stopped_siblings(void);

/* ---- transfer.c: on the thread ---- */
/* Messages of a lane, to positions of a group; nothing is sent or received for 0 bytes unless `empty`. At most
 * COMM_MESSAGE_BYTES each. The same stage on both sides. */
enum { COMM_MESSAGE_BYTES = 64 << 20 };
typedef struct comm_route {
    tm_comm *c;
    const comm_group *g;
    comm_lane *lane;
    uint32_t group;
    int stage; /* 0 to 3: messages of different stages never meet */
    bool empty;
} comm_route;
tm_status comm_post_send(const comm_route *r, uint32_t to, const void *buf, uint64_t bytes);
tm_status comm_post_recv(const comm_route *r, uint32_t from, void *buf, uint64_t bytes);
tm_status comm_wait_lane(tm_comm *c, comm_lane *lane);
tm_status comm_wait_request(tm_comm *c, comm_mpi_request *request);

/* ---- pieces.c, collective.c, gather.c, small.c: on the thread ---- */
tm_status comm_execute(tm_comm *c, tm_comm_op *op);
tm_status comm_reduce_scatter(tm_comm *c, const tm_comm_op *op, float *out);
tm_status comm_all_gather(tm_comm *c, const tm_comm_op *op);
tm_status comm_barrier(tm_comm *c, uint32_t group);
void comm_begin(tm_comm *c, const tm_comm_op *op); /* fills remote->begin */

/* ---- seam.c: the table's calls, with MPI's errors as statuses and the faults of tests ---- */
tm_status comm_mpi_init(void);
tm_status comm_mpi_isend(const void *buf, int bytes, int to, int tag, comm_mpi_comm comm, comm_mpi_request *out);
tm_status comm_mpi_irecv(void *buf, int bytes, int from, int tag, comm_mpi_comm comm, comm_mpi_request *out);
tm_status comm_mpi_testsome(int n, comm_mpi_request *request, int *done, int *index, int *bytes);
tm_status comm_mpi_test(comm_mpi_request *request, int *done);
tm_status comm_mpi_iallreduce_f32(const void *send, void *recv, int n, comm_mpi_comm comm, comm_mpi_request *out);
tm_status comm_mpi_allgather(const void *mine, void *all, int bytes, comm_mpi_comm comm);
tm_status comm_mpi_min(int mine, int *least);
tm_status comm_mpi_bcast(void *buf, int bytes, int root, comm_mpi_comm comm);
tm_status comm_mpi_split(comm_mpi_comm comm, int colour, int key, comm_mpi_comm *out);
tm_status comm_mpi_split_shared(comm_mpi_comm comm, int key, comm_mpi_comm *out);
tm_status comm_mpi_dup(comm_mpi_comm comm, comm_mpi_comm *out);
tm_status comm_mpi_window(int64_t bytes, comm_mpi_comm comm, void **base, comm_mpi_win *out);
tm_status comm_mpi_window_query(comm_mpi_win win, int rank, int64_t *bytes, void **base);
tm_status comm_mpi_window_free(comm_mpi_win *win);
tm_status comm_mpi_finalize(void);

#endif
