/* job: one model, its state as objects of a layout, and what its plans run on. What a step does with them is written and
 * carried out above (src/step); here is what it does it to.
 *
 *     part_state *s = &job->part[part];                   // where a part's state is: objects of job->layout
 *     span at = own_tile(job, part, 3);                   // which elements this rank's tile 3 has
 *     uint64_t n = state_bytes(job, part, TM_KIND_EXP_AVG, at.n); // what it takes, 0: the optimizer keeps none
 *
 * A tm_job is its owner's; what is const here is read only. Nothing is locked: a job belongs to the thread that runs its
 * plans, and handlers on a device's thread read what does not change while a program runs. */
#ifndef TIDEMILL_JOB_H
#define TIDEMILL_JOB_H

#include "adapter/adapter.h"
#include "format/format.h"
#include "format/peft.h"
#include "model/model.h"
#include "objective/objective.h"
#include "offload/exec/exec.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "offload/store/store.h"
#include "optim/optim.h"

#include <xxhash.h>

#define TM_NO_OBJECT UINT32_MAX

/* ---- shards (shard.c) ------------------------------------------------------------------------------------------ */

/* With R ranks a part is R slices of consecutive elements, slice j the j-th; slices are cut into tiles. What a rank
 * holds of a part is a run of slices, tile after tile: `holding`. One rank holds the one slice there is. */
typedef struct holding {
    uint32_t first, count; /* slices */
} holding;
typedef struct span {
    uint64_t begin, n; /* elements of the part */
} span;
uint64_t slice_elements(uint64_t elements, uint32_t slices); /* of all slices but the last that is not empty */
span slice_span(uint64_t elements, uint32_t slices, uint32_t slice);
uint32_t held_tiles(uint64_t elements, uint32_t slices, holding h);
span held_tile(uint64_t elements, uint32_t slices, holding h, uint32_t tile);
/* Which tile of `h` begins with element `begin`, where a tile begins; UINT32_MAX: none. */
uint32_t held_find(uint64_t elements, uint32_t slices, holding h, uint64_t begin);

/* What ranks share and exchange: the strategy in terms of a part. Everything about bits depends on `ranks` alone. */
typedef struct job_ranks {
    struct tm_comm *comm; /* NULL: one rank */
    uint32_t ranks, rank;
    holding weights; /* of compute weights (parts that are kept whole hold all slices) */
    holding own;     /* of lo, exp_avg, exp_avg_sq and the gradients that the update reads */
    holding sums;    /* of which gradients are summed here: one slice; all where MPI sums them */
    uint32_t group;  /* tm_comm group that weights, own and sums are divided among */
    bool across;     /* HSDP: there is such a group on each node; its sums are divided, added and handed round over
                        TM_COMM_ACROSS */
    holding second;  /* hpZ: of weights kept from forward for backward, divided within the node; count 0: not */
    bool mpi_sums;   /* ddp: by MPI_Allreduce, in whatever order */
    uint8_t gather_wire, reduce_wire; /* tm_comm_wire: exact, or rounded on the way */
    bool *agreed;                     /* set where a failure is known to all ranks (job_agree) */
    uint64_t prefetch_elements;       /* of weights that are gathered ahead of their use */
    uint64_t reduce_elements;         /* of gradients that are being summed while backward goes on; 0: no limit */
    bool prefetch_unit;               /* instead: as many as the unit of what comes next has */
    uint32_t shared_by;               /* ranks of a node that share gathered weights; 0: each has its own */
    bool must_share;                  /* or it is a failure */
    uint64_t keep_elements;           /* parts of vectors, or of tensors of no more elements, are kept whole */
    const tm_device_peers *peers;     /* weights are gathered and gradients summed from arena to arena; NULL: by comm */
} job_ranks;

/* Where a part's state is: object ids in the layout. Tile i of lo, exp_avg, exp_avg_sq is at first + i * stride. The
 * last two are the optimizer's first and second state, whatever it calls them. */
typedef struct part_state {
    uint32_t hi;                      /* first of `hi_tiles` objects of one bundle */
    uint32_t lo, exp_avg, exp_avg_sq; /* of tile 0; TM_NO_OBJECT where the job has none */
    uint32_t grad;                    /* rounded gradients that outlive a program (update F); TM_NO_OBJECT otherwise */
    uint32_t stride, tiles, grad_stride;
    uint32_t hi_tiles, sum_tiles; /* of compute weights here; of gradients that are summed here */
    holding weights;              /* slices of hi; the others hold job->ranks.own, .sums */
    bool small;                   /* its states are fp32 where the job's are 8-bit (states.c) */
    bool mixed;                   /* some of its tensors do not learn: their gradient is zero */
    bool learns;                  /* else it has none of the above but `weights`, and is read where it lies: */
    bool in_place;                /* its only piece is what computes; else pieces are decoded first (frozen.c) */
    tm_packed packed;             /* in place as the file has it: all but addresses; TM_PACKED_NOT: it is not */
    uint32_t first_piece, n_pieces;
    uint32_t held, n_held; /* objects that hold what pieces decode to, from the start on; n_held 0: none do */
    uint32_t means;        /* of its group, in the group's first part (passes.c); TM_NO_OBJECT: none */
    uint64_t elements;
} part_state;

/* A run of elements of a part that does not learn, in the bytes of a file that it is made of (frozen.c). */
typedef struct frozen_piece {
    uint32_t part, segment;           /* of the part's */
    uint64_t begin, n;                /* elements of the part */
    uint8_t fmt;                      /* tm_fmt of the bytes */
    uint32_t n_ranges;                /* of bytes, as tm_source_piece has them: */
    uint32_t object[TM_PIECE_RANGES]; /* first of `count` objects of a bundle */
    uint32_t count[TM_PIECE_RANGES];  /* */
    uint32_t shift[TM_PIECE_RANGES];  /* bytes of the first one's frame before the range */
} frozen_piece;

/* One batch as the handlers see it; its columns lie in a frame. */
typedef struct job_batch {
    uint32_t rows, seq, tokens;
    uint32_t samples; /* what counts once: rows, or pairs of them */
    bool decode;      /* as in tm_micro_batch */
    uint64_t mask_tokens, label_tokens;
    uint32_t label_rows, capacity,
        row_capacity; /* set by OP_BATCH: rows with a label; token rows and rows of the frame */
} job_batch;

/* The columns of a batch (columns.c has the table): [capacity] a token, [rows] a row; NULL: the job has no use for it. */
typedef struct job_columns {
    uint32_t capacity, rows;
    int32_t *ids, *labels;
    uint32_t *label_row; /* job_batch.label_rows: those that the head works on; OP_BATCH lists them */
    uint8_t *mask;
    uint32_t *position;               /* [rows] of the row's first token */
    uint32_t *cache_row, *cache_from; /* [rows] TM_COLUMN_CACHE_ROW: of the key-value cache */
    uint32_t *begin;                  /* TM_COLUMN_BEGIN: index in its row of the first token of the token's document */
    uint8_t *completion;              /* TM_COLUMN_* of the objective */
    uint8_t *desirable;               /* [rows] */
    float *reference;                 /* [rows] */
} job_columns;

typedef struct job_shape {
    uint32_t micro_batches; /* in a program */
    uint32_t rows, seq;     /* largest of any micro-batch; tokens = round_up(rows*seq, 64) unless given */
    uint32_t tokens;
    uint32_t labels; /* token rows with a label, of what is timed; 0: all */
} job_shape;

/* What operations of a step hand on to each other: the frame of OPERAND_STEP. The plan orders who writes it and who
 * reads it. Update F begins with that of the program before, whose gradients are pending. */
typedef struct step_frame {
    double loss_sum; /* the objective's, times its divisor: of this rank; from OP_NORM or OP_LOSS on of all */
    double grad_norm;
    double clip; /* what gradients are multiplied by */
    double learning_rate, beta1, beta2;
    int64_t number;                     /* of the step, from 1 */
    bool finite;                        /* else the update is skipped */
    uint32_t flags;                     /* of any rank, from its latest report */
    double sum[TM_OBJECTIVE_SUMS];      /* the objective's, as loss_sum */
    double shared[TM_OBJECTIVE_SHARED]; /* what it needs of the whole step: of all ranks from OP_OBJECTIVE on */
} step_frame;
enum { STEP_FRAME_BYTES = 64 + 8 * (TM_OBJECTIVE_SUMS + TM_OBJECTIVE_SHARED) };
_Static_assert(sizeof(step_frame) == STEP_FRAME_BYTES, "plans have frames and copies of so many bytes");

/* What handlers read and write beside their operands while a program runs. Between programs it is the caller's: what
 * the step is told, and what it told. */
typedef struct job_step {
    int64_t number; /* of the step under way, from 1 */
    double learning_rate;
    double loss_scale; /* in fp16; 0: none */
    double max_grad_norm;
    bool *no_decay;         /* per tensor; NULL: all are decayed */
    float *rate;            /* per tensor, times the learning rate; with no_decay; NULL: 1 */
    const uint32_t *wanted; /* [n_wanted] LOGITS_WANTED: token rows whose logits are, in ascending order */
    uint32_t n_wanted;
    uint64_t labels, tokens, samples; /* of all ranks: with several set by `fill`, else counted by the objective */
    uint32_t report_flags;            /* of this rank, with the next report */
    job_batch *batch;                 /* per batch of the running program: job_batch_index */
    step_frame result;         /* of the latest program: published by whoever writes the frame. Read by the caller, and
                                  where an update is launched on a device whose memory the host does not read: the frame
                                  was copied there after it was published */
    uint64_t *reported_peak;   /* [ranks] VmHWM of each */
    const double **report_at;  /* [ranks]: where each one's report is read next */
    uint64_t nonfinite;        /* parameters found not finite by the update, on the host */
    uint64_t device_nonfinite; /* on the device */
    uint64_t data_ns;          /* that batches took to be filled, of all programs so far */
} job_step;

typedef struct job_opts {
    const char *model; /* HF folder or .gguf */
    tm_dtype dtype;
    bool optimizer, init_random;
    const tm_objective_spec *objective; /* NULL: sft */
    bool reference_column;              /* where it has a reference: a column says what that says, else lanes do */
    const tm_optimizer *update;         /* of the table; NULL: AdamW */
    tm_optim_opts update_opts;          /* where `update` is given; else its defaults */
    const tm_adapter_config *adapter;   /* its modules are adapted, all else stays as it is; NULL: no adapter */
    const tm_freeze *freeze;            /* without an adapter: what learns; NULL: everything does */
    const char *weights; /* folder or file that they are read from instead of `model`; NULL: of `model` */
    bool as_stored;      /* forward only, on the host: matrices that do not learn are multiplied as files have them */
    tm_fmt four_bits;    /* NF4, FP4: what `quantization` makes of the model; F32: there is none */
    bool double_quant;
    uint32_t quant_block;
    const tm_model_roles *roles; /* instead (tests) */
    /* instead of `saved`: elements [first, first + n) of an adapter's tensor; NULL */
    tm_status (*adapter_values)(void *ctx, const tm_tensor *t, uint64_t first, uint64_t n, float *out);
    void *adapter_values_ctx;
    const tm_adapter_folder *saved; /* an adapter whose values the adapter begins with; NULL: anew */
    uint64_t seed;
    uint64_t host_bytes;      /* UINT64_MAX: unlimited */
    const char *device;       /* where the model is computed; NULL: "cpu", in place */
    uint64_t device_bytes;    /* of its arena; 0: it has none */
    bool no_device_resident;  /* no state stays in the arena from step to step, */
    double host_share;        /* or at least so much of it does not */
    uint64_t device_bps;      /* "cpu-arena": of its copies, each way; 0: as fast as memory */
    const char *const *paths; /* offload paths; none: everything stays in memory */
    uint32_t n_paths;
    uint32_t path_kinds[TM_MACHINE_PATHS]; /* as tm_store_opts.path_kinds */
    uint32_t slots;
    bool allow_tmpfs;
    bool cache_none;
    int spread; /* pass_opts.spread: 0 as predicted, 1 on, -1 off */
    bool pinned[TM_KINDS];
    tm_io_opts io;
    uint64_t order_seed;           /* != 0: random legal orders (tests) */
    bool stub_disk, stub_compute;  /* measuring: as in tm_exec_opts, from the end of the import on */
    uint32_t kv_rows, kv_capacity; /* of a key-value cache: rows, positions of each; 0: there is none */
    uint32_t kv_chunk;             /* tokens of a row that a pass has, at most: bounds what a window keeps */
    uint32_t positions;            /* of the longest row there may be, as tm_model_set_positions */
    bool packed;                   /* rows may be several documents */
    /* bounds of the planner (DeepSpeed's knobs), as in tm_plan_opts; 0: its own */
    uint32_t window_mib;
    uint64_t max_resident_bytes[TM_KINDS];
    bool no_read_ahead, no_write_behind;
    uint64_t persist_elements;       /* parts whose tensors have no more stay resident, if that fits */
    bool no_pin_memory;              /* the slab is not registered with the engine */
    uint64_t other_bytes;            /* of the budget: holding by the caller (data, logs) */
    uint32_t other_tokens;           /* most of a micro-batch of plans beside the candidates (evaluation) */
    bool config_only;                /* weights are neither there nor needed */
    bool unwritten;                  /* nor are those that are: all will be of `dtype` */
    bool plan_only;                  /* job_start stops after the plan */
    bool no_walk;                    /* and leaves out the walk over the state of all ranks that ends a run */
    bool commits;                    /* the state has a home on disk whether it is resident or not */
    const char *home;                /* where, if there are no offload paths */
    const char *run_name, *key, *of; /* of tm_store_opts */
    tm_commit *resume;               /* the state is that of this commit, which is taken over; nothing is imported */
    job_ranks ranks;                 /* all zero: one rank */
    struct elastic *elastic;         /* the state is read from there instead of imported */
} job_opts;

/* What of the host's memory is for what. */
typedef struct job_budget {
    uint64_t host_bytes;  /* opts.host_bytes; UINT64_MAX: unlimited */
    uint64_t fixed_bytes; /* of it: everything but the slab */
    uint64_t slab_bytes;  /* the rest: frames, and until there is a slab the plans */
} job_budget;

/* What a plan may take. */
typedef struct job_limits {
    uint64_t slab_bytes;        /* of job_budget.slab_bytes; once there is a slab: its bytes */
    uint64_t plans_bytes;       /* of that, until there is a slab: what the plans themselves take, at most */
    uint32_t resident_quarters; /* of tm_plan_opts */
} job_limits;

/* What the plans that were compiled take: the largest of each, as in tm_plan_info; and together. */
typedef struct job_needs {
    uint64_t slab, spill, spill_largest, device, shared, share;
    uint64_t plans;       /* those that stay */
    double proof_seconds; /* of all plans that were proved */
} job_needs;

/* Which limit a TM_EBUDGET is about, and what would do. With ranks it is the same on all of them. */
typedef enum job_limit { JOB_LIMIT_NONE, JOB_LIMIT_HOST, JOB_LIMIT_DEVICE, JOB_LIMIT_MICRO_BATCHES } job_limit;
typedef struct job_refusal {
    job_limit limit;
    uint64_t bytes;              /* the least budget (of the host, of the device) that would be enough */
    uint32_t micro_batches;      /* JOB_LIMIT_MICRO_BATCHES: so many were asked for, */
    uint32_t most_micro_batches; /* and so many fit */
} job_refusal;

/* The account of plans that are compiled beside each other. */
typedef struct job_account {
    job_limits limits;
    job_needs needs;
    job_refusal refusal; /* of the latest that did not fit */
} job_account;

/* What programs run on (job_tiers.c). */
typedef struct job_tiers {
    tm_device_traits traits; /* of the device that computes */
    uint8_t update_tier;     /* tm_tier of OP_UPDATE */
    tm_exec *exec;
    tm_store *store;
    tm_device *device;                   /* NULL: in place */
    const tm_kernel_table *kernels;      /* of operations of the device's tier; NULL: the host's */
    struct tm_comm_window *window;       /* gathered weights, for all ranks of a node */
    tm_plan *resident[TM_RESIDENT_WAYS]; /* what the arena holds, moved each way; NULL: it holds none */
    uint64_t peak_before;                /* VmHWM before there was an arena */
    bool keep_state;                     /* job_close leaves the run directories */
} job_tiers;

/* What operations take, as predicted and as they ran. */
typedef struct job_clock {
    const struct tm_machine *machine; /* job_use_costs; NULL: nominal */
    tm_cost_fn cost;
    void *ctx;
    void (*hear)(void *ctx, const tm_op *op, double seconds); /* what each operation took; NULL: nobody asks */
    void *hear_ctx;
} job_clock;

/* Operations between ranks (ops_comm.c). */
typedef struct job_comm {
    struct comm_ops *ops;
    uint64_t *counts;               /* [2 ranks] of job_comm_bytes; NULL: one rank */
    _Atomic uint64_t sent_there[2]; /* bytes by link (tm_comm_link), from arena to arena: worked out, NCCL tells none */
    bool stub;                      /* measuring: operations between ranks end at once and move nothing */
} job_comm;

/* Where data come from and results go: whoever has the job sets these. */
typedef struct job_sinks {
    /* fills a micro-batch's columns but for label_row, and says its shape. `batch`: TM_BATCH_ROWS, TM_BATCH_MISMATCHED */
    tm_status (*fill)(void *ctx, uint32_t micro_batch, uint32_t batch, const job_columns *to, job_batch *shape);
    void *fill_ctx;
    /* take what a program yields (probe, export, generation); any may be NULL */
    tm_status (*take_logits)(void *ctx, uint32_t micro_batch, uint32_t first_row, uint32_t rows, uint64_t first_column,
                             uint64_t columns, const float *logits, uint64_t ld);
    tm_status (*take_values)(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, const float *values);
    tm_status (*take_nll)(void *ctx, uint32_t micro_batch, const tm_micro_batch *b, const float *nll);
    void *take_ctx;
    void (*show)(void *ctx, double share); /* how much of a program is done, before each operation; NULL */
    void *show_ctx;
    bool (*may_go_on)(void *ctx); /* asked before each operation once a signal came; NULL: no */
    void *may_go_on_ctx;
} job_sinks;

/* How far it is. */
typedef struct job_progress {
    tm_phase planning;
    _Atomic uint32_t shown_ops; /* of run_ops, which the handlers get of it */
    uint32_t run_ops;
    uint64_t exported_bytes; /* of models that were written */
} job_progress;

/* The source's tensors that are none of the model's (job_list_carried). */
typedef struct job_carried {
    uint32_t *foreign; /* of a composite model's other parts: indices in the source, in its order */
    uint32_t n_foreign;
    uint32_t dropped, first_dropped; /* those that are left out, but for a tied head: how many, and the first's index */
} job_carried;

typedef struct tm_job tm_job;
struct tm_job {
    job_opts opts;
    /* what is trained: job_open's */
    tm_model *model;
    tm_dtype dtype;
    bool optimizer;  /* lo, exp_avg, exp_avg_sq exist */
    job_ranks ranks; /* one rank: 1, with all slices */
    const tm_objective *objective;
    tm_objective_spec objective_spec;
    tm_lane_name lane[TM_LANES]; /* of each micro-batch; the first one learns */
    uint32_t n_lanes, n_batches;
    uint32_t columns; /* TM_COLUMN_* */
    const tm_optimizer *update;
    tm_optim_opts update_opts;
    tm_source *source;       /* NULL: random initialisation */
    uint32_t *source_tensor; /* per tensor: its index in the source; UINT32_MAX: it is an adapter's */
    tm_fmt four_bits;        /* in a plan: NF4, FP4 where a run will make such a base of the source; F32: it has one */
    job_carried carried;
    tm_pissa *pissa;         /* NULL: the adapter does not begin so */
    const char *name_prefix; /* of tensors outside the program: "", or PEFT's with adapters */
    uint64_t seed;
    /* its state: job_add_state's */
    tm_layout *layout;
    part_state *part;
    bool parks;           /* gradients are state (update F) */
    double held_share;    /* of decoded weights: stays in memory instead of the bytes that it is made of (frozen.c) */
    frozen_piece *frozen; /* of all parts that do not learn, in order */
    uint32_t n_frozen;
    size_t cap_frozen;
    uint32_t *kv;      /* per unit: first of its key-value cache's objects (generation); NULL otherwise */
    uint32_t kv_first; /* of all units */
    uint8_t
        *kv_page; /* per object from there on: what the pass under way does with it (kv.c); NULL: they are no pages */
    XXH3_state_t *hash;  /* of a walk under way */
    job_budget budget;   /* job_start's, as the next */
    job_account account; /* of the plans that the job runs */
    job_tiers tiers;
    job_clock costs;
    job_comm comm;
    job_sinks sinks;
    job_progress progress;
    job_step step;
};

/* What is computed with, as it lies in memory and in files. */
static inline tm_fmt job_compute_fmt(tm_dtype dtype) {
    return dtype == TM_F32 ? TM_FMT_F32 : dtype == TM_BF16 ? TM_FMT_BF16 : TM_FMT_F16;
}

/* At most, of a micro-batch: what is computed, and what its frames are made for. */
static inline uint32_t shape_real_tokens(const job_shape *s) {
    return s->tokens ? s->tokens : s->rows * s->seq;
}
static inline uint32_t shape_tokens(const job_shape *s) {
    return s->tokens ? s->tokens : (uint32_t)tm_round_up((uint64_t)s->rows * s->seq, 64);
}

/* Fills job->carried, once source_tensor is there. */
TM_MUST_USE tm_status job_list_carried(tm_job *job);

/* ---- parts (shard.c) ------------------------------------------------------------------------------------------ */

/* Small parts are not worth a gather for each use: every rank holds them whole. */
bool part_kept_whole(const tm_model *m, uint32_t part, uint64_t keep_elements);
/* Tiles of lo, exp_avg, exp_avg_sq; of hi; of gradients that are summed here. */
span own_tile(const tm_job *job, uint32_t part, uint32_t tile);
span hi_tile(const tm_job *job, uint32_t part, uint32_t tile);
span sum_tile(const tm_job *job, uint32_t part, uint32_t tile);
/* All elements of `own`: one run. */
span own_run(const tm_job *job, uint32_t part);
/* Compute weights are gathered for each use; new ones are handed round after the update; so are rounded gradients. */
static inline bool part_is_gathered(const tm_job *job, const part_state *p) {
    return p->weights.count < job->ranks.ranks;
}
static inline bool part_is_shared(const tm_job *job, const part_state *p) {
    return p->weights.count > job->ranks.own.count;
}
/* Which member of the group holds a slice of what is divided like `h`. */
static inline uint32_t held_by(holding h, uint32_t slice) {
    return slice / h.count;
}
static inline bool gradients_are_shared(const tm_job *job) {
    return job->ranks.own.count > job->ranks.sums.count;
}

/* ---- states (states.c) --------------------------------------------------------------------------------------- */

/* What a tile of n elements has of a kind, in bytes: the layout's object, a commit's, what ranks send each other. 0:
 * the optimizer keeps no such state. */
uint64_t state_bytes(const tm_job *job, uint32_t part, tm_kind kind, uint64_t n);
double state_bytes_per_parameter(const tm_job *job); /* of both states, nearly */
tm_kind state_master(const tm_job *job);             /* where the fp32 master is; where it is split, its upper half */
bool state_is_split(const tm_job *job);
/* 8-bit states need tensors of some size (as in bitsandbytes) and blocks that are theirs alone. */
bool state_is_small(const tm_job *job, uint32_t part);
const tm_optimizer *state_optimizer(const tm_job *job, uint32_t part);
/* Where an 8-bit state's codes begin in its object, behind the largest magnitudes of its blocks; else 0. */
uint64_t state_codes_at(const tm_job *job, uint32_t part, uint64_t n);
/* Elements [first, ..) of a tile's states into a span. */
void state_span(const tm_job *job, uint32_t part, void *m, void *v, uint64_t first, uint64_t n, tm_optim_span *out);
void state_begin(const tm_job *job, uint32_t part, tm_kind kind, void *object, uint64_t n); /* as before step 1 */
/* Elements [first, first + n) of a state as fp32: in place, or in `room`. `all`: elements of the tile. */
float *state_values(const tm_job *job, uint32_t part, tm_kind kind, void *object, uint64_t all, uint64_t first,
                    uint64_t n, float *room);
/* The constants of the step's update: of its optimizer or that of small parts, decayed or not and at the rate of that
 * tensor; UINT32_MAX: as any. */
tm_optim_step state_step(const tm_job *job, const step_frame *f, bool small, uint32_t tensor);

/* What the optimizer makes of the schedule's rate, for the log. */
double state_learning_rate(const tm_job *job, double scheduled, int64_t step);

/* ---- updates in passes (passes.c) -------------------------------------------------- */

/* Parts that have pieces of one tensor: [first, first + count). */
typedef struct part_group {
    uint32_t first, count;
} part_group;
part_group passes_group(const tm_model *m, uint32_t part);
bool part_is_factored(const tm_model *m, uint32_t part); /* its tensors are matrices; else all are vectors */
static inline bool job_updates_in_passes(const tm_job *job) {
    return job->optimizer && job->update->passes > 1;
}
uint32_t job_summed_slice(const tm_job *job, uint32_t rank); /* of which it adds up gradients, and norms */

/* Adafactor's states in the order of optim's table. */
enum { STATE_EXP_AVG, STATE_ROW, STATE_COLUMN, STATE_FULL };

/* A tensor of a group. */
typedef struct group_tensor {
    uint32_t tensor;
    uint64_t means_at, means; /* in the group's means: rows and columns; 0 of a vector */
    tm_optim_tensor x;
} group_tensor;
/* The i-th one; false: there are no more. Without `means` it has no states. */
bool passes_tensor(const tm_job *job, part_group g, uint32_t i, float *means, double *totals, group_tensor *out);
uint64_t passes_means_bytes(const tm_job *job, part_group g); /* 0: vectors only */
uint64_t passes_totals_bytes(const tm_job *job, part_group g);

bool passes_read_weights(const tm_job *job, uint32_t pass);

/* With ranks: how many doubles `rank` has to say of a pass; this rank's among all; all of them into the totals. */
uint64_t passes_pieces(const tm_job *job, part_group g, uint32_t rank, uint32_t pass);
uint64_t passes_pieces_bytes(const tm_job *job, part_group g, uint32_t pass); /* of all of them */
void passes_pack(const tm_job *job, part_group g, uint32_t pass, double *totals, double *all);
void passes_unpack(const tm_job *job, part_group g, uint32_t pass, double *all, double *totals);

/* ---- its state as objects of a layout (layout.c) --------------------------------------------------------------- */

/* What of a job a compilation decides about. */
typedef struct job_state {
    tm_layout *layout;
    part_state *part;
    frozen_piece *frozen;
    uint32_t n_frozen;
    size_t cap_frozen;
    uint32_t *kv;
    bool parks;
} job_state;
/* Describes the state anew: with gradients among it (update F) or without. */
tm_status job_add_state(tm_job *job, const job_opts *opts, bool parks);
job_state job_move_state(tm_job *job);               /* to the caller; the job has none then */
void job_set_state(tm_job *job, const job_state *s); /* the job's from here on, in place of the one it had */
void job_free_state(job_state *s);

/* ---- the key-value cache (kv.c) --------------------------------------------------------------------------------- */

/* Positions that a row of the unit's cache keeps: opts.kv_capacity, or a ring of its window. */
uint32_t job_kv_positions(const tm_job *job, uint32_t unit);
/* Objects that a unit's cache is cut into, from job->kv[unit] on: one, or with offload paths pages, which lie in files where
 * they do not fit. */
uint32_t job_kv_pages(const tm_job *job, uint32_t unit);
tm_status kv_add_state(tm_job *job, uint32_t *bundle, uint32_t *objects); /* both are counted on */
/* Of pages in files a pass moves those that its rows have use for: said before it, once the job has started, for each row
 * whose first `position` entries are read (and copied, where `from` is another row: tm_attention) and the `seq` behind them
 * written. */
typedef struct kv_row {
    uint32_t row, from, position, seq; /* from UINT32_MAX: none */
} kv_row;
void kv_begin_pass(tm_job *job);
void kv_use_row(tm_job *job, const kv_row *r);
tm_status kv_open_pages(tm_job *job);
bool kv_page_moves(void *job, uint32_t object, bool write); /* of tm_exec_moves */

/* ---- what learns (roles.c) -------------------------------------------------------------------------------------- */

/* The model with the roles of its tensors. TM_EINPUT: opts->adapter or opts->freeze is not of this model. */
TM_MUST_USE tm_status job_create_model(tm_model **out, const tm_model_config *config, const job_opts *opts);

/* Names of the checkpoint's modules, each once, in byte order; all are in `names`. tm_free(module), tm_buf_free(names). */
TM_MUST_USE tm_status job_list_modules(const tm_model *m, const char ***module, size_t *n, tm_buf *names);
/* Where `t` has a value in the saved adapter; -1: it has none. */
int64_t job_saved_tensor(const tm_job *job, uint32_t t);
/* Memory that PiSSA's beginning takes; 0: the adapter does not begin so. */
uint64_t job_pissa_bytes(const tm_job *job);

/* ---- parts that do not learn (frozen.c) ------------------------------------------------------------------------- */

/* Describes what files part `part` is made of: its pieces, and their objects in the layout. */
TM_MUST_USE tm_status frozen_add_part(tm_job *job, uint32_t part, uint32_t *bundle);
/* Whether `quantization` takes a tensor: matrices of blocks, as bitsandbytes takes every linear layer but the head; none
 * that the adapter trains whole. */
bool job_in_four_bits(const tm_model *m, const tm_adapter_config *adapter, uint32_t tensor);
/* Of a base that the run will make for itself, all its values; 0: it makes none, or has it. */
uint64_t frozen_own_bytes(const tm_job *job);
/* Of parts that are decoded, where so large a share of them is held, that share: as computed with, and as files have it. */
typedef struct frozen_sizes {
    uint64_t decoded, raw;
} frozen_sizes;
frozen_sizes frozen_decoded(const tm_job *job, double share);
span frozen_held(const tm_job *job, uint32_t part); /* elements of which this rank has pieces */
/* Its bytes are; a plan counts those of others too. */
bool frozen_is_there(const tm_job *job, const frozen_piece *f);
TM_MUST_USE tm_status frozen_source_piece(const tm_job *job, const frozen_piece *f, tm_source_piece *out);
uint64_t frozen_raw_bytes(const tm_job *job, uint32_t part); /* of all its objects */
/* Of a part that is multiplied in four bits: ranges of scales, which follow the codes' as operands; of others none. */
uint32_t frozen_scales(const tm_job *job, uint32_t part);
uint64_t frozen_range_bytes(const tm_job *job, const frozen_piece *f, uint32_t range);
/* Where this rank's weights begin in the frame that an operation is given. */
static inline uint32_t weight_shift(const tm_job *job, uint32_t part) {
    const part_state *s = &job->part[part];
    return s->in_place ? job->frozen[s->first_piece].shift[0] : 0;
}

/* ---- its device (device.c) -------------------------------------------------------------------------------------- */

bool job_device_apart(const char *device, tm_device_traits *traits); /* it has processors of its own */
void job_device_warn(const char *device);                            /* where it was never tested */
/* What may be taken of its memory if nothing else is said. TM_EUNSUPPORTED, TM_EINPUT: it is not here. */
tm_status job_device_room(const char *device, bool peers, uint64_t *bytes);
/* Whether so much of its memory is free, the driver's share set aside; TM_EBUDGET with what is. */
tm_status job_device_fits(const char *device, uint64_t wanted);
tm_status job_device_fail(const char *device, const char *more); /* the pending error, of that device */
/* Whether a device can run the update by the optimizer of that name. */
bool job_device_updates(const tm_device_traits *traits, const char *optimizer, tm_dtype dtype);
/* What plans and costs have to know of the device: traits, sizes of its kernels, where the update may run. */
TM_MUST_USE tm_status job_set_device(tm_job *job, const job_opts *opts);

/* ---- where it stops (signals.c) --------------------------------------------------------------------------------- */

/* A request to stop (tm_stop_catch) ends the running program with TM_ESIGNAL, unless may_go_on has it that it goes on;
 * a second SIGINT in any case. */
int job_stop_signal(void);                   /* the first that came, 0: none */
uint64_t job_stop_ns(void);                  /* when it was seen first (tm_now_ns) */
tm_status job_check_stop(const tm_job *job); /* TM_ESIGNAL: stop here */
tm_status job_stopped(const char *more);     /* TM_ESIGNAL: "stopped by signal 15", or by another rank's, and MORE */

/* ---- plans over it (compile.c) -------------------------------------------------------------------------------- */

/* What operations and transfers take, for the choice among ways and for what stays resident; both outlive the job's
 * last compilation. Without it compute has a nominal rate and so has the disk. */
void job_use_costs(tm_job *job, const struct tm_machine *machine, tm_cost_fn cost, void *ctx);
/* What the offload files would take. */
uint64_t job_disk_bytes(const tm_job *job, const tm_plan_info *info, uint32_t slots);
/* Collective with ranks: TM_OK if all ranks say so, else the failure of the first that does not, on all of them. */
tm_status job_agree(tm_job *job, tm_status rc);
/* TM_EBUDGET with its one line. */
tm_status job_refuse(const tm_job *job, const job_refusal *r);
/* A program over the job's state, under the residency that its layout has by now. `stays`: the plan is kept beside the
 * others of the account. TM_EBUDGET: account->refusal says which limit. */
tm_status job_compile_in(const tm_job *job, job_account *account, const tm_program *program, bool stays,
                         tm_plan **plan);
tm_status job_compile(tm_job *job, const tm_program *program, tm_plan **plan); /* in the job's own account */
void job_count_plan(job_account *account, const tm_plan *plan, bool stays);
/* What is held of a plan while it is one of those that are run, beside the plan: two runs of it, what links them, and
 * at first the simulator's arrays. */
enum { JOB_RUN_BYTES_PER_OP = 2 * (5 * sizeof(uint32_t) + 1) + sizeof(uint32_t) };
void job_plan_opts(const tm_job *job, const job_opts *opts, const job_account *account, tm_plan_opts *po);

static inline uint64_t job_nonfinite(const tm_job *job) {
    return job->step.nonfinite + job->step.device_nonfinite;
}

/* ---- state out of commits that were laid out otherwise: on other ranks, with another strategy (elastic.c) --------- */

typedef struct elastic elastic;
/* directory[q]: the first run directory of rank q of the run that made the commit. */
tm_status elastic_open(elastic **out, const tm_model *m, const char *const *directory, uint32_t ranks);
void elastic_close(elastic *e); /* NULL is fine */
/* One kind of state of elements `at` of a part, laid out as a tile of them. */
tm_status elastic_read(elastic *e, const tm_job *job, uint32_t part, tm_kind kind, span at, void *to);

/* The means of the group that begins with part `first` (passes.c): every rank has them. */
tm_status elastic_read_means(elastic *e, uint32_t first, void *to, uint64_t bytes);

/* Into a commit's info, and back: which slices it holds. */
void elastic_describe(const job_ranks *r, tm_json_writer *w);
tm_status elastic_shards(const tm_json *info, job_ranks *out);
bool elastic_same(const job_ranks *a, const job_ranks *b);

/* ---- lanes and columns (columns.c) ------------------------------------------------------------------------------ */

/* Lane l of a program is lane l % n_lanes of micro-batch l / n_lanes; its batch is number job_batch_index of job_step.batch. */
static inline tm_lane_name job_lane(const tm_job *job, uint32_t lane) {
    return job->lane[lane % job->n_lanes];
}
static inline uint32_t job_batch_index(const tm_job *job, uint32_t lane) {
    return lane / job->n_lanes * job->n_batches + tm_lane_batch(job_lane(job, lane));
}
void job_set_objective(tm_job *job, const tm_objective_spec *spec, bool reference_column); /* spec NULL: sft */
uint64_t job_columns_bytes(const tm_job *job, uint32_t capacity, uint32_t rows);
job_columns job_columns_at(const tm_job *job, void *frame, uint32_t capacity, uint32_t rows);

#endif
