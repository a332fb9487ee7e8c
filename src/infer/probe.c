/* probe: logits, loss and gradients for given ids. Each row is a micro-batch, so that memory does not grow with rows.
 */
#include "infer/forward_internal.h"
#include "planner/start.h"
#include "session/token_rows.h"
#include "step/step.h"
#include "infer/infer.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct probe {
    const tm_probe_args *args;
    tm_st *in;
    tm_st_writer *out;
    uint32_t ids, labels, mask, segments; /* tensors of `in`, UINT32_MAX: none */
    uint64_t rows, seq, vocab;
    uint32_t logits, loss, norm;
    uint32_t *grad; /* per tensor of the model: in `out` */
    int64_t *row;
    tm_adapter_folder *adapter;
    tm_job *job;
} probe;

static tm_status input(probe *p, const char *name, bool required, uint32_t *index) {
    int64_t at = tm_st_find(p->in, name);
    *index = at < 0 ? UINT32_MAX : (uint32_t)at;
    if (at < 0 && !required) return TM_OK;
    const tm_st_info *info = at < 0 ? NULL : tm_st_get(p->in, (uint32_t)at);
    if (!info || info->ndim != 2 || info->shape[0] == 0 || info->shape[1] == 0 || info->shape[1] > 1u << 24)
        return tm_fail(TM_EINPUT, "%s: a tensor %s of shape [rows, positions] is needed", p->args->input, name);
    if (required) {
        p->rows = info->shape[0];
        p->seq = info->shape[1];
    } else if (info->shape[0] != p->rows || info->shape[1] != p->seq) {
        return tm_fail(TM_EINPUT, "%s: %s must have the shape of input_ids [%llu, %llu]", p->args->input, name,
                       (unsigned long long)p->rows, (unsigned long long)p->seq);
    }
    return TM_OK;
}

static tm_status read_row(probe *p, uint32_t tensor, uint32_t row) {
    return tm_st_read_i64(p->in, tensor, row * p->seq, p->seq, p->row);
}

static tm_status fill_documents(probe *p, uint32_t row, const job_columns *to) {
    TM_TRY(read_row(p, p->segments, row));
    for (uint64_t i = 0; i < p->seq; i++) to->mask[i] = to->mask[i] && p->row[i] != 0;
    memset(to->begin, 0, to->capacity * sizeof *to->begin);
    return rows_begin(p->args->input, row, p->row, p->seq, to->begin);
}

static tm_status fill(void *ctx, uint32_t mb, uint32_t batch, const job_columns *to, job_batch *out) {
    probe *p = ctx;
    (void)batch;
    memset(to->ids, 0, to->capacity * sizeof *to->ids);
    memset(to->mask, 0, to->capacity);
    for (uint32_t i = 0; i < to->capacity; i++) to->labels[i] = TM_LABEL_IGNORE;
    *out = (job_batch){.rows = 1, .seq = (uint32_t)p->seq, .tokens = to->capacity};
    TM_TRY(read_row(p, p->ids, mb));
    for (uint64_t i = 0; i < p->seq; i++) {
        if (p->row[i] < 0 || (uint64_t)p->row[i] >= p->vocab)
            return tm_fail(TM_EINPUT, "%s: input_ids[%u, %llu] = %lld is outside the vocabulary of %llu",
                           p->args->input, mb, (unsigned long long)i, (long long)p->row[i],
                           (unsigned long long)p->vocab);
        to->ids[i] = (int32_t)p->row[i];
        to->mask[i] = 1;
    }
    if (p->mask != UINT32_MAX) {
        TM_TRY(read_row(p, p->mask, mb));
        for (uint64_t i = 0; i < p->seq; i++) to->mask[i] = p->row[i] != 0;
    }
    if (p->segments != UINT32_MAX) TM_TRY(fill_documents(p, mb, to));
    for (uint64_t i = 0; i < p->seq; i++) out->mask_tokens += to->mask[i];
    if (p->labels == UINT32_MAX) return TM_OK;
    TM_TRY(read_row(p, p->labels, mb)); /* position t is scored with label t+1 */
    for (uint64_t i = 1; i < p->seq; i++) {
        if (p->row[i] == TM_LABEL_IGNORE || (to->begin && to->begin[i] == i)) continue;
        if (p->row[i] < 0 || (uint64_t)p->row[i] >= p->vocab)
            return tm_fail(TM_EINPUT, "%s: labels[%u, %llu] = %lld is outside the vocabulary of %llu", p->args->input,
                           mb, (unsigned long long)i, (long long)p->row[i], (unsigned long long)p->vocab);
        to->labels[i - 1] = (int32_t)p->row[i];
        out->label_tokens++;
    }
    return TM_OK;
}

static tm_status take_logits(void *ctx, uint32_t mb, uint32_t first_row, uint32_t rows, uint64_t first_column,
                             uint64_t columns, const float *logits, uint64_t ld) {
    probe *p = ctx;
    for (uint32_t i = 0; i < rows && first_row + i < p->seq; i++)
        TM_TRY(tm_st_writer_write(p->out, p->logits, ((mb * p->seq + first_row + i) * p->vocab + first_column) * 4,
                                  logits + i * ld, columns * 4));
    return TM_OK;
}

static tm_status take_values(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, const float *values) {
    probe *p = ctx;
    return tm_st_writer_write_f32(p->out, p->grad[tensor], first, n, values);
}

static tm_status declare(probe *p) {
    TM_TRY(tm_st_writer_create(&p->out, p->args->output));
    TM_TRY(tm_st_writer_add(p->out, "logits", TM_FMT_F32, 3, (uint64_t[]){p->rows, p->seq, p->vocab}, &p->logits));
    if (p->labels != UINT32_MAX) TM_TRY(tm_st_writer_add(p->out, "loss", TM_FMT_F32, 1, (uint64_t[]){1}, &p->loss));
    if (!p->args->gradients) return TM_OK;
    TM_TRY(tm_st_writer_add(p->out, "grad_norm", TM_FMT_F32, 1, (uint64_t[]){1}, &p->norm));
    uint32_t n = tm_model_tensors(p->job->model);
    p->grad = tm_calloc(n + 1, sizeof *p->grad);
    if (!p->grad) return tm_nomem(n * sizeof *p->grad);
    for (uint32_t t = 0; t < n; t++) {
        const tm_tensor *tensor = tm_model_tensor(p->job->model, t);
        char name[512];
        if (!tensor->learns) continue;
        snprintf(name, sizeof name, "grad.%s%s", p->job->name_prefix, tensor->name);
        TM_TRY(tm_st_writer_add(p->out, name, TM_FMT_F32, tensor->ndim, tensor->shape, &p->grad[t]));
    }
    return TM_OK;
}

static tm_status write_scalars(probe *p) {
    const step_frame *s = &p->job->step.result;
    uint64_t labels = p->job->step.labels;
    float loss = labels ? (float)(s->loss_sum / (double)labels) : NAN, norm = (float)s->grad_norm;
    if (p->labels != UINT32_MAX) TM_TRY(tm_st_writer_write(p->out, p->loss, 0, &loss, sizeof loss));
    if (p->args->gradients) TM_TRY(tm_st_writer_write(p->out, p->norm, 0, &norm, sizeof norm));
    return TM_OK;
}

static tm_status run(probe *p) {
    job_opts o = {
        .model = p->args->model, .dtype = p->args->precision, .slots = 1, .packed = p->segments != UINT32_MAX};
    TM_TRY(forward_opts(&o, &p->args->tiers, &p->adapter));
    TM_TRY(job_open(&p->job, &o));
    p->vocab = tm_model_get_config(p->job->model)->vocab_size;
    TM_TRY(declare(p));
    p->job->sinks.fill = fill;
    p->job->sinks.take_logits = take_logits;
    p->job->sinks.take_values = take_values;
    p->job->sinks.fill_ctx = p->job->sinks.take_ctx = p;
    pass_opts way = {.shape = {.micro_batches = (uint32_t)p->rows, .rows = 1, .seq = (uint32_t)p->seq},
                     .logits = LOGITS_ALL,
                     .loss = true,
                     .backward = p->args->gradients,
                     .take_gradients = p->args->gradients,
                     .stage_wise = p->rows > 1};
    planner_choice c;
    tm_status rc = job_start(&(planner_ask){.job = p->job, .name = "probe", .way = &way, .n = 1}, &c);
    if (rc == TM_OK) rc = job_run(p->job, c.plan);
    planner_drop(&c);
    if (rc != TM_OK) return rc;
    TM_TRY(write_scalars(p));
    tm_st_writer *out = p->out;
    p->out = NULL;
    return tm_st_writer_commit(out);
}

tm_status tm_probe_run(const tm_probe_args *args) {
    probe p = {.args = args};
    tm_status rc;
    TM_GO(tm_kernels_init(0, (tm_elem)args->precision));
    TM_GO(tm_st_open(&p.in, args->input));
    TM_GO(input(&p, "input_ids", true, &p.ids));
    TM_GO(input(&p, "labels", false, &p.labels));
    TM_GO(input(&p, "attention_mask", false, &p.mask));
    TM_GO(input(&p, "segment_ids", false, &p.segments));
    TM_GO(rows_known_only(p.in, args->input));
    if (args->gradients && p.labels == UINT32_MAX)
        TM_GO(tm_fail(TM_EINPUT, "%s: --grads needs a tensor labels", args->input));
    p.row = tm_malloc(p.seq * sizeof *p.row);
    if (!p.row) TM_GO(tm_nomem(p.seq * sizeof *p.row));
    TM_GO(run(&p));
done:
    tm_st_writer_abandon(p.out);
    tm_st_close(p.in);
    job_close(p.job);
    tm_adapter_folder_close(p.adapter);
    tm_free(p.row);
    tm_free(p.grad);
    return rc;
}
