/* optim: the arithmetic between a gradient and new parameters, on contiguous spans. Knows no tiers, tiles or layers.
 *
 *   1. optimizers      a table by name, on (weights, gradient, states) spans;       } optimizer.h, which others
 *   2. split master    an fp32 parameter stored as the bf16 that computes (hi) and  } may use alone, with the
 *                      the other 16 bits (lo);                                      } shared library
 *   3. gradient finish one rounding of an accumulated gradient, and its squared     }
 *                      norm by fixed blocks;                                        }
 *   4. loss scale      of fp16, DeepSpeed's;                                        }
 *   5. AdamW           the table's adamw as plain functions;
 *   6. schedules       learning rate of step t: those of transformers and of DeepSpeed;
 *   7. launch          a step by a device's kernels instead.
 *
 * Every function computes each element by a fixed sequence of IEEE-754 operations (no FMA, no reassociation, no
 * flush of subnormals): the bits do not depend on the ISA row, on threads, or on how a span is cut among calls. Rows
 * ("ref", "avx2", "avx512") are chosen once by CPU feature bits; TIDEMILL_ISA forces a lower one.
 *
 * Threads: span functions start OpenMP teams; distinct spans may be processed at the same time. No state, and no
 * allocation.
 *
 *     tm_adamw_step step; // once a step and parameter group
 *     tm_adamw_step_init(&step, &opts, tm_lr_at(&schedule, t), t + 1, tm_clip_factor(norm, max_grad_norm));
 *     uint64_t bad = tm_adamw_split(hi, lo, exp_avg, exp_avg_sq, grad, n, &step);
 *     if (bad) return tm_fail(TM_EINPUT, "step %d: %" PRIu64 " parameters are not finite ...", t + 1, bad);
 */
#ifndef TIDEMILL_OPTIM_H
#define TIDEMILL_OPTIM_H

#include "base/base.h"
#include "optim/optimizer.h"

/* ---- AdamW ---------------------------------------------------------------------------------- */

/* As torch.optim.AdamW (single tensor, not fused) orders it, each line one rounding an operation, in fp32:
 *
 *     g' = g * grad_scale                              L2 mode: g' = g' + weight_decay * w
 *     w  = w * (1 - lr * weight_decay)                 (decoupled mode only)
 *     m  = m + (1 - beta1) * (g' - m)                  (beta1 <= 0.5: m = g' - (g' - m) * beta1)
 *     v  = v * beta2 + ((1 - beta2) * g') * g'
 *     w  = w + (-lr / bc1 * m) / (sqrt(v) / sqrt(bc2) + eps)
 *
 * with bc = 1 - beta^t, or 1 without bias correction. */

typedef struct tm_adamw_opts {
    double beta1, beta2, eps, weight_decay;
    bool adam_w_mode; /* true: decoupled decay (AdamW); false: L2 added to the gradient (Adam) */
    bool bias_correction;
} tm_adamw_opts;
/* `t` counts from 1. grad_scale: clip factor times unscale. */
void tm_adamw_step_init(tm_adamw_step *step, const tm_adamw_opts *opts, double lr, int64_t t, double grad_scale);

/* Each returns how many elements have a non-finite parameter or moment afterwards; anything but 0 must stop the run. */
TM_MUST_USE uint64_t tm_adamw_split(uint16_t *hi, uint16_t *lo, float *exp_avg, float *exp_avg_sq,
                                    const uint16_t *g_bf16, size_t n, const tm_adamw_step *step);
TM_MUST_USE uint64_t tm_adamw_f32(float *w, float *exp_avg, float *exp_avg_sq, const float *g, size_t n,
                                  const tm_adamw_step *step);

/* ---- sums of a tensor in passes ------------------------------------------------------------------ */

/* Where a tensor's scratch has what the spans of a pass add up, for those who add up pieces of it elsewhere: rows of a
 * vector: 1, and no columns. */
typedef struct tm_optim_sums {
    uint64_t rows, columns;
    double *row_w, *row_g, *column_g; /* of pass 0: squares of weights and gradient */
    double *row_u;                    /* of pass 1: squares of the update */
} tm_optim_sums;
tm_optim_sums tm_optim_sums_of(const tm_optim_tensor *tensor);

/* ---- on a device --------------------------------------------------------------------------- */

struct tm_kernel_table;
/* tm_optim_run by a device's own kernels, inside an operation of its; operands are in its memory. *nonfinite has been
 * added to when the operation is complete. The optimizers that devices have rows for: adamw, adam. */
void tm_optim_launch(const struct tm_kernel_table *kernels, const tm_optim_step *step, const tm_optim_span *span,
                     uint64_t *nonfinite);

/* ---- learning-rate schedules ---------------------------------------------------------------- */

/* Rate of optimizer step t, t = 0 the first, as if the library's scheduler were stepped after each step. Formulas:
 * transformers optimization.py, DeepSpeed runtime/lr_schedules.py. They go on past the end as the originals do. */

typedef enum tm_lr_type {
    TM_LR_CONSTANT,
    TM_LR_CONSTANT_WITH_WARMUP,
    TM_LR_LINEAR,
    TM_LR_COSINE,
    TM_LR_COSINE_WITH_RESTARTS,
    TM_LR_POLYNOMIAL,
    TM_LR_INVERSE_SQRT,
    TM_LR_COSINE_WITH_MIN_LR,
    TM_LR_COSINE_WARMUP_WITH_MIN_LR,
    TM_LR_WARMUP_STABLE_DECAY,
    TM_LR_REX, /* Chen, Wolfe and Kyrillidis 2021; axolotl's name */
    TM_LR_DS_WARMUP,
    TM_LR_DS_WARMUP_DECAY,
    TM_LR_DS_WARMUP_COSINE,
    TM_LR_DS_RANGE_TEST,
    TM_LR_DS_ONE_CYCLE,
    TM_LR_TYPES
} tm_lr_type;
typedef enum tm_lr_shape { TM_SHAPE_LINEAR, TM_SHAPE_COSINE, TM_SHAPE_ONE_MINUS_SQRT, TM_SHAPE_LOG } tm_lr_shape;

typedef struct tm_lr_schedule {
    tm_lr_type type;
    double base_lr;
    int64_t warmup_steps, total_steps; /* warmup_num_steps and total_num_steps of DeepSpeed's */
    /* transformers: */
    double num_cycles;                     /* cosine .5, restarts 1 */
    double lr_end, power;                  /* polynomial: 1e-7, 1 */
    int64_t timescale;                     /* inverse_sqrt; 0: warmup_steps, or 10000 */
    double min_lr_rate;                    /* *_min_lr, warmup_stable_decay's min_lr_ratio: of base_lr */
    double warmup_lr_rate;                 /* cosine_warmup_with_min_lr; NaN: not given */
    int64_t stable_steps, decay_steps;     /* warmup_stable_decay; stable_steps -1: what is left of total_steps */
    tm_lr_shape warmup_shape, decay_shape; /* warmup_stable_decay; warmup_shape also WarmupLR's: LOG or LINEAR */
    /* DeepSpeed: */
    double warmup_min_lr, warmup_max_lr;
    double warmup_min_ratio, cos_min_ratio; /* WarmupCosineLR */
    double range_min_lr, range_step_rate;   /* LRRangeTest */
    int64_t range_step_size;
    bool range_staircase;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate; /* OneCycle */
    int64_t cycle_first_step_size, cycle_second_step_size /* 0: as the first */, decay_step_size;
    int64_t cycle_first_stair_count, cycle_second_stair_count /* -1: as the first */;
    bool cycle_momentum;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate;
} tm_lr_schedule;

/* "cosine", "WarmupDecayLR", ...; false if there is no such schedule. */
bool tm_lr_type_from_name(const char *name, tm_lr_type *type);
const char *tm_lr_type_name(tm_lr_type type);
/* The library's defaults for everything but type, base_lr, warmup_steps and total_steps (which are set to 0 or, for
 * DeepSpeed's, 1000 warm-up steps). */
void tm_lr_defaults(tm_lr_schedule *s, tm_lr_type type, double base_lr);
/* TM_EINPUT where the original would refuse or divide by zero. */
TM_MUST_USE tm_status tm_lr_check(const tm_lr_schedule *s);
double tm_lr_at(const tm_lr_schedule *s, int64_t t);
/* OneCycle with cycle_momentum sets both betas of step t: true, and *beta1, *beta2 are set. Otherwise false. */
bool tm_lr_betas(const tm_lr_schedule *s, int64_t t, double *beta1, double *beta2);

#endif
