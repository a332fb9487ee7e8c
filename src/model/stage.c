/* A stage's code to the functions that run it. */
#include "model/model_internal.h"

typedef struct stage_ops {
    void (*forward)(const tm_stage_args *a);
    void (*backward)(const tm_stage_args *a);
    stage_workspace *workspace; /* NULL: none */
} stage_ops;

static const stage_ops ops[] = {
    [STAGE_EMBED] = {embed_forward, embed_backward, NULL},
    [STAGE_NORM] = {norm_forward, norm_backward, norm_workspace},
    [STAGE_ATTN_IN] = {in_forward, in_backward, in_workspace},
    [STAGE_ATTN] = {attention_forward, attention_backward, attention_workspace},
    [STAGE_ATTN_OUT] = {attention_out_forward, attention_out_backward, NULL},
    [STAGE_MLP_IN] = {in_forward, in_backward, in_workspace},
    [STAGE_MLP_OUT] = {mlp_out_forward, mlp_out_backward, mlp_out_workspace},
    [STAGE_HEAD] = {head_forward, head_backward, head_workspace},
};

uint64_t tm_stage_workspace(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, uint32_t rows,
                            uint32_t seq) {
    const tm_stage *s = &m->unit[unit].stage[stage];
    bool none = !rows || !seq || !ops[s->code].workspace;
    return none ? 0 : ops[s->code].workspace(m, s, backward, rows, seq);
}

/* What the caller and the batch must agree on; a violation is ours, not the user's. */
static tm_status check(const tm_stage_args *a) {
    const tm_micro_batch *b = a->batch;
    bool ok = a->unit < a->model->n_units && a->stage < a->model->unit[a->unit].n_stages && b->tokens % 64 == 0 &&
              b->tokens >= model_used(b);
    return ok ? TM_OK
              : tm_fail(TM_EBUG, "stage %u of unit %u: %u x %u tokens in %u rows", a->stage, a->unit, b->rows, b->seq,
                        b->tokens);
}

static tm_stage_args with_kernels(const tm_stage_args *a) {
    tm_stage_args x = *a;
    if (!x.kernels) x.kernels = tm_kernels_host();
    return x;
}

tm_status tm_stage_forward(const tm_stage_args *a) {
    tm_stage_args x = with_kernels(a);
    TM_TRY(check(a));
    if (model_used(a->batch)) ops[model_stage_of(a)->code].forward(&x);
    return TM_OK;
}

/* An empty micro-batch contributes zero, which is something to write if it comes first. */
static void empty_backward(const tm_stage_args *a) {
    const tm_stage *s = model_stage_of(a);
    for (unsigned p = 0; p < s->n_parts; p++)
        if (s->part_gradient[p] && a->weight_grad[p] && a->weight_grad_fresh[p])
            a->kernels->zero(a->weight_grad[p], a->model->part[s->part[p]].elements * sizeof(float));
}

tm_status tm_stage_backward(const tm_stage_args *a) {
    tm_stage_args x = with_kernels(a);
    TM_TRY(check(a));
    if (model_used(a->batch))
        ops[model_stage_of(a)->code].backward(&x);
    else
        empty_backward(&x);
    return TM_OK;
}

void model_zero_tail(const tm_stage_args *a, void *x, uint64_t row_bytes) {
    const tm_micro_batch *b = a->batch;
    uint64_t rows = model_rows(b);
    if (b->tokens > rows) a->kernels->zero((char *)x + rows * row_bytes, (b->tokens - rows) * row_bytes);
}

float *model_small_gradient(const tm_stage_args *a, unsigned part) {
    float *grad = a->weight_grad[part];
    if (grad && a->weight_grad_fresh[part])
        a->kernels->zero(grad, a->model->part[model_stage_of(a)->part[part]].elements * sizeof *grad);
    return grad;
}
