/* The table of optimizers, and what works on any of its rows. */
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- which states the options make use of --------------------------------------------------- */

static bool keeps_all(const tm_optim_opts *o, const tm_optim_shape *shape, uint32_t k) {
    (void)o, (void)shape, (void)k;
    return true;
}
static bool keeps_sgd(const tm_optim_opts *o, const tm_optim_shape *shape, uint32_t k) {
    (void)shape, (void)k;
    return o->momentum != 0;
}
static bool keeps_adafactor(const tm_optim_opts *o, const tm_optim_shape *shape, uint32_t k) {
    if (k == ADAFACTOR_EXP_AVG) return o->beta1 != 0;
    return (k == ADAFACTOR_FULL) == (shape->rows == 0);
}

#define EXP_AVG                                                                                                        \
    { "exp_avg", 4, TM_PER_ELEMENT }
#define EXP_AVG_SQ                                                                                                     \
    { "exp_avg_sq", 4, TM_PER_ELEMENT }
#define STATES_8BIT                                                                                                    \
    {"exp_avg", 1, TM_PER_ELEMENT}, {"exp_avg_sq", 1, TM_PER_ELEMENT}, {"exp_avg_absmax", 4, TM_PER_BLOCK}, {          \
        "exp_avg_sq_absmax", 4, TM_PER_BLOCK                                                                           \
    }
/* What most rows have: one pass over each element, all their states. */
#define ONE_PASS .grain = 1, .passes = 1, .keeps = keeps_all
#define FP32_MOMENTS .n_states = 2, .state = {EXP_AVG, EXP_AVG_SQ}, .run = optim_adamw_run, ONE_PASS
#define CODED_MOMENTS                                                                                                  \
    .n_states = 4, .state = {STATES_8BIT}, .run = optim_adamw_8bit_run, .grain = TM_OPTIM_BLOCK, .passes = 1,          \
    .keeps = keeps_all
#define ADAM(decay, decoupled)                                                                                         \
    .keys = "beta1 beta2 eps weight_decay adam_w_mode bias_correction", .prepare = optim_adamw_prepare,                \
    .defaults = {.beta1 = 0.9,                                                                                         \
                 .beta2 = 0.999,                                                                                       \
                 .eps = 1e-8,                                                                                          \
                 .weight_decay = decay,                                                                                \
                 .adam_w_mode = decoupled,                                                                             \
                 .bias_correction = true}

static const tm_optimizer table[] = {
    {.name = "adamw", .about = "torch.optim.AdamW", FP32_MOMENTS, ADAM(0.01, true)},
    {.name = "adam", .about = "torch.optim.Adam", FP32_MOMENTS, ADAM(0, false)},
    {.name = "adamw_8bit",
     .about = "bitsandbytes AdamW8bit: block-wise dynamic 8-bit states, nearest code",
     CODED_MOMENTS,
     ADAM(0.01, true)},
    {.name = "adam_8bit",
     .about = "bitsandbytes Adam8bit, with L2 added to the gradient",
     CODED_MOMENTS,
     ADAM(0, false)},
    {.name = "sgd",
     .about = "torch.optim.SGD",
     .n_states = 1,
     .state = {{"momentum_buffer", 4, TM_PER_ELEMENT}},
     .grain = 1,
     .passes = 1,
     .keys = "momentum dampening nesterov weight_decay",
     .keeps = keeps_sgd,
     .prepare = optim_sgd_prepare,
     .run = optim_sgd_run},
    {.name = "lion",
     .about = "Lion (arXiv 2302.06675); DeepSpeedCPULion but for updates of exactly zero, which move nothing",
     .n_states = 1,
     .state = {EXP_AVG},
     ONE_PASS,
     .keys = "beta1 beta2 weight_decay",
     .defaults = {.beta1 = 0.9, .beta2 = 0.99},
     .prepare = optim_lion_prepare,
     .run = optim_lion_run},
    {.name = "adagrad",
     .about = "torch.optim.Adagrad; DeepSpeedCPUAdagrad with lr_decay 0",
     .n_states = 1,
     .state = {{"sum", 4, TM_PER_ELEMENT}},
     ONE_PASS,
     .keys = "eps weight_decay lr_decay initial_accumulator_value",
     .defaults = {.eps = 1e-10},
     .prepare = optim_adagrad_prepare,
     .run = optim_adagrad_run},
    {.name = "adafactor",
     .about = "transformers.Adafactor; beta1 0 stands for None, eps and eps_scale for its pair",
     .n_states = 4,
     .state = {[ADAFACTOR_EXP_AVG] = EXP_AVG,
               [ADAFACTOR_ROW] = {"exp_avg_sq_row", 4, TM_PER_ROW},
               [ADAFACTOR_COLUMN] = {"exp_avg_sq_col", 4, TM_PER_COLUMN},
               [ADAFACTOR_FULL] = EXP_AVG_SQ},
     .grain = 1,
     .passes = 3,
     .keys = "beta1 eps eps_scale clip_threshold decay_rate weight_decay scale_parameter relative_step warmup_init",
     .defaults = {.eps = 1e-30,
                  .eps_scale = 1e-3,
                  .clip_threshold = 1,
                  .decay_rate = -0.8,
                  .scale_parameter = true,
                  .relative_step = true},
     .keeps = keeps_adafactor,
     .prepare = optim_adafactor_prepare},
};

const tm_optimizer *tm_optimizer_at(size_t i) {
    return i < TM_COUNT(table) ? &table[i] : NULL;
}
const tm_optimizer *tm_optimizer_find(const char *name) {
    for (size_t i = 0; i < TM_COUNT(table); i++)
        if (!strcmp(table[i].name, name)) return &table[i];
    return NULL;
}

typedef struct option {
    const char *key;
    size_t offset;
    bool flag;
    double least, below; /* least <= value < below */
    const char *wrong;
} option;

#define NUMBER(key, least, below, text)                                                                                \
    { #key, offsetof(tm_optim_opts, key), false, least, below, #key " must be " text }
#define FLAG(key)                                                                                                      \
    { #key, offsetof(tm_optim_opts, key), true, 0, 0, NULL }

static const option options[] = {
    NUMBER(beta1, 0, 1, "at least 0 and less than 1"),
    NUMBER(beta2, 0, 1, "at least 0 and less than 1"),
    NUMBER(eps, 0, HUGE_VAL, "at least 0"),
    NUMBER(weight_decay, 0, HUGE_VAL, "at least 0"),
    NUMBER(momentum, 0, HUGE_VAL, "at least 0"),
    NUMBER(dampening, -HUGE_VAL, HUGE_VAL, "a number"),
    NUMBER(initial_accumulator_value, 0, HUGE_VAL, "at least 0"),
    NUMBER(lr_decay, 0, HUGE_VAL, "at least 0"),
    NUMBER(eps_scale, 0, HUGE_VAL, "at least 0"),
    NUMBER(clip_threshold, 1e-30, HUGE_VAL, "greater than 0"),
    NUMBER(decay_rate, -HUGE_VAL, 1e-30, "at most 0"),
    FLAG(adam_w_mode),
    FLAG(bias_correction),
    FLAG(nesterov),
    FLAG(scale_parameter),
    FLAG(relative_step),
    FLAG(warmup_init),
};

/* Whether `keys`, separated by blanks, hold `key`. */
static bool has_key(const char *keys, const char *key) {
    size_t n = strlen(key);
    for (const char *at = strstr(keys, key); at; at = strstr(at + 1, key))
        if ((at == keys || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return true;
    return false;
}

void tm_optim_defaults(const tm_optimizer *optimizer, tm_optim_opts *opts) {
    *opts = optimizer->defaults;
}

bool tm_optim_set(const tm_optimizer *optimizer, tm_optim_opts *opts, const char *key, double value) {
    if (!*key || strchr(key, ' ') || !has_key(optimizer->keys, key)) return false;
    for (size_t i = 0; i < TM_COUNT(options); i++) {
        if (strcmp(options[i].key, key) != 0) continue;
        char *at = (char *)opts + options[i].offset;
        bool flag = value != 0;
        memcpy(at, options[i].flag ? (void *)&flag : (void *)&value, options[i].flag ? sizeof flag : sizeof value);
        return true;
    }
    return false;
}

const char *tm_optim_check(const tm_optimizer *optimizer, const tm_optim_opts *opts) {
    for (size_t i = 0; i < TM_COUNT(options); i++) {
        const option *o = &options[i];
        double value;
        if (o->flag || !has_key(optimizer->keys, o->key)) continue;
        memcpy(&value, (const char *)opts + o->offset, sizeof value);
        if (!(value >= o->least && value < o->below && isfinite(value))) return o->wrong;
    }
    if (opts->nesterov && has_key(optimizer->keys, "nesterov") && (opts->momentum <= 0 || opts->dampening != 0))
        return "nesterov needs a momentum greater than 0 and dampening 0";
    if (opts->warmup_init && has_key(optimizer->keys, "warmup_init") && !opts->relative_step)
        return "warmup_init needs relative_step";
    return NULL;
}

size_t tm_optim_state_bytes(const tm_optimizer *optimizer, const tm_optim_opts *opts, uint32_t k,
                            const tm_optim_shape *shape) {
    if (k >= optimizer->n_states || !optimizer->keeps(opts, shape, k)) return 0;
    uint64_t elements = tm_optim_elements(shape);
    const uint64_t values[] = {
        [TM_PER_ELEMENT] = elements,
        [TM_PER_BLOCK] = (elements + TM_OPTIM_BLOCK - 1) / TM_OPTIM_BLOCK,
        [TM_PER_ROW] = shape->matrices * shape->rows,
        [TM_PER_COLUMN] = shape->rows ? shape->matrices * shape->columns : 0,
    };
    return values[optimizer->state[k].per] * optimizer->state[k].bytes;
}

void tm_optim_step_init(tm_optim_step *step, const tm_optimizer *optimizer, const tm_optim_opts *opts, double lr,
                        int64_t t, double grad_scale) {
    memset(step, 0, sizeof *step);
    step->optimizer = optimizer;
    optimizer->prepare(step, opts, lr, t, grad_scale);
}

uint64_t tm_optim_run(const tm_optim_step *step, const tm_optim_span *span) {
    return step->optimizer->run(step, span);
}

size_t tm_optim_sizeof(const char *type) {
    static const struct {
        const char *name;
        size_t bytes;
    } sizes[] = {{"tm_optim_opts", sizeof(tm_optim_opts)},     {"tm_optim_step", sizeof(tm_optim_step)},
                 {"tm_optim_span", sizeof(tm_optim_span)},     {"tm_optim_shape", sizeof(tm_optim_shape)},
                 {"tm_optim_tensor", sizeof(tm_optim_tensor)}, {"tm_loss_scaler", sizeof(tm_loss_scaler)}};
    for (size_t i = 0; i < TM_COUNT(sizes); i++)
        if (!strcmp(sizes[i].name, type)) return sizes[i].bytes;
    return 0;
}
