/* Memory that the ranks of a node share. */
#include "comm/remote_internal.h"

enum { PART_ALIGN = 4096 };

typedef struct part {
    char *base;
    uint64_t bytes;
} part;

struct tm_comm_window {
    tm_comm *c;
    uint64_t my_bytes;
    char *allocated; /* a job of one */
    MPI_Win win;
    part *parts; /* [node_size] */
};

static char *aligned(char *p) {
    return p + (PART_ALIGN - (uintptr_t)p % PART_ALIGN) % PART_ALIGN;
}

/* ---- on the thread of comm ---- */

static tm_status find_parts(tm_comm_window *w) {
    for (uint32_t r = 0; r < w->c->node_size; r++) {
        MPI_Aint bytes;
        void *base;
        TM_TRY(comm_mpi_window_query(w->win, (int)r, &bytes, &base));
        w->parts[r] = (part){aligned(base), (uint64_t)bytes - PART_ALIGN};
    }
    return TM_OK;
}

static tm_status open_remote(tm_comm *c, void *arg) {
    tm_comm_window *w = arg;
    void *base;
    comm_block_begin(c, "MPI_Win_allocate_shared");
    tm_status rc =
        comm_mpi_window((MPI_Aint)(w->my_bytes + PART_ALIGN), c->remote->group[TM_COMM_NODE], &base, &w->win);
    comm_block_end(c);
    return rc == TM_OK ? find_parts(w) : rc;
}

static tm_status close_remote(tm_comm *c, void *arg) {
    tm_comm_window *w = arg;
    comm_block_begin(c, "MPI_Win_free");
    tm_status rc = comm_mpi_window_free(&w->win);
    comm_block_end(c);
    return rc;
}

/* ---- the caller's side ---- */

static tm_status open_alone(tm_comm_window *w) {
    w->allocated = tm_malloc(w->my_bytes + PART_ALIGN);
    if (!w->allocated) return tm_nomem(w->my_bytes);
    w->parts[0] = (part){aligned(w->allocated), w->my_bytes};
    return TM_OK;
}

/* The ranks of a node come together first, where a silent one is noticed. */
static tm_status open_together(tm_comm_window *w) {
    tm_comm_op meet = {.code = TM_COMM_BARRIER, .group = TM_COMM_NODE, .uncounted = true};
    TM_TRY(tm_comm_run(w->c, &meet));
    return comm_run_errand(w->c, open_remote, w);
}

tm_status tm_comm_window_open(tm_comm_window **out, tm_comm *c, uint64_t my_bytes) {
    *out = NULL;
    tm_comm_window *w = tm_calloc(1, sizeof *w);
    if (!w) return tm_nomem(sizeof *w);
    w->c = c;
    w->my_bytes = my_bytes;
    w->win = MPI_WIN_NULL;
    w->parts = tm_calloc(c->node_size, sizeof *w->parts);
    tm_status rc = !w->parts ? tm_nomem(c->node_size * sizeof *w->parts) : c->remote ? open_together(w) : open_alone(w);
    if (rc == TM_OK) {
        *out = w;
        return TM_OK;
    }
    tm_free(w->parts);
    tm_free(w);
    return rc;
}

void *tm_comm_window_part(const tm_comm_window *w, uint32_t node_rank, uint64_t *bytes) {
    TM_ASSERT(node_rank < w->c->node_size);
    if (bytes) *bytes = w->parts[node_rank].bytes;
    return w->parts[node_rank].base;
}

void tm_comm_window_close(tm_comm_window *w) {
    if (!w) return;
    if (w->c->remote && comm_run_errand(w->c, close_remote, w) != TM_OK) tm_error_clear();
    tm_free(w->allocated);
    tm_free(w->parts);
    tm_free(w);
}
