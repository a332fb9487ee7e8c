/* What each of several files of data comes to. */
#include "infer/evaluate_internal.h"

#include <math.h>

/* Row r of a micro-batch is a sample of one file. */
static tm_status take(void *ctx, uint32_t mb, const tm_micro_batch *b, const float *nll) {
    evaluation *e = ctx;
    tm_dataset *ds = data_set(e->s.eval);
    for (uint32_t r = 0; r < b->rows; r++) {
        uint64_t place = (uint64_t)mb * e->cfg.eval_batch_size + r;
        file_sum *f = &e->file[tm_dataset_group(ds, tm_dataset_step_sample(ds, e->step, place))];
        for (uint64_t t = (uint64_t)r * b->seq; t < ((uint64_t)r + 1) * b->seq; t++) {
            if (b->labels[t] < 0) continue;
            f->nll += (double)nll[t];
            f->labels++;
        }
    }
    return TM_OK;
}

tm_status evaluate_files_open(evaluation *e) {
    tm_dataset *ds = data_set(e->s.eval);
    const tm_objective *o = tm_objective_of(e->cfg.objective.type);
    uint32_t n = tm_dataset_groups(ds);
    if (n < 2 || o->by_sample || tm_dataset_has_documents(ds)) return TM_OK;
    e->file = tm_calloc(n, sizeof *e->file);
    if (!e->file) return tm_nomem(n * sizeof *e->file);
    e->n_files = n;
    e->job->sinks.take_nll = take;
    e->job->sinks.take_ctx = e;
    return TM_OK;
}

tm_status evaluate_files_report(const evaluation *e, tm_eval_result *out) {
    if (e->n_files == 0) return TM_OK;
    out->file = tm_calloc(e->n_files, sizeof *out->file);
    if (!out->file) return tm_nomem(e->n_files * sizeof *out->file);
    for (uint32_t i = 0; i < e->n_files; i++) {
        const file_sum *f = &e->file[i];
        tm_eval_file *to = &out->file[out->n_files++];
        *to = (tm_eval_file){.name = tm_strdup(e->cfg.data.eval_items.item[i].path), .label_tokens = f->labels};
        to->loss = f->labels ? f->nll / (double)f->labels : NAN;
        if (!to->name) return tm_nomem(256);
    }
    return TM_OK;
}
