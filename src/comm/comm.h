/* comm: moves and sums elements between the ranks of a job. Knows nothing of shards, frames or plans.
 *
 * MPI is the engine: `mpirun` or Slurm's launcher starts the ranks. A process that no launcher started
 * (tm_comm_launched) is a job of one rank: MPI is then never touched, no thread is made, and every operation below is a
 * copy.
 *
 *     tm_comm *comm;
 *     TM_TRY(tm_comm_open(&comm, &(tm_comm_opts){.at_abort = tm_io_cleanup_at_exit}));
 *     TM_TRY(tm_comm_same(comm, "the configuration", hash));  // all alike, or one is named
 *     tm_comm_op op = {.code = TM_COMM_REDUCE_SCATTER, .group = TM_COMM_WORLD, .send = grad, .recv = mine,
 *                      .counts = slice_elements, .done = finished, .ctx = plan_op};
 *     TM_TRY(tm_comm_submit(comm, &op));                      // returns at once
 *     // later: `finished` told the waiter, and the waiter says:
 *     if (op.status != TM_OK) return tm_comm_op_fail(comm, &op);
 *     TM_TRY(tm_comm_agree(comm, rc));                        // before a collective that one rank might skip
 *     tm_comm_close(comm);
 *
 * Order. Operations run one after another in the order in which they were submitted. There must be one list of all
 * operations of the job from which every rank submits those of its groups, in the list's order; nothing depends on
 * when. The calls that block are operations as well.
 *
 * Sums. MPI fixes no order of summation, so sums are made here: slices are exchanged in pieces (all-to-all) and added
 * in a fixed tree, *first over the ranks of a node in rank order, then over the nodes in the order of their lowest
 * rank*, in fp32, starting from the first value. Each element is added alone, so neither slices, pieces, workspace nor
 * timing enter. Hence the same bits from a reduce-scatter over WORLD, a reduce-scatter over NODE followed by one (or an
 * all-reduce) over ACROSS, and an all-reduce of either sort. The tree's shape is tm_comm_tree_hash: part of
 * `numerics_id`. Between nodes of equal size WORLD's operations are made hierarchically (bytes of a slow link: a node's
 * share, once); the bits are the same.
 *
 * Threads. One thread of this folder makes all MPI calls, MPI_Init included (MPI_THREAD_FUNNELED is enough), and sleeps
 * while there is nothing to do. tm_comm_submit, tm_comm_wait and the blocking calls may be used by one thread at a
 * time; statistics and tm_comm_abort by any. `done` is called on the thread of this folder (in a job of one rank:
 * inside tm_comm_submit), so hold no lock across a submit that `done` takes, do not submit or wait in it, and be quick.
 *
 * Memory. The workspace is given or allocated at open; nothing is allocated after (tm_comm_split and windows apart).
 * MPI's own buffers are MPI's.
 *
 * Failure. Statuses of operations: TM_EIO (MPI said so), TM_EBUG (ranks disagree about an operation). After the first,
 * every operation fails likewise and the job has to end: print the error, then tm_comm_abort. Each rank sends a sign of
 * life every second; a rank that has not been heard of for `patience_seconds` (dead, stopped, its node gone) is named
 * on stderr by a rank that listens to it, and the job is aborted with exit status 1. A rank that is merely slow is
 * waited for.
 */
#ifndef TIDEMILL_COMM_H
#define TIDEMILL_COMM_H

#include "base/base.h"

typedef struct tm_comm tm_comm;

/* ---- open, close, abort ---------------------------------------------------------------------------------------- */

enum { TM_COMM_WORKSPACE_BYTES = 8 << 20, TM_COMM_PATIENCE_SECONDS = 30, TM_COMM_MAX_GROUPS = 32 };

typedef struct tm_comm_opts {
    void *workspace;          /* NULL: allocated at open. Else of workspace_bytes, aligned to 64, until close */
    uint64_t workspace_bytes; /* 0: TM_COMM_WORKSPACE_BYTES; at least tm_comm_workspace_bytes; the same on every rank */
    uint32_t node_size; /* ranks of an imitated node: node = rank / node_size. 0: TIDEMILL_NODE_SIZE, else real nodes
                           (those who can share memory) */
    double patience_seconds; /* 0: TIDEMILL_COMM_PATIENCE, else TM_COMM_PATIENCE_SECONDS. At least 1 */
    void (*at_abort)(void);  /* called before this process ends because of another rank (any thread): unlink only */
} tm_comm_opts;

/* True if a launcher started this process as one of several ranks, by the environment of Open MPI, MPICH and its kin,
 * PMIx or Slurm. TIDEMILL_MPI=0 or 1 overrules. Costs nothing. */
bool tm_comm_launched(void);
/* What several ranks would run on, "Open MPI v4.1.4". TM_EUNSUPPORTED: they cannot; the error says why. Loads MPI, and
 * does not start it. */
TM_MUST_USE tm_status tm_comm_available(char *text, size_t cap);
/* Collective, once a process. TM_EINPUT: the options differ between ranks or are no good; srun started several tasks
 * but this MPI sees one; TM_EUNSUPPORTED: this build has no ranks; TM_EIO: MPI does not start. On a failure no rank
 * holds a tm_comm. opts may be NULL. */
TM_MUST_USE tm_status tm_comm_open(tm_comm **out, const tm_comm_opts *opts);
/* A rank of a job that does not exist: `ranks` of them, rank / per_node the node, for those who plan. Topology, groups
 * and tm_comm_op_bytes answer as in such a job; operations end at once and move nothing; the other ranks agree with
 * this one and have what it has. No MPI, no thread. */
TM_MUST_USE tm_status tm_comm_imagine(tm_comm **out, uint32_t ranks, uint32_t per_node, uint32_t rank);
/* Least workspace for so many ranks; 0 for one rank. With TM_COMM_WORKSPACE_BYTES it is enough up to 1024 ranks. */
uint64_t tm_comm_workspace_bytes(uint32_t ranks);
/* Collective: waits for the operations submitted, then for the other ranks, and ends MPI. After a failed operation it
 * is tm_comm_abort(1). NULL is fine. */
void tm_comm_close(tm_comm *c);
/* Ends all ranks with this exit status, which the launcher hands on (0 becomes 1). The caller has printed its error;
 * the other ranks end without a word. */
_Noreturn void tm_comm_abort(tm_comm *c, int exit_status);

/* True on the ranks that should not print the failure at hand because rank 0 does: after tm_comm_open, tm_comm_agree or
 * tm_comm_same failed on all ranks alike. False where nothing of the sort happened. Returning true it has waited, as
 * tm_comm_let_speak does. */
bool tm_comm_quiet(void);
/* For a rank that is about to leave with a failure that another one prints: stays until that one has had time to, since
 * a launcher that sees a status other than 0 kills the rest. */
void tm_comm_let_speak(void);

/* ---- who is there ------------------------------------------------------------------------------------------------ */

uint32_t tm_comm_rank(const tm_comm *c); /* 0 .. size - 1 */
uint32_t tm_comm_size(const tm_comm *c);
uint32_t tm_comm_node(const tm_comm *c); /* 0 .. nodes - 1, in the order of their lowest rank */
uint32_t tm_comm_nodes(const tm_comm *c);
uint32_t tm_comm_node_rank(const tm_comm *c); /* among the ranks of my node */
uint32_t tm_comm_node_size(const tm_comm *c); /* ranks of my node */
bool tm_comm_uniform(const tm_comm *c);       /* all nodes have as many ranks: NODE x ACROSS is a grid */
uint32_t tm_comm_node_of(const tm_comm *c, uint32_t rank);
uint64_t tm_comm_tree_hash(const tm_comm *c);              /* of the tree of sums: which rank is on which node */
const char *tm_comm_host(const tm_comm *c, uint32_t rank); /* "host, pid 123" */

/* Groups. WORLD: everyone. NODE: the ranks of my node. ACROSS: those with my node_rank, one a node. Others by
 * tm_comm_split; members in order of world rank, positions 0 .. size - 1. */
enum { TM_COMM_WORLD = 0, TM_COMM_NODE = 1, TM_COMM_ACROSS = 2 };
/* Collective over WORLD: those with one colour become a group; its number, the same on all ranks, into *group. */
TM_MUST_USE tm_status tm_comm_split(tm_comm *c, uint32_t colour, uint32_t *group);
uint32_t tm_comm_group_size(const tm_comm *c, uint32_t group);
uint32_t tm_comm_group_rank(const tm_comm *c, uint32_t group);                     /* my position */
uint32_t tm_comm_group_world(const tm_comm *c, uint32_t group, uint32_t position); /* world rank of a position */

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* With n members, "slice i" is what counts[i] says (elements; NULL: `count` each), one after another without gaps, in
 * the order of positions. Zero counts are fine everywhere. Bytes sent by one rank, with which what is counted agrees to
 * the byte:
 *
 *   REDUCE_SCATTER  send: all slices, F32; recv: my slice of the sum. recv may be my own slice in     total - mine
 *                   send (the rest of send is left as it is)
 *   ALL_GATHER      send: my slice; recv: all slices. send may be (or NULL means) my slice in recv   (n - 1) x mine
 *                   `shared`: into memory of a window, once a node: see there                        (nodes - 1) x mine
 *   ALL_REDUCE      send, recv: `count` elements, recv may be send. F32: SUM in the tree, as          2 (n-1)/n x count
 *                   reduce-scatter and all-gather over slices of ceil(count / n), in pieces          (1)
 *                   F64, U64: SUM (in order of positions), MIN, MAX. Meant for small vectors          (n - 1) x count
 *   BROADCAST       recv: `count` elements, those of position `peer`                                  (2)
 *   BARRIER         nothing                                                                          0
 *   SEND, RECV      send or recv: `count` elements to or from position `peer`. A send is done when    count, 0
 *                   send may be reused, perhaps only once the receive was submitted
 *   EXCHANGE        SEND to `peer` and RECV from `from` at once (a ring, or a pair), `count` each     count
 *
 * (1) The member of position i sends count - slice_i and (n - 1) slice_i. (2) The root sends all slices but its own, of
 * ceil(count / n); then all gather. */
typedef enum tm_comm_code {
    TM_COMM_REDUCE_SCATTER,
    TM_COMM_ALL_GATHER,
    TM_COMM_ALL_REDUCE,
    TM_COMM_BROADCAST,
    TM_COMM_BARRIER,
    TM_COMM_SEND,
    TM_COMM_RECV,
    TM_COMM_EXCHANGE,
    TM_COMM_CODES
} tm_comm_code;
const char *tm_comm_code_name(tm_comm_code code); /* "reduce_scatter", ... */

typedef enum tm_comm_type { TM_COMM_F32, TM_COMM_BF16, TM_COMM_F64, TM_COMM_U64, TM_COMM_BYTE } tm_comm_type;
uint32_t tm_comm_type_bytes(tm_comm_type type);

/* What travels. EXACT: the elements. The others are for REDUCE_SCATTER and ALL_REDUCE of F32 (every value is rounded
 * where it is sent, summed in fp32 in the same tree; the ALL_REDUCE's gather is exact) and, Q8 and Q4, for ALL_GATHER
 * of BF16 (all members get the same bits: send must not be in recv, since my own slice arrives rounded too): BF16
 * nearest even: communication_data_type. Half of the bytes Q8, Q4 tm_comm_quantise of each slice: ZeRO++'s qwZ (gather,
 * Q8) and qgZ (reduce, Q4 or Q8). tm_comm_quant_bytes Where WORLD is made hierarchically, reductions round again
 * between nodes (qgZ's second stage), so bits depend on the grid. Members of a group of one get their own values
 * unrounded. MPI    ALL_REDUCE of F32 only: MPI_Iallreduce, whatever order it adds in; counted is what it is handed,
 * `count`, and not what it sends; between nodes if the group is on several */
typedef enum tm_comm_wire {
    TM_COMM_EXACT,
    TM_COMM_WIRE_BF16,
    TM_COMM_WIRE_Q8,
    TM_COMM_WIRE_Q4,
    TM_COMM_WIRE_MPI
} tm_comm_wire;
typedef enum tm_comm_reduce { TM_COMM_SUM, TM_COMM_MIN, TM_COMM_MAX } tm_comm_reduce;

typedef struct tm_comm_op tm_comm_op;
struct tm_comm_op {
    tm_comm_code code;
    uint32_t group;
    tm_comm_type type;     /* REDUCE_SCATTER: F32 */
    tm_comm_wire wire;     /* the same on all members, as all of these */
    tm_comm_reduce reduce; /* ALL_REDUCE */
    bool flat;             /* never hierarchical: for tests and comparisons */
    bool shared;           /* ALL_GATHER over WORLD or NODE: recv is the same memory for all ranks of a node */
    const void *send;      /* both belong to the operation until it is done, and so does `counts` */
    void *recv;
    uint64_t count;
    const uint64_t *counts;       /* REDUCE_SCATTER, ALL_GATHER: elements of each position's slice; NULL: count each */
    uint32_t peer, from;          /* positions in the group */
    void (*done)(tm_comm_op *op); /* NULL: the caller uses tm_comm_wait */
    void *ctx;                    /* the caller's */
    /* results, valid once done: */
    tm_status status;
    uint64_t submit_ns, start_ns, complete_ns;
    /* this folder's: */
    struct tm_comm_op *next;
    bool under_way, is_done, uncounted;
};

/* TM_OK: the operation completes exactly once (`done`, if any, is called); otherwise never. Fails (TM_EBUG) only for an
 * operation that makes no sense. */
TM_MUST_USE tm_status tm_comm_submit(tm_comm *c, tm_comm_op *op);
/* Blocks until an operation without `done` is complete; its status, recorded on this thread. */
TM_MUST_USE tm_status tm_comm_wait(tm_comm *c, tm_comm_op *op);
/* Submit and wait. op->done must be NULL. */
TM_MUST_USE tm_status tm_comm_run(tm_comm *c, tm_comm_op *op);
/* Records why a finished operation failed on this thread and returns its status. */
tm_status tm_comm_op_fail(tm_comm *c, const tm_comm_op *op);

/* ---- calls that block -------------------------------------------------------------------------------------------- */

TM_MUST_USE tm_status tm_comm_barrier(tm_comm *c, uint32_t group);
TM_MUST_USE tm_status tm_comm_broadcast(tm_comm *c, uint32_t group, uint32_t root, void *bytes, uint64_t n);
TM_MUST_USE tm_status tm_comm_all_reduce_f64(tm_comm *c, uint32_t group, tm_comm_reduce how, double *values,
                                             uint64_t n);
TM_MUST_USE tm_status tm_comm_all_reduce_u64(tm_comm *c, uint32_t group, tm_comm_reduce how, uint64_t *values,
                                             uint64_t n);
/* Collective over WORLD. All ranks return TM_OK if all gave TM_OK; otherwise all return the status of the lowest rank
 * that did not, with that rank's message ("rank 2: ...") as this thread's record; rank 0 prints (tm_comm_quiet). A rank
 * that failed passes its status with its record pending. */
TM_MUST_USE tm_status tm_comm_agree(tm_comm *c, tm_status mine);
/* Collective over WORLD: TM_OK if `hash` is the same everywhere, else TM_EINPUT on all ranks: "the configuration of
 * rank 2 (host, pid 7) is not that of the other 3 ranks". What most ranks have is right; rank 0 decides a draw. */
TM_MUST_USE tm_status tm_comm_same(tm_comm *c, const char *what, uint64_t hash);

/* ---- memory shared by the ranks of a node
 * ---------------------------------------------------------------------------- */

/* One piece of memory that all ranks of a node address: the parts for which each of them asked, one after another in
 * rank order without gaps. Collective over NODE, in the order of the operations; TM_EIO on all of them if MPI cannot,
 * TM_ENOMEM if the memory is not there when it is touched (/dev/shm is full). Writers and readers order themselves by
 * operations over NODE (a barrier is enough). Imitated nodes share as real ones do. Close before tm_comm_close.
 *
 * An all-gather that is `shared` has recv in a window, at the same place of it for all ranks of a node. It begins when
 * all of them have submitted it: until then they may read what was there. When it is done all slices are there. Each
 * slice is written by the rank that has it, or received once a node from another; within a node nothing is sent. The
 * bits are those of any other all-gather of that wire. */
typedef struct tm_comm_window tm_comm_window;
TM_MUST_USE tm_status tm_comm_window_open(tm_comm_window **out, tm_comm *c, uint64_t my_bytes);
/* The part of a rank of my node, aligned to 4096, and its size, rounded up to that (may be NULL). */
void *tm_comm_window_part(const tm_comm_window *w, uint32_t node_rank, uint64_t *bytes);
uint64_t tm_comm_window_bytes(const tm_comm_window *w); /* of all parts: they begin at part 0 */
void tm_comm_window_close(tm_comm_window *w);           /* collective over NODE; NULL is fine */

/* ---- counters
 * --------------------------------------------------------------------------------------------------------- */

typedef enum tm_comm_link { TM_COMM_IN_NODE, TM_COMM_BETWEEN_NODES, TM_COMM_LINKS } tm_comm_link;
typedef struct tm_comm_stats {
    /* Payload of the messages that were handed to MPI, added up where each is posted, those of an operation that failed
     * later among them. Not counted: agree, same, what opens a job or a window, signs of life. */
    uint64_t sent_bytes[TM_COMM_CODES][TM_COMM_LINKS];
    uint64_t ops[TM_COMM_CODES];     /* completed */
    uint64_t busy_ns[TM_COMM_CODES]; /* from an operation's start to its end: transfers, waiting for others, sums */
    uint64_t sum_ns;                 /* of that: adding, rounding, quantising */
} tm_comm_stats;
void tm_comm_get_stats(const tm_comm *c, tm_comm_stats *out); /* any thread, any time */
/* What this rank will have counted for an operation on each link, by the table above: the theory, without running it.
 */
void tm_comm_op_bytes(const tm_comm *c, const tm_comm_op *op, uint64_t bytes[TM_COMM_LINKS]);

/* ---- quantisation
 * ------------------------------------------------------------------------------------------------------ */

/* Symmetric block quantisation as in ZeRO++ (arXiv 2306.10209, 3.1 and 3.3). Layout: all scales, then all codes; the
 * last block may be short. A block with a NaN or an infinity decodes to NaN throughout; one of zeros to zeros. Pure
 * functions, the same on every machine.
 *
 * Q8  blocks of 256, one fp32 scale = max|x| / 127, round(x / scale), halves to even, as int8.
 *     |x - decoded| <= scale / 2 (1 + 2^-20).
 * Q4  blocks of 64, one bf16 scale = max|x| / 18, up; the nearest of 0, 1, 2, 4, 6, 9, 13, 18 scales and a sign (bit 3)
 *     as nibbles, low first. |x - decoded| <= scale / 2 where |x| <= 1.5 scales, else <= |x| / 3 (of what is beyond
 *     3.3e38 infinity may become). */
enum { TM_COMM_QUANT_BLOCK = 256, TM_COMM_QUANT_BLOCK_Q4 = 64 };
uint64_t tm_comm_quant_bytes(tm_comm_wire wire, uint64_t n); /* Q8: 4 a block, 1 a value; Q4: 2 and 1/2 */
void tm_comm_quantise(tm_comm_wire wire, const float *x, uint64_t n, void *out);
void tm_comm_dequantise(tm_comm_wire wire, const void *in, uint64_t n, float *x);

#endif
