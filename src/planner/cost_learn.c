/* What a run teaches. Timed alone (cost_measure.c), an operation has the caches and the memory to itself; in a step it
 * shares them with transfers, on a shared machine with neighbours too, and a team of threads that slept wakes late. The
 * means of a run are what the next one may expect. */
#include "planner/cost_table_internal.h"

/* Fewer calls, or less time in all, say little. */
enum { LEAST_CALLS = 3 };
static const double LEAST_SECONDS = 2;

tm_status job_costs_observe(job_costs *c) {
    for (int b = 0; b < 2; b++)
        if (!c->observed[b] && !(c->observed[b] = tm_calloc(c->stages + 1, sizeof *c->observed[b])))
            return tm_nomem(c->stages * sizeof *c->observed[b]);
    return TM_OK;
}

/* In micro-batches like those that the table is of, by the work in it; 0: nothing was left for it. */
static double how_many(const job_costs *c, const tm_op *op, bool backward) {
    const tm_model *m = c->job->model;
    op_args a = op_args_of(op);
    const job_batch *b = &c->job->step.batch[job_batch_index(c->job, a.stage.lane)];
    if (b->rows == 0) return 0;
    job_load load = job_shape_load(tm_model_get_config(m), &(job_shape){.rows = b->rows, .seq = b->seq});
    load.labels = b->label_rows;
    return cost_scaled(1, job_load_work(m, a.stage.unit, a.stage.stage, backward, c->load),
                       job_load_work(m, a.stage.unit, a.stage.stage, backward, load));
}

/* A process that is stopped for a while, or a machine that sleeps, is no cost of the operation that was under way. */
static const double PAUSE_SECONDS = 1, PAUSE_TIMES = 8;

void cost_observed_add(cost_heard *h, double seconds, double n) {
    double usual = h->n > 0 ? h->seconds / h->n * n : seconds;
    if (seconds > PAUSE_SECONDS && seconds > PAUSE_TIMES * usual) return;
    if (usual > PAUSE_SECONDS && usual > PAUSE_TIMES * seconds) *h = (cost_heard){0}; /* the first was it */
    h->seconds += seconds;
    h->n += n;
}

void job_costs_hear(void *costs, const tm_op *op, double seconds) {
    job_costs *c = costs;
    bool backward = op->code == OP_BACKWARD;
    c->side[cost_side_of(c, op)].observed_seconds += seconds;
    cost_tile tile = cost_tile_of(op);
    if (tile < COST_TILES &&
        (tile == COST_FINISH || c->job->step.result.finite)) /* skipped they take next to nothing */
        cost_observed_add(&c->observed_tile[tile], seconds, op_amount(c->job, op));
    if ((op->code != OP_FORWARD && !backward) || !c->observed[0] || !c->observed[1]) return;
    double n = how_many(c, op, backward);
    op_args a = op_args_of(op);
    if (n > 0)
        cost_observed_add(&c->observed[backward][c->first[a.stage.unit] + a.stage.stage],
                          seconds * (op->flags & OP_KEPT_LOGITS ? COST_WITHOUT_KEPT_LOGITS : 1), n);
}

/* The stages that stand for others speak for them. */
static void gather(job_costs *c, bool backward) {
    const tm_model *m = c->job->model;
    for (uint32_t unit = 0; unit < tm_model_units(m); unit++)
        for (uint32_t stage = 0; stage < tm_model_unit(m, unit)->n_stages; stage++) {
            uint32_t u = c->alike[c->first[unit] + stage].unit, s = c->alike[c->first[unit] + stage].stage;
            if (u == unit && s == stage) continue;
            const cost_heard *from = &c->observed[backward][c->first[unit] + stage];
            job_work work = job_load_work(m, unit, stage, backward, c->load);
            cost_observed_add(&c->observed[backward][c->first[u] + s],
                              cost_scaled(from->seconds, work, job_load_work(m, u, s, backward, c->load)), from->n);
        }
}

/* A run that was short says little. */
static bool heard_enough(const cost_source *s) {
    return s->profile && s->observed_seconds >= LEAST_SECONDS;
}

static tm_status put_stage(job_costs *c, uint32_t unit, uint32_t stage, bool backward) {
    const tm_model *m = c->job->model;
    tm_profile *profile = c->side[c->stage_side].profile;
    const cost_heard *h = &c->observed[backward][c->first[unit] + stage];
    tm_op op = op_make(c->job, backward ? OP_BACKWARD : OP_FORWARD, (op_args){.stage = {.unit = unit, .stage = stage}});
    cost_stage first = c->alike[c->first[unit] + stage];
    char key[COST_KEY];
    if (first.unit != unit || first.stage != stage || h->n < LEAST_CALLS) return TM_OK;
    cost_stage_key(c, &op, key, sizeof key);
    job_work had = job_load_work(m, unit, stage, backward, c->load);
    return tm_profile_put(profile, key,
                          cost_scaled(h->seconds / h->n, had, job_stage_work(m, unit, stage, backward, &c->timed)));
}

static cost_side tile_side(const job_costs *c, cost_tile which) {
    return which == COST_UPDATE_THERE ? COST_DEVICE : which == COST_FINISH ? c->stage_side : COST_HOST;
}

static tm_status put_tiles(job_costs *c, cost_tile which) {
    const cost_heard *h = &c->observed_tile[which];
    tm_profile *profile = c->side[tile_side(c, which)].profile;
    char key[64];
    if (h->n <= 0 || (which != COST_FINISH && which != COST_DECODE && !c->job->optimizer)) return TM_OK;
    double n = cost_tile_key(c, which, key, sizeof key);
    return h->n < LEAST_CALLS * n ? TM_OK : tm_profile_put(profile, key, h->seconds / h->n * n);
}

static tm_status put_stages(job_costs *c) {
    const tm_model *m = c->job->model;
    for (int b = 0; b < 2; b++) {
        gather(c, b);
        for (uint32_t u = 0; u < tm_model_units(m); u++)
            for (uint32_t s = 0; s < tm_model_unit(m, u)->n_stages; s++) TM_TRY(put_stage(c, u, s, b));
    }
    return TM_OK;
}

tm_status job_costs_learn(job_costs *c) {
    if (!c->observed[0] || !c->observed[1]) return TM_OK;
    if (heard_enough(&c->side[c->stage_side])) TM_TRY(put_stages(c));
    for (int k = 0; k < COST_TILES; k++)
        if (heard_enough(&c->side[tile_side(c, (cost_tile)k)])) TM_TRY(put_tiles(c, (cost_tile)k));
    for (int s = 0; s < COST_SIDES; s++) {
        if (!heard_enough(&c->side[s])) continue;
        c->side[s].observed_seconds = 0;
        TM_TRY(tm_profile_save(c->side[s].profile));
    }
    return TM_OK;
}
