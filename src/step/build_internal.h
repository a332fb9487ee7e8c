/* The front end's own header: a pass while it is written, and what the files of build*.c offer each other.
 *
 *   build.c         stages and units in forward and backward order, the objective
 *   build_grad.c    gradients that are complete: summed over ranks, rounded, normed
 *   build_update.c  the update, and where it stands
 *   build_passes.c  the update by an optimizer that sums over whole tensors first
 *   build_ranks.c   weights gathered before they are used, handed round when they are new
 *   build_state.c   import, and walks over all state
 */
#ifndef TIDEMILL_BUILD_INTERNAL_H
#define TIDEMILL_BUILD_INTERNAL_H

#include "step/op.h"

#define NONE UINT32_MAX

/* A tile whose update may wait or be drawn forward. */
typedef struct waiting {
    uint32_t part, tile;   /* tile NONE: this rank owns nothing of the part, but the others do */
    uint32_t gradient, hi; /* intervals: update B; NONE: opened when its turn comes */
} waiting;

/* A part whose gradient is being summed over ranks while backward goes on. There may be several at a time, as long as
 * they have no more elements than the largest part, or than reduce_bucket_size: small ones then wait for each other
 * less, in no more memory. */
typedef struct summing {
    uint32_t part, unit, sum, hi; /* intervals: the sum; of update B the weights */
} summing;
enum { MAX_SUMMING = 8 };

/* Intervals of what a tile's update needs that are open already. */
typedef struct tile_intervals {
    uint32_t hi, lo, squares, gradient;
} tile_intervals;
#define NO_INTERVALS ((tile_intervals){NONE, NONE, NONE, NONE})

typedef struct pass {
    const tm_job *job;
    const tm_model *m;
    const pass_opts *o;
    tm_program *p;
    op_writer w;                                 /* of its operations */
    uint32_t K, L, T, units, parts, kept_blocks; /* K: micro-batches; L: lanes; T: tokens */
    uint32_t *batch, *coef;                      /* intervals, per batch; per lane */
    uint32_t *kept_logits;                       /* intervals, per (lane, stage of the head); NONE: multiplied again */
    uint32_t step;                               /* interval: step_frame */
    bool step_written;
    uint32_t *value_object, *value_interval, *grad_object, *grad_interval; /* per (unit, lane, slot) */
    uint8_t *value_written, *grad_written;
    uint32_t *part_interval;                       /* of the unit under way: what compute reads */
    uint32_t *own_interval;                        /* of this rank's slices, where compute reads what was gathered */
    uint32_t *sum_object, *sum_interval, *partial; /* per part */
    uint8_t *sum_written, *contributors, *updated;
    waiting *line; /* all tiles at most once: [line_head, line_end) wait */
    uint32_t line_head, line_end;
    uint32_t **grad_tile;  /* per part, per tile: rounded gradients */
    tile_intervals *stays; /* per tile of the part that is being updated in passes */
    uint32_t *gather;      /* parts in the order in which this direction first needs them: [gather_head, gather_end) */
    uint32_t gather_head, gather_end;
    uint64_t *ahead; /* per part: elements that were gathered and not used yet; their sum */
    uint64_t ahead_sum;
    uint32_t *second; /* hpZ, per part: the node's share of what forward gathered; NONE: nothing */
    bool *again;      /* per stage of the unit under way: backward runs its forward again; pass_again fills it */
    bool in_backward;
    summing summing[MAX_SUMMING];
    uint32_t n_summing;
    uint64_t summing_elements, most_summing; /* with several under way */
} pass;

uint32_t pass_scratch(pass *x, uint32_t unit, uint64_t bytes);

/* build_update.c */
uint32_t pass_hi_interval(pass *x,
                          uint32_t part); /* of this rank's weights of a part as a whole; opened where it is not */
void pass_update_part(pass *x, uint32_t part);
/* `totals`: interval of the sums over its tensors; NONE: its optimizer needs none. */
void pass_update_tile(pass *x, uint32_t part, uint32_t tile, tile_intervals open, uint32_t totals);
uint32_t pass_weight_tile(const pass *x, uint32_t part, uint32_t tile); /* its compute weights: an object */
void pass_update_next(pass *x);
void pass_update_before(pass *x, const tm_stage *stage);
void pass_update_some(pass *x, uint32_t from, uint32_t want, uint64_t done, uint64_t all);
uint32_t pass_stage_tiles(const pass *x, uint32_t unit, uint32_t s);
uint32_t pass_unit_tiles(const pass *x, uint32_t unit);
tm_status pass_line_init(pass *x);
uint32_t pass_gradient_interval(pass *x, uint32_t part, uint32_t tile); /* a new one, of the rounded gradient */
void pass_pending(pass *x);

/* build_passes.c */
tm_status pass_stays_init(pass *x);
void pass_update_group(pass *x, uint32_t part);

/* build_ranks.c */
void pass_gather_forward(pass *x); /* makes the list of what is needed, in order */
void pass_gather_backward(pass *x);
/* This rank's elements of a part that does not learn, decoded piece by piece into an interval. */
void write_decode(op_writer *w, uint32_t part, uint32_t to);
/* Of this rank's weights of a part that does not learn; of one in four bits the codes', and the scales' are the next. */
uint32_t pass_frozen_interval(pass *x, uint32_t part);
/* What this stage reads is there, and what comes next is on its way. */
void pass_need(pass *x, const tm_stage *stage, bool backward);
void pass_share(pass *x, uint32_t part, uint32_t hi); /* after the update of a part that is kept whole */

/* build.c */
bool pass_recomputes(const pass *x, uint32_t unit);
/* again[s], for each stage of the unit: whether a result of stage s is read by backward, so that it has to run again
 * where no activations were kept. */
void stages_to_recompute(const tm_unit *u, bool *again);
const bool *pass_again(pass *x, uint32_t unit); /* the same, all false where they were kept; until the next call */

/* build_grad.c */
bool pass_contributes(const pass *x, const tm_stage *stage, uint32_t i);
void pass_contributed(pass *x, uint32_t unit, uint32_t s);
void pass_finish_all(pass *x);
void pass_norm(pass *x);
void pass_loss(pass *x); /* of all ranks, where nothing is updated */
/* What every rank has to say, side by side: an interval. */
uint32_t pass_exchange(pass *x, bool norm);

#endif
