/* Embedding, and the head's vocabulary parts.
 *
 * The head works on labelled tokens only: their rows are gathered, MODEL_TOKEN_CHUNK at a time, and logits exist for
 * MODEL_VOCAB_BLOCK columns at a time:
 *     forward   for chunk, block:  L = N W^T;  state <- max, sum, label logit
 *     backward  for chunk, block:  L = N W^T;  L <- coefficient (softmax - one_hot);  dN += L W;  dW += L^T N
 * Given room for all logits of the part (kept_logits), backward finds them there: a quarter of the head's work less.
 */
#include "model/model_internal.h"

#include <math.h>
#include <string.h>

/* ---- embedding ---- */

static tm_embed embed_of(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    return (tm_embed){.type = model_elem(a->model),
                      .rows = model_used(a->batch),
                      .n = s->width,
                      .ids = a->batch->ids,
                      .first = (uint32_t)s->column,
                      .count = (uint32_t)s->columns,
                      .scale = s->scale};
}

void embed_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_embed e = embed_of(a);
    e.padded = a->batch->tokens;
    e.weight = a->weight[0];
    e.packed = a->packed;
    e.out = a->slot[s->out];
    e.clear = model_fresh(a->slot_fresh, s->out);
    e.add = s->adds;
    a->kernels->embed_forward(&e);
}

void embed_backward(const tm_stage_args *a) {
    tm_embed e = embed_of(a);
    if (!a->weight_grad[0]) return;
    e.dout = a->grad[model_spec_of(a)->out];
    e.grad = a->weight_grad[0];
    e.grad_add = !a->weight_grad_fresh[0];
    a->kernels->embed_backward(&e);
}

/* ---- positions: output += a row for each position ---- */

static tm_embed positions_of(const tm_stage_args *a) {
    tm_positions positions = model_positions(a->batch);
    tm_embed e = embed_of(a);
    int32_t *id = a->workspace;
    for (uint64_t r = 0; r < e.rows; r++) id[r] = (int32_t)tm_position(&positions, r);
    e.ids = id;
    return e;
}

void positions_forward(const tm_stage_args *a) {
    tm_embed e = positions_of(a);
    e.padded = e.rows;
    e.weight = a->weight[0];
    e.out = a->slot[model_spec_of(a)->out];
    e.add = true;
    a->kernels->embed_forward(&e);
}

void positions_backward(const tm_stage_args *a) {
    if (!a->weight_grad[0]) return;
    tm_embed e = positions_of(a);
    e.dout = a->grad[model_spec_of(a)->out];
    e.grad = a->weight_grad[0];
    e.grad_add = !a->weight_grad_fresh[0];
    a->kernels->embed_backward(&e);
}

uint64_t positions_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    (void)m, (void)s, (void)backward;
    return (uint64_t)rows * seq * sizeof(int32_t);
}

/* ---- an embedding's adapter: output += scale s (columns of A)^T B^T ---- */

typedef struct embed_adapter {
    tm_elem t;
    void *xa;    /* of a chunk: what ids look up in A, [rows][rank] */
    float *d_xa; /* and its gradient */
    const void *lora_a, *lora_b;
    float scale;
} embed_adapter;

static embed_adapter open_embed_adapter(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    char *at = a->workspace;
    embed_adapter x = {.t = model_elem(a->model), .scale = s->scale * s->lora_scale};
    uint64_t n = model_chunk_rows(a->model, a->batch->rows, a->batch->seq) * s->rank;
    x.xa = model_take(&at, n * tm_elem_bytes(x.t));
    x.d_xa = (float *)(void *)at;
    x.lora_a = model_row_const(x.t, a->weight[0], 1, s->lora_a);
    x.lora_b = model_row_const(x.t, a->weight[0], 1, s->lora_b);
    return x;
}

/* Rows of the chunk that are tokens. */
static uint64_t real_rows(const tm_stage_args *a, model_chunk c) {
    uint64_t used = model_used(a->batch);
    return tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
}

static void look_up(const embed_adapter *x, const tm_stage_args *a, model_chunk c) {
    const stage_spec *s = model_spec_of(a);
    a->kernels->gather_columns(x->t, real_rows(a, c), c.rows, s->rank, a->batch->ids + c.row, x->lora_a, s->columns,
                               x->xa);
}

void embed_adapter_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    embed_adapter x = open_embed_adapter(a);
    MODEL_CHUNKS(c, a->batch->bare ? 0 : model_rows(a->batch)) {
        look_up(&x, a, c);
        tm_gemm_args g = {.m = c.rows, .n = s->width, .k = s->rank, .alpha = x.scale, .beta = 1};
        g.a = x.xa, g.lda = s->rank, g.b = x.lora_b, g.ldb = s->rank, g.b_trans = true;
        g.c = model_row(x.t, a->slot[s->out], c.row, s->width), g.ldc = s->width;
        g.a_type = g.b_type = g.c_type = x.t;
        a->kernels->gemm(&g);
    }
}

void embed_adapter_backward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    float *grad = model_small_gradient(a, 0);
    embed_adapter x = open_embed_adapter(a);
    MODEL_CHUNKS(c, grad ? model_rows(a->batch) : 0) {
        tm_gemm_args g = {.m = c.rows, .n = s->rank, .k = s->width, .alpha = x.scale, .narrow = true};
        look_up(&x, a, c);
        g.a_type = g.b_type = x.t, g.c_type = TM_ELEM_F32;
        g.a = model_row_const(x.t, a->grad[s->out], c.row, s->width), g.lda = s->width;
        g.b = x.lora_b, g.ldb = s->rank, g.c = x.d_xa, g.ldc = s->rank;
        a->kernels->gemm(&g);
        g.m = s->width, g.k = c.rows, g.beta = 1, g.a_trans = true;
        g.b = x.xa, g.c = grad + s->lora_b;
        a->kernels->gemm(&g);
        a->kernels->scatter_add_columns(real_rows(a, c), s->rank, a->batch->ids + c.row, x.d_xa, grad + s->lora_a,
                                        s->columns);
    }
}

uint64_t embed_adapter_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = model_chunk_rows(m, rows, seq) * s->rank;
    return tm_round_up(n * tm_dtype_bytes(m->compute), 64) + (backward ? tm_round_up(n * sizeof(float), 64) : 0);
}

double embed_adapter_flops(const stage_spec *s, bool backward, const tm_load *load) {
    return 2 * load->tokens * (double)(s->width * s->rank) * (backward ? 2 : 1);
}

/* ---- the head's A ---- */

enum { HEAD_ADAPTER = 1 }; /* the part, of the norm's stage and of those of the vocabulary */

/* X' of a chunk's normed rows, in scratch if some of it drops. */
static const void *into_adapter(const tm_stage_args *a, model_chunk c, void *scratch) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    const void *x = model_row_const(t, a->slot[s->out], c.row, s->width);
    if (!model_drops(a)) return x;
    tm_dropout d = {.type = t, .out_type = t, .row = c.row, .rows = c.rows, .n = s->width, .x = x, .out = scratch};
    d.key = model_dropout_key(a), d.dropped = s->dropped;
    a->kernels->dropout(&d);
    return scratch;
}

void model_head_adapter_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    MODEL_CHUNKS(c, model_rows(a->batch)) {
        tm_gemm_args g = {.m = c.rows, .n = s->rank, .k = s->width, .alpha = 1, .b_trans = true, .narrow = true};
        g.a = into_adapter(a, c, a->workspace), g.lda = s->width;
        g.b = model_row_const(t, a->weight[HEAD_ADAPTER], 1, s->lora_a), g.ldb = s->width;
        g.c = model_row(t, a->slot[SLOT_ADAPTER], c.row, s->rank), g.ldc = s->rank;
        g.a_type = g.b_type = g.c_type = t;
        a->kernels->gemm(&g);
    }
    model_zero_tail(a, a->slot[SLOT_ADAPTER], s->rank * tm_elem_bytes(t));
}

/* dN + drop(d_xa A) of the chunk, in scratch. */
static float *normed_gradient(const tm_stage_args *a, model_chunk c, const float *d_xa, char **at) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    uint64_t bytes = c.rows * s->width * sizeof(float);
    float *dn = model_take(at, bytes), *part = model_drops(a) ? model_take(at, bytes) : dn;
    a->kernels->copy(dn, (const float *)a->grad[s->out] + c.row * s->width, bytes);
    tm_gemm_args g = {.m = c.rows, .n = s->width, .k = s->rank, .alpha = 1, .beta = part == dn ? 1 : 0};
    g.a = d_xa, g.lda = s->rank, g.b = model_row_const(t, a->weight[HEAD_ADAPTER], 1, s->lora_a), g.ldb = s->width;
    g.c = part, g.ldc = s->width, g.a_type = g.c_type = TM_ELEM_F32, g.b_type = t;
    a->kernels->gemm(&g);
    if (part == dn) return dn;
    tm_dropout d = {.rows = c.rows, .row = c.row, .n = s->width, .x = part, .out = dn, .add = true};
    d.key = model_dropout_key(a), d.dropped = s->dropped;
    a->kernels->dropout(&d);
    return dn;
}

const float *model_head_adapter_back(const tm_stage_args *a, model_chunk c, float *grad, char **at) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    const float *d_xa = (const float *)a->grad[SLOT_ADAPTER] + c.row * s->rank;
    const void *x = into_adapter(a, c, *at); /* its scratch is that of the gradient, which comes after */
    tm_gemm_args g = {.m = s->rank, .n = s->width, .k = c.rows, .alpha = 1, .beta = 1, .a_trans = true};
    g.a = d_xa, g.lda = s->rank, g.b = x, g.ldb = s->width, g.ldc = s->width;
    g.a_type = g.c_type = TM_ELEM_F32, g.b_type = t;
    if (grad) {
        g.c = grad + s->lora_a;
        a->kernels->gemm(&g);
    }
    return normed_gradient(a, c, d_xa, at);
}

uint64_t model_head_adapter_workspace(const tm_model *m, const stage_spec *s, bool backward, uint64_t rows) {
    uint64_t narrow = tm_round_up(rows * s->width * tm_dtype_bytes(m->compute), 64);
    uint64_t wide = tm_round_up(rows * s->width * sizeof(float), 64);
    if (!backward) return s->dropped ? narrow : 0;
    return s->dropped ? 2 * wide : wide;
}

/* ---- head ---- */

/* Everything a vocabulary part's stage needs; pointers into the workspace. */
typedef struct head_work {
    tm_elem t;
    uint64_t h;
    uint32_t first, count; /* vocabulary rows of the part */
    const uint32_t *row;   /* token rows that take part */
    uint64_t rows;
    void *normed;   /* gathered, [token_chunk][h] */
    float *logits;  /* [token_chunk][block] */
    float *dnormed; /* [token_chunk][h] */
    /* of an adapter: what its A makes of the normed rows, gathered, [token_chunk][rank], and its gradient; rows of B of
     * this part, [count][rank], and their gradient */
    void *xa;
    float *d_xa;
    const void *lora_b;
    float *d_b;
} head_work;

static uint64_t block_columns(const tm_model *m, const stage_spec *s) {
    return tm_min_u64(m->vocab_block, s->row_columns);
}
static uint64_t chunk_rows(const tm_model *m, uint64_t used) {
    return tm_min_u64(m->token_chunk, tm_round_up(used, MODEL_TOKEN_GRAIN));
}

uint64_t head_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t used = (uint64_t)rows * seq, n = chunk_rows(m, used), h = s->width;
    uint64_t bytes = tm_round_up(used * sizeof(uint32_t), 64) + tm_round_up(n * h * tm_dtype_bytes(m->compute), 64) +
                     tm_round_up(n * block_columns(m, s) * sizeof(float), 64);
    bytes += tm_round_up(n * s->rank * tm_dtype_bytes(m->compute), 64);
    if (!backward) return bytes;
    return bytes + tm_round_up(n * h * sizeof(float), 64) + tm_round_up(n * s->rank * sizeof(float), 64);
}

/* Of rows with a label. Backward multiplies the logits again. */
double head_flops(const stage_spec *s, bool backward, const tm_load *load) {
    tm_load labelled = *load;
    labelled.tokens = load->labels;
    double logits = 2 * load->labels * (double)(s->width * s->columns);
    return logits + (backward ? model_product_flops(s, true, &labelled) : 0);
}

/* Gathered rows [i, i + n) and columns [v, v + columns) of the part. */
static tm_head head_of(const head_work *w, const tm_stage_args *a, uint64_t i, uint64_t n, uint32_t v, uint32_t columns,
                       float *logits) {
    return (tm_head){.rows = n,
                     .row = w->row + i,
                     .first = w->first + v,
                     .count = columns,
                     .logits = logits,
                     .ld = columns,
                     .labels = a->batch->labels,
                     .state = a->slot[SLOT_STATE],
                     .type = w->t,
                     .softcap = model_spec_of(a)->softcap,
                     .coefficient = a->coefficient};
}

static void find_adapter(const tm_stage_args *a, bool backward, uint64_t n, head_work *w, char **at) {
    const stage_spec *s = model_spec_of(a);
    uint64_t first = s->lora_b + s->column * s->rank;
    float *grad = backward ? model_small_gradient(a, HEAD_ADAPTER) : NULL;
    w->xa = model_take(at, n * s->rank * tm_elem_bytes(w->t));
    w->lora_b = model_row_const(w->t, a->weight[HEAD_ADAPTER], 1, first);
    if (backward) w->d_xa = model_take(at, n * s->rank * sizeof(float));
    w->d_b = grad ? grad + first : NULL;
}

static head_work prepare(const tm_stage_args *a, bool backward) {
    const stage_spec *s = model_spec_of(a);
    head_work w = {
        .t = model_elem(a->model), .h = s->width, .first = (uint32_t)s->column, .count = (uint32_t)s->columns};
    uint64_t used = model_used(a->batch), n = chunk_rows(a->model, used);
    char *at = a->workspace;
    uint32_t *listed = model_take(&at, used * sizeof *listed);
    w.normed = model_take(&at, n * w.h * tm_elem_bytes(w.t));
    w.logits = model_take(&at, n * block_columns(a->model, s) * sizeof(float));
    if (backward) w.dnormed = model_take(&at, n * w.h * sizeof(float));
    if (s->rank && !a->batch->bare) find_adapter(a, backward, n, &w, &at);
    if (a->batch->label_row) {
        w.row = a->batch->label_row;
        w.rows = a->batch->label_rows;
        return w;
    }
    for (uint32_t r = 0; r < used; r++)
        if (a->batch->labels[r] >= 0) listed[w.rows++] = r;
    w.row = listed;
    return w;
}

/* Where the logits of the chunk from gathered row i on (m of them) and of columns from v on lie. */
static float *logits_at(const head_work *w, const tm_stage_args *a, uint64_t i, uint64_t m, uint64_t v) {
    return a->kept_logits ? a->kept_logits + i * w->count + m * v : w->logits;
}

static void cap_logits(const tm_stage_args *a, uint64_t rows, uint64_t columns, uint64_t ld, float *logits) {
    const stage_spec *s = model_spec_of(a);
    const tm_kernel_table *k = a->kernels ? a->kernels : tm_kernels_host();
    if (s->softcap != 0) k->softcap(rows, columns, ld, s->softcap, logits);
}

/* Logits of m rows += what the adapter adds: xa times rows of B. */
static void add_adapter(const tm_stage_args *a, uint64_t m, uint64_t n, const void *xa, const void *lora_b,
                        float *logits, uint64_t ld) {
    const stage_spec *s = model_spec_of(a);
    const tm_kernel_table *k = a->kernels ? a->kernels : tm_kernels_host();
    tm_elem t = model_elem(a->model);
    tm_gemm_args g = {.m = m, .n = n, .k = s->rank, .alpha = s->scale * s->lora_scale, .beta = 1};
    g.a = xa, g.lda = s->rank, g.b = lora_b, g.ldb = s->rank, g.b_trans = true;
    g.c = logits, g.ldc = ld, g.a_type = g.b_type = t, g.c_type = TM_ELEM_F32;
    k->gemm(&g);
}

/* Logits of `m` gathered rows for columns [v, v + n) of the part. */
static void logits_block(const head_work *w, const tm_stage_args *a, uint64_t m, uint64_t v, uint64_t n,
                         float *logits) {
    tm_packed from_v;
    if (a->packed) from_v = *a->packed, from_v.first += v;
    a->kernels->gemm(&(tm_gemm_args){.m = m,
                                     .n = n,
                                     .k = w->h,
                                     .alpha = model_spec_of(a)->scale,
                                     .a = w->normed,
                                     .lda = w->h,
                                     .b = model_row_const(w->t, a->weight[0], v, w->h),
                                     .ldb = w->h,
                                     .b_packed = a->packed ? &from_v : NULL,
                                     .b_trans = true,
                                     .c = logits,
                                     .ldc = n,
                                     .a_type = w->t,
                                     .b_type = w->t,
                                     .c_type = TM_ELEM_F32});
    if (w->xa) add_adapter(a, m, n, w->xa, model_row_const(w->t, w->lora_b, v, model_spec_of(a)->rank), logits, n);
    cap_logits(a, m, n, n, logits);
}

/* Gathers rows [i, i + n) of the list; returns how many rows products run over. */
static uint64_t gather(const head_work *w, const tm_stage_args *a, uint64_t i, uint64_t n) {
    uint64_t padded = tm_round_up(n, MODEL_TOKEN_GRAIN);
    a->kernels->gather_rows(w->t, n, padded, w->h, w->row + i, a->slot[SLOT_NORMED], w->normed);
    if (w->xa)
        a->kernels->gather_rows(w->t, n, padded, model_spec_of(a)->rank, w->row + i, a->slot[SLOT_ADAPTER], w->xa);
    return padded;
}

void head_forward(const tm_stage_args *a) {
    head_work w = prepare(a, false);
    tm_head_state *state = a->slot[SLOT_STATE];
    if (model_fresh(a->slot_fresh, SLOT_STATE)) a->kernels->head_begin(a->batch->tokens, state);
    for (uint64_t i = 0; i < w.rows; i += a->model->token_chunk) {
        uint64_t n = tm_min_u64(a->model->token_chunk, w.rows - i), m = gather(&w, a, i, n);
        for (uint32_t v = 0; v < w.count; v += a->model->vocab_block) {
            uint32_t columns = (uint32_t)tm_min_u64(a->model->vocab_block, w.count - v);
            float *logits = logits_at(&w, a, i, m, v);
            logits_block(&w, a, m, v, columns, logits);
            tm_head h = head_of(&w, a, i, n, v, columns, logits);
            a->kernels->head_update(&h);
        }
    }
}

/* d_xa += dL B, dB += dL^T xa; rows of d_logits are `ld` elements apart. */
static void adapter_gradients(const head_work *w, const tm_stage_args *a, uint64_t m, uint32_t v, uint64_t n,
                              const float *d_logits, uint64_t ld) {
    const stage_spec *s = model_spec_of(a);
    tm_gemm_args g = {
        .m = m, .n = s->rank, .k = n, .alpha = s->scale * s->lora_scale, .beta = v ? 1 : 0, .narrow = true};
    g.a_type = g.b_type = w->t, g.c_type = TM_ELEM_F32;
    g.a = d_logits, g.lda = ld, g.b = model_row_const(w->t, w->lora_b, v, s->rank), g.ldb = s->rank;
    g.c = w->d_xa, g.ldc = s->rank;
    a->kernels->gemm(&g);
    if (!w->d_b) return;
    g.m = n, g.k = m, g.beta = 1, g.a_trans = true;
    g.b = w->xa, g.c = w->d_b + v * s->rank;
    a->kernels->gemm(&g);
}

/* d_logits are of the compute type, with the rows of fp32 ones; rows past n are zero. */
static void block_gradients(const head_work *w, const tm_stage_args *a, uint64_t m, uint32_t v, uint64_t n,
                            const float *d_logits, bool fresh) {
    uint64_t ld = n * (sizeof(float) / tm_elem_bytes(w->t));
    if (a->grad[SLOT_NORMED])
        a->kernels->gemm(&(tm_gemm_args){.m = m,
                                         .n = w->h,
                                         .k = n,
                                         .alpha = model_spec_of(a)->scale,
                                         .beta = v ? 1 : 0,
                                         .a = d_logits,
                                         .lda = ld,
                                         .b = model_row_const(w->t, a->weight[0], v, w->h),
                                         .ldb = w->h,
                                         .c = w->dnormed,
                                         .ldc = w->h,
                                         .a_type = w->t,
                                         .b_type = w->t,
                                         .c_type = TM_ELEM_F32});
    if (w->xa) adapter_gradients(w, a, m, v, n, d_logits, ld);
    if (!a->weight_grad[0]) return;
    a->kernels->gemm(&(tm_gemm_args){.m = n,
                                     .n = w->h,
                                     .k = m,
                                     .alpha = model_spec_of(a)->scale,
                                     .beta = fresh ? 0 : 1,
                                     .a = d_logits,
                                     .lda = ld,
                                     .a_trans = true,
                                     .b = w->normed,
                                     .ldb = w->h,
                                     .c = a->weight_grad[0] + v * w->h,
                                     .ldc = w->h,
                                     .a_type = w->t,
                                     .b_type = w->t,
                                     .c_type = TM_ELEM_F32});
}

static void backward_chunk(const head_work *w, const tm_stage_args *a, uint64_t i) {
    uint64_t n = tm_min_u64(a->model->token_chunk, w->rows - i), m = gather(w, a, i, n);
    for (uint32_t v = 0; v < w->count; v += a->model->vocab_block) {
        uint32_t columns = (uint32_t)tm_min_u64(a->model->vocab_block, w->count - v);
        float *logits = logits_at(w, a, i, m, v);
        if (!a->kept_logits) logits_block(w, a, m, v, columns, logits);
        tm_head h = head_of(w, a, i, n, v, columns, logits);
        a->kernels->head_gradient(&h);
        a->kernels->zero(logits + n * columns, (m - n) * columns * sizeof(float));
        block_gradients(w, a, m, v, columns, logits, a->weight_grad_fresh[0] && i == 0);
    }
    if (a->grad[SLOT_NORMED]) a->kernels->scatter_add_rows(n, w->h, w->row + i, w->dnormed, a->grad[SLOT_NORMED]);
    if (w->xa) a->kernels->scatter_add_rows(n, model_spec_of(a)->rank, w->row + i, w->d_xa, a->grad[SLOT_ADAPTER]);
}

/* A gradient that every part of the vocabulary adds to. */
static void begin_gradient(const tm_stage_args *a, unsigned slot, uint64_t columns) {
    if (a->grad[slot] && model_fresh(a->grad_fresh, slot))
        a->kernels->zero(a->grad[slot], a->batch->tokens * columns * sizeof(float));
}

void head_backward(const tm_stage_args *a) {
    head_work w = prepare(a, true);
    begin_gradient(a, SLOT_NORMED, w.h);
    begin_gradient(a, SLOT_ADAPTER, model_spec_of(a)->rank);
    if (a->weight_grad[0] && a->weight_grad_fresh[0] && !w.rows)
        a->kernels->zero(a->weight_grad[0], w.count * w.h * sizeof(float));
    for (uint64_t i = 0; i < w.rows; i += a->model->token_chunk) backward_chunk(&w, a, i);
}

static bool is_head(const stage_spec *s) {
    return s->kind == model_stage_kind(STAGE_HEAD);
}

uint64_t tm_head_kept_bytes(const tm_model *m, uint32_t unit, uint32_t stage, uint32_t rows, uint32_t seq) {
    const stage_spec *s = m->unit[unit].stage[stage].spec;
    uint64_t tokens = tm_round_up((uint64_t)rows * seq, MODEL_TOKEN_GRAIN);
    return is_head(s) ? tokens * s->columns * sizeof(float) : 0;
}

void tm_head_nll(const tm_micro_batch *b, const void *state, float *nll) {
    const tm_head_state *s = state;
    uint64_t used = model_used(b);
    for (uint64_t r = 0; r < b->tokens; r++)
        nll[r] = r < used && b->labels[r] >= 0 ? tm_head_state_lse(&s[r]) - s[r].label : 0.0F;
}

bool tm_head_is_largest(const void *state, uint64_t row) {
    const tm_head_state *s = (const tm_head_state *)state + row;
    return s->label >= s->max;
}

tm_status tm_head_logits(const tm_stage_args *a, uint32_t first, uint32_t n, float *out, uint64_t ld) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    if (!is_head(s) || first > a->batch->tokens || n > a->batch->tokens - first)
        return tm_fail(TM_EBUG, "tm_head_logits: rows %u+%u of %u in stage %s", first, n, a->batch->tokens,
                       model_stage_of(a)->name);
    (a->kernels ? a->kernels : tm_kernels_host())
        ->gemm(&(tm_gemm_args){.m = n,
                               .n = s->columns,
                               .k = s->width,
                               .alpha = s->scale,
                               .a = model_row_const(t, a->slot[SLOT_NORMED], first, s->width),
                               .lda = s->width,
                               .b = a->weight[0],
                               .ldb = s->width,
                               .b_packed = a->packed,
                               .b_trans = true,
                               .c = out + s->column,
                               .ldc = ld,
                               .a_type = t,
                               .b_type = t,
                               .c_type = TM_ELEM_F32});
    if (s->rank)
        add_adapter(a, n, s->columns, model_row_const(t, a->slot[SLOT_ADAPTER], first, s->rank),
                    model_row_const(t, a->weight[HEAD_ADAPTER], 1, s->lora_b + s->column * s->rank), out + s->column,
                    ld);
    cap_logits(a, n, s->columns, ld, out + s->column);
    return TM_OK;
}
