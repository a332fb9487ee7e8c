/* The plans of a training run: the ways in which its step may be run, the plans beside the step's, what its rows ask
 * for. */
#include "planner/run.h"

#include <math.h>

/* ---- ways of running a step ---------------------------------------------------------------------------------- */

/* Update B can neither clip nor skip: it is no choice where gradients are clipped or may overflow. Sums over whole
 * tensors need all gradients parked. */
static bool update_is_open(const tm_config *c, pass_update u) {
    static const tm_update name[] = {TM_UPDATE_AUTO, TM_UPDATE_U, TM_UPDATE_F, TM_UPDATE_B};
    if (c->optimizer->passes > 1) return u == UPDATE_AFTER;
    if (c->memory.update != TM_UPDATE_AUTO) return c->memory.update == name[u];
    return u != UPDATE_WITHIN || (c->max_grad_norm <= 0 && c->precision != TM_F16);
}

static bool keep_is_open(tm_activations a, uint32_t quarters) {
    if (a == TM_ACT_RECOMPUTE) return quarters == 0;
    return a == TM_ACT_AUTO || quarters >= PASS_KEEP_ALL;
}

uint32_t run_ways(const session *s, const job_shape *shape, pass_opts out[RUN_MAX_WAYS]) {
    const tm_config *c = s->cfg;
    uint32_t n = 0,
             most = s->args->replay_every > 0 ? PASS_KEEP_ALL : PASS_KEEP_LOGITS; /* replayed, they need a copy */
    for (pass_update u = UPDATE_AFTER; u <= UPDATE_WITHIN; u++) {
        for (uint32_t keep = 0; keep <= most; keep++)
            for (int stage_wise = 0; stage_wise < (shape->micro_batches > 1 ? 2 : 1); stage_wise++) {
                for (int overlap = 0; overlap < (c->world_size > 1 && !c->knobs.no_overlap ? 2 : 1); overlap++) {
                    if (!update_is_open(c, u) || !keep_is_open(c->memory.activations, keep)) continue;
                    out[n++] = (pass_opts){.shape = *shape,
                                           .backward = true,
                                           .update = u,
                                           .park = u == UPDATE_BEFORE,
                                           .keep_quarters = keep,
                                           .no_spill = c->memory.activations == TM_ACT_KEEP,
                                           .stage_wise = stage_wise,
                                           .overlap = overlap};
                }
            }
    }
    TM_ASSERT(n <= RUN_MAX_WAYS);
    return n;
}

/* ---- the plans beside the step's ------------------------------------------------------------------------------- */

static tm_status compile(const tm_job *job, job_account *account, tm_program *p, tm_plan **plan) {
    tm_status rc = job_compile_in(job, account, p, true, plan);
    tm_program_free(p);
    return rc;
}

/* Update F needs two more plans: for a step that finds nothing pending, and for whoever looks at the state in between.
 */
static tm_status compile_folded(run_plans *plans, const tm_job *job, job_account *account, const pass_opts *way) {
    tm_program *p;
    pass_opts first = *way;
    first.update = UPDATE_NONE;
    TM_TRY(build_pass(&p, job, "first step", &first));
    TM_TRY(compile(job, account, p, &plans->first));
    TM_TRY(build_drain(&p, job));
    return compile(job, account, p, &plans->drain);
}

static tm_status compile_evaluation(const session *s, run_plans *plans, const tm_job *job, job_account *account) {
    tm_program *p;
    job_shape shape = session_eval_shape(s);
    tm_plan_free(plans->eval);
    plans->eval = NULL;
    TM_TRY(build_pass(&p, job, "evaluation", &(pass_opts){.shape = shape, .loss = true}));
    return compile(job, account, p, &plans->eval);
}

tm_status run_compile_more(void *ctx, const tm_job *job, job_account *account, const pass_opts *way) {
    const run_more *more = ctx;
    run_plans *plans = more->plans;
    tm_plan_free(plans->first); /* of the choice before, which may have had another update */
    tm_plan_free(plans->drain);
    plans->first = plans->drain = NULL;
    plans->way = *way;
    plans->folded = way->update == UPDATE_BEFORE;
    if (plans->folded) TM_TRY(compile_folded(plans, job, account, way));
    return more->s->eval ? compile_evaluation(more->s, plans, job, account) : TM_OK;
}

void run_plans_free(run_plans *p) {
    tm_plan *const plans[] = {p->step, p->first, p->drain, p->eval};
    for (size_t i = 0; i < TM_COUNT(plans); i++) tm_plan_free(plans[i]);
    *p = (run_plans){0};
}

/* Evenly over the run, some side by side: those of packed data, and by length, are made together. A sample takes one or
 * two microseconds. */
enum { SAMPLED_STEPS = 4096, SIDE_BY_SIDE = 16, SAMPLED = 1 << 18 };

static uint64_t sampled_steps(const session *s, const job_shape *step) {
    uint64_t samples = (uint64_t)step->micro_batches * step->rows * (s->comm ? s->ranks.ranks : 1);
    uint64_t most = tm_min_u64(SAMPLED_STEPS, tm_max_u64(SAMPLED / samples, SIDE_BY_SIDE));
    return tm_min_u64((uint64_t)s->cfg->total_steps, most);
}

/* The i-th of n of all. */
static uint64_t sampled_step(uint64_t i, uint64_t n, uint64_t all) {
    if (n == all) return i;
    return i / SIDE_BY_SIDE * SIDE_BY_SIDE * all / n + i % SIDE_BY_SIDE;
}

/* Attention goes over documents: rows, or of packed ones as many as there are samples, taken to be of one length, or those of
 * rows of ids, whose mean length is known (`document`; else 0). */
static void add_attention(const tm_model_config *m, const tm_batch_shape *b, double document, job_load *sum) {
    double n = b->rows, length = b->seq;
    if (b->samples > b->rows) n = b->samples, length = floor((double)b->mask_tokens / n);
    if (document > 0 && document < length) length = round(document), n = (double)b->mask_tokens / length;
    job_load one = job_shape_load(m, &(job_shape){.rows = 1, .seq = (uint32_t)length, .tokens = b->tokens});
    sum->pairs += n * one.pairs;
    sum->window_pairs += n * one.window_pairs;
}

run_load run_step_load(const session *s, const tm_model_config *m) {
    job_shape largest = session_step_shape(s);
    uint64_t ranks = s->comm ? s->ranks.ranks : 1, steps = (uint64_t)s->cfg->total_steps;
    run_load out = {.load = job_shape_load(m, &largest)};
    out.tokens = (double)ranks * largest.micro_batches * largest.rows * largest.seq;
    out.padded = (double)ranks * largest.micro_batches * shape_tokens(&largest);
    if (!s->train || steps == 0) return out;
    uint64_t n = sampled_steps(s, &largest);
    run_load sum = {.tokens = 0};
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < largest.micro_batches; k++)
            for (uint32_t r = 0; r < ranks; r++) {
                tm_batch_shape b;
                tm_dataset_shape(data_set(s->train), sampled_step(i, n, steps), k, r, &b);
                sum.tokens += (double)b.mask_tokens;
                sum.padded += b.tokens;
                if (r != s->ranks.rank) continue;
                sum.load.rows += b.rows;
                sum.load.tokens += b.tokens;
                sum.load.labels += (double)b.label_tokens;
                add_attention(m, &b, tm_dataset_document_tokens(data_set(s->train)), &sum.load);
            }
    double batches = (double)n * largest.micro_batches;
    out.load = (job_load){.rows = sum.load.rows / batches,
                          .tokens = sum.load.tokens / batches,
                          .labels = sum.load.labels / batches,
                          .pairs = sum.load.pairs / batches,
                          .window_pairs = sum.load.window_pairs / batches};
    out.tokens = sum.tokens / (double)n;
    out.padded = sum.padded / (double)n;
    return out;
}
