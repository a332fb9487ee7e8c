/* When a run does not learn: where the numbers stop being finite, and which steps stand out. Neither changes a bit. */
#include "io/io.h"
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the first value that is not finite -------------------------------------------------------------------------- */

typedef struct heaviest {
    double value;
    const char *tensor; /* NULL: there are no weights */
} heaviest;

/* The step computed once more, without an update, and each result looked at. */
typedef struct look {
    tm_job *job;
    heaviest so_far; /* of the stages whose output was finite: they may have made it all but infinite */
    char found[320];
} look;

static double value_of(const void *at, uint64_t i, tm_dtype type) {
    static const tm_fmt fmt[] = {[TM_F32] = TM_FMT_F32, [TM_BF16] = TM_FMT_BF16, [TM_F16] = TM_FMT_F16};
    float v;
    tm_fmt_decode(fmt[type], (const char *)at + i * tm_dtype_bytes(type), 1, &v);
    return (double)v;
}

static bool finite_values(const void *at, uint64_t n, tm_dtype type) {
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(value_of(at, i, type))) return false;
    return true;
}

/* Infinite where one is not a number, too. */
static double largest(const void *at, uint64_t n, tm_dtype type) {
    double most = 0;
    for (uint64_t i = 0; i < n; i++) {
        double v = fabs(value_of(at, i, type));
        most = isfinite(v) ? fmax(most, v) : INFINITY;
    }
    return most;
}

static double largest_packed(const tm_packed *p, uint64_t elements) {
    enum { SPAN = 1024 };
    float some[SPAN];
    double most = 0;
    for (uint64_t row = 0; row < elements / p->k; row++)
        for (uint64_t at = 0; at < p->k; at += SPAN) {
            size_t n = tm_min_u64(SPAN, p->k - at);
            tm_packed_values(p, row, at, n, TM_ELEM_F32, some);
            most = fmax(most, largest(some, n, TM_F32));
        }
    return most;
}

/* Of the stage's parts. */
static heaviest heaviest_of(const tm_job *job, const tm_stage *stage, const op_call *c) {
    heaviest h = {.value = -1};
    void *const *part = op_operands(c, OPERAND_WEIGHT);
    for (uint32_t i = 0; i < stage->n_parts; i++) {
        if (!stage->part_in_forward[i]) continue;
        const char *weights = op_weight(job, stage->part[i], *part++);
        tm_packed room;
        const tm_packed *packed = i == 0 ? op_packed(c, weights, &room) : NULL;
        const tm_segment *s = tm_model_part_segments(job->model, stage->part[i]);
        for (uint32_t k = 0; k < tm_model_part(job->model, stage->part[i])->n_segments; k++) {
            uint64_t at = s[k].part_offset * tm_dtype_bytes(job->dtype);
            double here =
                packed ? largest_packed(packed, s[k].elements) : largest(weights + at, s[k].elements, job->dtype);
            if (here > h.value) h = (heaviest){here, tm_model_tensor(job->model, s[k].tensor)->name};
        }
    }
    return h;
}

/* "; the largest weight there is 1e+30, in model.layers.0.mlp.up_proj.weight" */
static void name_heaviest(look *l, heaviest there) {
    size_t used = strlen(l->found);
    bool before = l->so_far.value > there.value;
    if (before) there = l->so_far;
    const char *where = before ? "up to there" : "there";
    if (there.tensor && isfinite(there.value))
        snprintf(l->found + used, sizeof l->found - used, "; the largest weight %s is %.3g, in %s", where, there.value,
                 there.tensor);
    else if (there.tensor)
        snprintf(l->found + used, sizeof l->found - used, "; a weight %s is not finite, in %s", where, there.tensor);
}

/* Of slots only the residual stream is looked at: its width says how it is stored. */
static void look_forward(look *l, const op_call *c) {
    const tm_unit *u = tm_model_unit(l->job->model, c->args.stage.unit);
    const tm_stage *stage = &u->stage[c->args.stage.stage];
    uint32_t mb = c->args.stage.lane / l->job->n_lanes;
    uint64_t h = tm_model_get_config(l->job->model)->hidden_size,
             tokens = l->job->step.batch[job_batch_index(l->job, c->args.stage.lane)].tokens;
    void *const *slot = op_operands(c, OPERAND_SLOT);
    for (uint32_t i = 0; i < stage->n_forward; i++) {
        const tm_slot_use *use = &stage->forward[i];
        uint32_t bytes = u->slot[use->slot].bytes;
        bool stream = use->slot == 1 || (u->kind == TM_UNIT_HEAD && use->slot == 2);
        if (use->access == TM_READ || !stream || (bytes != 2 * h && bytes != 4 * h)) continue;
        if (finite_values(slot[i], tokens * h, bytes == 2 * h ? l->job->dtype : TM_F32)) continue;
        snprintf(l->found, sizeof l->found, "the output of %s (%s, micro-batch %u)", u->name, stage->name, mb);
        name_heaviest(l, heaviest_of(l->job, stage, c));
        return;
    }
    heaviest here = heaviest_of(l->job, stage, c);
    if (here.value > l->so_far.value) l->so_far = here;
}

static void look_gradient(look *l, const op_call *c) {
    uint32_t of = c->args.finish.part;
    span tile = sum_tile(l->job, of, c->args.finish.tile);
    uint64_t at = tile.begin, blocks = tm_norm_block_count(tile.n);
    const double *partial = op_operand(c, OPERAND_PARTIAL);
    partial += (uint64_t)c->args.finish.tile * (TM_TILE_ELEMENTS / TM_NORM_BLOCK);
    uint64_t b = 0;
    while (b < blocks && isfinite(partial[b])) b++;
    if (b == blocks) return;
    const tm_part *part = tm_model_part(l->job->model, of);
    const tm_segment *s = tm_model_part_segments(l->job->model, of);
    uint32_t k = 0;
    while (k + 1 < part->n_segments && s[k + 1].part_offset <= at + b * TM_NORM_BLOCK) k++;
    snprintf(l->found, sizeof l->found, "the gradient of %s (%s)", tm_model_tensor(l->job->model, s[k].tensor)->name,
             tm_model_unit(l->job->model, part->unit)->name);
}

static tm_status look_op(void *ctx, const tm_op *op, void *const *operand) {
    look *l = ctx;
    TM_TRY(job_run_op(l->job, op, operand));
    op_call c = op_call_of(l->job, op);
    c.operand = operand;
    if (l->found[0]) return TM_OK;
    if (op->code == OP_FORWARD && l->job->step.batch[job_batch_index(l->job, c.args.stage.lane)].rows > 0)
        look_forward(l, &c);
    if (op->code == OP_FINISH) look_gradient(l, &c);
    return TM_OK;
}

static tm_status compile_look(trainer *t, const pass_opts *way, tm_plan **plan) {
    tm_program *p;
    TM_TRY(build_pass(&p, t->job, "diagnosis", way));
    tm_status rc = job_compile(t->job, p, plan);
    tm_program_free(p);
    return rc;
}

static tm_status look_for(trainer *t, look *l) {
    tm_plan *plan = NULL;
    if (t->job->tiers.kernels) return TM_EUNSUPPORTED; /* what they leave is in the device's memory */
    pass_opts way = t->plans.way;                      /* the one that is known to fit */
    way.update = UPDATE_NONE;
    way.park = t->job->parks;
    way.no_spill |= t->job->account.needs.spill == 0; /* what did not spill so far has no file to spill to; */
    tm_status rc = compile_look(t, &way, &plan);
    if (rc == TM_EBUDGET) { /* placed otherwise than the step, what is kept need not fit, nor what is spilled */
        tm_error_clear();
        way.keep_quarters = 0;
        way.no_spill = true;
        rc = compile_look(t, &way, &plan);
    }
    if (rc == TM_EBUDGET &&
        t->plans.way.update == UPDATE_AFTER) { /* the step itself fits, and skips its update again */
        tm_error_clear();
        rc = compile_look(t, &t->plans.way, &plan);
    }
    t->step--; /* whose batch is looked at */
    if (rc == TM_OK) rc = tm_exec_run(t->job->tiers.exec, plan, look_op, l);
    t->step++;
    tm_plan_free(plan);
    return rc;
}

tm_status trainer_give_up(trainer *t, int skipped) {
    look l = {.job = t->job};
    t->torn = false; /* the update was skipped: the state is whole */
    if (session_commits(&t->s) && t->committed != t->step) TM_TRY(trainer_commit(t));
    TM_TRY(trainer_settle(t));
    if (look_for(t, &l) != TM_OK) tm_error_clear(); /* then it is not known */
    return tm_fail(TM_EIO,
                   "step %" PRId64 ": %d steps in a row had no finite loss or gradient, the first of this one is %s; "
                   "their updates were skipped; lower learning_rate, start from an earlier checkpoint, or check the "
                   "data",
                   t->step, skipped, l.found[0] ? l.found : "not found when it is computed again");
}

/* ---- steps that stand out ---------------------------------------------------------------------------------------- */

/* Above the running median by six times the median distance from it (four standard deviations), by a tenth of it and by
 * a tenth of a nat: a loss that hardly varies, or is near zero, does not spike by varying. */
static bool is_spike(const trainer *t, double loss, double *median) {
    double v[TRAINER_LOSSES];
    uint32_t n = t->n_losses < TRAINER_LOSSES ? t->n_losses : TRAINER_LOSSES;
    if (n < TRAINER_LOSSES / 2) return false;
    memcpy(v, t->losses, n * sizeof *v);
    *median = tm_median(v, n);
    for (uint32_t i = 0; i < n; i++) v[i] = fabs(t->losses[i] - *median);
    return loss - *median > fmax(6 * tm_median(v, n), fmax(0.1 * *median, 0.1));
}

static tm_status log_spike(trainer *t, double loss, double median) {
    tm_dataset *ds = data_set(t->s.train);
    tm_step_info info;
    tm_buf line = {0};
    tm_json_writer w;
    if (!session_is_rank0(&t->s)) return TM_OK;
    uint64_t step = (uint64_t)t->step - 1;
    tm_dataset_step_info(ds, step, &info);
    trainer_line_begin(t, &w, &line, "spike");
    tm_jw_field_double(&w, "loss", loss);
    tm_jw_field_double(&w, "median", median);
    tm_jw_field_array(&w, "rows");
    for (uint64_t i = 0; i < info.samples && i < 64; i++) tm_jw_uint(&w, tm_dataset_step_sample(ds, step, i));
    tm_jw_array_end(&w);
    return trainer_line_end(t, &w, &line);
}

tm_status trainer_note_loss(trainer *t) {
    const step_frame *r = &t->job->step.result;
    step_total total = {0};
    step_total_add(&total, &t->job->step);
    double median, loss = step_total_loss(t->job, &total);
    if (!r->finite || isnan(loss)) return TM_OK; /* said already */
    if (is_spike(t, loss, &median)) {
        tm_log(TM_LOG_WARN, "step %" PRId64 ": loss %.4f, the median before it %.4f", t->step, loss, median);
        TM_TRY(log_spike(t, loss, median));
    }
    t->losses[t->n_losses++ % TRAINER_LOSSES] = loss;
    return TM_OK;
}
