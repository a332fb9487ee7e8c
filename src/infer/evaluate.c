/* Evaluation: the objective's loss and metrics over a data file. */
#include "infer/evaluate_internal.h"
#include "planner/start.h"
#include "session/batch.h"

#include <malloc.h>
#include <math.h>

static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    evaluation *e = ctx;
    const reference_rows of = {.eval = true, .step = e->step, .micro_batch = mb, .batch = batch};
    TM_TRY(session_fill(data_set(e->s.eval), e->step, mb, 0, batch, to, out));
    if (to->reference) reference_fill(&e->reference, &e->s, &of, out->rows, to->reference);
    return TM_OK;
}

/* What positions are scaled for: as in training, or for the rows that there are. */
static uint32_t positions(const evaluation *e, const job_shape *shape) {
    return e->args->config ? e->cfg.data.seq_len : shape->seq;
}

/* A reference that is no lane: asked first, its weights are gone before the model's are there. */
static tm_status ask_reference(evaluation *e, const job_shape *shape) {
    tm_adapter_folder *none = NULL;
    tm_tier_args tiers = e->tiers;
    if (!session_reference_column(&e->cfg)) return TM_OK;
    job_opts o = session_reference_options(&e->s);
    o.device = NULL, o.device_bytes = 0;
    o.positions = positions(e, shape);
    tiers.adapter = tiers.offload_path = NULL;
    TM_TRY(forward_opts(&o, &tiers, &none));
    TM_TRY(reference_open(&e->reference, &e->s));
    return reference_make(&e->reference, &e->s, &o);
}

static tm_status open_job(evaluation *e, const job_shape *shape) {
    bool column = session_reference_column(&e->cfg);
    job_opts o = {.model = e->cfg.model,
                  .dtype = e->cfg.precision,
                  .slots = 1,
                  .objective = &e->cfg.objective,
                  .reference_column = column,
                  .other_bytes = evaluate_held_bytes(e),
                  .positions = positions(e, shape),
                  .packed = tm_dataset_has_documents(data_set(e->s.eval))};
    if (column) o.other_bytes += session_reference_bytes(&e->s);
    TM_TRY(forward_opts(&o, &e->tiers, &e->s.saved));
    TM_TRY(job_open(&e->job, &o));
    e->job->sinks.fill = fill;
    e->job->sinks.fill_ctx = e;
    return TM_OK;
}

_Static_assert((int)TM_EVAL_METRICS == (int)STEP_METRICS, "all of an objective's");

static void take_total(const evaluation *e, const step_total *total, tm_eval_result *out) {
    const tm_objective *o = e->job->objective;
    out->objective = o->name;
    out->by_sample = o->by_sample;
    out->loss = step_total_loss(e->job, total);
    out->perplexity = exp(out->loss);
    out->bits_per_byte = out->label_bytes ? total->loss_sum / (M_LN2 * (double)out->label_bytes) : NAN;
    out->n_metrics = step_total_metrics(e->job, total, out->value);
    for (uint32_t i = 0; i < out->n_metrics; i++) out->metric[i] = o->metric[i];
    out->samples = tm_dataset_get_counts(data_set(e->s.eval))->samples;
    out->rows = out->samples * o->rows;
    out->label_tokens = total->labels;
    out->tokens = total->tokens;
}

/* Whoever compares answers reads text after this as well. */
static void drop_text(evaluation *e) {
    if (e->args->exact_match) return;
    text_close(&e->s.text);
    (void)malloc_trim(0);
}

static tm_status measure(evaluation *e, tm_eval_result *out) {
    tm_dataset *ds = data_set(e->s.eval);
    job_shape shape = session_eval_shape(&e->s);
    uint64_t steps = tm_dataset_steps_per_epoch(ds);
    TM_TRY(session_label_bytes(&e->s, &out->label_bytes));
    drop_text(e);
    TM_TRY(ask_reference(e, &shape));
    TM_TRY(open_job(e, &shape));
    TM_TRY(evaluate_files_open(e));
    pass_opts way = {.shape = shape, .loss = true};
    planner_choice c;
    tm_status rc = job_start(&(planner_ask){.job = e->job, .name = "evaluation", .way = &way, .n = 1}, &c);
    step_total total = {0};
    job_phase phase;
    job_phase_begin(&phase, e->job, "evaluating", "rows", tm_dataset_get_counts(ds)->samples);
    for (e->step = 0; e->step < steps && rc == TM_OK; e->step++) {
        tm_step_info info;
        tm_dataset_step_info(ds, e->step, &info);
        phase.span = info.samples;
        rc = job_run(e->job, c.plan);
        phase.base += info.samples;
        if (rc == TM_OK) step_total_add(&total, &e->job->step);
    }
    job_phase_end(&phase);
    planner_drop(&c);
    if (rc == TM_OK) take_total(e, &total, out);
    if (rc == TM_OK) rc = evaluate_files_report(e, out);
    job_close(e->job);
    e->job = NULL;
    return rc;
}

tm_status tm_eval_run(const tm_eval_args *args, tm_eval_result *out) {
    evaluation e = {.args = args};
    uint64_t began = tm_now_ns();
    *out = (tm_eval_result){.bits_per_byte = NAN};
    tm_status rc = evaluate_open(&e);
    if (rc == TM_OK && e.data) rc = measure(&e, out);
    if (rc == TM_OK && args->exact_match) rc = evaluate_exact(&e, out);
    if (rc == TM_OK && args->tasks.n) rc = evaluate_tasks(&e, &out->tasks);
    out->seconds = (double)(tm_now_ns() - began) * 1e-9;
    job_close(e.job);
    evaluate_close(&e);
    return rc;
}

void tm_eval_free(tm_eval_result *r) {
    for (uint32_t i = 0; i < r->n_files; i++) tm_free(r->file[i].name);
    tm_free(r->file);
    tm_eval_tasks_free(&r->tasks);
    *r = (tm_eval_result){0};
}
