/* The stages of a transformer block (pre-norm, grouped-query attention, gated unit). Weights are [out, in], rows of
 * slots are tokens: forward is Y = X W^T, the input's gradient dX = dY W, the weight's dW = dY^T X summed over tokens
 * in chunks of MODEL_TOKEN_CHUNK, chunks in order. */
#include "model/model_internal.h"

#include <string.h>

typedef struct rows_chunk {
    uint64_t row, rows;
} rows_chunk;
#define FOR_CHUNKS(c, total)                                                                                           \
    for (rows_chunk c = {0, tm_min_u64(a->model->token_chunk, total)}; c.row < (total);                                \
         c.row += a->model->token_chunk, c.rows = tm_min_u64(a->model->token_chunk, (total)-tm_min_u64(total, c.row)))

static uint64_t chunk_rows(const tm_model *m, uint32_t rows, uint32_t seq) {
    return tm_min_u64(m->token_chunk, tm_round_up((uint64_t)rows * seq, MODEL_TOKEN_GRAIN));
}

/* ---- products ---- */

/* Y[rows, n] = X[rows, k] W[n, k]^T + beta Y */
static void project(const tm_stage_args *s, tm_elem t, uint64_t rows, uint64_t n, uint64_t k, const void *x,
                    const void *w, float beta, void *y, uint64_t ldy) {
    s->kernels->gemm(&(tm_gemm_args){.m = rows,
                                     .n = n,
                                     .k = k,
                                     .alpha = 1,
                                     .beta = beta,
                                     .a = x,
                                     .lda = k,
                                     .b = w,
                                     .ldb = k,
                                     .b_trans = true,
                                     .c = y,
                                     .ldc = ldy,
                                     .a_type = t,
                                     .b_type = t,
                                     .c_type = t});
}

/* dX[rows, k] = dY[rows, n] W[n, k] + beta dX */
static void project_back(const tm_stage_args *s, tm_elem t, uint64_t rows, uint64_t n, uint64_t k, const void *dy,
                         uint64_t ldy, const void *w, float beta, void *dx, tm_elem dx_type) {
    s->kernels->gemm(&(tm_gemm_args){.m = rows,
                                     .n = k,
                                     .k = n,
                                     .alpha = 1,
                                     .beta = beta,
                                     .a = dy,
                                     .lda = ldy,
                                     .b = w,
                                     .ldb = k,
                                     .c = dx,
                                     .ldc = k,
                                     .a_type = t,
                                     .b_type = t,
                                     .c_type = dx_type});
}

/* dW[n, k] = dY[rows, n]^T X[rows, k], added unless fresh */
static void weight_gradient(const tm_stage_args *s, tm_elem t, uint64_t rows, uint64_t n, uint64_t k, const void *dy,
                            uint64_t ldy, const void *x, bool fresh, float *dw) {
    s->kernels->gemm(&(tm_gemm_args){.m = n,
                                     .n = k,
                                     .k = rows,
                                     .alpha = 1,
                                     .beta = fresh ? 0 : 1,
                                     .a = dy,
                                     .lda = ldy,
                                     .a_trans = true,
                                     .b = x,
                                     .ldb = k,
                                     .c = dw,
                                     .ldc = k,
                                     .a_type = t,
                                     .b_type = t,
                                     .c_type = TM_ELEM_F32});
}

static void copy_rows(const tm_stage_args *a, void *to, const void *from, uint64_t row_bytes) {
    if (to != from) a->kernels->copy(to, from, a->batch->tokens * row_bytes);
}

/* ---- norm: its own stage in the head, and where q, k, v or gate, up are separate ---- */

/* The norm of `rows` rows from row `row` of slot s->in on, without its output. */
static tm_norm norm_of(const tm_stage_args *a, const void *small, rows_chunk c) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    return (tm_norm){.type = t,
                     .rows = c.rows,
                     .n = s->width,
                     .eps = s->epsilon,
                     .x = model_row_const(t, a->slot[s->in], c.row, s->width),
                     .weight = model_row_const(t, small, 1, s->norm)};
}

void norm_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_norm n = norm_of(a, a->weight[0], (rows_chunk){0, model_rows(a->batch)});
    n.y = a->slot[s->out];
    a->kernels->norm_forward(&n);
    model_zero_tail(a, a->slot[s->out], s->width * tm_elem_bytes(n.type));
}

void norm_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->width, rows = model_rows(a->batch);
    bool add = (model_stage_of(a)->backward[2].access == TM_UPDATE) && !model_fresh(a->grad_fresh, s->in);
    float *dw = model_small_gradient(a, 0);
    FOR_CHUNKS(c, rows) {
        tm_norm n = norm_of(a, a->weight[0], c);
        n.dy = (const float *)a->grad[s->out] + c.row * h;
        n.dx = model_row(t, a->grad[s->in], c.row, h);
        n.dx_add = add;
        n.dw = dw ? dw + s->norm : NULL;
        n.dw_add = true;
        n.workspace = a->workspace;
        a->kernels->norm_backward(&n);
    }
    if (!add) model_zero_tail(a, a->grad[s->in], h * tm_elem_bytes(t));
}

uint64_t norm_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    return backward ? m->sizes.norm_workspace(chunk_rows(m, rows, seq), s->width) : 0;
}

/* ---- in: (norm and) product, bias, rotation ---- */

static const void *small_at(const tm_stage_args *a, uint64_t element) {
    return model_row_const(model_elem(a->model), a->weight[PART_SMALL], 1, element);
}

/* The chunk's normed rows: from their slot, or computed into buf. */
static const void *normed_rows(const tm_stage_args *a, const stage_spec *p, rows_chunk c, void *buf) {
    tm_elem t = model_elem(a->model);
    uint64_t h = p->width;
    if (p->normed) return model_row_const(t, a->slot[p->normed], c.row, h);
    tm_norm n = norm_of(a, a->weight[PART_SMALL], c);
    n.y = buf;
    a->kernels->norm_forward(&n);
    return buf;
}

void in_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *p = model_spec_of(a);
    uint64_t h = p->width, used = model_used(a->batch), rows = model_rows(a->batch);
    tm_positions positions = {a->batch->position, a->batch->seq};
    FOR_CHUNKS(c, rows) {
        char *out = model_row(t, a->slot[p->out], c.row, p->row_columns);
        out += p->column * tm_elem_bytes(t);
        project(a, t, c.rows, p->columns, h, normed_rows(a, p, c, a->workspace), a->weight[PART_MATRIX], 0, out,
                p->row_columns);
        if (p->bias != NO_VECTOR)
            a->kernels->add_bias(t, c.rows, p->columns, small_at(a, p->bias), out, p->row_columns);
        uint64_t real = tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
        if (p->rotated)
            a->kernels->rope_apply(&a->model->rope, t, c.row, real, p->row_columns, p->rotated, out, positions, false);
    }
    if (p->column == 0) model_zero_tail(a, a->slot[p->out], p->row_columns * tm_elem_bytes(t));
}

/* The gradient of qkv was turned back where it was made (tm_attention_backward). */
static void in_backward_chunk(const tm_stage_args *a, const stage_spec *p, rows_chunk c, float *small) {
    tm_elem t = model_elem(a->model);
    uint64_t h = p->width;
    char *at = a->workspace;
    void *buf = model_take(&at, c.rows * h * tm_elem_bytes(t));
    float *dnormed = p->normed ? (float *)a->grad[p->normed] + c.row * h : model_take(&at, c.rows * h * sizeof(float));
    const char *dy = model_row_const(t, a->grad[p->out], c.row, p->row_columns);
    dy += p->column * tm_elem_bytes(t);
    float *dw = a->weight_grad[PART_MATRIX];
    bool fresh = a->weight_grad_fresh[PART_MATRIX] && c.row == 0;
    if (dw) weight_gradient(a, t, c.rows, p->columns, h, dy, p->row_columns, normed_rows(a, p, c, buf), fresh, dw);
    bool keep = p->normed && !model_fresh(a->grad_fresh, p->normed);
    project_back(a, t, c.rows, p->columns, h, dy, p->row_columns, a->weight[PART_MATRIX], keep ? 1 : 0, dnormed,
                 TM_ELEM_F32);
    if (small && p->bias != NO_VECTOR)
        a->kernels->column_sum(t, c.rows, p->columns, dy, p->row_columns, small + p->bias, true);
    if (p->normed) return;
    tm_norm n = norm_of(a, a->weight[PART_SMALL], c);
    n.dy = dnormed;
    n.dx = model_row(t, a->grad[p->in], c.row, h);
    n.dx_add = !model_fresh(a->grad_fresh, p->in);
    n.dw = small ? small + p->norm : NULL;
    n.dw_add = true;
    n.workspace = at;
    a->kernels->norm_backward(&n);
}

void in_backward(const tm_stage_args *a) {
    const stage_spec *p = model_spec_of(a);
    uint64_t rows = model_rows(a->batch), h = p->width;
    float *small = model_stage_of(a)->n_parts > 1 ? model_small_gradient(a, PART_SMALL) : NULL;
    FOR_CHUNKS(c, rows) in_backward_chunk(a, p, c, small);
    if (p->normed && model_fresh(a->grad_fresh, p->normed)) model_zero_tail(a, a->grad[p->normed], h * sizeof(float));
    if (!p->normed && model_fresh(a->grad_fresh, p->in))
        model_zero_tail(a, a->grad[p->in], h * tm_elem_bytes(model_elem(a->model)));
}

uint64_t in_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = chunk_rows(m, rows, seq), h = s->width;
    if (s->normed) return 0;
    uint64_t normed = tm_round_up(n * h * tm_dtype_bytes(m->compute), 64);
    return backward ? normed + tm_round_up(n * h * sizeof(float), 64) + m->sizes.norm_workspace(n, h) : normed;
}

/* ---- attention ---- */

static tm_attention attention_of(const tm_model *m, const stage_spec *s, uint32_t rows, uint32_t seq) {
    return (tm_attention){.type = model_elem(m),
                          .rows = rows,
                          .seq = seq,
                          .heads = s->heads,
                          .kv_heads = s->kv_heads,
                          .head_dim = s->head_dim,
                          .window = s->window,
                          .scale = s->scale,
                          .rope = &m->rope};
}

static tm_attention attention_args(const tm_stage_args *a) {
    const tm_micro_batch *b = a->batch;
    const stage_spec *s = model_spec_of(a);
    tm_attention x = attention_of(a->model, s, b->rows, b->seq);
    x.padded = b->tokens;
    tm_attention_fuse(&x, a->slot[s->in], a->grad[s->in]);
    x.key_mask = b->key_mask;
    x.o = a->slot[s->out];
    x.lse = a->slot[SLOT_LSE];
    x.position = b->position;
    x.workspace = a->workspace;
    return x;
}

void attention_forward(const tm_stage_args *a) {
    tm_attention x = attention_args(a);
    x.kv_cache = a->kv_cache;
    x.kv_capacity = a->kv_capacity;
    a->kernels->attention_forward(&x);
}

void attention_backward(const tm_stage_args *a) {
    tm_attention x = attention_args(a);
    x.d_o = a->grad[model_spec_of(a)->out];
    a->kernels->attention_backward(&x);
}

uint64_t attention_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    tm_attention x = attention_of(m, s, rows, seq);
    return m->sizes.attention_workspace(&x, backward);
}

/* Two products forward; backward recomputes one of them and has four of its own. */
double attention_flops(const stage_spec *s, bool backward, const tm_load *load) {
    return (backward ? 10 : 4) * load->pairs * s->heads * s->head_dim;
}

/* ---- out: output = residual + input W^T + bias ---- */

static void add_out_bias(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    if (s->bias == NO_VECTOR) return;
    a->kernels->add_bias(t, model_rows(a->batch), s->columns, small_at(a, s->bias), a->slot[s->out], s->columns);
}

static void out_bias_gradient(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    float *small = s->bias != NO_VECTOR ? model_small_gradient(a, PART_SMALL) : NULL;
    if (!small) return;
    a->kernels->column_sum(model_elem(a->model), model_rows(a->batch), s->columns, a->grad[s->out], s->columns,
                           small + s->bias, true);
}

void out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, q = s->width;
    copy_rows(a, a->slot[s->out], a->slot[s->residual], h * tm_elem_bytes(t));
    FOR_CHUNKS(c, model_rows(a->batch))
    project(a, t, c.rows, h, q, model_row_const(t, a->slot[s->in], c.row, q), a->weight[PART_MATRIX], 1,
            model_row(t, a->slot[s->out], c.row, h), h);
    add_out_bias(a);
}

void out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, q = s->width;
    float *dw = a->weight_grad[PART_MATRIX];
    FOR_CHUNKS(c, model_rows(a->batch)) {
        const void *dy = model_row_const(t, a->grad[s->out], c.row, h);
        project_back(a, t, c.rows, h, q, dy, h, a->weight[PART_MATRIX], 0, model_row(t, a->grad[s->in], c.row, q), t);
        if (dw)
            weight_gradient(a, t, c.rows, h, q, dy, h, model_row_const(t, a->slot[s->in], c.row, q),
                            a->weight_grad_fresh[PART_MATRIX] && c.row == 0, dw);
    }
    out_bias_gradient(a);
    model_zero_tail(a, a->grad[s->in], q * tm_elem_bytes(t));
    copy_rows(a, a->grad[s->residual], a->grad[s->out], h * tm_elem_bytes(t));
}

/* ---- glu_out: output = residual + (silu(gate) * up) Wd^T + bias ---- */

static tm_glu glu_of(const tm_stage_args *a, rows_chunk c) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    return (tm_glu){
        .type = t, .rows = c.rows, .width = s->width, .x = model_row_const(t, a->slot[s->in], c.row, 2 * s->width)};
}

void glu_out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, f = s->width;
    copy_rows(a, a->slot[s->out], a->slot[s->residual], h * tm_elem_bytes(t));
    FOR_CHUNKS(c, model_rows(a->batch)) {
        tm_glu g = glu_of(a, c);
        g.y = a->workspace;
        a->kernels->glu_forward(&g);
        project(a, t, c.rows, h, f, a->workspace, a->weight[PART_MATRIX], 1, model_row(t, a->slot[s->out], c.row, h),
                h);
    }
    add_out_bias(a);
}

void glu_out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, f = s->width;
    float *dw = a->weight_grad[PART_MATRIX];
    FOR_CHUNKS(c, model_rows(a->batch)) {
        char *at = a->workspace;
        float *da = model_take(&at, c.rows * f * sizeof *da);
        const void *dy = model_row_const(t, a->grad[s->out], c.row, h);
        project_back(a, t, c.rows, h, f, dy, h, a->weight[PART_MATRIX], 0, da, TM_ELEM_F32);
        tm_glu g = glu_of(a, c);
        g.y = at;
        g.dy = da;
        g.dx = model_row(t, a->grad[s->in], c.row, 2 * f);
        a->kernels->glu_backward(&g);
        if (dw) weight_gradient(a, t, c.rows, h, f, dy, h, at, a->weight_grad_fresh[PART_MATRIX] && c.row == 0, dw);
    }
    out_bias_gradient(a);
    model_zero_tail(a, a->grad[s->in], 2 * f * tm_elem_bytes(t));
    copy_rows(a, a->grad[s->residual], a->grad[s->out], h * tm_elem_bytes(t));
}

uint64_t glu_out_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = chunk_rows(m, rows, seq) * s->width;
    uint64_t act = tm_round_up(n * tm_dtype_bytes(m->compute), 64);
    return backward ? act + tm_round_up(n * sizeof(float), 64) : act;
}
