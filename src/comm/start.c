/* From MPI_Init to the first operation, and MPI_Finalize. Everything here blocks inside MPI. */
#include "comm/remote_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every rank tells the others at the start. */
typedef struct card {
    uint64_t workspace_bytes;
    uint32_t node_size, node; /* node_size 0: `node` is the lowest rank of a real one */
    comm_host host;
} card;

static tm_status read_node_size(const tm_comm_opts *opts, uint32_t *size) {
    const char *text = getenv("TIDEMILL_NODE_SIZE");
    *size = opts->node_size;
    if (*size || !text || !*text) return TM_OK;
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    *size = (uint32_t)n;
    if (!*end && n >= 1 && n <= 1U << 20 && *text != '-') return TM_OK;
    return tm_fail(TM_EINPUT, "TIDEMILL_NODE_SIZE=%s: expected a number of ranks, at least 1", text);
}

static tm_status real_node(const tm_comm *c, uint32_t *node) {
    comm_mpi_comm shared;
    int rank = (int)c->rank;
    TM_TRY(comm_mpi_split_shared(comm_mpi->world, rank, &shared));
    tm_status rc = comm_mpi_bcast(&rank, sizeof rank, 0, shared);
    comm_mpi->free(shared);
    *node = (uint32_t)rank;
    return rc;
}

/* All ranks return the same, TM_OK if all gave it, else what the lowest that did not gave, and its message. */
static tm_status agree(const tm_comm *c, tm_status mine) {
    int rank = mine == TM_OK ? (int)c->size : (int)c->rank, lowest = rank;
    tm_error error = *tm_error_get();
    if (mine == TM_EIO) return mine; /* MPI itself failed: the others are somewhere inside it */
    TM_TRY(comm_mpi_min(rank, &lowest));
    if (lowest == (int)c->size) return TM_OK;
    TM_TRY(comm_mpi_bcast(&error, sizeof error, lowest, comm_mpi->world));
    comm_be_quiet(c->rank != 0);
    tm_error_set(&error);
    return error.code;
}

/* ---- the table of ranks ---- */

static tm_status check_cards(const tm_comm *c, const card *cards) {
    for (uint32_t r = 0; r < c->size; r++) {
        if (cards[r].node_size != cards[0].node_size)
            return tm_fail(TM_EINPUT, "nodes of %u ranks on rank 0, of %u on rank %u; set TIDEMILL_NODE_SIZE alike",
                           cards[0].node_size, cards[r].node_size, r);
        if (cards[r].workspace_bytes != cards[0].workspace_bytes)
            return tm_fail(TM_EINPUT, "the workspace has %llu bytes on rank 0, %llu on rank %u",
                           (unsigned long long)cards[0].workspace_bytes, (unsigned long long)cards[r].workspace_bytes,
                           r);
    }
    return TM_OK;
}

static tm_status exchange_cards(tm_comm *c, card *mine, card *cards) {
    TM_TRY(real_node(c, &mine->node));
    comm_name_host(mine->host);
    TM_TRY(comm_mpi_allgather(mine, cards, sizeof *mine, comm_mpi->world));
    TM_TRY(check_cards(c, cards));
    for (uint32_t r = 0; r < c->size; r++) {
        c->node_of[r] = mine->node_size ? r / mine->node_size : cards[r].node;
        memcpy(c->host[r], cards[r].host, sizeof cards[r].host);
    }
    return TM_OK;
}

static tm_status meet(tm_comm *c) {
    card mine = {.workspace_bytes = c->workspace_bytes};
    card *cards = tm_calloc(c->size, sizeof *cards);
    tm_status rc = cards ? read_node_size(c->remote->opts, &mine.node_size) : tm_nomem(c->size * sizeof *cards);
    if (rc == TM_OK) rc = comm_make_tables(c);
    rc = agree(c, rc);
    if (rc == TM_OK) rc = agree(c, exchange_cards(c, &mine, cards));
    tm_free(cards);
    return rc;
}

static tm_status make_lane(comm_lane *l, uint32_t ranks, char *memory) {
    l->capacity = (int)(4 * ranks + 8);
    l->memory = memory;
    l->request = tm_calloc((size_t)l->capacity, sizeof *l->request);
    l->expected = tm_calloc((size_t)l->capacity, sizeof *l->expected);
    l->peer = tm_calloc((size_t)l->capacity, sizeof *l->peer);
    return l->request && l->expected && l->peer ? TM_OK : tm_nomem(16 * (size_t)l->capacity);
}

static tm_status reserve(tm_comm *c) {
    comm_remote *m = c->remote;
    const uint64_t least = tm_comm_workspace_bytes(c->size);
    if (c->workspace_bytes < least)
        return tm_fail(TM_EBUDGET, "a workspace of %llu bytes is too small for %u ranks: at least %llu",
                       (unsigned long long)c->workspace_bytes, c->size, (unsigned long long)least);
    if (!c->workspace) {
        c->allocated = tm_malloc(c->workspace_bytes + 64);
        if (!c->allocated) return tm_nomem(c->workspace_bytes);
        c->workspace = c->allocated + (64 - (uintptr_t)c->allocated % 64) % 64;
        memset(c->workspace, 0, c->workspace_bytes); /* its pages count from the start, not by how long pieces are */
    }
    for (unsigned i = 0; i < 2; i++)
        TM_TRY(make_lane(&m->lane[i], c->size, c->workspace + i * (c->workspace_bytes / 128 * 64)));
    m->begin = tm_calloc(c->size + 1, sizeof *m->begin);
    m->source = tm_calloc(c->size, sizeof *m->source);
    return m->begin && m->source ? TM_OK : tm_nomem(8 * ((size_t)c->size + 1));
}

tm_status comm_make_group_comm(tm_comm *c, uint32_t group, uint32_t colour) {
    comm_block_begin(c, "MPI_Comm_split");
    tm_status rc = comm_mpi_split(comm_mpi->world, (int)colour, (int)c->rank, &c->remote->group[group]);
    comm_block_end(c);
    return rc;
}

static tm_status make_groups(tm_comm *c) {
    TM_TRY(comm_topology(c));
    TM_TRY(comm_make_group_comm(c, TM_COMM_WORLD, 0));
    TM_TRY(comm_make_group_comm(c, TM_COMM_NODE, c->node));
    return comm_make_group_comm(c, TM_COMM_ACROSS, c->node_rank);
}

/* Slurm starts tasks that an MPI of another kind takes for so many jobs of one rank each. */
static tm_status check_launch(void) {
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *forced = getenv("TIDEMILL_MPI");
    if (!tasks || strtol(tasks, NULL, 10) < 2 || forced) return TM_OK;
    return tm_fail(
        TM_EINPUT,
        "srun started %s tasks, but each finds itself alone: this MPI does not know srun's protocol; try srun "
        "--mpi=pmix (srun --mpi=list shows what there is), or mpirun inside the allocation",
        tasks);
}

static tm_status find_ranks(tm_comm *c) {
    int size = 0, rank = 0;
    comm_block_begin(c, COMM_INIT);
    TM_TRY(comm_mpi_init());
    comm_mpi->world_size(&size, &rank);
    c->size = (uint32_t)size;
    c->rank = (uint32_t)rank;
    return c->size == 1 ? check_launch() : TM_OK;
}

static tm_status start_among(tm_comm *c) {
    comm_block_begin(c, "the first exchange among all ranks");
    TM_TRY(meet(c));
    TM_TRY(agree(c, reserve(c)));
    TM_TRY(agree(c, make_groups(c)));
    TM_TRY(comm_mpi_dup(comm_mpi->world, &c->remote->data));
    comm_block_begin(c, "MPI_Comm_dup");
    TM_TRY(agree(c, comm_life_start(c)));
    comm_block_end(c);
    return TM_OK;
}

tm_status comm_start(tm_comm *c) {
    tm_status rc = find_ranks(c);
    if (rc == TM_OK && c->size > 1) rc = start_among(c);
    /* Alone: no thread, no MPI. Where MPI itself failed the launcher ends the others when this process ends. */
    if ((rc != TM_OK && rc != TM_EIO) || (rc == TM_OK && c->size == 1)) comm_stop(c);
    return rc;
}

void comm_stop(tm_comm *c) {
    if (!comm_mpi->is_up()) return;
    comm_block_begin(c, "MPI_Finalize");
    if (comm_mpi_finalize() != TM_OK) tm_error_clear();
    atomic_store(&c->remote->blocked_since_ns, 0);
}
