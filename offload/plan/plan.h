/* offload: tiles, frames, extents and plans. Knows nothing of layers, losses or file formats.
 *
 * A pass over the model (a training step, an import, an evaluation, an export) is a *program*: a straight line of
 * compute operations over *objects*. tm_plan_compile turns a program into a *plan* under a byte budget, as a compiler
 * allocates registers: it chooses which objects stay resident, gives every interval of the others a frame, inserts the
 * disk reads and write-backs, and orders everything by explicit dependencies. tm_exec_run interprets the plan and has
 * no order of its own: any topological order of the dependencies gives the same bytes.
 *
 *   object     the grain of residency and I/O: a tile (2^20 elements) of a shard of one kind, or a temporary.
 *              *State* objects outlive a program (weights, moments): their residency and home are in the layout, which
 *              all programs of a run share. Temporaries live inside one program run.
 *   bundle     objects that a kernel needs side by side (the tiles of one matrix): consecutive ids, each but the last
 *              of a size that is a multiple of the alignment, so that their frames join without a gap.
 *   interval   a span of the program during which a range of a bundle lies in one frame. An object that is not
 *              resident is filled from its extent when an interval begins (unless it is overwritten) and written back
 *              when a dirty interval ends.
 *   use        one operation's access to an interval.
 *   frame      [address, address + bytes) of the slab.
 *   extent     where an object lies in the offload files.
 *
 *     tm_layout *layout; // once a run: state objects
 *     TM_TRY(tm_layout_create(&layout));
 *     uint32_t w = tm_layout_object(layout, &(tm_object){.kind = TM_KIND_WEIGHT_HI, .bytes = 2 << 20});
 *     tm_program *p; // once per kind of pass
 *     TM_TRY(tm_program_create(&p, layout, "step"));
 *     uint32_t v = tm_program_interval(p, w, 1);
 *     tm_program_op(p, &(tm_op){.code = MY_OP, .arg = {unit, stage}});
 *     tm_program_use(p, v, TM_USE_READ);
 *     TM_TRY(tm_plan_compile(&plan, layout, p, &opts, &minimum)); // TM_EBUDGET: `minimum` bytes would fit
 *     TM_TRY(tm_exec_run(exec, plan, my_handler, ctx));           // once per step
 *
 * Threads: build and compile on one thread. An executor runs one plan at a time: operations of the CPU engine on the
 * calling thread, disk operations on a thread of its own. The handler is called on the calling thread only.
 */
#ifndef TIDEMILL_OFFLOAD_PLAN_H
#define TIDEMILL_OFFLOAD_PLAN_H

#include "base/base.h"
#include "device/device.h"
#include "io/io.h"

enum { TM_TILE_ELEMENTS = 1 << 20, TM_PAGE_BYTES = 64 << 10, TM_FRAME_ALIGN = 4096 };

typedef enum tm_kind {
    TM_KIND_WEIGHT_HI, /* bf16 compute weights; the fp32 weights themselves in fp32 mode */
    TM_KIND_WEIGHT_LO,
    TM_KIND_EXP_AVG,
    TM_KIND_EXP_AVG_SQ,
    TM_KIND_GRAD, /* rounded gradients between backward and update; fp32 sums of tied parts */
    TM_KIND_ACTIVATION,
    TM_KIND_FROZEN,   /* weights that do not learn: read from files that are not ours, never written */
    TM_KIND_SCRATCH,  /* workspaces, batches, scalars: never on disk */
    TM_KIND_KV_CACHE, /* pages of keys and values: a run moves those that it has use for (tm_exec_opts.moves) */
    TM_KINDS
} tm_kind;
/* What a kind is like, a row each (program.c). Nothing follows from the order of the enum. */
typedef struct tm_kind_traits {
    const char *name;   /* "weight_hi", ...; of its offload file too */
    const char *colour; /* in drawings */
    uint8_t slots;      /* most slots of its extents; two: a write never overwrites what the last commit names */
    bool committed;     /* a commit names it: weights and moments */
    bool optimizer;     /* only the update needs it (offload_optimizer) */
} tm_kind_traits;
const tm_kind_traits *tm_kind_get(tm_kind kind);
const char *tm_kind_name(tm_kind kind);                  /* "?" if it is none */
uint64_t tm_kinds_sum(const uint64_t by_kind[TM_KINDS]); /* over all kinds */

/* Where frames lie. State and everything that pages are in the host's slab; a device's arena has its own addresses, and
 * so has memory that the ranks of a node share: temporaries of one interval, which only communication operations
 * write. */
typedef enum tm_tier {
    TM_TIER_HOST,
    TM_TIER_DEVICE,
    TM_TIER_SHARED,
    TM_TIERS,
    TM_TIER_EITHER =
        TM_TIERS /* of an operation: the device's if all state that it uses is resident there, else the host's */
} tm_tier;

typedef struct tm_object {
    tm_kind kind;
    uint32_t unit;   /* for residency by unit, and messages */
    uint32_t bundle; /* state: objects with consecutive ids and one bundle number join in memory */
    uint64_t bytes;
    bool pageable; /* may lie in an extent */
    bool pinned;   /* state: has to be resident (small tensors that shall stay); the whole bundle alike */
    uint8_t tier;  /* temporaries: tm_tier of their frame */
    /* results, read-only outside this folder: */
    bool state, resident;
    uint64_t frame_bytes; /* bytes rounded up to the alignment */
    uint64_t address;     /* resident state: in the slab; from 2^50 on: in the device's arena */
} tm_object;

/* ---- layout: the state of a run, its residency and its home on disk ------------------------------------------ */

typedef struct tm_layout tm_layout;
TM_MUST_USE tm_status tm_layout_create(tm_layout **out);
void tm_layout_free(tm_layout *l);
/* Adds a state object; returns its id (0, 1, 2, ... in order of the calls), UINT32_MAX when out of memory. */
uint32_t tm_layout_object(tm_layout *l, const tm_object *o);
uint32_t tm_layout_objects(const tm_layout *l);
const tm_object *tm_layout_get(const tm_layout *l, uint32_t id);
/* State that is read where it lies: object `id`, of TM_KIND_FROZEN, is bytes [offset, offset + object.bytes) of FILE, whose
 * offset is a multiple of TM_FRAME_ALIGN, and so are the bytes but where the file ends. No store gives it an extent, no
 * operation may write it, no commit names it. An object of that kind that is not pageable has no home: whoever runs the plans
 * fills it at every start. */
TM_MUST_USE tm_status tm_layout_file(tm_layout *l, const char *path, uint32_t *file); /* the same path: the same file */
uint64_t *tm_layout_file_bytes(tm_layout *l, uint32_t file); /* its size, for who describes it: 0 until he sets it */
TM_MUST_USE tm_status tm_layout_home(tm_layout *l, uint32_t id, uint32_t file, uint64_t offset);
uint32_t tm_layout_files(const tm_layout *l);
const char *tm_layout_file_path(const tm_layout *l, uint32_t file);

/* ---- program ------------------------------------------------------------------------------------------------- */

/* Streams: operations of one engine start in index order, those of different engines overlap. Programs write compute,
 * copies and collectives; the disk operations are the compiler's, and so are copies where operations name their tier.
 * The executor runs CPU, disk, communication and the compiler's copies; all are simulated. */
typedef enum tm_op_engine {
    TM_ENGINE_CPU,
    TM_ENGINE_DISK_READ,
    TM_ENGINE_DISK_WRITE,
    TM_ENGINE_COPY_IN,  /* host to device */
    TM_ENGINE_COPY_OUT, /* device to host */
    TM_ENGINE_COMM,
    TM_ENGINE_DEVICE, /* compute on a device */
    TM_ENGINES
} tm_op_engine;
const char *tm_engine_name(tm_op_engine engine); /* "cpu", "disk_read", ... */
typedef enum tm_use_access {
    TM_USE_READ = 1,
    TM_USE_WRITE = 2 /* overwrites all of it */,
    TM_USE_UPDATE = 3
} tm_use_access;

typedef struct tm_op {
    uint16_t code; /* the handler's business */
    uint16_t flags;
    uint32_t arg[4];
    uint8_t engine; /* tm_op_engine: not a disk engine */
    uint8_t tier;   /* tm_tier: its operands lie where the model is computed (DEVICE), on the host, or EITHER */
} tm_op;
/* The code of a copy that the compiler inserted; arg: bytes, upper half of them, object. */
#define TM_OP_COPY UINT16_MAX

typedef struct tm_program tm_program;
TM_MUST_USE tm_status tm_program_create(tm_program **out, const tm_layout *layout, const char *name);
void tm_program_free(tm_program *p);
/* Building calls keep the first failure (out of memory, our own misuse); tm_plan_compile returns it. */
uint32_t tm_program_temp(tm_program *p, const tm_object *o); /* id of a temporary */
uint32_t tm_program_interval(tm_program *p, uint32_t first,
                             uint32_t count); /* objects first.. of one bundle; temporaries: count 1 */
void tm_program_op(tm_program *p, const tm_op *op);
/* Uses of the latest op, in the order in which the handler gets its operands. */
void tm_program_use(tm_program *p, uint32_t interval, tm_use_access access);
void tm_program_use_range(tm_program *p, uint32_t interval, uint32_t object, uint32_t count, tm_use_access access);
/* Bytes that the operand of a use has: of `count` objects from `object` on, or (0) of all of the interval. UINT64_MAX
 * once building has failed. */
uint64_t tm_program_use_bytes(const tm_program *p, uint32_t interval, uint32_t object, uint32_t count);
/* After the last use: gives the frames of TM_TIER_SHARED their addresses, by the order of their first and last uses
 * alone. Programs in which that order is the same have them at the same addresses, whatever else is in them: ranks that
 * hold different tiles, under different budgets. */
void tm_program_share(tm_program *p);
/* What one of `ranks` pays for them. */
uint64_t tm_program_share_bytes(const tm_program *p, uint32_t ranks);
uint32_t tm_program_ops(const tm_program *p);
const tm_op *tm_program_get(const tm_program *p, uint32_t i); /* the i-th operation, without its uses */
/* The most operations that a plan of it has, and the most that it takes itself (tm_plan_info.memory_bytes) and for
 * checksums of what it spills, under any budget of the host and without an arena. How many others an operation waits
 * for is taken to be twice the objects that it touches, which is not proved: compare with what was compiled. */
uint64_t tm_program_plan_ops(const tm_program *p);
uint64_t tm_program_plan_bytes(const tm_program *p);

/* ---- plan ---------------------------------------------------------------------------------------------------- */

/* Seconds of an operation that is not a disk operation, alone on its engine. */
typedef double (*tm_cost_fn)(void *ctx, const tm_op *op);

typedef struct tm_plan_opts {
    uint64_t slab_bytes;   /* the frames' budget */
    bool choose_residency; /* decide residency of the layout's state here (the training step); otherwise keep it */
    bool cache;            /* false: nothing stays resident beyond the working set (memory.cache: none) */
    bool spill;            /* temporaries with several intervals may be written out between them */
    bool pinned[TM_KINDS]; /* state of this kind has to be resident (offload device none or cpu) */
    uint32_t window_mib;   /* most look-ahead, 0: 512 MiB */
    uint64_t
        max_resident_bytes[TM_KINDS]; /* most state (or spilled temporaries) of this kind that is kept; 0: no limit */
    tm_cost_fn cost; /* with it, what stays resident is chosen for least time; NULL: compute takes none */
    void *cost_ctx;
    const struct tm_machine *machine; /* disk rates; NULL: nominal */
    uint64_t device_bytes;            /* of the device's arena; 0: it computes on host frames, nothing is copied */
    uint32_t shared_by;   /* ranks that share the frames of TM_TIER_SHARED: slab_bytes pays for one share of them, */
    uint64_t share_bytes; /* and for no less than this: the share of another plan, whose frames are there as well */
    bool device_apart;    /* the device computes beside the host's cores: TM_ENGINE_DEVICE */
    /* With choose_residency: so many quarters of the arena, beside what the program needs at least, may keep state from
     * run to run; 0: none does. */
    uint32_t resident_quarters;
    double host_share;                   /* at least so much of what it could keep is not kept */
    bool no_read_ahead, no_write_behind; /* of weight_lo, exp_avg, exp_avg_sq and grad: no transfer overlaps others */
    bool unproved; /* to be compared with others: whoever keeps the plan calls tm_plan_prove before it runs */
} tm_plan_opts;

typedef struct tm_plan_info {
    uint64_t slab_bytes;     /* frames used, resident state included */
    uint64_t minimum_bytes;  /* least slab for this program: nothing resident that need not be, no look-ahead */
    uint64_t resident_bytes; /* state that stays */
    uint64_t window_bytes;   /* look-ahead granted */
    uint64_t read_bytes[TM_KINDS], write_bytes[TM_KINDS]; /* of one run */
    uint64_t spill_file_bytes;                            /* extents of temporaries */
    uint64_t spill_largest_bytes;                         /* of them */
    uint32_t ops, edges;
    uint64_t memory_bytes;          /* of the plan itself */
    uint64_t device_bytes;          /* of the device's arena */
    uint64_t device_resident_bytes; /* of it: state that stays there from run to run */
    uint64_t copy_bytes[2];         /* of one run: in, out */
    uint64_t shared_bytes;          /* of the frames of TM_TIER_SHARED */
    uint64_t share_bytes;           /* one rank's share of them: minimum_bytes counts it, slab_bytes does not */
    bool proved;                    /* tm_plan_prove: no other plan is run */
    double proof_seconds;
} tm_plan_info;

typedef struct tm_plan_op {
    tm_op op; /* CPU engine */
    uint8_t engine;
    uint32_t object;                    /* disk engines */
    uint64_t address;                   /* disk engines: frame */
    uint32_t first_operand, n_operands; /* CPU engine: addresses */
    uint32_t first_succ, n_succ;        /* successors */
    uint32_t n_pred;
} tm_plan_op;

typedef struct tm_plan tm_plan;
/* The plan is proved. `minimum` (may be NULL) is set on TM_EBUDGET too. */
TM_MUST_USE tm_status tm_plan_compile(tm_plan **out, tm_layout *layout, const tm_program *p, const tm_plan_opts *opts,
                                      uint64_t *minimum);
/* The least slab for this program alone: `minimum` of tm_plan_compile with choose_residency, without a plan. */
TM_MUST_USE tm_status tm_plan_minimum(const tm_layout *layout, const tm_program *p, const tm_plan_opts *opts,
                                      uint64_t *minimum);
/* What of it is in use, in bytes, for each of the program's operations: while it runs, and until the next one does. No
 * plan has a slab smaller than the greatest of `loads` [tm_program_ops]; the least slab is larger by what lies between
 * frames that do not pack without gaps. */
TM_MUST_USE tm_status tm_plan_loads(const tm_layout *layout, const tm_program *p, const tm_plan_opts *opts,
                                    uint64_t *loads);
/* The least arena for this program alone: every object there only while one interval's operations need it. */
TM_MUST_USE tm_status tm_plan_device_minimum(const tm_program *p, uint64_t *minimum);
/* Brings device-resident state to its extents, for a commit, or from there; or what is frozen from its files. NULL:
 * nothing of that is device-resident. */
typedef enum tm_resident_way {
    TM_RESIDENT_SAVE,
    TM_RESIDENT_RESTORE,
    TM_RESIDENT_FROZEN,
    TM_RESIDENT_WAYS
} tm_resident_way;
TM_MUST_USE tm_status tm_program_device_resident(tm_program **out, const tm_layout *layout, tm_resident_way way);
void tm_plan_free(tm_plan *plan);
const tm_plan_info *tm_plan_get_info(const tm_plan *plan);
/* Proves the plan under asynchronous completion: every operand is filled before it is used, frames that overlap are
 * ordered, what is dirty is written, reads follow the writes they read, nobody waits for ever. TM_EBUG names the pair
 * of operations. */
TM_MUST_USE tm_status tm_plan_verify(const tm_plan *plan);
/* The same for a plan that was compiled `unproved`, and a note in it that it may run. TM_EBUG says whose mistake it is.
 */
TM_MUST_USE tm_status tm_plan_prove(tm_plan *plan);
/* One line an operation: index, engine, object or code, frame, predecessors. */
TM_MUST_USE tm_status tm_plan_print(const tm_plan *plan, tm_buf *out);
/* The operations and their successors, for those who draw or time a plan. */
const tm_plan_op *tm_plan_ops(const tm_plan *plan, uint32_t *n);
const uint32_t *tm_plan_successors(const tm_plan *plan);
/* Of the communication operations and their frames of TM_TIER_SHARED: the same on all ranks of a node, or they would
 * write over what others read. */
uint64_t tm_plan_shared_hash(const tm_plan *plan);
/* What a disk operation moves. */
const tm_object *tm_plan_object(const tm_plan *plan, uint32_t id);

/* What a run of `after` has to wait for in a run of `before` that is still under way: the executor then starts the
 * first reads of the next run (often of the same plan) while the last operations of this one are in flight. Both plans
 * belong to one layout. It is proved as a plan is. */
typedef struct tm_link tm_link;
TM_MUST_USE tm_status tm_link_create(tm_link **out, const tm_plan *before, const tm_plan *after);
/* Without the proof, for those who time the two plans: nothing runs by it. */
TM_MUST_USE tm_status tm_link_sketch(tm_link **out, const tm_plan *before, const tm_plan *after);
TM_MUST_USE tm_status tm_link_verify(const tm_link *link);
double tm_link_proof_seconds(const tm_link *link);
void tm_link_free(tm_link *link); /* NULL is fine */
const tm_plan *tm_link_before(const tm_link *link);
const tm_plan *tm_link_after(const tm_link *link);
/* What operation `op` of the plan before has to be done for, in the plan after. */
const uint32_t *tm_link_successors(const tm_link *link, uint32_t op, uint32_t *n);

#endif
