/* Kinds of stages, and the calls that run one. */
#include "model/model_internal.h"

static const stage_kind kinds[] = {
    [STAGE_EMBED] = {"embed", embed_forward, embed_backward, NULL, NULL, STAGE_LOOKS_UP | STAGE_OF_VOCABULARY},
    [STAGE_NORM] = {"norm", norm_forward, norm_backward, norm_workspace, NULL, 0},
    [STAGE_IN] = {"in", in_forward, in_backward, in_workspace, model_product_flops, 0},
    [STAGE_QK] = {"qk", qk_forward, qk_backward, qk_workspace, NULL, 0},
    [STAGE_ATTENTION] = {"attention", attention_forward, attention_backward, attention_workspace, attention_flops, 0},
    [STAGE_OUT] = {"out", out_forward, out_backward, out_workspace, model_product_flops, 0},
    [STAGE_GLU_OUT] = {"glu_out", glu_out_forward, glu_out_backward, glu_out_workspace, model_product_flops, 0},
    [STAGE_POST] = {"post", post_forward, post_backward, post_workspace, NULL, 0},
    [STAGE_POSITIONS] = {"positions", positions_forward, positions_backward, positions_workspace, NULL, 0},
    [STAGE_EMBED_ADAPTER] = {"embed_adapter", embed_adapter_forward, embed_adapter_backward, embed_adapter_workspace,
                             embed_adapter_flops, 0},
    [STAGE_HEAD] = {"head", head_forward, head_backward, head_workspace, head_flops, STAGE_OF_VOCABULARY},
};

const stage_kind *model_stage_kind(stage_code code) {
    return &kinds[code];
}

uint32_t tm_model_kv_positions(const tm_model *m, uint32_t unit, uint32_t positions, uint32_t chunk) {
    uint32_t window = m->unit[m->unit[unit].kv_unit].kv_window;
    return window ? (uint32_t)tm_min_u64(positions, tm_attention_ring(window, chunk)) : positions;
}

uint32_t tm_model_kv_first(const tm_model *m, uint32_t unit, uint32_t position) {
    uint32_t window = m->unit[m->unit[unit].kv_unit].kv_window;
    return window && position >= window ? (position + 1 - window) / TM_ATTENTION_TILE * TM_ATTENTION_TILE : 0;
}

uint64_t tm_stage_workspace(const tm_model *m, uint32_t unit, uint32_t stage, bool backward, uint32_t rows,
                            uint32_t seq) {
    const stage_spec *s = m->unit[unit].stage[stage].spec;
    bool none = !rows || !seq || !s->kind->workspace;
    return none ? 0 : s->kind->workspace(m, s, backward, rows, seq);
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
    if (model_used(a->batch)) model_spec_of(a)->kind->forward(&x);
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
        model_spec_of(a)->kind->backward(&x);
    else
        empty_backward(&x);
    return TM_OK;
}

void model_zero_tail(const tm_stage_args *a, void *x, uint64_t row_bytes) {
    const tm_micro_batch *b = a->batch;
    uint64_t rows = model_rows(b);
    if (b->tokens > rows && !b->exact) a->kernels->zero((char *)x + rows * row_bytes, (b->tokens - rows) * row_bytes);
}

float *model_small_gradient(const tm_stage_args *a, unsigned part) {
    float *grad = a->weight_grad[part];
    if (grad && a->weight_grad_fresh[part])
        a->kernels->zero(grad, a->model->part[model_stage_of(a)->part[part]].elements * sizeof *grad);
    return grad;
}
