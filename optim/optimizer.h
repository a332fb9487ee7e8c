/* optimizer: CPU optimizers on contiguous spans, for anyone. Needs nothing of tidemill beside this header and
 * libtidemill_optim (pkg-config: tidemill-optim); inside tidemill "optim/optim.h" includes it.
 *
 * An optimizer is a row of one table: its name, the states it keeps, its options by name, and a step. The caller owns
 * all memory. A span is a run of elements of one tensor: weights, gradient and states at the same elements. It may be
 * cut anywhere (8-bit states: at multiples of TM_OPTIM_BLOCK), each piece may be given in any order, and the bits do
 * not depend on the cut, on threads, or on the CPU: every element is a fixed sequence of IEEE-754 operations in fp32
 * without FMA, and a step's constants are computed in double once.
 *
 *     const tm_optimizer *adamw = tm_optimizer_find("adamw");
 *     tm_optim_opts opts;
 *     tm_optim_defaults(adamw, &opts);
 *     tm_optim_set(adamw, &opts, "weight_decay", 0.1);
 *     // exp_avg, exp_avg_sq: tm_optim_state_bytes(adamw, &opts, 0 and 1, &shape) bytes each, set to zero
 *     for (int64_t t = 1; t <= steps; t++) {
 *         tm_optim_step step;
 *         tm_optim_step_init(&step, adamw, &opts, learning_rate, t, clip / loss_scale);
 *         tm_optim_span span = {.weight = w, .grad = g, .grad_type = TM_GRAD_F32,
 *                               .state = {exp_avg, exp_avg_sq}, .n = n};
 *         if (tm_optim_run(&step, &span)) puts("diverged");
 *     }
 *
 * Weights are fp32, or "split": the bf16 that computes (hi) and the other 16 bits of the fp32 value (lo), so that an
 * exact fp32 master costs 4 bytes and no second pass writes the bf16 weights (tm_split_f32, tm_join_f32). fp32 weights
 * may have an fp16 copy that computes: fp16 does not fit a split, since its exponent is shorter. Gradients are fp32,
 * bf16 or fp16; grad_scale (clip factor, 1 / loss scale, or both) is multiplied in on the way. One pass over memory.
 *
 * Adafactor needs sums over whole tensors before it can update the first element: see "tensors in passes".
 *
 * Threads: functions start OpenMP teams (OMP_NUM_THREADS); distinct spans may be processed at the same time. No
 * allocation, no state of its own. TIDEMILL_ISA=ref|avx2|avx512 lowers the instruction set that is chosen at the start.
 */
#ifndef TIDEMILL_OPTIMIZER_H
#define TIDEMILL_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TM_OPTIM_API __attribute__((visibility("default")))

enum { TM_OPTIM_STATES = 4, TM_OPTIM_BLOCK = 256 /* elements that share an absmax of 8-bit states */ };

TM_OPTIM_API const char *tm_optim_isa(void); /* the row in use: "ref", "avx2" or "avx512" */

/* ---- options and the constants of a step ---------------------------------------------------- */

/* Every optimizer reads those that its keys name, and ignores the rest. */
typedef struct tm_optim_opts {
    double beta1, beta2, eps, weight_decay;
    bool adam_w_mode; /* true: decoupled decay (AdamW); false: L2 added to the gradient (Adam) */
    bool bias_correction;
    double momentum, dampening; /* sgd */
    bool nesterov;
    double initial_accumulator_value;                 /* adagrad: the caller fills the state with it */
    double lr_decay;                                  /* adagrad: rate of step t is lr / (1 + (t - 1) lr_decay) */
    double eps_scale, clip_threshold, decay_rate;     /* adafactor; eps_scale is the second of its two eps */
    bool scale_parameter, relative_step, warmup_init; /* adafactor */
} tm_optim_opts;

/* The constants of one step, rounded from double to fp32 once: one set for each family of optimizers. */
typedef struct tm_adamw_step {
    float grad_scale, decay /* 1 - lr*wd */, l2 /* wd in L2 mode, else 0 */;
    float one_minus_beta1, beta1, beta2, one_minus_beta2;
    float bc2_sqrt, eps, neg_step_size /* -lr/bc1 */;
    bool use_l2, lerp_from_end;
} tm_adamw_step;
typedef struct tm_sgd_step {
    float grad_scale, l2, momentum /* 0 at t = 1 */, one_minus_dampening /* 1 at t = 1 */, nesterov, neg_lr;
    bool use_momentum, use_nesterov;
} tm_sgd_step;
typedef struct tm_lion_step {
    float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, lr;
} tm_lion_step;
typedef struct tm_adagrad_step {
    float grad_scale, l2, eps, neg_lr;
} tm_adagrad_step;
typedef struct tm_adafactor_step {
    double lr, decay /* of the running means, beta2 of step t */, weight_decay;
    double eps, eps_scale, clip_threshold;
    float grad_scale, beta1, one_minus_beta1;
    bool scale_parameter;
} tm_adafactor_step;

typedef struct tm_optimizer tm_optimizer;
typedef struct tm_optim_step {
    const tm_optimizer *optimizer;
    union {
        tm_adamw_step adamw;
        tm_sgd_step sgd;
        tm_lion_step lion;
        tm_adagrad_step adagrad;
        tm_adafactor_step adafactor;
    } as;
} tm_optim_step;

/* ---- spans ---------------------------------------------------------------------------------- */

typedef enum tm_grad_type { TM_GRAD_F32, TM_GRAD_BF16, TM_GRAD_F16 } tm_grad_type;
/* No alignment is needed beyond that of the element types; nothing may overlap. */
typedef struct tm_optim_span {
    float *weight;                   /* fp32 weights, or NULL: split */
    uint16_t *weight_hi, *weight_lo; /* the two halves, where weight is NULL; beside weight: weight_hi is NULL, or where
                                        the new weights go as fp16, written only */
    const void *grad;                /* float, or bf16 or fp16 (uint16_t), never written */
    void *state[TM_OPTIM_STATES];    /* in the order of the table; those per element or per block */
    uint64_t first;                  /* index in its tensor of the span's first element */
    size_t n;                        /* elements */
    tm_grad_type grad_type;
} tm_optim_span;

/* ---- the table ------------------------------------------------------------------------------ */

typedef enum tm_optim_per { TM_PER_ELEMENT, TM_PER_BLOCK, TM_PER_ROW, TM_PER_COLUMN } tm_optim_per;
typedef struct tm_optim_state_kind {
    const char *name; /* "exp_avg" */
    uint32_t bytes;   /* of one value: 4 (fp32), or 1 (a code of an 8-bit state) */
    tm_optim_per per; /* one value for each element, block of TM_OPTIM_BLOCK elements, row or column of the tensor */
} tm_optim_state_kind;

/* A tensor: matrices of rows x columns, one after the other (experts); rows 0: a vector. */
typedef struct tm_optim_shape {
    uint64_t matrices, rows, columns; /* a vector of n: {1, 0, n} */
} tm_optim_shape;
static inline uint64_t tm_optim_elements(const tm_optim_shape *s) {
    return s->matrices * (s->rows ? s->rows : 1) * s->columns;
}

/* A tensor that is updated in passes: what belongs to all of it. */
typedef struct tm_optim_tensor {
    tm_optim_shape shape;
    void *state[TM_OPTIM_STATES]; /* in the order of the table; those per row or per column */
    double *scratch;              /* tm_optim_scratch_bytes(); keeps from the first pass to the last */
} tm_optim_tensor;

struct tm_optimizer {
    const char *name;  /* "adamw" */
    const char *about; /* whose arithmetic it follows */
    uint32_t n_states;
    tm_optim_state_kind state[TM_OPTIM_STATES];
    uint32_t grain;   /* spans begin at a multiple of this many elements of their tensor; 1: anywhere */
    uint32_t passes;  /* 1: tm_optim_run; more: tm_optim_pass */
    const char *keys; /* names of its options, separated by blanks */
    tm_optim_opts defaults;
    /* Whether the options make use of state k. */
    bool (*keeps)(const tm_optim_opts *opts, const tm_optim_shape *shape, uint32_t k);
    void (*prepare)(tm_optim_step *step, const tm_optim_opts *opts, double lr, int64_t t, double grad_scale);
    uint64_t (*run)(const tm_optim_step *step, const tm_optim_span *span); /* NULL where passes > 1 */
};

/* What they compute, g being the gradient times grad_scale, each operation rounded to fp32 ("+ wd w" is L2):
 *
 *     adamw, adam     adam_w_mode: w = w (1 - lr wd), else g = g + wd w
 *                     m = m + (1 - beta1)(g - m)      v = v beta2 + ((1 - beta2) g) g
 *                     w = w + (-lr / bc1 m) / (sqrt(v) / sqrt(bc2) + eps),  bc = 1 - beta^t or 1
 *     *_8bit          the same on m, v = code * absmax of the block; then absmax = max |m|, and the nearest code of
 *                     m / absmax
 *     sgd             g = g + wd w    b = b momentum + (1 - dampening) g, at t = 1: g
 *                     w = w - lr (b, nesterov: g + momentum b)
 *     lion            w = w (1 - lr wd) - lr sign(m beta1 + (1 - beta1) g)    m = m beta2 + (1 - beta2) g
 *                     sign(0) = 0
 *     adagrad         g = g + wd w    s = s + g^2    w = w + (-lr / (1 + (t - 1) lr_decay) g) / (sqrt(s) + eps)
 *     adafactor       see "tensors in passes"; lr is used where relative_step is false */

/* adamw adam adamw_8bit adam_8bit sgd lion adagrad adafactor. NULL: no such optimizer, or i past the last. */
TM_OPTIM_API const tm_optimizer *tm_optimizer_find(const char *name);
TM_OPTIM_API const tm_optimizer *tm_optimizer_at(size_t i);

/* The defaults of the library it follows. */
TM_OPTIM_API void tm_optim_defaults(const tm_optimizer *optimizer, tm_optim_opts *opts);
/* Sets one option by its name (flags: 0 or 1). False: this optimizer has no such option. */
TM_OPTIM_API bool tm_optim_set(const tm_optimizer *optimizer, tm_optim_opts *opts, const char *key, double value);
/* NULL, or what is wrong with the options: "beta1 must be at least 0 and less than 1". */
TM_OPTIM_API const char *tm_optim_check(const tm_optimizer *optimizer, const tm_optim_opts *opts);
/* Bytes of state k of a tensor, or of a span that begins at a multiple of `grain`, given as a vector; 0: not kept. */
TM_OPTIM_API size_t tm_optim_state_bytes(const tm_optimizer *optimizer, const tm_optim_opts *opts, uint32_t k,
                                         const tm_optim_shape *shape);

/* `t` counts the applied steps from 1: steps skipped for overflow do not count. grad_scale: clip factor / loss scale.
 */
TM_OPTIM_API void tm_optim_step_init(tm_optim_step *step, const tm_optimizer *optimizer, const tm_optim_opts *opts,
                                     double lr, int64_t t, double grad_scale);
/* Updates a span. Returns how many elements have a weight, fp16 copy or state that is not finite afterwards: anything
 * but 0 must stop the run, since their split halves would look healthy. */
TM_OPTIM_API uint64_t tm_optim_run(const tm_optim_step *step, const tm_optim_span *span);

/* Elements [first, first + n) of an 8-bit state as fp32: out[i] = code * absmax of its block. `with_sign`: exp_avg;
 * else exp_avg_sq. Any first and n; absmax[0] is that of element 0. */
TM_OPTIM_API void tm_optim_widen_8bit(bool with_sign, const uint8_t *codes, const float *absmax, uint64_t first,
                                      uint64_t n, float *out);

/* For callers that cannot lay out these structs (ctypes has to be told): their sizes, in the order opts, step, span,
 * tensor, shape. */
TM_OPTIM_API size_t tm_optim_sizeof(const char *type);

/* ---- tensors in passes (Adafactor) ---------------------------------------------------------- */

/* The rate depends on the size of the weights, the second moments on row and column means of g^2, and the update is
 * clipped by its own size over the tensor: three sums that have to be complete before the first weight may move.
 *
 *     tm_optim_tensor tensor = {.shape = {1, rows, columns}, .state = {[1] = row, [2] = column}, .scratch = scratch};
 *     tm_optim_begin(&step, &tensor);
 *     for (uint32_t pass = 0; pass < optimizer->passes; pass++) {
 *         for (uint32_t i = 0; i < n_spans; i++) // in order of `first`
 *             bad += tm_optim_pass(&step, &tensor, pass, &span[i]);
 *         tm_optim_turn(&step, &tensor, pass);
 *     }
 *
 * Pass 0 reads weights (where scale_parameter asks for their size) and gradient, pass 1 the gradient (and a vector's
 * exp_avg_sq), pass 2 updates weights and states per element. Spans may be cut anywhere but come in order; sums are in
 * double, in an order that the cut does not change. Ranks that hold pieces of a tensor add up the first
 * tm_optim_sum_count doubles of their scratch after pass 0 and, those of rms(u) alone being new, after pass 1. */
TM_OPTIM_API size_t tm_optim_scratch_bytes(const tm_optimizer *optimizer, const tm_optim_shape *shape);
TM_OPTIM_API size_t tm_optim_sum_count(const tm_optimizer *optimizer, const tm_optim_shape *shape);
TM_OPTIM_API void tm_optim_begin(const tm_optim_step *step, tm_optim_tensor *tensor);
TM_OPTIM_API uint64_t tm_optim_pass(const tm_optim_step *step, tm_optim_tensor *tensor, uint32_t pass,
                                    const tm_optim_span *span);
TM_OPTIM_API void tm_optim_turn(const tm_optim_step *step, tm_optim_tensor *tensor, uint32_t pass);

/* ---- split master (DESIGN section 5) -------------------------------------------------------- */

/* With top = the upper and lo = the lower 16 bits of the fp32 pattern: hi = top + (lo >> 15) mod 2^16, so that
 * top = hi - (lo >> 15). Lossless over all 2^32 patterns. For finite values hi is the nearest bf16, ties away from
 * zero. Non-finite values survive too, but in hi a NaN may look like a number: count them before the split. */

TM_OPTIM_API void tm_split_f32(const float *master, uint16_t *hi, uint16_t *lo, size_t n);
TM_OPTIM_API void tm_join_f32(const uint16_t *hi, const uint16_t *lo, float *master, size_t n);
TM_OPTIM_API uint64_t tm_count_nonfinite(const float *x, size_t n);

/* ---- gradients ------------------------------------------------------------------------------ */

/* A gradient is rounded once, then normed: partial[b] = sum of squares of the rounded elements of block b, in double.
 * Inside a block element i adds to lane i mod 16 in order of i, and the lanes are added in a fixed tree; squares of
 * fp32 are exact in double. Spans must begin at a multiple of TM_NORM_BLOCK elements of their tensor or shard, so that
 * the blocks are the same however it is cut. */

enum { TM_NORM_BLOCK = 65536 };
static inline uint64_t tm_norm_block_count(uint64_t elements) {
    return (elements + TM_NORM_BLOCK - 1) / TM_NORM_BLOCK;
}

TM_OPTIM_API void tm_grad_round_bf16(const float *acc, uint16_t *g, size_t n); /* to nearest even; NaN stays NaN */
TM_OPTIM_API void tm_grad_round_f16(const float *acc, uint16_t *g, size_t n);  /* and infinite from 65520 on */
/* Squared norms of a rounded gradient: partial[tm_norm_block_count(n)]. */
TM_OPTIM_API void tm_norm_blocks_bf16(const uint16_t *g, size_t n, double *partial);
TM_OPTIM_API void tm_norm_blocks_f16(const uint16_t *g, size_t n, double *partial);
TM_OPTIM_API void tm_norm_blocks_f32(const float *g, size_t n, double *partial);
/* Both in one pass. For f32 nothing is rounded; g may be acc itself. */
TM_OPTIM_API void tm_grad_finish_bf16(const float *acc, uint16_t *g, size_t n, double *partial);
TM_OPTIM_API void tm_grad_finish_f16(const float *acc, uint16_t *g, size_t n, double *partial);
TM_OPTIM_API void tm_grad_finish_f32(const float *acc, float *g, size_t n, double *partial);
TM_OPTIM_API double tm_sum_blocks(const double *partial, size_t n); /* in block order; the norm is its square root */
/* torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 where max_norm <= 0. NaN for a NaN norm. */
TM_OPTIM_API double tm_clip_factor(double norm, double max_norm);

/* ---- loss scale of fp16 --------------------------------------------------------------------- */

/* DeepSpeed's DynamicLossScaler. The loss is multiplied by `scale` before backward; the gradient's norm tells an
 * overflow (it is not finite); such a step is skipped. All fields are state and belong in a checkpoint.
 *
 *     bool overflow = !isfinite(norm);
 *     double grad_scale = tm_clip_factor(norm / scaler.scale, max_norm) / scaler.scale;
 *     if (!overflow) update(grad_scale);
 *     if (!tm_loss_scaler_update(&scaler, overflow)) return stop(); // the scale is at its minimum and the gradient
 *                                                                   // still overflows
 */
typedef struct tm_loss_scale_opts {
    double loss_scale;           /* 0: dynamic; else a constant scale */
    int32_t initial_scale_power; /* the first scale is 2 to this; 16 */
    int32_t loss_scale_window;   /* steps without overflow before the scale doubles; 1000 */
    int32_t hysteresis;          /* overflows that are suffered before the scale halves; 2 */
    bool consecutive_hysteresis; /* a step without overflow refills the hysteresis */
    double min_loss_scale;       /* 1 */
} tm_loss_scale_opts;
typedef struct tm_loss_scaler {
    tm_loss_scale_opts opts;
    double scale;          /* of the next step's loss */
    int64_t iteration;     /* steps so far, skipped ones included */
    int64_t last_overflow; /* iteration of it; -1: none */
    int64_t skipped;       /* overflows so far */
    int32_t hysteresis;    /* left */
} tm_loss_scaler;
TM_OPTIM_API void tm_loss_scale_defaults(tm_loss_scale_opts *opts); /* DeepSpeed's, as above */
/* NULL, or what is wrong: "loss_scale_window must be at least 1". */
TM_OPTIM_API const char *tm_loss_scale_check(const tm_loss_scale_opts *opts);
TM_OPTIM_API void tm_loss_scaler_init(tm_loss_scaler *scaler, const tm_loss_scale_opts *opts);
/* After each step. False: it overflowed at the minimum; the state is unchanged, and the run should stop. */
TM_OPTIM_API bool tm_loss_scaler_update(tm_loss_scaler *scaler, bool overflow);

#ifdef __cplusplus
}
#endif
#endif
