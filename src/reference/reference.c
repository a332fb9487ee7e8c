/* The values of rows, and the job that makes them: programs of several micro-batches, one after the other through all steps. */
#include "reference/reference.h"

#include "comm/comm.h"
#include "planner/run.h"
#include "session/batch.h"

#include <string.h>

tm_status reference_open(reference_values *v, session *s) {
    tm_status rc = TM_OK;
    for (int eval = !s->train; eval <= (s->eval != NULL); eval++)
        for (uint32_t batch = 0; batch < session_batches(s) && rc == TM_OK; batch++) {
            reference_table *of = &v->table[v->n_tables++];
            *of = (reference_table){.eval = eval, .batch = batch, .n = session_reference_rows(s, eval, batch)};
            of->value = tm_calloc(of->n + 1, sizeof(float));
            if (!of->value) rc = tm_nomem(of->n * sizeof(float));
        }
    return session_agree(s, rc);
}

void reference_free(reference_values *v) {
    for (uint32_t i = 0; i < v->n_tables; i++) tm_free(v->table[i].value);
    *v = (reference_values){.n_tables = 0};
}

static uint64_t place(const session *s, const reference_rows *of, uint32_t row) {
    return session_reference_place(s, of->eval, of->step, of->batch, of->micro_batch, row);
}

void reference_fill(const reference_values *v, const session *s, const reference_rows *of, uint32_t rows, float *to) {
    const reference_table *in = v->table;
    while (in->eval != of->eval || in->batch != of->batch) in++; /* there is one */
    for (uint32_t row = 0; row < rows; row++) to[row] = in->value[place(s, of, row)];
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

typedef struct pass {
    session *s;
    run_reference r;
    const reference_table *of;
    uint64_t first, end; /* micro-batches, of all steps: the program's first, those there are */
} pass;

static reference_rows rows_of(const pass *p, uint32_t mb) {
    uint64_t i = p->first + mb, a_step = p->s->cfg->accumulation_steps;
    return (reference_rows){
        .eval = p->of->eval, .step = i / a_step, .micro_batch = (uint32_t)(i % a_step), .batch = p->of->batch};
}

/* What a program comes to is of no use, but ranks divide by the same numbers. */
static void count(const pass *p, tm_dataset *ds, uint64_t step) {
    tm_step_info info;
    tm_dataset_step_info(ds, step, &info);
    p->r.job->step.labels = info.label_tokens;
    p->r.job->step.tokens = info.tokens;
    p->r.job->step.samples = info.samples;
}

static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    pass *p = ctx;
    session *s = p->s;
    reference_rows of = rows_of(p, mb);
    tm_dataset *ds = data_set(of.eval ? s->eval : s->train);
    (void)batch;
    *out = (job_batch){0};
    if (s->comm && mb == 0) count(p, ds, of.step);
    if (p->first + mb >= p->end) return TM_OK;
    return session_fill(ds, of.step, of.micro_batch, s->ranks.rank, of.batch, to, out);
}

static tm_status take(void *ctx, uint32_t mb, const tm_micro_batch *b, const float *nll) {
    const pass *p = ctx;
    const objective_lane lane = {.batch = b, .nll = (float *)(uintptr_t)nll}; /* only read */
    const reference_rows of = rows_of(p, mb);
    for (uint32_t row = 0; row < b->rows; row++)
        p->of->value[place(p->s, &of, row)] = (float)tm_objective_logp(&lane, row);
    return TM_OK;
}

/* Other ranks' rows are 0 here: the sum of all is what each has. */
static tm_status share(const session *s, float *value, uint64_t n) {
    enum { CHUNK = 4096 };
    double chunk[CHUNK];
    for (uint64_t at = 0; s->comm && at < n; at += CHUNK) {
        uint64_t count = tm_min_u64(CHUNK, n - at);
        for (uint64_t i = 0; i < count; i++) chunk[i] = (double)value[at + i];
        TM_TRY(tm_comm_all_reduce_f64(s->comm, TM_COMM_WORLD, TM_COMM_SUM, chunk, count));
        for (uint64_t i = 0; i < count; i++) value[at + i] = (float)chunk[i];
    }
    return TM_OK;
}

/* What fails in a pass on one rank the others do not know of: it ends them all. */
static tm_status run(pass *p, const reference_values *v) {
    uint64_t samples = 0;
    job_phase phase;
    for (uint32_t i = 0; i < v->n_tables; i++)
        samples += session_reference_steps(p->s, v->table[i].eval, v->table[i].batch) *
                   session_samples_a_step(p->s, v->table[i].eval);
    job_phase_begin(&phase, p->r.job, "reference model", "samples", samples);
    tm_status rc = TM_OK;
    for (p->of = v->table; p->of < v->table + v->n_tables && rc == TM_OK; p->of++) {
        uint64_t a_step = p->s->cfg->accumulation_steps, all = session_samples_a_step(p->s, p->of->eval);
        p->end = session_reference_steps(p->s, p->of->eval, p->of->batch) * a_step;
        for (p->first = 0; p->first < p->end && rc == TM_OK; p->first += p->r.batches) {
            phase.span = tm_min_u64(p->r.batches, p->end - p->first) * (all / a_step);
            rc = job_run(p->r.job, p->r.choice.plan);
            phase.base += phase.span;
        }
        if (rc == TM_OK) rc = share(p->s, p->of->value, p->of->n);
    }
    job_phase_end(&phase);
    return rc;
}

tm_status reference_make(reference_values *v, session *s, const job_opts *o) {
    pass p = {.s = s};
    job_shape shape = session_reference_shape(s);
    for (uint32_t i = 0; i < v->n_tables; i++) /* of a damaged file */
        memset(v->table[i].value, 0, v->table[i].n * sizeof(float));
    TM_TRY(run_reference_start(s, o, &shape, UINT32_MAX, &p.r));
    if (!s->args->quiet && session_is_rank0(s))
        tm_log(TM_LOG_INFO, "asking the reference, %s, about %u micro-batch%s at a time", o->model, p.r.batches,
               p.r.batches > 1 ? "es" : "");
    p.r.job->sinks.fill = fill;
    p.r.job->sinks.take_nll = take;
    p.r.job->sinks.fill_ctx = p.r.job->sinks.take_ctx = &p;
    tm_status rc = run(&p, v);
    run_reference_end(&p.r);
    return rc;
}
