/* The metric that evaluations are compared by, and early stopping. */
#include "train/trainer_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What evaluations of tokens have beside the objective's metrics. */
static const char *const of_tokens[] = {"perplexity", "bits_per_byte"};

static bool is_there(const trainer *t, const char *name) {
    const tm_objective *o = tm_objective_of(t->s.cfg->objective.type);
    double value;
    if (trainer_task_metric(t, name, &value)) return true;
    if (!t->s.eval) return false;
    if (!strcmp(name, "loss")) return true;
    for (size_t i = 0; i < TM_COUNT(of_tokens) && !o->by_sample; i++)
        if (!strcmp(name, of_tokens[i])) return i == 0 || t->s.label_bytes;
    for (uint32_t i = 0; i < o->n_metrics; i++)
        if (!strcmp(name, o->metric[i])) return true;
    return false;
}

static tm_status list_metrics(const trainer *t, tm_buf *all) {
    const tm_objective *o = tm_objective_of(t->s.cfg->objective.type);
    if (t->s.eval) {
        TM_TRY(tm_buf_printf(all, "loss"));
        for (size_t i = 0; i < TM_COUNT(of_tokens) && !o->by_sample; i++)
            if (i == 0 || t->s.label_bytes) TM_TRY(tm_buf_printf(all, ", %s", of_tokens[i]));
        for (uint32_t i = 0; i < o->n_metrics; i++) TM_TRY(tm_buf_printf(all, ", %s", o->metric[i]));
    }
    for (uint32_t i = 0; i < t->s.scores.n; i++)
        TM_TRY(tm_buf_printf(all, "%s%s", all->len ? ", " : "", t->s.scores.name[i]));
    return TM_OK;
}

tm_status trainer_check_metric(const trainer *t) {
    const char *name = t->s.cfg->metric_for_best;
    tm_buf all = {0};
    if (!session_evaluates(&t->s) || !t->s.cfg->track_best || is_there(t, name)) return TM_OK;
    tm_status rc = list_metrics(t, &all);
    if (rc == TM_OK)
        rc = tm_fail(TM_EINPUT, "\"metric_for_best_model\": an evaluation of this run has no \"%s\"; it has %s", name,
                     all.data);
    tm_buf_free(&all);
    return rc;
}

double trainer_bits_per_byte(const trainer *t) {
    return t->s.label_bytes ? t->eval.total.loss_sum / (M_LN2 * (double)t->s.label_bytes) : NAN;
}

double trainer_metric(const trainer *t, double loss) {
    const char *name = t->s.cfg->metric_for_best;
    double value[STEP_METRICS];
    double of_task;
    if (trainer_task_metric(t, name, &of_task)) return of_task;
    if (!t->s.eval) return NAN;
    uint32_t n = step_total_metrics(t->job, &t->eval.total, value);
    if (!strcmp(name, "perplexity")) return exp(loss);
    if (!strcmp(name, "bits_per_byte")) return trainer_bits_per_byte(t);
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(name, t->job->objective->metric[i])) return value[i];
    return loss;
}

/* ---- early stopping --------------------------------------------------------------------------------------------- */

/* As HF Trainer's EarlyStoppingCallback: better than the best by more than the threshold begins the count again. */
static bool improves(const trainer *t, double value) {
    const trainer_patience *p = &t->patience;
    if (!p->any) return true;
    double by = t->s.cfg->greater_is_better ? value - p->best : p->best - value;
    return by > 0 && by > t->s.cfg->early_stopping_threshold;
}

static bool is_best(const trainer *t, double value) {
    const trainer_patience *p = &t->patience;
    return isfinite(value) && (!p->any || (t->s.cfg->greater_is_better ? value > p->best : value < p->best));
}

void trainer_count_patience(trainer *t, double value) {
    trainer_patience *p = &t->patience;
    if (t->s.cfg->early_stopping_patience == 0 || p->step == t->step) return; /* done again after a resume */
    p->step = t->step;
    p->count = improves(t, value) ? 0 : p->count + 1;
    if (is_best(t, value)) {
        p->best = value;
        p->any = true;
    }
}

bool trainer_is_out_of_patience(const trainer *t) {
    return t->s.cfg->early_stopping_patience > 0 && t->patience.count >= t->s.cfg->early_stopping_patience;
}

void trainer_say_patience(const trainer *t) {
    if (!session_is_rank0(&t->s)) return;
    tm_log(TM_LOG_INFO,
           "step %" PRId64 " of %" PRId64 ": %u evaluations in a row are no better than %s %.6g; the run ends here",
           t->step, t->s.cfg->total_steps, t->patience.count, t->s.cfg->metric_for_best, t->patience.best);
}

void trainer_describe_patience(const trainer *t, tm_json_writer *w) {
    const trainer_patience *p = &t->patience;
    if (p->step == 0) return;
    tm_jw_field_object(w, "early_stopping");
    tm_jw_field_int(w, "step", p->step);
    tm_jw_field_uint(w, "count", p->count);
    if (p->any) tm_jw_field_double(w, "best", p->best);
    tm_jw_object_end(w);
}

void trainer_read_patience(trainer *t, const tm_json *info) {
    const tm_json *p = tm_json_get(info, "early_stopping"), *step = tm_json_get(p, "step"),
                  *count = tm_json_get(p, "count"), *best = tm_json_get(p, "best");
    if (!step || !step->is_integer || !count || !count->is_integer || count->integer < 0) return;
    t->patience =
        (trainer_patience){.step = step->integer, .count = (uint32_t)tm_min_u64((uint64_t)count->integer, UINT32_MAX)};
    t->patience.any = best && best->type == TM_JSON_NUMBER;
    if (t->patience.any) t->patience.best = best->number;
}
