/* The job below an engine: a pass over prompts and one over the tokens of answers, compiled once; their batches; what is
 * kept of their logits. */
#include "base/change.h"
#include "infer/engine_internal.h"

#include <math.h>
#include <string.h>

/* ---- batches ---------------------------------------------------------------------------------------------------- */

static size_t position_of(const engine_pass *p, const engine_sequence *s) {
    return p->decode ? s->of->r.n_prompt + s->n_ids - 1 : s->computed;
}

static void fill_row(const engine_pass *p, uint32_t r, const job_columns *to) {
    const pass_row *row = &p->row[r];
    const engine_sequence *s = row->of;
    int32_t *id = to->ids + (size_t)r * p->seq;
    to->cache_row[r] = s->slot;
    to->cache_from[r] = s->from;
    to->position[r] = (uint32_t)position_of(p, s);
    for (uint32_t i = 0; i < row->n; i++) id[i] = p->decode ? s->ids[s->n_ids - 1] : s->of->r.prompt[s->computed + i];
}

/* What is computed past a row's tokens goes to positions of the cache that are written again before they are read. */
static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    const tm_engine *e = ctx;
    const engine_pass *p = &e->pass;
    (void)mb, (void)batch;
    memset(to->ids, 0, to->capacity * sizeof *to->ids);
    memset(to->mask, 1, to->capacity);
    for (uint32_t i = 0; i < to->capacity; i++) to->labels[i] = TM_LABEL_IGNORE;
    for (uint32_t r = 0; r < p->n; r++) fill_row(p, r, to);
    uint32_t tokens = (uint32_t)tm_round_up((uint64_t)p->n * p->seq, 64);
    TM_ASSERT(tokens <= to->capacity);
    *out = (job_batch){.rows = p->n, .seq = p->seq, .tokens = tokens, .decode = p->decode};
    return TM_OK;
}

/* ---- logits ----------------------------------------------------------------------------------------------------- */

static void keep_best(kept_logits *k, int32_t first, const float *logits, uint64_t n, float before) {
    if (!(k->state.max > before)) return;
    for (uint64_t i = 0; i < n; i++)
        if (logits[i] == k->state.max) {
            k->best = first + (int32_t)i;
            return;
        }
}

/* The largest in order, of equal ones the lowest id first. */
static void keep_top(kept_logits *k, int32_t first, const float *logits, uint64_t n) {
    for (uint64_t i = 0; i < n && k->most_top > 0; i++) {
        if (k->n_top == k->most_top && !(logits[i] > k->top[k->n_top - 1].logprob)) continue;
        uint32_t at = k->n_top < k->most_top ? k->n_top++ : k->n_top - 1;
        for (; at > 0 && logits[i] > k->top[at - 1].logprob; at--) k->top[at] = k->top[at - 1];
        k->top[at] = (tm_alternative){.id = first + (int32_t)i, .logprob = logits[i]};
    }
}

static tm_status take_logits(void *ctx, uint32_t mb, uint32_t wanted, uint32_t rows, uint64_t first, uint64_t columns,
                             const float *logits, uint64_t ld) {
    tm_engine *e = ctx;
    kept_logits *k = &e->pass.kept[wanted];
    const uint32_t row = 0;
    float before = k->state.max;
    (void)mb, (void)rows, (void)ld;
    tm_head h = {.rows = 1, .row = &row, .first = (uint32_t)first, .count = (uint32_t)columns};
    h.logits = (float *)(uintptr_t)logits, h.ld = columns, h.labels = &k->label, h.state = &k->state;
    tm_head_update(&h);
    keep_best(k, (int32_t)first, logits, columns, before);
    keep_top(k, (int32_t)first, logits, columns);
    if (k->all) memcpy(k->all + first, logits, columns * sizeof *logits);
    return TM_OK;
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/* All that is no base's is an adapter's. */
static tm_status compile_adapter(tm_engine *e, const tm_job *job, job_account *account) {
    tm_program *p;
    tm_plan_free(e->adapters.plan);
    e->adapters.plan = NULL;
    TM_TRY(build_import(&p, job));
    tm_status rc = job_compile_in(job, account, p, true, &e->adapters.plan);
    tm_program_free(p);
    return rc;
}

static tm_status compile_decode(void *ctx, const tm_job *job, job_account *account, const pass_opts *way) {
    tm_engine *e = ctx;
    tm_program *p;
    pass_opts one = *way;
    one.shape = (job_shape){.micro_batches = 1, .rows = e->opts.sequences, .seq = 1};
    tm_plan_free(e->decode);
    e->decode = NULL;
    TM_TRY(build_pass(&p, job, "decoding", &one));
    tm_status rc = job_compile_in(job, account, p, true, &e->decode);
    tm_program_free(p);
    return rc == TM_OK && e->adapters.n > 0 ? compile_adapter(e, job, account) : rc;
}

static tm_status start(tm_engine *e) {
    pass_opts way = {.shape = {.micro_batches = 1, .rows = e->opts.sequences, .seq = e->chunk, .tokens = e->chunk},
                     .logits = LOGITS_WANTED};
    pass_opts one = way;
    one.shape = (job_shape){.micro_batches = 1, .rows = e->opts.sequences, .seq = 1};
    const planner_ask ask = {.job = e->job,
                             .name = "generation",
                             .way = &way,
                             .n = 1,
                             .beside = &one,
                             .n_beside = 1,
                             .imports_again = e->adapters.n > 0,
                             .more = compile_decode,
                             .ctx = e};
    return job_start(&ask, &e->choice);
}

/* Where a window keeps fewer positions than there may be. */
static void look_at_rings(tm_engine *e) {
    e->ring = e->ring_slack = UINT32_MAX;
    for (uint32_t u = 0; u < tm_model_units(e->job->model); u++) {
        uint32_t positions = job_kv_positions(e->job, u), window = tm_model_unit(e->job->model, u)->kv_window;
        if (positions == e->opts.positions || window == 0) continue;
        e->ring = (uint32_t)tm_min_u64(e->ring, positions);
        e->ring_slack = (uint32_t)tm_min_u64(e->ring_slack, positions - window);
    }
}

/* Too small a budget, and nowhere for the cache to go. */
static tm_status advise(const tm_engine *e, tm_status rc) {
    const tm_tier_args *t = &e->opts.tiers;
    if (rc != TM_EBUDGET || t->offload_path || t->device) return rc;
    return tm_change_reword("%s; with --offload-path DIR the cache may lie in files there", tm_error_get()->text);
}

tm_status engine_open_job(tm_engine *e, uint64_t other_bytes) {
    job_opts o = {.model = e->opts.model,
                  .dtype = e->opts.precision,
                  .slots = 1,
                  .kv_rows = e->opts.sequences,
                  .kv_capacity = e->opts.positions,
                  .kv_chunk = e->chunk,
                  .positions = e->opts.positions,
                  .allow_tmpfs = e->opts.allow_tmpfs,
                  .plan_only = e->opts.plan_only,
                  .config_only = e->opts.to_be_written,
                  .unwritten = e->opts.to_be_written,
                  .other_bytes = other_bytes};
    TM_TRY(forward_opts(&o, &e->opts.tiers, &e->adapter));
    if (e->opts.adapter_like) o.adapter = e->opts.adapter_like;
    forward_only(&o);
    if (e->adapters.n > 0) engine_use_adapters(e, &o);
    TM_TRY(job_open(&e->job, &o));
    look_at_rings(e);
    e->job->sinks.fill = fill;
    e->job->sinks.take_logits = take_logits;
    e->job->sinks.may_go_on = e->opts.may_go_on;
    e->job->sinks.may_go_on_ctx = e->opts.may_go_on_ctx;
    e->job->sinks.fill_ctx = e->job->sinks.take_ctx = e;
    return advise(e, start(e));
}

/* Where tensors begin in files that are not there yet is not known: each may touch two pages more, and be an object more. */
uint64_t tm_engine_least(const tm_engine *e) {
    enum { OF_A_PIECE = 2 * TM_FRAME_ALIGN + 4096, OF_THE_REST = 256 << 10 };
    uint64_t least = e->choice.minimum_host_bytes;
    return e->opts.to_be_written ? least + (uint64_t)e->job->n_frozen * OF_A_PIECE + OF_THE_REST : least;
}

static void note_written(tm_engine *e) {
    const engine_pass *p = &e->pass;
    kv_begin_pass(e->job);
    for (uint32_t r = 0; r < p->n; r++) {
        const engine_sequence *s = p->row[r].of;
        uint32_t position = (uint32_t)position_of(p, s);
        engine_slot *slot = &e->slot[s->slot];
        slot->written = tm_max_u64(slot->written, position + p->seq);
        kv_use_row(e->job, &(kv_row){.row = s->slot, .from = s->from, .position = position, .seq = p->seq});
    }
}

tm_status engine_run_pass(tm_engine *e) {
    engine_pass *p = &e->pass;
    for (uint32_t i = 0; i < p->n_wanted; i++) {
        p->kept[i].state = (tm_head_state){.max = -INFINITY};
        p->kept[i].n_top = 0;
        p->kept[i].best = 0;
    }
    TM_TRY(engine_put_adapter(e, p->adapter));
    e->adapters.passes++;
    e->job->step.wanted = p->wanted;
    e->job->step.n_wanted = p->n_wanted;
    note_written(e);
    return job_run(e->job, p->decode ? e->decode : e->choice.plan);
}
