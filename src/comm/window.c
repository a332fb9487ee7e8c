/* Memory that the ranks of a node share. MPI places the parts one after another ("contiguous", the default of
 * MPI_Win_allocate_shared), so that they are one piece as well. */
#include "comm/remote_internal.h"

#include <errno.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
#ifndef MADV_POPULATE_READ /* a C library older than Linux 5.14 */
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

typedef struct part {
    char *base;
    uint64_t bytes;
} part;

struct tm_comm_window {
    tm_comm *c;
    uint64_t my_bytes;
    char *allocated;  /* a job of one */
    comm_mpi_win win; /* a job of several */
    part *parts;      /* [node_size] */
};

static char *aligned(char *p) {
    return p + (PAGE - (uintptr_t)p % PAGE) % PAGE;
}

/* ---- on the thread of comm ---- */

/* The first part is asked for with a page to spare, for its alignment and so for everyone's. */
static tm_status find_parts(tm_comm_window *w) {
    char *at = NULL, *next = NULL;
    for (uint32_t r = 0; r < w->c->node_size; r++) {
        int64_t bytes;
        void *base;
        TM_TRY(comm_mpi_window_query(w->win, (int)r, &bytes, &base));
        if (r == 0) at = next = base;
        if (bytes > 0 && (char *)base != next) return TM_EIO;
        next += bytes;
        w->parts[r] = (part){aligned(at), (uint64_t)(r == 0 ? bytes - PAGE : bytes)};
        at += w->parts[r].bytes;
    }
    return TM_OK;
}

static tm_status open_remote(tm_comm *c, void *arg) {
    tm_comm_window *w = arg;
    void *base;
    comm_block_begin(c, "MPI_Win_allocate_shared");
    tm_status rc = comm_mpi_window((int64_t)(w->my_bytes + (c->node_rank == 0 ? PAGE : 0)),
                                   c->remote->group[TM_COMM_NODE], &base, &w->win);
    comm_block_end(c);
    if (tm_fault_hit("window_lost", NULL))
        w->win = comm_mpi->no_win, rc = TM_EIO; /* as an MPI that fails on one rank */
    if (rc == TM_OK) rc = find_parts(w);
    if (rc == TM_OK) return TM_OK;
    tm_error_clear(); /* says that the ranks cannot go on: without a window they can */
    return tm_fail(TM_EIO, "MPI has no memory in one piece that the ranks of a node share");
}

static tm_status close_remote(tm_comm *c, void *arg) {
    tm_comm_window *w = arg;
    comm_block_begin(c, "MPI_Win_free");
    tm_status rc = comm_mpi_window_free(&w->win);
    comm_block_end(c);
    return rc;
}

static void release(tm_comm_window *w) {
    if (!w) return;
    tm_free(w->allocated);
    tm_free(w->parts);
    tm_free(w);
}

static tm_status open_alone(tm_comm_window *w) {
    w->allocated = tm_malloc(w->my_bytes + PAGE);
    if (!w->allocated) return tm_nomem(w->my_bytes);
    w->parts[0] = (part){aligned(w->allocated), w->my_bytes};
    return TM_OK;
}

enum { NOBODY = UINT32_MAX };

/* The first rank of the node on which it does not hold. */
static tm_status first_without(tm_comm *c, bool mine, uint32_t *who) {
    uint64_t place = mine ? NOBODY : c->node_rank;
    tm_comm_op op = {.code = TM_COMM_ALL_REDUCE,
                     .group = TM_COMM_NODE,
                     .type = TM_COMM_U64,
                     .reduce = TM_COMM_MIN,
                     .send = &place,
                     .recv = &place,
                     .count = 1,
                     .uncounted = true};
    tm_error why = *tm_error_get();
    tm_error_clear();
    TM_TRY(tm_comm_run(c, &op));
    *who = place == NOBODY ? NOBODY : tm_comm_group_world(c, TM_COMM_NODE, (uint32_t)place);
    if (why.code != TM_OK) tm_error_set(&why);
    return TM_OK;
}

/* Have all come this far? If not, each has an error: its own, or one that names who has. */
static tm_status all_ready(tm_comm *c, tm_status mine, const char *otherwise) {
    uint32_t who;
    TM_TRY(first_without(c, mine == TM_OK, &who));
    if (mine != TM_OK || who == NOBODY) return mine;
    return tm_fail(TM_ENOMEM, "memory that the ranks of a node share: rank %u (%s) %s", who, tm_comm_host(c, who),
                   otherwise);
}

/* A store into memory of a file system that is full ends the process; this call says so instead. Where the kernel does
 * not have it (before Linux 5.14) pages are touched. */
static bool populate(char *base, uint64_t bytes, int how) {
    if (tm_fault_hit("window_full", NULL)) return false;
    if (bytes == 0 || madvise(base, bytes, how) == 0) return true;
    if (errno != EINVAL) return false;
    for (uint64_t at = 0; at < bytes; at += PAGE) {
        volatile char *page = base + at;
        if (how == MADV_POPULATE_WRITE)
            *page = 0;
        else
            (void)*page;
    }
    return true;
}

/* Each rank its own part, so that it lies near those who write it; then everyone has all of it before its first step.
 */
static tm_status touch(tm_comm_window *w) {
    const part *mine = &w->parts[w->c->node_rank];
    tm_status rc = TM_OK;
    if (!populate(mine->base, mine->bytes, MADV_POPULATE_WRITE))
        rc = tm_fail(TM_ENOMEM, "memory that the ranks of a node share: no room for %llu bytes (is /dev/shm full?)",
                     (unsigned long long)tm_comm_window_bytes(w));
    TM_TRY(all_ready(w->c, rc, "has no room for it (is /dev/shm full?)"));
    (void)populate(w->parts[0].base, tm_comm_window_bytes(w), MADV_POPULATE_READ);
    return TM_OK;
}

/* Keeps the error that is there. */
static void close_together(tm_comm_window *w) {
    tm_error why = *tm_error_get();
    tm_error_clear();
    if (comm_run_errand(w->c, close_remote, w) != TM_OK) tm_error_clear();
    if (why.code != TM_OK) tm_error_set(&why);
}

/* What not all can use, all give back. Where MPI gave one of them none, that one cannot come to a collective call about
 * it: it is left to MPI_Finalize then, as addresses without a page, for nobody has touched it. */
static tm_status give_back(tm_comm_window *w, tm_status rc) {
    uint32_t who;
    if (first_without(w->c, w->win != comm_mpi->no_win, &who) == TM_OK && who == NOBODY) close_together(w);
    return rc;
}

/* The ranks of a node come together first, where a silent one is noticed, and one that cannot come is not waited for.
 * Nobody touches a page before all have found theirs. */
static tm_status open_together(tm_comm *c, tm_comm_window *w, tm_status rc) {
    TM_TRY(all_ready(c, rc, "is out of memory"));
    rc = all_ready(c, comm_run_errand(c, open_remote, w), "gets none of MPI");
    if (rc == TM_OK) rc = touch(w);
    return rc == TM_OK ? TM_OK : give_back(w, rc);
}

static tm_status make(tm_comm_window **out, tm_comm *c, uint64_t my_bytes) {
    tm_comm_window *w = *out = tm_calloc(1, sizeof *w);
    if (!w) return tm_nomem(sizeof *w);
    w->c = c;
    w->my_bytes = tm_round_up(my_bytes, PAGE);
    w->win = c->remote ? comm_mpi->no_win : NULL;
    w->parts = tm_calloc(c->node_size, sizeof *w->parts);
    return w->parts ? TM_OK : tm_nomem(c->node_size * sizeof *w->parts);
}

tm_status tm_comm_window_open(tm_comm_window **out, tm_comm *c, uint64_t my_bytes) {
    tm_comm_window *w;
    tm_status rc = make(&w, c, my_bytes);
    *out = NULL;
    if (c->remote)
        rc = open_together(c, w, rc);
    else if (rc == TM_OK)
        rc = open_alone(w);
    if (rc == TM_OK)
        *out = w;
    else
        release(w);
    return rc;
}

void *tm_comm_window_part(const tm_comm_window *w, uint32_t node_rank, uint64_t *bytes) {
    TM_ASSERT(node_rank < w->c->node_size);
    if (bytes) *bytes = w->parts[node_rank].bytes;
    return w->parts[node_rank].base;
}

uint64_t tm_comm_window_bytes(const tm_comm_window *w) {
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < w->c->node_size; r++) bytes += w->parts[r].bytes;
    return bytes;
}

void tm_comm_window_close(tm_comm_window *w) {
    if (!w) return;
    if (w->c->remote) close_together(w);
    release(w);
}
