/* Learning-rate schedule: HF's by lr_scheduler_type, or DeepSpeed's scheduler block; completed when the steps are
 * known. */
#include "config/config_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define KW "lr_scheduler_kwargs."
#define PARAM "scheduler.params."
#define BIT(t) (1u << (t))
#define MIN_LR (BIT(TM_LR_COSINE_WITH_MIN_LR) | BIT(TM_LR_COSINE_WARMUP_WITH_MIN_LR))
#define WSD BIT(TM_LR_WARMUP_STABLE_DECAY)
#define DS_WARMUP (BIT(TM_LR_DS_WARMUP) | BIT(TM_LR_DS_WARMUP_DECAY))
#define DS_COSINE BIT(TM_LR_DS_WARMUP_COSINE)
#define DS_RANGE BIT(TM_LR_DS_RANGE_TEST)
#define DS_CYCLE BIT(TM_LR_DS_ONE_CYCLE)

/* An argument: the schedules that take it, and where it goes (by its type). */
typedef struct argument {
    const char *path;
    unsigned types;
    size_t offset;
    enum { TO_DOUBLE, TO_INTEGER, TO_BOOL, ELSEWHERE } to;
} argument;
#define D(field) offsetof(tm_lr_schedule, field), TO_DOUBLE
#define I(field) offsetof(tm_lr_schedule, field), TO_INTEGER
#define B(field) offsetof(tm_lr_schedule, field), TO_BOOL

static const argument arguments[] = {
    {KW "num_cycles", BIT(TM_LR_COSINE) | BIT(TM_LR_COSINE_WITH_RESTARTS) | MIN_LR | WSD, D(num_cycles)},
    {KW "lr_end", BIT(TM_LR_POLYNOMIAL), D(lr_end)},
    {KW "power", BIT(TM_LR_POLYNOMIAL), D(power)},
    {KW "timescale", BIT(TM_LR_INVERSE_SQRT), I(timescale)},
    {KW "min_lr", MIN_LR, 0, ELSEWHERE},
    {KW "min_lr_rate", MIN_LR, D(min_lr_rate)},
    {KW "warmup_lr_rate", BIT(TM_LR_COSINE_WARMUP_WITH_MIN_LR), D(warmup_lr_rate)},
    {KW "num_stable_steps", WSD, I(stable_steps)},
    {KW "num_decay_steps", WSD, I(decay_steps)},
    {KW "min_lr_ratio", WSD, D(min_lr_rate)},
    {KW "warmup_type", WSD, 0, ELSEWHERE},
    {KW "decay_type", WSD, 0, ELSEWHERE},
    {PARAM "warmup_min_lr", DS_WARMUP, D(warmup_min_lr)},
    {PARAM "warmup_max_lr", DS_WARMUP, D(warmup_max_lr)},
    {PARAM "warmup_num_steps", DS_WARMUP | DS_COSINE, I(warmup_steps)},
    {PARAM "warmup_type", DS_WARMUP | DS_COSINE, 0, ELSEWHERE},
    {PARAM "total_num_steps", BIT(TM_LR_DS_WARMUP_DECAY) | DS_COSINE, I(total_steps)},
    {PARAM "warmup_min_ratio", DS_COSINE, D(warmup_min_ratio)},
    {PARAM "cos_min_ratio", DS_COSINE, D(cos_min_ratio)},
    {PARAM "lr_range_test_min_lr", DS_RANGE, D(range_min_lr)},
    {PARAM "lr_range_test_step_size", DS_RANGE, I(range_step_size)},
    {PARAM "lr_range_test_step_rate", DS_RANGE, D(range_step_rate)},
    {PARAM "lr_range_test_staircase", DS_RANGE, B(range_staircase)},
    {PARAM "cycle_min_lr", DS_CYCLE, D(cycle_min_lr)},
    {PARAM "cycle_max_lr", DS_CYCLE, D(cycle_max_lr)},
    {PARAM "decay_lr_rate", DS_CYCLE, D(decay_lr_rate)},
    {PARAM "cycle_first_step_size", DS_CYCLE, I(cycle_first_step_size)},
    {PARAM "cycle_second_step_size", DS_CYCLE, I(cycle_second_step_size)},
    {PARAM "cycle_first_stair_count", DS_CYCLE, I(cycle_first_stair_count)},
    {PARAM "cycle_second_stair_count", DS_CYCLE, I(cycle_second_stair_count)},
    {PARAM "decay_step_size", DS_CYCLE, I(decay_step_size)},
    {PARAM "cycle_momentum", DS_CYCLE, B(cycle_momentum)},
    {PARAM "cycle_min_mom", DS_CYCLE, D(cycle_min_mom)},
    {PARAM "cycle_max_mom", DS_CYCLE, D(cycle_max_mom)},
    {PARAM "decay_mom_rate", DS_CYCLE, D(decay_mom_rate)},
};

/* Takes the arguments below `prefix`; one that the schedule has not is an error, as it is in Python. */
static void take_arguments(cfg_state *s, const char *prefix) {
    tm_lr_schedule *sched = &s->cfg->pub.schedule;
    char w[256];
    for (size_t i = 0; i < TM_COUNT(arguments); i++) {
        const argument *a = &arguments[i];
        const cfg_value *v = strncmp(a->path, prefix, strlen(prefix)) ? NULL : cfg_raw(s, a->path);
        if (!v) continue;
        if (!(a->types & BIT(sched->type))) {
            cfg_problem(s, TM_EINPUT, "%s: \"%s\" is not an argument of %s", cfg_where(v, w, sizeof w), a->path,
                        tm_lr_type_name(sched->type));
            continue;
        }
        char *field = (char *)sched + a->offset;
        if (!cfg_given(s, a->path)) continue; /* "auto" */
        if (a->to == TO_DOUBLE)
            *(double *)field = v->node->number;
        else if (a->to == TO_INTEGER)
            *(int64_t *)field = v->node->integer;
        else if (a->to == TO_BOOL)
            *(bool *)field = v->node->boolean;
    }
}

static void need(cfg_state *s, const cfg_value *at, const char *what) {
    char w[256];
    cfg_problem(s, TM_EINPUT, "%s%s%s needs \"%s\"", at ? cfg_where(at, w, sizeof w) : s->opts->name, ": schedule ",
                tm_lr_type_name(s->cfg->pub.schedule.type), what);
}

/* ---- HF ------------------------------------------------------------------------------------------------------ */

static void take_min_lr(cfg_state *s) {
    tm_lr_schedule *sched = &s->cfg->pub.schedule;
    const cfg_value *absolute = cfg_given(s, KW "min_lr"), *rate = cfg_given(s, KW "min_lr_rate");
    if (!(BIT(sched->type) & MIN_LR)) return;
    if (absolute && rate) cfg_mismatch(s, KW "min_lr", absolute, KW "min_lr_rate", rate);
    if (!absolute && !rate) need(s, cfg_given(s, "lr_scheduler_type"), KW "min_lr\" or \"" KW "min_lr_rate");
    if (absolute && sched->base_lr > 0) sched->min_lr_rate = absolute->node->number / sched->base_lr;
}

static void hf_schedule(cfg_state *s) {
    static const tm_lr_shape shapes[] = {TM_SHAPE_LINEAR, TM_SHAPE_COSINE, TM_SHAPE_ONE_MINUS_SQRT};
    tm_config *c = &s->cfg->pub;
    char name[64], w[256];
    tm_lr_type type = TM_LR_COSINE;
    schema_choice_name(schema_find("lr_scheduler_type"), cfg_choice(s, "lr_scheduler_type"), name, sizeof name);
    if (!tm_lr_type_from_name(name, &type))
        cfg_problem(s, TM_EUNSUPPORTED,
                    "%s: \"lr_scheduler_type\" \"%s\" is not supported: it depends on the evaluation loss",
                    cfg_where(cfg_given(s, "lr_scheduler_type"), w, sizeof w), name);
    tm_lr_defaults(&c->schedule, type, c->learning_rate);
    take_arguments(s, KW);
    take_min_lr(s);
    if (cfg_given(s, KW "warmup_type")) c->schedule.warmup_shape = shapes[cfg_choice(s, KW "warmup_type")];
    if (cfg_given(s, KW "decay_type")) c->schedule.decay_shape = shapes[cfg_choice(s, KW "decay_type")];
    if (type == TM_LR_WARMUP_STABLE_DECAY && !cfg_given(s, KW "num_decay_steps"))
        need(s, cfg_given(s, "lr_scheduler_type"), KW "num_decay_steps");
}

/* ---- DeepSpeed ----------------------------------------------------------------------------------------------- */

static void compare_lr(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "learning_rate"), *peak = cfg_given(s, PARAM "warmup_max_lr");
    double value = s->cfg->pub.schedule.warmup_max_lr;
    char w[256], x[64];
    if (!flat || flat->node->number == value) return;
    if (peak)
        cfg_mismatch(s, "learning_rate", flat, PARAM "warmup_max_lr", peak);
    else
        cfg_contradiction(s,
                          "learning_rate %s (%s) does not match " PARAM "warmup_max_lr %.15g (DeepSpeed's default; "
                          "say \"auto\" there)",
                          cfg_show(flat, x, sizeof x), cfg_where(flat, w, sizeof w), value);
}

/* transformers names the pairs that mean the same. */
static void compare_type(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "lr_scheduler_type"), *type = cfg_given(s, "scheduler.type");
    static const struct {
        tm_lr_type type;
        const char *hf;
    } pairs[] = {{TM_LR_DS_WARMUP, "constant_with_warmup"},
                 {TM_LR_DS_WARMUP_DECAY, "linear"},
                 {TM_LR_DS_WARMUP_COSINE, "cosine"}};
    if (!flat || !type) return;
    for (size_t i = 0; i < TM_COUNT(pairs); i++)
        if (pairs[i].type == s->cfg->pub.schedule.type && cfg_chosen(s, "lr_scheduler_type", pairs[i].hf)) return;
    cfg_mismatch(s, "lr_scheduler_type", flat, "scheduler.type", type);
}

/* A warm-up given as steps is compared now, as a ratio when the total is known. */
static void compare_warmup(cfg_state *s) {
    const cfg_value *flat = cfg_given(s, "warmup_steps"), *ds = cfg_given(s, PARAM "warmup_num_steps");
    const char *path = PARAM "warmup_num_steps";
    tm_config *c = &s->cfg->pub;
    char w[256];
    s->cfg->pub.warmup_auto = cfg_is_auto(s, path);
    s->cfg->given_warmup = s->cfg->pub.warmup_auto ? -1 : c->schedule.warmup_steps;
    if (s->cfg->pub.warmup_auto || !flat || c->warmup_steps < 1 || (int64_t)c->warmup_steps == c->schedule.warmup_steps)
        return;
    if (ds)
        cfg_mismatch(s, "warmup_steps", flat, path, ds);
    else
        cfg_contradiction(s,
                          "warmup_steps (%s) does not match " PARAM "warmup_num_steps 1000 (DeepSpeed's default; say "
                          "\"auto\" there)",
                          cfg_where(flat, w, sizeof w));
}

static void ds_required(cfg_state *s) {
    const cfg_value *type = cfg_given(s, "scheduler.type");
    tm_lr_type t = s->cfg->pub.schedule.type;
    if ((t == TM_LR_DS_WARMUP_DECAY || t == TM_LR_DS_WARMUP_COSINE) && !cfg_raw(s, PARAM "total_num_steps"))
        need(s, type, PARAM "total_num_steps");
    if (t == TM_LR_DS_ONE_CYCLE && !cfg_given(s, PARAM "cycle_min_lr")) need(s, type, PARAM "cycle_min_lr");
    if (t == TM_LR_DS_ONE_CYCLE && !cfg_given(s, PARAM "cycle_max_lr")) need(s, type, PARAM "cycle_max_lr");
}

static void ds_schedule(cfg_state *s) {
    static const tm_lr_type types[] = {TM_LR_DS_WARMUP, TM_LR_DS_WARMUP_DECAY, TM_LR_DS_WARMUP_COSINE,
                                       TM_LR_DS_RANGE_TEST, TM_LR_DS_ONE_CYCLE};
    static const tm_lr_shape shapes[] = {TM_SHAPE_LOG, TM_SHAPE_LINEAR};
    tm_config *c = &s->cfg->pub;
    int type = cfg_choice(s, "scheduler.type");
    char w[256];
    if (type < 0) {
        cfg_problem(s, TM_EINPUT, "%s: \"scheduler.type\" is missing", cfg_where(cfg_raw(s, "scheduler"), w, sizeof w));
        type = 0;
    }
    c->deepspeed_schedule = true;
    tm_lr_defaults(&c->schedule, types[type], c->learning_rate);
    if (cfg_is_auto(s, PARAM "warmup_max_lr")) c->schedule.warmup_max_lr = c->learning_rate;
    take_arguments(s, PARAM);
    if (cfg_given(s, PARAM "warmup_type")) c->schedule.warmup_shape = shapes[cfg_choice(s, PARAM "warmup_type")];
    if (cfg_integer(s, PARAM "last_batch_iteration") != -1)
        cfg_problem(s, TM_EUNSUPPORTED,
                    "%s: \"" PARAM "last_batch_iteration\" must be -1; a resumed run knows its step",
                    cfg_where(cfg_given(s, PARAM "last_batch_iteration"), w, sizeof w));
    ds_required(s);
    compare_type(s);
    if (BIT(types[type]) & DS_WARMUP) compare_lr(s);
    if (BIT(types[type]) & (DS_WARMUP | DS_COSINE)) compare_warmup(s);
    s->cfg->pub.total_auto = cfg_is_auto(s, PARAM "total_num_steps");
    const cfg_value *steps = cfg_given(s, "max_steps"), *total = cfg_given(s, PARAM "total_num_steps");
    if (c->max_steps && total && total->node->integer != c->max_steps)
        cfg_mismatch(s, "max_steps", steps, PARAM "total_num_steps", total);
}

tm_status config_resolve_schedule(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    char w[256];
    c->warmup_steps = cfg_number(s, "warmup_steps");
    c->warmup_ratio = cfg_number(s, "warmup_ratio");
    s->cfg->given_warmup = -1;
    if (c->warmup_steps >= 1 && c->warmup_steps != floor(c->warmup_steps))
        cfg_problem(s, TM_EINPUT, "%s: \"warmup_steps\" must be whole, or a ratio below 1",
                    cfg_where(cfg_given(s, "warmup_steps"), w, sizeof w));
    if (c->warmup_steps > 1e15)
        cfg_problem(s, TM_EINPUT, "%s: \"warmup_steps\" is too large",
                    cfg_where(cfg_given(s, "warmup_steps"), w, sizeof w));
    if (cfg_raw(s, "scheduler"))
        ds_schedule(s);
    else
        hf_schedule(s);
    if (s->n_problems || s->cfg->pub.total_auto || !c->deepspeed_schedule) return TM_OK;
    return s->cfg->pub.warmup_auto ? TM_OK : tm_lr_check(&c->schedule);
}

/* ---- when the data are known --------------------------------------------------------------------------------- */

static int64_t flat_warmup(const tm_config *c) {
    if (c->warmup_steps >= 1) return (int64_t)c->warmup_steps;
    double ratio = c->warmup_steps > 0 ? c->warmup_steps : c->warmup_ratio;
    return (int64_t)ceil((double)c->total_steps * ratio);
}

static tm_status complete_deepspeed(cfg_impl *impl) {
    tm_config *c = &impl->pub;
    int64_t warmup = flat_warmup(c);
    bool ratio = c->warmup_steps < 1 && (c->warmup_steps > 0 || c->warmup_ratio > 0);
    if (ratio && impl->given_warmup >= 0 && impl->given_warmup != warmup)
        return tm_fail(TM_EINPUT,
                       "the warm-up ratio gives %" PRId64 " of %" PRId64 " steps and does not match scheduler.params."
                       "warmup_num_steps %" PRId64 "; make them equal, or say \"auto\" there",
                       warmup, c->total_steps, impl->given_warmup);
    if (impl->pub.warmup_auto) c->schedule.warmup_steps = warmup > 1 ? warmup : 1;
    if (impl->pub.total_auto) c->schedule.total_steps = c->total_steps;
    return TM_OK;
}

static void resolve_epochs(cfg_impl *impl, int64_t steps_per_epoch) {
    int64_t every = steps_per_epoch > 1 ? steps_per_epoch : 1;
    if (impl->pub.by_epoch & TM_BY_EPOCH_SAVE) impl->pub.save_steps = every;
    if (impl->pub.by_epoch & TM_BY_EPOCH_EVAL) impl->pub.eval_steps = every;
    if (impl->pub.by_epoch & TM_BY_EPOCH_LOG) impl->pub.logging_steps = every;
}

tm_status tm_config_resolve_steps(tm_config *c, int64_t steps_per_epoch) {
    resolve_epochs((cfg_impl *)c, steps_per_epoch);
    double steps = ceil(c->num_train_epochs * (double)steps_per_epoch);
    c->total_steps = c->max_steps;
    if (!c->max_steps) {
        if (steps_per_epoch < 1) return tm_fail(TM_EINPUT, "the data give no step to train on");
        if (steps > 1e15) return tm_fail(TM_EINPUT, "num_train_epochs %g is too large", c->num_train_epochs);
        c->total_steps = (int64_t)steps;
    }
    if (c->deepspeed_schedule) {
        TM_TRY(complete_deepspeed((cfg_impl *)c));
    } else {
        c->schedule.total_steps = c->total_steps;
        c->schedule.warmup_steps = flat_warmup(c);
    }
    return tm_lr_check(&c->schedule);
}
