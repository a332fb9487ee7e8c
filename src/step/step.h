/* What the files of train share: a job (model + state + executor), the operations its programs are made of, and the
 * front end that writes those programs. */
#ifndef TIDEMILL_STEP_H
#define TIDEMILL_STEP_H

#include "job/job.h"

/* ---- front end ----------------------------------------------------------------------------------------------- */

/* Where the update runs: U after backward; F in the next program's forward pass, each unit just before it is used; B
 * inside backward, each part as soon as its gradient is complete, while its weights are being visited anyway. */
typedef enum pass_update { UPDATE_NONE, UPDATE_AFTER, UPDATE_BEFORE, UPDATE_WITHIN } pass_update;
enum { PASS_KEEP_ALL = 4, PASS_KEEP_LOGITS = 5 };
typedef struct pass_opts {
    job_shape shape;
    bool backward; /* with gradients and norm */
    pass_update update;
    bool park;           /* gradients go to the layout's grad objects, for an update in a later program */
    bool take_gradients; /* OP_TAKE_GRAD of every part */
    enum { LOGITS_NONE, LOGITS_ALL, LOGITS_WANTED } logits; /* WANTED: job_step.wanted */
    bool loss;                                              /* head state and objective (always with backward) */
    uint32_t keep_quarters; /* so much of the blocks, the last ones (they live shortest), keep what backward needs of
                               forward; the others recompute it. PASS_KEEP_ALL: every block; PASS_KEEP_LOGITS:
                               and the head its logits, 4 bytes a token and vocabulary row, never spilled */
    bool no_spill;          /* no activation is ever written out */
    bool stage_wise;        /* each stage over all micro-batches, instead of each micro-batch over all stages */
    bool overlap; /* ranks: weights are gathered ahead of their use, sums of gradients end behind it; takes memory */
    bool spread;  /* updates F and B: tiles are updated between the micro-batches of the unit before (F: of what
                     is used next; B: of what is complete), so that disk and CPU work evenly; takes memory */
} pass_opts;
tm_status build_pass(tm_program **out, const tm_job *job, const char *name, const pass_opts *opts);
const char *pass_update_name(const pass_opts *o);                         /* "U", "F", "B", "none" */
uint32_t pass_kept_blocks(const tm_job *job, const pass_opts *o);         /* at most as many as there are */
const char *pass_activations_name(const tm_job *job, const pass_opts *o); /* "keep", "spill", "recompute", "mixed" */
/* The update of everything, for gradients that are parked (update F): before anyone else looks at the state. */
tm_status build_drain(tm_program **out, const tm_job *job);
tm_status build_import(tm_program **out, const tm_job *job);
tm_status build_hold(tm_program **out, const tm_job *job); /* what is held decoded, filled */
uint64_t import_scratch_bytes(const tm_job *job, uint32_t part, uint64_t elements, bool own);
/* Reads all state in byte order of the tensor names: for the hash (masters and moments) or an export (`what`). */
bool tensor_has_state(const tm_job *job, uint32_t t); /* among the parts that learn */
tm_status build_walk(tm_program **out, const tm_job *job, bool hash, int what);
uint64_t build_walk_ops(const tm_job *job);     /* the most that a plan of the hash has */
tm_kind walk_kind(const tm_job *job, int what); /* that `what` is read from, the lower halves apart */

/* What steps come to, one or those of an evaluation. */
typedef struct step_total {
    double loss_sum, sum[TM_OBJECTIVE_SUMS], shared[TM_OBJECTIVE_SHARED];
    uint64_t labels, tokens, samples;
} step_total;
enum { STEP_METRICS = 8 };
void step_total_add(step_total *t, const job_step *step);       /* after its program, with `t` zero before the first */
double step_total_loss(const tm_job *job, const step_total *t); /* NAN: nothing was learned */
/* The objective's, in its order; NAN: there is none. Returns how many. */
uint32_t step_total_metrics(const tm_job *job, const step_total *t, double value[STEP_METRICS]);
void step_total_write(const tm_job *job, const step_total *t, tm_json_writer *w); /* as fields; those there are */
/* What a rank reports of a step: a few numbers of its own, then norms of its blocks (ops_ranks.c). */
uint64_t job_report_bytes(const tm_job *job, bool norm);
/* hpZ: of a part's weights, this rank's share of its node's copy. */
uint64_t job_second_bytes(const tm_job *job, uint32_t part);
/* Elements of each group member's slices of a part holding like `h`; counts[] has room for the group. */
void job_slice_counts(const tm_job *job, uint32_t part, holding h, uint64_t *counts);
/* What this rank sends in an operation between ranks: within its node, between nodes (ops_comm.c). */
void job_comm_bytes(const tm_job *job, const tm_op *op, uint64_t bytes[2]);
/* What it puts into memory that its node's ranks share; 0: the operation is not of that kind. */
uint64_t job_comm_copied(const tm_job *job, const tm_op *op);

/* ---- job ----------------------------------------------------------------------------------------------------- */

/* "MODEL/config.json" for a folder, for messages; returns buf. */
const char *job_config_name(const char *model, char *buf, size_t cap);
/* Opens the model and describes its state; nothing is allocated for it yet. */
tm_status job_open(tm_job **out, const job_opts *opts);
/* Files, slab and arena for the plans that were counted, and the executor. */
tm_status job_open_tiers(tm_job *job, const job_opts *opts);
tm_exec_comm job_exec_comm(const tm_job *job);
/* State as it is before the first step: what is held of the weights that do not learn (NULL: nothing is decoded for that),
 * then that of opts.resume, or imported. */
tm_status job_fill_state(tm_job *job, const tm_plan *hold_plan, const tm_plan *import_plan);
tm_status job_run(tm_job *job, const tm_plan *plan);
/* A phase (base.h) of which each program that the job runs is `span` more, from `base` on:
 *
 *     job_phase p;
 *     job_phase_begin(&p, job, "evaluation", "rows", rows);
 *     for (...) { p.span = ...; rc = job_run(job, plan); p.base += p.span; }
 *     job_phase_end(&p); // also after a failure; until then the job shows nothing else */
typedef struct job_phase {
    tm_job *job;
    tm_phase phase;
    uint64_t base, span;
    void (*before)(void *ctx, double share); /* who showed something until then */
    void *before_ctx;
} job_phase;
void job_phase_begin(job_phase *p, tm_job *job, const char *what, const char *unit, uint64_t total);
void job_phase_end(job_phase *p);
uint64_t job_weight_bytes(const tm_job *job); /* all that learn, as computed with */
void *job_shared_frames(const tm_job *job);   /* NULL: there are none */
tm_status job_state_hash(tm_job *job, uint64_t step, char hex[33]);
/* As one file, or shards where it has more than max_shard_bytes (0: 50 GB). */
tm_status job_export(tm_job *job, const char *dir, tm_fmt dtype, uint64_t max_shard_bytes);
/* What learns of a job with an adapter, as PEFT's folder. */
tm_status job_export_adapter(tm_job *job, const char *dir, tm_fmt dtype);
/* Of a composite model what is no text and goes along as it is: bytes, and how many tensors. */
uint64_t job_foreign_bytes(const tm_job *job, uint32_t *count);
uint32_t job_dropped(const tm_job *job, const char **first); /* tensors that no part of it has: left out */
uint64_t job_export_bytes(const tm_job *job, tm_fmt dtype);  /* of one exported model, the foreign tensors with it */

uint64_t job_planned_peak(const tm_job *job); /* what plans and everything beside them take of the host, at most */
/* VmHWM without the device's arena, and with this rank's share of what its node shares */
uint64_t job_host_peak(const tm_job *job);
tm_status job_save_resident(tm_job *job); /* before a commit: what the arena holds, to its extents */

void job_close(tm_job *job); /* removes the run directories; NULL is fine */

#endif
