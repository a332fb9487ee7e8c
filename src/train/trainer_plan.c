/* The job that runs the step: its options, the way that is chosen, and what a refusal advises. */
#include "base/change.h"
#include "comm/comm.h"
#include "planner/start.h"
#include "job/job.h"
#include "train/trainer_internal.h"

#include <stdio.h>
#include <string.h>

static tm_status mark_no_decay(trainer *t) {
    const tm_strings *list = &t->s.cfg->no_decay;
    uint32_t n = tm_model_tensors(t->job->model);
    bool all = true;
    for (uint32_t i = 0; i < n && all; i++) all = tm_model_tensor(t->job->model, i)->learns;
    if (list->n == 0 && all) return TM_OK;
    t->job->step.no_decay = tm_calloc(n + 1, sizeof *t->job->step.no_decay);
    if (!t->job->step.no_decay) return tm_nomem(n);
    for (uint32_t i = 0; i < n; i++) {
        t->job->step.no_decay[i] = !tm_model_tensor(t->job->model, i)->learns;
        for (uint32_t k = 0; k < list->n; k++)
            if (strstr(tm_model_tensor(t->job->model, i)->name, list->item[k])) t->job->step.no_decay[i] = true;
    }
    return TM_OK;
}

/* LoRA+ (Hayou et al. 2024): B, and vectors, learn faster than A; adapters of embeddings at a rate of their own. Groups as
 * PEFT's create_loraplus_optimizer makes them. */
static tm_status set_rates(trainer *t) {
    const tm_adapter_config *a = t->s.cfg->adapter;
    const tm_model *m = t->job->model;
    job_step *step = &t->job->step;
    uint32_t n = tm_model_tensors(m);
    if (!a || a->lr_ratio == 1) return TM_OK;
    step->rate = tm_calloc(n + 1, sizeof *step->rate);
    if (!step->no_decay) step->no_decay = tm_calloc(n + 1, sizeof *step->no_decay);
    if (!step->rate || !step->no_decay) return tm_nomem(n * sizeof *step->rate);
    for (uint32_t i = 0; i < n; i++) {
        const tm_tensor *x = tm_model_tensor(m, i);
        bool embedding = x->role == TM_TENSOR_EMBEDDING_A || x->role == TM_TENSOR_EMBEDDING_B;
        bool fast = x->role == TM_TENSOR_LORA_B || x->ndim == 1;
        double base = t->s.cfg->learning_rate;
        step->rate[i] = (float)(embedding && base > 0 ? a->embedding_lr / base : fast ? a->lr_ratio : 1);
    }
    return TM_OK;
}

/* How much of the model learns. */
static void say_learning(const trainer *t) {
    uint64_t learning = tm_model_learning_parameters(t->job->model), all = tm_model_parameters(t->job->model);
    if (learning == all || t->s.args->quiet) return;
    tm_log(TM_LOG_INFO, "%.4g of %.4g million parameters learn (%.3g%%); the others are read where they lie, in %s%s%s",
           1e-6 * (double)learning, 1e-6 * (double)all, 100 * (double)learning / (double)all,
           t->s.weights ? t->s.weights : t->s.cfg->model, t->s.weights ? ", in four bits what was " : "",
           t->s.weights ? t->s.cfg->model : "");
}

static void say_plan(const trainer *t, const pass_opts *way) {
    const tm_plan_info *info = tm_plan_get_info(t->plans.step);
    const tm_io_opts *io = &t->job->opts.io;
    char a[32], b[32], d[32], of[32], requests[64] = "";
    if (io->queue_depth)
        snprintf(requests, sizeof requests, " (%u x %s)", io->queue_depth,
                 tm_format_size(io->block_bytes, of, sizeof of));
    tm_log(TM_LOG_INFO,
           "plan: %s resident of %s frames, %s on disk, update %s, activations %s, %u operations, engine %s%s",
           tm_format_size(info->resident_bytes, a, sizeof a), tm_format_size(info->slab_bytes, b, sizeof b),
           tm_format_size(tm_store_disk_bytes(t->job->tiers.store), d, sizeof d), pass_update_name(way),
           pass_activations_name(t->job, way), info->ops, tm_store_engine(t->job->tiers.store), requests);
}

static tm_status say_autos(const trainer *t) {
    tm_buf text = {0};
    bool any;
    tm_status rc = tm_config_autos(t->s.cfg, &text, &any);
    if (rc == TM_OK && any) tm_log(TM_LOG_INFO, "\"auto\" is %s; null: the planner decides", text.data);
    tm_buf_free(&text);
    return rc;
}

/* ---- choices that were forced -------------------------------------------------------------------------------- */

/* The least budget of the job if `activations`, `update` were left to the planner. */
static tm_status minimum_without(const trainer *t, bool activations, bool update, uint64_t *host) {
    tm_config c = *t->s.cfg;
    session open = t->s;
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = session_step_shape(&t->s);
    if (activations) c.memory.activations = TM_ACT_AUTO;
    if (update) c.memory.update = TM_UPDATE_AUTO;
    open.cfg = &c;
    return planner_minimum(&(planner_ask){.job = t->job, .way = way, .n = run_ways(&open, &shape, way)}, host);
}

/* The same of all ranks: what the most demanding one takes, and whether each has it. They have agreed on a refusal. */
static tm_status enough_without(trainer *t, unsigned without, uint64_t *host, bool *enough) {
    uint64_t most = 0, all;
    tm_status rc = minimum_without(t, without & 1, without & 2, &most);
    all = rc == TM_OK && most <= t->job->opts.host_bytes;
    *host = most;
    *enough = all;
    if (!t->s.comm) return rc;
    tm_error_clear(); /* then nothing is advised */
    TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MAX, host, 1));
    TM_TRY(tm_comm_all_reduce_u64(t->s.comm, TM_COMM_WORLD, TM_COMM_MIN, &all, 1));
    *enough = all;
    return TM_OK;
}

/* A refusal names what it takes; where a forced choice is the reason, the smallest change may be to leave it out. */
static tm_status refuse_forced(trainer *t, const job_refusal *refusal) {
    static const char *const name[] = {"", "memory.activations", "memory.update",
                                       "memory.activations and memory.update"};
    unsigned forced =
        (t->s.cfg->memory.activations != TM_ACT_AUTO ? 1 : 0) | (t->s.cfg->memory.update != TM_UPDATE_AUTO ? 2 : 0);
    tm_error why = *tm_error_get();
    char room[32], change[TM_CHANGE_BYTES];
    snprintf(change, sizeof change, "%s", tm_change_advised());
    if (refusal->limit == JOB_LIMIT_DEVICE || (t->s.comm && !t->s.agreed))
        return TM_EBUDGET; /* not of the host; not known to all */
    tm_error_clear();
    for (unsigned without = 1; without <= forced; without++) {
        uint64_t host;
        bool enough;
        if ((without & forced) != without) continue;
        TM_TRY(enough_without(t, without, &host, &enough));
        if (!enough) continue;
        tm_status rc = tm_fail(TM_EBUDGET, "%s; or leave out %s, then %llu bytes (%s) are enough", why.text,
                               name[without], (unsigned long long)host, tm_format_size(host, room, sizeof room));
        if (without < 3)
            tm_change_advise("%s=auto", name[without]);
        else
            tm_change_advise("%s", change);
        return rc;
    }
    tm_error_set(&why);
    return TM_EBUDGET;
}

job_opts trainer_job_options(const trainer *t) {
    job_opts o = session_job_options(&t->s);
    o.home = t->out.home;
    o.run_name = t->out.run_name;
    o.key = *t->out.key ? t->out.key : NULL;
    o.of = t->out.here;
    o.resume = t->from.old.other ? NULL : t->from.commit;
    return o;
}

/* What is made of the plan while nothing of the job is in memory. */
typedef struct plan_chosen {
    trainer *t;
    const pass_opts *way;
} plan_chosen;

static tm_status look_at_plan(void *ctx, const planner_choice *c) {
    const plan_chosen *chosen = ctx;
    TM_TRY(trainer_watch_link(chosen->t, c->plan));
    trainer_report_step(chosen->t, c->plan, &chosen->way[c->way]);
    return TM_OK;
}

tm_status trainer_plan_job(trainer *t, job_refusal *refusal) {
    job_opts o = trainer_job_options(t);
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = session_step_shape(&t->s);
    run_plans beside = {0};
    run_more more = {&t->s, &beside};
    planner_choice choice = {0};
    o.plan_only = true;
    tm_status rc = session_agree(&t->s, job_open(&t->job, &o));
    if (rc == TM_OK) {
        t->job->opts.other_bytes += trainer_replay_bytes(t);
        rc = planner_choose(&(planner_ask){.job = t->job,
                                           .name = "training step",
                                           .way = way,
                                           .n = run_ways(&t->s, &shape, way),
                                           .more = run_compile_more,
                                           .ctx = &more},
                            &choice);
    }
    planner_drop(&choice);
    *refusal = choice.refusal;
    if (rc == TM_EBUDGET) rc = refuse_forced(t, refusal);
    run_plans_free(&beside);
    job_close(t->job);
    t->job = NULL;
    return rc;
}

/* Too many are refused before anything is timed. */
static tm_status count_micro_batches(trainer *t) {
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = session_step_shape(&t->s);
    planner_choice none;
    tm_status rc = planner_count(&(planner_ask){.job = t->job, .way = way, .n = run_ways(&t->s, &shape, way)}, &none);
    return rc == TM_EBUDGET ? run_blame_tasks(&t->s, refuse_forced(t, &none.refusal)) : rc;
}

tm_status trainer_open_job(trainer *t) {
    tm_config *c = t->s.cfg;
    job_opts o = trainer_job_options(t);
    TM_TRY(job_open(&t->job, &o));
    o.other_bytes += trainer_replay_bytes(t);
    if (t->from.old.other) {
        TM_TRY(
            job_agree(t->job, elastic_open(&t->from.elastic, t->job->model, t->from.old.directory, t->from.old.ranks)));
        o.elastic = t->from.elastic;
    }
    t->job->opts = o;
    TM_TRY(count_micro_batches(t));
    TM_TRY(trainer_watch_open(t, &o));
    TM_TRY(tm_config_resolve_model(c, tm_model_get_config(t->job->model)->hidden_size));
    TM_TRY(mark_no_decay(t));
    TM_TRY(set_rates(t));
    if (session_is_rank0(&t->s)) say_learning(t);
    t->job->sinks.fill = trainer_fill;
    t->job->sinks.fill_ctx = t;
    t->job->step.max_grad_norm = c->max_grad_norm;
    pass_opts way[RUN_MAX_WAYS];
    job_shape shape = session_step_shape(&t->s);
    planner_choice choice;
    run_more more = {&t->s, &t->plans};
    plan_chosen chosen = {t, way};
    const planner_ask ask = {.job = t->job,
                             .name = "training step",
                             .way = way,
                             .n = run_ways(&t->s, &shape, way),
                             .more = run_compile_more,
                             .ctx = &more,
                             .chosen = look_at_plan,
                             .chosen_ctx = &chosen};
    tm_status rc = job_start(&ask, &choice);
    t->plans.step = choice.plan;
    choice.plan = NULL;
    planner_drop(&choice);
    if (rc == TM_EBUDGET) return run_blame_tasks(&t->s, refuse_forced(t, &choice.refusal));
    if (rc != TM_OK) return rc;
    if (!t->s.args->quiet) say_plan(t, &way[choice.way]);
    return t->s.args->quiet || !session_is_rank0(&t->s) ? TM_OK : say_autos(t);
}
