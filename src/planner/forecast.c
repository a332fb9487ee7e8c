/* What a whole run takes: its steps, and what comes beside them - the import, looks at the state in between
 * (evaluations, checkpoints, commits), the model at the end. Of one rank; bytes are those of the offload paths, and
 * what is written of models. */
#include "planner/run.h"

#include "offload/sim/sim.h"
#include "step/op.h"

#include <math.h>

typedef struct forecast {
    const run_rates *rates;
    run_forecast *out;
} forecast;

static bool divides(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

/* Where the best are saved each evaluation may be one. */
static bool saves(const tm_config *c, bool eval, int64_t step) {
    return c->save_best ? eval : divides(c->save_steps, step);
}

/* A run of more steps than are worth counting is as its first ones. */
enum { COUNTED = 10000000 };

static void count(const run_rates *r, run_forecast *out) {
    const tm_config *c = r->s->cfg;
    int64_t all = out->steps, n = all < COUNTED ? all : COUNTED;
    bool commits = session_commits(r->s);
    for (int64_t step = r->step + 1; step <= r->step + n; step++) {
        bool last = step == r->step + all;
        bool eval = session_evaluates(r->s) && (last || divides(c->eval_steps, step));
        bool save = !last && saves(c, eval, step);
        bool commit = commits && (last || divides(c->commit_steps, step) || (save && c->save_state));
        out->evaluations += eval;
        out->checkpoints += save;
        out->commits += commit;
        out->looks += eval || save || commit || last;
    }
    double more = n > 0 ? (double)all / (double)n : 1;
    out->evaluations *= more, out->checkpoints *= more, out->commits *= more, out->looks *= more;
}

static void add(const forecast *f, double times, double seconds, uint64_t read, uint64_t written) {
    f->out->seconds += times * seconds;
    f->out->read_bytes += times * (double)read;
    f->out->write_bytes += times * (double)written;
}

static double disk_seconds(const forecast *f, uint64_t read, uint64_t written) {
    const tm_disk *d = &f->rates->machine->disk;
    return d->read_bps > 0 && d->write_bps > 0 ? tm_disk_seconds(d, read, written) : 0;
}

static tm_status add_plan(const forecast *f, double times, const tm_plan *plan) {
    tm_sim_result r;
    if (!plan || times == 0) return TM_OK;
    const tm_plan_info *info = tm_plan_get_info(plan);
    TM_TRY(tm_simulate(
        &r, plan,
        &(tm_sim_opts){.machine = f->rates->machine, .cost = f->rates->cost, .ctx = f->rates->ctx, .runs = 1}));
    add(f, times, r.seconds, tm_kinds_sum(info->read_bytes), tm_kinds_sum(info->write_bytes));
    tm_sim_free(&r);
    return TM_OK;
}

/* With update F the step after a look finds nothing pending, and the look is preceded by what is. */
static tm_status add_steps(const forecast *f) {
    const run_plans *plans = f->rates->plans;
    const tm_plan_info *info = tm_plan_get_info(plans->step);
    double steps = (double)f->out->steps, first = plans->folded ? fmin(f->out->looks, steps) : 0;
    add(f, steps - first, f->rates->step_seconds, tm_kinds_sum(info->read_bytes), tm_kinds_sum(info->write_bytes));
    TM_TRY(add_plan(f, first, plans->first));
    return add_plan(f, first, plans->drain);
}

/* Of the state that commits name, as frames: what is resident, what is not, and of that the weights. */
typedef struct state_bytes_of {
    uint64_t resident, paged, paged_weights;
} state_bytes_of;

static state_bytes_of state_of(const tm_job *job) {
    state_bytes_of s = {0};
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++) {
        const tm_object *o = tm_layout_get(job->layout, i);
        uint64_t bytes = tm_round_up(o->bytes, TM_PAGE_BYTES);
        if (!tm_kind_get(o->kind)->committed) continue;
        *(o->resident ? &s.resident : &s.paged) += bytes;
        if (!o->resident && (o->kind == TM_KIND_WEIGHT_HI || o->kind == TM_KIND_WEIGHT_LO)) s.paged_weights += bytes;
    }
    return s;
}

static uint64_t model_bytes(const run_rates *r) {
    return session_is_rank0(r->s) ? job_export_bytes(r->job, session_save_format(r->s->cfg)) : 0;
}

/* Commits write what is resident; checkpoints and the end read the weights and write a model, the end's hash reads all
 * of the state. */
static void add_looks(const forecast *f) {
    const session *of = f->rates->s;
    state_bytes_of s = state_of(f->rates->job);
    uint64_t model = model_bytes(f->rates);
    double minutes = of->cfg->commit_minutes, models = f->out->checkpoints + 1;
    if (session_commits(of) && minutes > 0) f->out->commits += floor(f->out->seconds / (60 * minutes));
    add(f, f->out->commits, disk_seconds(f, 0, s.resident), 0, s.resident);
    if (of->cfg->save_state)
        add(f, f->out->checkpoints, disk_seconds(f, s.resident + s.paged, s.resident + s.paged), s.resident + s.paged,
            s.resident + s.paged);
    add(f, models, disk_seconds(f, s.paged_weights, model), s.paged_weights, 0);
    add(f, 1, disk_seconds(f, s.paged, 0), s.paged, 0);
    f->out->model_bytes = models * (double)model;
}

/* The weights are written for them each time, and go again. */
static tm_status add_tasks(const forecast *f) {
    const session *s = f->rates->s;
    double times = f->out->evaluations, seconds;
    if (!s->trial || times == 0) return TM_OK;
    state_bytes_of of = state_of(f->rates->job);
    uint64_t model = job_export_bytes(f->rates->job, session_score_format(s->cfg));
    TM_TRY(s->args->scorer->seconds(s->trial, run_score_bytes(s, f->rates->job), &seconds));
    add(f, times, seconds + disk_seconds(f, of.paged_weights, model), of.paged_weights, 0);
    f->out->model_bytes += times * (double)model;
    return TM_OK;
}

/* A walk over all state, beside what is compiled already. One that does not fit now has its own refusal elsewhere. */
static tm_status add_import(const forecast *f) {
    const tm_job *job = f->rates->job;
    tm_program *p;
    tm_plan *plan = NULL;
    job_account looked_at = job->account;
    TM_TRY(build_import(&p, job));
    tm_status rc = job_compile_in(job, &looked_at, p, false, &plan);
    tm_program_free(p);
    if (rc == TM_EBUDGET) return tm_error_clear(), TM_OK;
    if (rc == TM_OK) rc = add_plan(f, 1, plan);
    tm_plan_free(plan);
    return rc;
}

tm_status run_forecast_make(const run_rates *rates, run_forecast *out) {
    const session *s = rates->s;
    forecast f = {rates, out};
    *out = (run_forecast){.steps = s->cfg->total_steps - rates->step};
    if (s->cfg->total_steps <= 0) return TM_OK;
    count(rates, out);
    if (rates->imports) TM_TRY(add_import(&f));
    TM_TRY(add_steps(&f));
    if (s->eval) {
        double programs = out->evaluations * (double)tm_dataset_steps_per_epoch(data_set(s->eval));
        TM_TRY(add_plan(&f, programs, rates->plans->eval));
    }
    add_looks(&f);
    return add_tasks(&f);
}
