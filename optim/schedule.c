/* Learning-rate schedules (header: "learning-rate schedules"). Double throughout, in the originals' order of
 * operations. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

static const struct {
    const char *name;
    tm_lr_type type;
} names[] = {
    {"constant", TM_LR_CONSTANT},
    {"constant_with_warmup", TM_LR_CONSTANT_WITH_WARMUP},
    {"linear", TM_LR_LINEAR},
    {"cosine", TM_LR_COSINE},
    {"cosine_with_restarts", TM_LR_COSINE_WITH_RESTARTS},
    {"polynomial", TM_LR_POLYNOMIAL},
    {"inverse_sqrt", TM_LR_INVERSE_SQRT},
    {"cosine_with_min_lr", TM_LR_COSINE_WITH_MIN_LR},
    {"cosine_warmup_with_min_lr", TM_LR_COSINE_WARMUP_WITH_MIN_LR},
    {"warmup_stable_decay", TM_LR_WARMUP_STABLE_DECAY},
    {"rex", TM_LR_REX},
    {"WarmupLR", TM_LR_DS_WARMUP},
    {"WarmupDecayLR", TM_LR_DS_WARMUP_DECAY},
    {"WarmupCosineLR", TM_LR_DS_WARMUP_COSINE},
    {"LRRangeTest", TM_LR_DS_RANGE_TEST},
    {"OneCycle", TM_LR_DS_ONE_CYCLE},
};

bool tm_lr_type_from_name(const char *name, tm_lr_type *type) {
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        if (strcmp(names[i].name, name)) continue;
        *type = names[i].type;
        return true;
    }
    return false;
}

const char *tm_lr_type_name(tm_lr_type type) {
    for (size_t i = 0; i < TM_COUNT(names); i++)
        if (names[i].type == type) return names[i].name;
    return "?";
}

void tm_lr_defaults(tm_lr_schedule *s, tm_lr_type type, double base_lr) {
    bool deepspeed = type >= TM_LR_DS_WARMUP;
    *s = (tm_lr_schedule){
        .type = type,
        .base_lr = base_lr,
        .warmup_steps = deepspeed ? 1000 : 0,
        .num_cycles = type == TM_LR_COSINE_WITH_RESTARTS ? 1 : 0.5,
        .lr_end = 1e-7,
        .power = 1,
        .warmup_lr_rate = NAN,
        .stable_steps = -1,
        .warmup_shape = deepspeed ? TM_SHAPE_LOG : TM_SHAPE_LINEAR,
        .decay_shape = TM_SHAPE_COSINE,
        .warmup_max_lr = type == TM_LR_DS_WARMUP_DECAY ? 0.001 : base_lr,
        .cos_min_ratio = 0.0001,
        .range_min_lr = 1e-3,
        .range_step_rate = 1,
        .range_step_size = 2000,
        .cycle_first_step_size = 2000,
        .cycle_second_stair_count = -1,
        .cycle_momentum = true,
        .cycle_min_mom = 0.8,
        .cycle_max_mom = 0.9,
    };
}

static bool finite_not_negative(double x) {
    return isfinite(x) && x >= 0;
}

static tm_status check_deepspeed(const tm_lr_schedule *s) {
    const char *name = tm_lr_type_name(s->type);
    if (s->type <= TM_LR_DS_WARMUP_COSINE && s->warmup_steps < 1)
        return tm_fail(TM_EINPUT, "%s: warmup_num_steps must be at least 1", name);
    if ((s->type == TM_LR_DS_WARMUP_DECAY || s->type == TM_LR_DS_WARMUP_COSINE) && s->total_steps < 1)
        return tm_fail(TM_EINPUT, "%s: total_num_steps is required and must be at least 1", name);
    if (s->type == TM_LR_DS_RANGE_TEST && s->range_step_size < 1)
        return tm_fail(TM_EINPUT, "%s: lr_range_test_step_size must be at least 1", name);
    if (s->type == TM_LR_DS_ONE_CYCLE && (s->cycle_first_step_size < 1 || s->cycle_second_step_size < 0))
        return tm_fail(TM_EINPUT, "%s: cycle_first_step_size and cycle_second_step_size must be at least 1", name);
    if (s->type == TM_LR_DS_ONE_CYCLE && s->decay_step_size < 0)
        return tm_fail(TM_EINPUT, "%s: decay_step_size must not be negative", name);
    return TM_OK;
}

tm_status tm_lr_check(const tm_lr_schedule *s) {
    const char *name = tm_lr_type_name(s->type);
    if (s->type < 0 || s->type >= TM_LR_TYPES)
        return tm_fail(TM_EINPUT, "learning-rate schedule %d is unknown", s->type);
    if (!finite_not_negative(s->base_lr)) return tm_fail(TM_EINPUT, "%s: the learning rate must not be negative", name);
    if (s->warmup_steps < 0) return tm_fail(TM_EINPUT, "%s: warm-up steps must not be negative", name);
    if (s->type >= TM_LR_DS_WARMUP) return check_deepspeed(s);
    if (s->type == TM_LR_POLYNOMIAL && !(s->base_lr > s->lr_end))
        return tm_fail(TM_EINPUT, "polynomial: lr_end (%g) must be smaller than the learning rate (%g)", s->lr_end,
                       s->base_lr);
    if (s->type == TM_LR_WARMUP_STABLE_DECAY && (s->decay_steps < 0 || (s->stable_steps < 0 && s->total_steps < 1)))
        return tm_fail(TM_EINPUT, "%s: needs num_decay_steps, and num_stable_steps or a number of training steps",
                       name);
    if (s->timescale < 0) return tm_fail(TM_EINPUT, "%s: timescale must be positive", name);
    return TM_OK;
}

/* ---- transformers: a factor of base_lr ------------------------------------------------- */

static double at_least_one(int64_t n) {
    return n > 1 ? (double)n : 1;
}

static double cosine_factor(double cycles, double progress) {
    return 0.5 * (1 + cos(PI * cycles * 2 * progress));
}

/* progress of the decay from the end of warm-up (0) to total_steps (1), and on */
static double decay_progress(const tm_lr_schedule *s, int64_t t) {
    return (double)(t - s->warmup_steps) / at_least_one(s->total_steps - s->warmup_steps);
}

static double restarts(const tm_lr_schedule *s, int64_t t) {
    double progress = decay_progress(s, t);
    if (progress >= 1) return 0;
    return fmax(0, 0.5 * (1 + cos(PI * fmod(s->num_cycles * progress, 1))));
}

static double polynomial(const tm_lr_schedule *s, int64_t t) {
    int64_t steps = s->total_steps - s->warmup_steps;
    if (t > s->total_steps || steps <= 0) return s->lr_end / s->base_lr;
    double remaining = 1 - (double)(t - s->warmup_steps) / (double)steps;
    return ((s->base_lr - s->lr_end) * pow(remaining, s->power) + s->lr_end) / s->base_lr;
}

static double inverse_sqrt(const tm_lr_schedule *s, int64_t t) {
    int64_t scale = s->timescale ? s->timescale : s->warmup_steps ? s->warmup_steps : 10000;
    return 1 / sqrt((double)(t + scale - s->warmup_steps) / (double)scale);
}

/* The reflected exponential: what is left over the mean of that and 1. */
static double rex(double progress) {
    return (1 - progress) / (0.5 + 0.5 * (1 - progress));
}

static double to_floor(double factor, double floor) {
    return fmax(0, factor * (1 - floor) + floor);
}

static double warmup_min_lr(const tm_lr_schedule *s, int64_t t) {
    if (t < s->warmup_steps) {
        if (isnan(s->warmup_lr_rate)) return ((double)t + 1) / at_least_one(s->warmup_steps);
        return s->warmup_lr_rate + (1 - s->warmup_lr_rate) * (double)t / at_least_one(s->warmup_steps - 1);
    }
    double progress = ((double)(t - s->warmup_steps) + 1) / at_least_one(s->total_steps - s->warmup_steps);
    return to_floor(cosine_factor(s->num_cycles, progress), s->min_lr_rate);
}

static double warmup_stable_decay(const tm_lr_schedule *s, int64_t t) {
    int64_t stable = s->stable_steps >= 0 ? s->stable_steps : s->total_steps - s->warmup_steps - s->decay_steps;
    if (t < s->warmup_steps) {
        double p = (double)t / at_least_one(s->warmup_steps);
        double f = s->warmup_shape == TM_SHAPE_LINEAR   ? p
                   : s->warmup_shape == TM_SHAPE_COSINE ? 0.5 * (1 - cos(PI * p))
                                                        : 1 - sqrt(1 - p);
        return to_floor(f, s->min_lr_rate);
    }
    if (t < s->warmup_steps + stable) return 1;
    if (t >= s->warmup_steps + stable + s->decay_steps) return s->min_lr_rate;
    double p = (double)(t - s->warmup_steps - stable) / at_least_one(s->decay_steps);
    double f = s->decay_shape == TM_SHAPE_LINEAR   ? 1 - p
               : s->decay_shape == TM_SHAPE_COSINE ? cosine_factor(s->num_cycles, p)
                                                   : 1 - sqrt(p);
    return to_floor(f, s->min_lr_rate);
}

static double hf_factor(const tm_lr_schedule *s, int64_t t) {
    if (s->type == TM_LR_CONSTANT) return 1;
    if (s->type == TM_LR_COSINE_WARMUP_WITH_MIN_LR) return warmup_min_lr(s, t);
    if (s->type == TM_LR_WARMUP_STABLE_DECAY) return warmup_stable_decay(s, t);
    if (t < s->warmup_steps) return (double)t / at_least_one(s->warmup_steps);
    switch (s->type) {
    case TM_LR_LINEAR:
        return fmax(0, (double)(s->total_steps - t) / at_least_one(s->total_steps - s->warmup_steps));
    case TM_LR_COSINE:
        return fmax(0, cosine_factor(s->num_cycles, decay_progress(s, t)));
    case TM_LR_COSINE_WITH_MIN_LR:
        return to_floor(cosine_factor(s->num_cycles, decay_progress(s, t)), s->min_lr_rate);
    case TM_LR_COSINE_WITH_RESTARTS:
        return restarts(s, t);
    case TM_LR_POLYNOMIAL:
        return polynomial(s, t);
    case TM_LR_INVERSE_SQRT:
        return inverse_sqrt(s, t);
    case TM_LR_REX:
        return rex(fmin(1, decay_progress(s, t)));
    default:
        return 1; /* constant_with_warmup */
    }
}

/* ---- DeepSpeed: `last` = t - 1 is the scheduler's last_batch_iteration when step t runs  */

static int64_t ds_warmup(const tm_lr_schedule *s) {
    return s->warmup_steps > 2 ? s->warmup_steps : 2;
}

static double ds_warmup_ratio(const tm_lr_schedule *s, int64_t last) {
    if (s->warmup_shape == TM_SHAPE_LINEAR) return (double)last / (double)ds_warmup(s);
    return 1 / log((double)ds_warmup(s)) * log((double)last + 1);
}

static double ds_warmup_lr(const tm_lr_schedule *s, int64_t last) {
    if (last < 0) return s->warmup_min_lr;
    int64_t warmup = ds_warmup(s);
    double gamma = 1;
    if (last < warmup)
        gamma = ds_warmup_ratio(s, last);
    else if (s->type == TM_LR_DS_WARMUP_DECAY)
        gamma = fmax(0, (double)(s->total_steps - last) / at_least_one(s->total_steps - warmup));
    return s->warmup_min_lr + (s->warmup_max_lr - s->warmup_min_lr) * gamma;
}

static double ds_cosine_lr(const tm_lr_schedule *s, int64_t last) {
    if (last < 0) return 0;
    int64_t warmup = ds_warmup(s);
    if (last < warmup) return s->base_lr * (s->warmup_min_ratio + ds_warmup_ratio(s, last) * (1 - s->warmup_min_ratio));
    double progress = fmin(1, (double)(last - warmup + 1) / at_least_one(s->total_steps - warmup));
    double ratio = (1 + cos(PI * progress)) / 2;
    return s->base_lr * fmax(0, s->cos_min_ratio + (1 - s->cos_min_ratio) * ratio);
}

static double ds_range_lr(const tm_lr_schedule *s, int64_t t) {
    if (t == 0) return s->range_min_lr;
    double interval = (double)t / (double)s->range_step_size;
    return s->range_min_lr * (1 + s->range_step_rate * (s->range_staircase ? floor(interval) : interval));
}

static int64_t cycle_second(const tm_lr_schedule *s) {
    return s->cycle_second_step_size ? s->cycle_second_step_size : s->cycle_first_step_size;
}
static int64_t cycle_total(const tm_lr_schedule *s) {
    return s->cycle_first_step_size + cycle_second(s);
}

/* Height in the triangle, 0..1, at step t >= 1. Stairs are cut from the integer position: the quotient of doubles can
 * fall just short of a stair's edge. */
static double cycle_height(const tm_lr_schedule *s, int64_t t) {
    double total = (double)cycle_total(s), first = (double)s->cycle_first_step_size, second = (double)cycle_second(s);
    double x = 1 + (double)t / total - floor(1 + (double)t / total), ratio = first / total;
    bool rising = x <= ratio;
    int64_t stairs =
        rising || s->cycle_second_stair_count < 0 ? s->cycle_first_stair_count : s->cycle_second_stair_count;
    if (stairs <= 0) return rising ? x / ratio : (x - 1) / (ratio - 1);
    int64_t in_cycle = t % cycle_total(s);
    double position = in_cycle <= s->cycle_first_step_size ? (double)(in_cycle * stairs) / first
                                                           : (double)((cycle_total(s) - in_cycle) * stairs) / second;
    return floor(position) / (double)stairs;
}

static double ds_one_cycle_lr(const tm_lr_schedule *s, int64_t t) {
    if (t == 0) return s->cycle_min_lr;
    if (t - 1 < cycle_total(s)) return s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * cycle_height(s, t);
    if (s->decay_step_size == 0 || s->decay_lr_rate == 0) return s->cycle_min_lr;
    return s->cycle_min_lr / (1 + s->decay_lr_rate * ((double)(t - cycle_total(s)) / (double)s->decay_step_size));
}

bool tm_lr_betas(const tm_lr_schedule *s, int64_t t, double *beta1, double *beta2) {
    if (s->type != TM_LR_DS_ONE_CYCLE || !s->cycle_momentum) return false;
    double low = s->cycle_min_mom, high = s->cycle_max_mom;
    *beta2 = 0.99; /* DeepSpeed sets the pair */
    if (t == 0)
        *beta1 = low;
    else if (t - 1 < cycle_total(s))
        *beta1 = high - (high - low) * cycle_height(s, t);
    else if (s->decay_step_size == 0 || s->decay_mom_rate == 0)
        *beta1 = high;
    else
        *beta1 = high * (1 + s->decay_mom_rate * ((double)(t - cycle_total(s)) / (double)s->decay_step_size));
    return true;
}

double tm_lr_at(const tm_lr_schedule *s, int64_t t) {
    switch (s->type) {
    case TM_LR_DS_WARMUP:
    case TM_LR_DS_WARMUP_DECAY:
        return ds_warmup_lr(s, t - 1);
    case TM_LR_DS_WARMUP_COSINE:
        return ds_cosine_lr(s, t - 1);
    case TM_LR_DS_RANGE_TEST:
        return ds_range_lr(s, t);
    case TM_LR_DS_ONE_CYCLE:
        return ds_one_cycle_lr(s, t);
    default:
        return s->base_lr * hf_factor(s, t);
    }
}
