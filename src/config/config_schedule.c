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
#define DS_WARMUP (BIT(TM_LR_DS_WARMUP) | BIT(TM_LR_DS_WARMUP_DECAY))
#define DS_COSINE BIT(TM_LR_DS_WARMUP_COSINE)
/* Takes the arguments below `prefix`; one that the schedule has not is an error, as it is in Python. */
static tm_status take_arguments(cfg_state *s, const char *prefix) {
    const tm_lr_schedule *sched = &s->cfg->pub.schedule;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        bool here = row->takers && !strncmp(row->path, prefix, strlen(prefix));
        const cfg_value *v = here ? cfg_raw(s, row->path) : NULL;
        if (!v) continue;
        if (!(row->takers & BIT(sched->type)))
            cfg_wrong(s, v, "\"%s\" is not an argument of %s", row->path, tm_lr_type_name(sched->type));
        else if (row->form != F_NONE && cfg_given(s, row->path)) /* not "auto" */
            TM_TRY(cfg_fill(s, row));
    }
    return TM_OK;
}

static void need(cfg_state *s, const cfg_value *at, const char *what) {
    cfg_wrong(s, at ? at : &s->whole, "schedule %s needs \"%s\"", tm_lr_type_name(s->cfg->pub.schedule.type), what);
}

static void take_min_lr(cfg_state *s) {
    tm_lr_schedule *sched = &s->cfg->pub.schedule;
    const cfg_value *absolute = cfg_given(s, KW "min_lr"), *rate = cfg_given(s, KW "min_lr_rate");
    if (!(BIT(sched->type) & MIN_LR)) return;
    if (absolute && rate) cfg_mismatch(s, KW "min_lr", absolute, KW "min_lr_rate", rate);
    if (!absolute && !rate) need(s, cfg_given(s, "lr_scheduler_type"), KW "min_lr\" or \"" KW "min_lr_rate");
    if (absolute && sched->base_lr > 0) sched->min_lr_rate = absolute->node->number / sched->base_lr;
}

static tm_status hf_schedule(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    char name[64];
    tm_lr_type type = TM_LR_COSINE;
    schema_choice_name(schema_find("lr_scheduler_type"), cfg_choice(s, "lr_scheduler_type"), name, sizeof name);
    if (!tm_lr_type_from_name(name, &type))
        cfg_unsupported(s, cfg_given(s, "lr_scheduler_type"),
                        "\"lr_scheduler_type\" \"%s\" is not supported: it depends on the evaluation loss", name);
    tm_lr_defaults(&c->schedule, type, c->learning_rate);
    TM_TRY(take_arguments(s, KW));
    take_min_lr(s);
    if (type == TM_LR_WARMUP_STABLE_DECAY && !cfg_given(s, KW "num_decay_steps"))
        need(s, cfg_given(s, "lr_scheduler_type"), KW "num_decay_steps");
    return TM_OK;
}

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

static tm_status ds_schedule(cfg_state *s) {
    static const tm_lr_type types[] = {TM_LR_DS_WARMUP, TM_LR_DS_WARMUP_DECAY, TM_LR_DS_WARMUP_COSINE,
                                       TM_LR_DS_RANGE_TEST, TM_LR_DS_ONE_CYCLE};
    tm_config *c = &s->cfg->pub;
    int type = cfg_choice(s, "scheduler.type");
    if (type < 0) {
        cfg_wrong(s, cfg_raw(s, "scheduler"), "\"scheduler.type\" is missing");
        type = 0;
    }
    c->deepspeed_schedule = true;
    tm_lr_defaults(&c->schedule, types[type], c->learning_rate);
    if (cfg_is_auto(s, PARAM "warmup_max_lr")) c->schedule.warmup_max_lr = c->learning_rate;
    TM_TRY(take_arguments(s, PARAM));
    if (cfg_integer(s, PARAM "last_batch_iteration") != -1)
        cfg_unsupported(s, cfg_given(s, PARAM "last_batch_iteration"),
                        "\"" PARAM "last_batch_iteration\" must be -1; a resumed run knows its step");
    ds_required(s);
    compare_type(s);
    if (BIT(types[type]) & DS_WARMUP) compare_lr(s);
    if (BIT(types[type]) & (DS_WARMUP | DS_COSINE)) compare_warmup(s);
    s->cfg->pub.total_auto = cfg_is_auto(s, PARAM "total_num_steps");
    const cfg_value *steps = cfg_given(s, "max_steps"), *total = cfg_given(s, PARAM "total_num_steps");
    if (c->max_steps && total && total->node->integer != c->max_steps)
        cfg_mismatch(s, "max_steps", steps, PARAM "total_num_steps", total);
    return TM_OK;
}

tm_status config_resolve_schedule(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    s->cfg->given_warmup = -1;
    if (c->warmup_steps >= 1 && c->warmup_steps != floor(c->warmup_steps))
        cfg_wrong(s, cfg_given(s, "warmup_steps"), "\"warmup_steps\" must be whole, or a ratio below 1");
    if (c->warmup_steps > 1e15) cfg_wrong(s, cfg_given(s, "warmup_steps"), "\"warmup_steps\" is too large");
    TM_TRY(cfg_raw(s, "scheduler") ? ds_schedule(s) : hf_schedule(s));
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

/* So many an epoch, evenly. */
static int64_t steps_between(int64_t steps_per_epoch, uint32_t times) {
    return (steps_per_epoch + times - 1) / times;
}

static void resolve_epochs(cfg_impl *impl, int64_t steps_per_epoch) {
    int64_t every = steps_per_epoch > 1 ? steps_per_epoch : 1;
    if (impl->pub.evals_per_epoch) impl->pub.eval_steps = steps_between(every, impl->pub.evals_per_epoch);
    if (impl->pub.saves_per_epoch) impl->pub.save_steps = steps_between(every, impl->pub.saves_per_epoch);
    if (impl->pub.by_epoch & TM_BY_EPOCH_SAVE) impl->pub.save_steps = every;
    if (impl->pub.by_epoch & TM_BY_EPOCH_EVAL) impl->pub.eval_steps = every;
    if (impl->pub.by_epoch & TM_BY_EPOCH_LOG) impl->pub.logging_steps = every;
}

tm_status tm_config_resolve_steps(tm_config *c, int64_t steps_per_epoch) {
    return tm_config_resolve_run_steps(c, steps_per_epoch, ceil(c->num_train_epochs * (double)steps_per_epoch));
}

tm_status tm_config_resolve_run_steps(tm_config *c, int64_t steps_per_epoch, double steps) {
    resolve_epochs((cfg_impl *)c, steps_per_epoch);
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
