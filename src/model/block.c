/* The stages of a transformer block (pre-norm, grouped-query attention, gated unit). Weights are [out, in], rows of
 * slots are tokens: forward is Y = X W^T, the input's gradient dX = dY W, the weight's dW = dY^T X summed over tokens
 * in chunks of MODEL_TOKEN_CHUNK, chunks in order. */
#include "model/model_internal.h"

#include <math.h>
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
static uint64_t hidden(const tm_stage_args *a) {
    return a->model->config.hidden_size;
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

typedef struct norm_slots {
    unsigned in, out;
    uint64_t weight; /* in the small part */
} norm_slots;

static norm_slots norm_of(const tm_stage_args *a) {
    unsigned in = model_stage_of(a)->index;
    if (a->model->unit[a->unit].kind == TM_UNIT_HEAD) return (norm_slots){in, SLOT_NORMED, 0};
    return in == SLOT_X ? (norm_slots){in, SLOT_ATTN_NORMED, a->model->small.norm1}
                        : (norm_slots){in, SLOT_MLP_NORMED, a->model->small.norm2};
}

static float epsilon(const tm_stage_args *a) {
    return (float)a->model->config.rms_norm_eps;
}

void norm_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    norm_slots n = norm_of(a);
    a->kernels->rmsnorm_forward(t, model_rows(a->batch), hidden(a), a->slot[n.in],
                                model_row_const(t, a->weight[0], 1, n.weight), epsilon(a), a->slot[n.out]);
    model_zero_tail(a, a->slot[n.out], hidden(a) * tm_elem_bytes(t));
}

void norm_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    norm_slots n = norm_of(a);
    uint64_t h = hidden(a), rows = model_rows(a->batch);
    bool add = (model_stage_of(a)->backward[2].access == TM_UPDATE) && !model_fresh(a->grad_fresh, n.in);
    float *dw = model_small_gradient(a, 0);
    FOR_CHUNKS(c, rows)
    a->kernels->rmsnorm_backward(t, c.rows, h, model_row_const(t, a->slot[n.in], c.row, h),
                                 model_row_const(t, a->weight[0], 1, n.weight), epsilon(a),
                                 (const float *)a->grad[n.out] + c.row * h, model_row(t, a->grad[n.in], c.row, h), add,
                                 dw ? dw + n.weight : NULL, true, a->workspace);
    if (!add) model_zero_tail(a, a->grad[n.in], h * tm_elem_bytes(t));
}

uint64_t norm_workspace(const tm_model *m, const tm_stage *s, bool backward, uint32_t rows, uint32_t seq) {
    (void)s;
    return backward ? m->sizes.rmsnorm_workspace(chunk_rows(m, rows, seq), m->config.hidden_size) : 0;
}

/* ---- attn_in, mlp_in: (norm and) product, bias, rotation ---- */

/* What an "in" stage computes: columns [column, column + columns) of the rows of `out`. */
typedef struct projection {
    unsigned in, out, normed; /* normed: slot that holds the normed input, 0: it is computed here */
    uint64_t column, columns, row_columns;
    uint32_t rotated;    /* heads that RoPE turns, from `column` on */
    uint64_t norm, bias; /* in the small part; bias UINT64_MAX: none */
} projection;

static projection attention_projection(const tm_model *m, unsigned index) {
    const tm_model_config *c = &m->config;
    uint64_t q = model_q_columns(c), kv = model_kv_columns(c);
    uint32_t heads = c->num_attention_heads, kv_heads = c->num_key_value_heads;
    const projection of[] = {{.columns = q + 2 * kv, .rotated = heads + kv_heads},
                             {.columns = q, .rotated = heads},
                             {.column = q, .columns = kv, .rotated = kv_heads},
                             {.column = q + kv, .columns = kv}};
    projection p = of[index];
    p.in = SLOT_X, p.out = SLOT_QKV, p.normed = index ? SLOT_ATTN_NORMED : 0, p.row_columns = q + 2 * kv;
    p.norm = m->small.norm1;
    p.bias = c->attention_bias ? m->small.qkv_bias + p.column : UINT64_MAX;
    return p;
}

static projection mlp_projection(const tm_model *m, unsigned index) {
    uint64_t f = m->config.intermediate_size;
    projection p = {.in = SLOT_MID, .out = SLOT_GATE_UP, .columns = index ? f : 2 * f, .row_columns = 2 * f};
    p.column = index == 2 ? f : 0, p.normed = index ? SLOT_MLP_NORMED : 0, p.norm = m->small.norm2;
    p.bias = m->config.mlp_bias ? m->small.gate_up_bias + p.column : UINT64_MAX;
    return p;
}

static projection projection_of(const tm_stage_args *a) {
    const tm_stage *s = model_stage_of(a);
    return s->code == STAGE_ATTN_IN ? attention_projection(a->model, s->index) : mlp_projection(a->model, s->index);
}

static const void *small_at(const tm_stage_args *a, uint64_t element) {
    return model_row_const(model_elem(a->model), a->weight[PART_SMALL], 1, element);
}

/* The chunk's normed rows: from their slot, or computed into buf. */
static const void *normed_rows(const tm_stage_args *a, const projection *p, rows_chunk c, void *buf) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a);
    if (p->normed) return model_row_const(t, a->slot[p->normed], c.row, h);
    a->kernels->rmsnorm_forward(t, c.rows, h, model_row_const(t, a->slot[p->in], c.row, h), small_at(a, p->norm),
                                epsilon(a), buf);
    return buf;
}

void in_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    projection p = projection_of(a);
    uint64_t h = hidden(a), used = model_used(a->batch), rows = model_rows(a->batch);
    tm_positions positions = {a->batch->position, a->batch->seq};
    FOR_CHUNKS(c, rows) {
        char *out = model_row(t, a->slot[p.out], c.row, p.row_columns);
        out += p.column * tm_elem_bytes(t);
        project(a, t, c.rows, p.columns, h, normed_rows(a, &p, c, a->workspace), a->weight[PART_MATRIX], 0, out,
                p.row_columns);
        if (p.bias != UINT64_MAX) a->kernels->add_bias(t, c.rows, p.columns, small_at(a, p.bias), out, p.row_columns);
        uint64_t real = tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
        if (p.rotated)
            a->kernels->rope_apply(&a->model->rope, t, c.row, real, p.row_columns, p.rotated, out, positions, false);
    }
    if (p.column == 0) model_zero_tail(a, a->slot[p.out], p.row_columns * tm_elem_bytes(t));
}

/* The gradient of qkv was turned back where it was made (tm_attention_backward). */
static void in_backward_chunk(const tm_stage_args *a, const projection *p, rows_chunk c, float *small) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a);
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
    if (small && p->bias != UINT64_MAX)
        a->kernels->column_sum(t, c.rows, p->columns, dy, p->row_columns, small + p->bias, true);
    if (p->normed) return;
    a->kernels->rmsnorm_backward(t, c.rows, h, model_row_const(t, a->slot[p->in], c.row, h), small_at(a, p->norm),
                                 epsilon(a), dnormed, model_row(t, a->grad[p->in], c.row, h),
                                 !model_fresh(a->grad_fresh, p->in), small ? small + p->norm : NULL, true, at);
}

void in_backward(const tm_stage_args *a) {
    projection p = projection_of(a);
    uint64_t rows = model_rows(a->batch), h = hidden(a);
    float *small = model_stage_of(a)->n_parts > 1 ? model_small_gradient(a, PART_SMALL) : NULL;
    FOR_CHUNKS(c, rows) in_backward_chunk(a, &p, c, small);
    if (p.normed && model_fresh(a->grad_fresh, p.normed)) model_zero_tail(a, a->grad[p.normed], h * sizeof(float));
    if (!p.normed && model_fresh(a->grad_fresh, p.in))
        model_zero_tail(a, a->grad[p.in], h * tm_elem_bytes(model_elem(a->model)));
}

uint64_t in_workspace(const tm_model *m, const tm_stage *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = chunk_rows(m, rows, seq), h = m->config.hidden_size;
    if (s->index) return 0;
    uint64_t normed = tm_round_up(n * h * tm_dtype_bytes(m->compute), 64);
    return backward ? normed + tm_round_up(n * h * sizeof(float), 64) + m->sizes.rmsnorm_workspace(n, h) : normed;
}

/* ---- attn ---- */

static tm_attention attention_of(const tm_model *m, uint32_t rows, uint32_t seq) {
    const tm_model_config *c = &m->config;
    return (tm_attention){.type = model_elem(m),
                          .rows = rows,
                          .seq = seq,
                          .heads = c->num_attention_heads,
                          .kv_heads = c->num_key_value_heads,
                          .head_dim = c->head_dim,
                          .window = c->sliding_window,
                          .scale = (float)(1.0 / sqrt((double)c->head_dim)),
                          .rope = &m->rope};
}

static tm_attention attention_args(const tm_stage_args *a) {
    const tm_micro_batch *b = a->batch;
    tm_attention x = attention_of(a->model, b->rows, b->seq);
    x.padded = b->tokens;
    x.qkv = a->slot[SLOT_QKV];
    x.key_mask = b->key_mask;
    x.o = a->slot[SLOT_O];
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
    x.d_o = a->grad[SLOT_O];
    x.d_qkv = a->grad[SLOT_QKV];
    a->kernels->attention_backward(&x);
}

uint64_t attention_workspace(const tm_model *m, const tm_stage *s, bool backward, uint32_t rows, uint32_t seq) {
    (void)s;
    tm_attention x = attention_of(m, rows, seq);
    return m->sizes.attention_workspace(&x, backward);
}

/* ---- attn_out: mid = x + o Wo^T ---- */

static void add_out_bias(const tm_stage_args *a, uint64_t bias, void *y) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a);
    if (bias != UINT64_MAX) a->kernels->add_bias(t, model_rows(a->batch), h, small_at(a, bias), y, h);
}

static void out_bias_gradient(const tm_stage_args *a, uint64_t bias, const void *dy) {
    float *small = bias != UINT64_MAX ? model_small_gradient(a, PART_SMALL) : NULL;
    uint64_t h = hidden(a);
    if (small) a->kernels->column_sum(model_elem(a->model), model_rows(a->batch), h, dy, h, small + bias, true);
}

void attention_out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a), q = model_q_columns(&a->model->config);
    copy_rows(a, a->slot[SLOT_MID], a->slot[SLOT_X], h * tm_elem_bytes(t));
    FOR_CHUNKS(c, model_rows(a->batch))
    project(a, t, c.rows, h, q, model_row_const(t, a->slot[SLOT_O], c.row, q), a->weight[PART_MATRIX], 1,
            model_row(t, a->slot[SLOT_MID], c.row, h), h);
    add_out_bias(a, a->model->small.o_bias, a->slot[SLOT_MID]);
}

void attention_out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a), q = model_q_columns(&a->model->config);
    float *dw = a->weight_grad[PART_MATRIX];
    FOR_CHUNKS(c, model_rows(a->batch)) {
        const void *dy = model_row_const(t, a->grad[SLOT_MID], c.row, h);
        project_back(a, t, c.rows, h, q, dy, h, a->weight[PART_MATRIX], 0, model_row(t, a->grad[SLOT_O], c.row, q), t);
        if (dw)
            weight_gradient(a, t, c.rows, h, q, dy, h, model_row_const(t, a->slot[SLOT_O], c.row, q),
                            a->weight_grad_fresh[PART_MATRIX] && c.row == 0, dw);
    }
    out_bias_gradient(a, a->model->small.o_bias, a->grad[SLOT_MID]);
    model_zero_tail(a, a->grad[SLOT_O], q * tm_elem_bytes(t));
    copy_rows(a, a->grad[SLOT_X], a->grad[SLOT_MID], h * tm_elem_bytes(t));
}

/* ---- mlp_out: output = mid + (silu(gate) * up) Wd^T ---- */

void mlp_out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a), f = a->model->config.intermediate_size;
    copy_rows(a, a->slot[SLOT_OUT], a->slot[SLOT_MID], h * tm_elem_bytes(t));
    FOR_CHUNKS(c, model_rows(a->batch)) {
        a->kernels->swiglu_forward(t, c.rows, f, model_row_const(t, a->slot[SLOT_GATE_UP], c.row, 2 * f), a->workspace);
        project(a, t, c.rows, h, f, a->workspace, a->weight[PART_MATRIX], 1, model_row(t, a->slot[SLOT_OUT], c.row, h),
                h);
    }
    add_out_bias(a, a->model->small.down_bias, a->slot[SLOT_OUT]);
}

void mlp_out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    uint64_t h = hidden(a), f = a->model->config.intermediate_size;
    float *dw = a->weight_grad[PART_MATRIX];
    FOR_CHUNKS(c, model_rows(a->batch)) {
        char *at = a->workspace;
        float *da = model_take(&at, c.rows * f * sizeof *da);
        const void *dy = model_row_const(t, a->grad[SLOT_OUT], c.row, h);
        project_back(a, t, c.rows, h, f, dy, h, a->weight[PART_MATRIX], 0, da, TM_ELEM_F32);
        a->kernels->swiglu_backward(t, c.rows, f, model_row_const(t, a->slot[SLOT_GATE_UP], c.row, 2 * f), da,
                                    model_row(t, a->grad[SLOT_GATE_UP], c.row, 2 * f), at);
        if (dw) weight_gradient(a, t, c.rows, h, f, dy, h, at, a->weight_grad_fresh[PART_MATRIX] && c.row == 0, dw);
    }
    out_bias_gradient(a, a->model->small.down_bias, a->grad[SLOT_OUT]);
    model_zero_tail(a, a->grad[SLOT_GATE_UP], 2 * f * tm_elem_bytes(t));
    copy_rows(a, a->grad[SLOT_MID], a->grad[SLOT_OUT], h * tm_elem_bytes(t));
}

uint64_t mlp_out_workspace(const tm_model *m, const tm_stage *s, bool backward, uint32_t rows, uint32_t seq) {
    (void)s;
    uint64_t n = chunk_rows(m, rows, seq) * m->config.intermediate_size;
    uint64_t act = tm_round_up(n * tm_dtype_bytes(m->compute), 64);
    return backward ? act + tm_round_up(n * sizeof(float), 64) : act;
}
