/* comm, for this folder and its tests only: what the files share. */
#ifndef TIDEMILL_COMM_INTERNAL_H
#define TIDEMILL_COMM_INTERNAL_H

#include "comm/comm.h"

#include <stdatomic.h>

/* Least workspace: two lanes, in each a piece of one quantisation block for everything that set_piece counts. */
enum { COMM_WORKSPACE_PER_RANK = 8192 };

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* The members of one group, as one rank sees them. `tree` lists positions node by node: the order in which sums are
 * made. A grid (several nodes, equally many members on each, more than one) is what is made hierarchically. */
typedef struct comm_group {
    uint32_t size, me; /* me: my position */
    uint32_t *world;   /* [size] world rank of a position */
    uint32_t *tree;    /* [size] positions, node after node, each node's in rank order */
    uint32_t *first;   /* [nodes + 1] where a node begins in `tree` */
    uint32_t nodes;    /* that have members */
    bool grid;
    uint32_t per_node;          /* grid: members of a node */
    uint32_t my_node, my_place; /* mine among `nodes`, and in it */
} comm_group;

/* Takes `world` (of `size` ranks in rising order, allocated with tm_malloc) over in any case. node_of: of world ranks.
 */
tm_status comm_group_make(comm_group *g, uint32_t *world, uint32_t size, uint32_t my_rank, const uint32_t *node_of);
void comm_group_free(comm_group *g);

/* ---- the object -------------------------------------------------------------------------------------------------- */

typedef struct comm_counters {
    atomic_uint_least64_t sent_bytes[TM_COMM_CODES][TM_COMM_LINKS], ops[TM_COMM_CODES], busy_ns[TM_COMM_CODES], sum_ns;
} comm_counters;

typedef struct comm_remote comm_remote; /* the thread and what it has of MPI; NULL in a job of one rank */
typedef char comm_host[80];

struct tm_comm {
    uint32_t rank, size, node, nodes, node_rank, node_size;
    bool uniform;
    bool imagined; /* tm_comm_imagine: the other ranks do not exist */
    uint64_t tree_hash;
    uint32_t *node_of; /* [size] */
    comm_host *host;   /* [size] */
    comm_group groups[TM_COMM_MAX_GROUPS];
    uint32_t n_groups;
    uint64_t *scratch;           /* [size] of the calls that block */
    char *workspace, *allocated; /* allocated: what of it is ours to free */
    uint64_t workspace_bytes;
    double patience_seconds;
    void (*at_abort)(void);
    comm_counters counters;
    comm_remote *remote;
};

/* From node_of (filled in): nodes, my place, WORLD, NODE and ACROSS, tree_hash. */
tm_status comm_topology(tm_comm *c);
tm_status comm_group_add(tm_comm *c, uint32_t *world, uint32_t size, uint32_t *group);

/* A message of the operation under way was handed to MPI: the counters of bytes have no other source. On the thread
 * that makes the calls. `to`: a world rank. */
static inline void comm_count_posted(tm_comm *c, const tm_comm_op *of, uint32_t to, uint64_t bytes) {
    if (!of || of->uncounted) return;
    tm_comm_link link = c->node_of[to] == c->node ? TM_COMM_IN_NODE : TM_COMM_BETWEEN_NODES;
    atomic_fetch_add_explicit(&c->counters.sent_bytes[of->code][link], bytes, memory_order_relaxed);
}

/* ---- what an operation is ---- */

tm_status comm_check(const tm_comm *c, const tm_comm_op *op);
void comm_local(const tm_comm_op *op); /* an operation among one member: a copy */
/* Elements of a position's slice; ALL_REDUCE and BROADCAST cut `count` into slices of ceil(count / size). */
uint64_t comm_slice(const comm_group *g, const tm_comm_op *op, uint32_t position);
bool comm_in_stages(const comm_group *g, const tm_comm_op *op); /* made hierarchically */
uint64_t comm_wire_bytes(const tm_comm_op *op, uint64_t n);     /* of n elements as they travel */
uint32_t comm_farthest(const tm_comm *c, const comm_group *g);  /* a member on another node if there is one, else me */
/* Position of place `place` on node `node` of a grid. */
static inline uint32_t comm_at(const comm_group *g, uint32_t node, uint32_t place) {
    return g->tree[g->first[node] + place];
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

void comm_name_host(comm_host name);
tm_status comm_make_tables(tm_comm *c);                           /* once size is known */
void comm_be_quiet(bool quiet);                                   /* what tm_comm_quiet answers */
void comm_complete(tm_comm *c, tm_comm_op *op, tm_status status); /* counts, and calls done */

#endif
