/* A stage's product with its matrix W [n, k] ([k, n] where the spec says `transposed`) and, where its module has one, its
 * adapter A [r, k], B [n, r]:
 *
 *     LoRA   Y = scale (X W^T + s X' A^T B^T)                     X': X with some of it dropped, in training
 *     DoRA   Y = scale m / |W + s B A| (X W^T + s X' A^T B^T)     norms of outputs, which are constants for gradients
 *
 *     PiSSA  as either, with X A0^T B0^T subtracted from X' A^T B^T and B0 A0 from B A: what they were first
 *
 * X' A^T and its gradient G = s dY B are rounded to the compute type; dA = G^T X', dB = s dY^T X' A^T, both summed over
 * tokens chunk by chunk. DoRA's backward multiplies by W once more, for the gradient of m. */
#include "model/model_internal.h"

enum { DELTA_ROWS = 64 }; /* of B A that exist at a time */

/* ---- opening ---- */

bool model_drops(const tm_stage_args *a) {
    return model_spec_of(a)->dropped && a->batch->training;
}

uint64_t model_dropout_key(const tm_stage_args *a) {
    const uint64_t draw[] = {a->batch->draw, a->unit, a->stage};
    return tm_hash64(draw, sizeof draw, a->model->dropout_seed);
}

enum { DROPPED, XA, PRODUCT, SQUARES, DELTA, G, D_PRODUCT, D_DROPPED, BUFFERS };
/* Bytes of each buffer, 0: not needed. */
static void buffer_bytes(const tm_model *m, const stage_spec *s, bool backward, uint64_t rows,
                         uint64_t bytes[BUFFERS]) {
    uint64_t e = tm_dtype_bytes(m->compute), n = s->columns, k = s->width;
    for (unsigned i = 0; i < BUFFERS; i++) bytes[i] = 0;
    if (!s->rank) return;
    bytes[XA] = rows * s->rank * e;
    if (s->dropped) bytes[DROPPED] = rows * k * e;
    if (backward) bytes[G] = bytes[XA], bytes[D_DROPPED] = bytes[DROPPED];
    if (!s->magnitude) return;
    bytes[PRODUCT] = rows * n * sizeof(float);
    bytes[SQUARES] = n * sizeof(float);
    bytes[DELTA] = DELTA_ROWS * (s->transposed ? n : k) * sizeof(float);
    if (backward) bytes[D_PRODUCT] = rows * n * e;
}

uint64_t model_product_workspace(const tm_model *m, const stage_spec *s, bool backward, uint64_t rows) {
    uint64_t bytes[BUFFERS], sum = 0;
    buffer_bytes(m, s, backward, rows, bytes);
    for (unsigned i = 0; i < BUFFERS; i++) sum += tm_round_up(bytes[i], 64);
    return sum;
}

/* The adapter is the stage's last part. */
static void find_adapter(model_product *p, bool backward) {
    const tm_stage_args *a = p->a;
    unsigned part = model_stage_of(a)->n_parts - 1U;
    tm_elem t = model_elem(a->model);
    p->lora_a = model_row_const(t, a->weight[part], 1, p->s->lora_a);
    p->lora_b = model_row_const(t, a->weight[part], 1, p->s->lora_b);
    if (p->s->first_a) p->first_a = model_row_const(t, a->weight[part], 1, p->s->first_a);
    if (p->s->first_a) p->first_b = model_row_const(t, a->weight[part], 1, p->s->first_b);
    float *grad = backward ? model_small_gradient(a, part) : NULL;
    if (!grad) return;
    p->d_a = grad + p->s->lora_a;
    p->d_b = grad + p->s->lora_b;
    p->d_magnitude = p->s->magnitude ? grad + p->s->magnitude : NULL;
}

static const void *magnitude_of(const model_product *p) {
    return model_row_const(model_elem(p->a->model), p->a->weight[model_stage_of(p->a)->n_parts - 1], 1,
                           p->s->magnitude);
}

/* delta = alpha B A + beta delta of rows [at, at + n) of W, or of its transpose where that is what W is. */
static void make_delta(const model_product *p, uint64_t at, uint64_t n, bool first) {
    const stage_spec *s = p->s;
    tm_elem t = model_elem(p->a->model);
    const void *lora_a = first ? p->first_a : p->lora_a, *lora_b = first ? p->first_b : p->lora_b;
    uint64_t width = s->transposed ? s->columns : s->width;
    tm_gemm_args g = {.m = n, .n = width, .k = s->rank, .c = p->delta, .ldc = width};
    g.alpha = first ? -s->lora_scale : s->lora_scale, g.beta = first ? 1 : 0;
    g.a_type = g.b_type = t, g.c_type = TM_ELEM_F32;
    if (s->transposed) {
        g.a = model_row_const(t, lora_a, 1, at), g.lda = s->width, g.a_trans = true;
        g.b = lora_b, g.ldb = s->rank, g.b_trans = true;
    } else {
        g.a = model_row_const(t, lora_b, at, s->rank), g.lda = s->rank;
        g.b = lora_a, g.ldb = s->width;
    }
    p->a->kernels->gemm(&g);
}

/* Of rows [at, at + n) of W + s B A. */
static void add_squares(const model_product *p, uint64_t at, uint64_t n) {
    const stage_spec *s = p->s;
    tm_elem t = model_elem(p->a->model);
    uint64_t width = s->transposed ? s->columns : s->width;
    make_delta(p, at, n, false);
    if (p->first_a) make_delta(p, at, n, true);
    p->a->kernels->squares(&(tm_squares){.type = t,
                                         .rows = n,
                                         .n = width,
                                         .w = model_row_const(t, p->a->weight[PART_MATRIX], at, width),
                                         .ld_w = width,
                                         .delta = p->delta,
                                         .columns = s->transposed,
                                         .add = s->transposed && at > 0,
                                         .squares = p->squares + (s->transposed ? 0 : at)});
}

model_product model_product_open(const tm_stage_args *a, char **at, bool backward) {
    const stage_spec *s = model_spec_of(a);
    model_product p = {.a = a, .s = s, .adapted = s->rank && !a->batch->bare};
    uint64_t bytes[BUFFERS], rows = p.s->transposed ? p.s->width : p.s->columns;
    void *buffer[BUFFERS] = {NULL};
    if (!p.adapted) return p;
    buffer_bytes(a->model, p.s, backward, model_chunk_rows(a->model, a->batch->rows, a->batch->seq), bytes);
    for (unsigned i = 0; i < BUFFERS; i++)
        if (bytes[i]) buffer[i] = model_take(at, bytes[i]);
    p.dropped = buffer[DROPPED], p.xa = buffer[XA], p.product = buffer[PRODUCT], p.squares = buffer[SQUARES];
    p.delta = buffer[DELTA], p.g = buffer[G], p.d_product = buffer[D_PRODUCT], p.d_dropped = buffer[D_DROPPED];
    find_adapter(&p, backward);
    p.drops = model_drops(a);
    p.key = p.drops ? model_dropout_key(a) : 0;
    for (uint64_t r = 0; p.s->magnitude && r < rows; r += DELTA_ROWS)
        add_squares(&p, r, tm_min_u64(DELTA_ROWS, rows - r));
    return p;
}

/* ---- products ---- */

/* What products are multiplied by: with DoRA the factors are the magnitudes'. */
static float scale_of(const model_product *p) {
    return p->adapted && p->s->magnitude ? 1 : p->s->scale;
}

/* The product of chunk rows with the stage's matrix: sizes, types and W. */
static tm_gemm_args with_matrix(const model_product *p, uint64_t rows, bool back) {
    const stage_spec *s = p->s;
    uint64_t n = s->columns, k = s->width;
    tm_elem t = model_elem(p->a->model);
    return (tm_gemm_args){.m = rows,
                          .n = back ? k : n,
                          .k = back ? n : k,
                          .alpha = scale_of(p),
                          .b = p->a->weight[PART_MATRIX],
                          .ldb = s->transposed ? n : k,
                          .b_trans = s->transposed == back,
                          .a_type = t,
                          .b_type = t,
                          .c_type = t};
}

/* With the adapter: all operands but C of the compute type. */
static tm_gemm_args with_adapter(const model_product *p, uint64_t m, uint64_t n, uint64_t k, float alpha) {
    tm_elem t = model_elem(p->a->model);
    return (tm_gemm_args){.m = m,
                          .n = n,
                          .k = k,
                          .alpha = alpha,
                          .a_type = t,
                          .b_type = t,
                          .c_type = t,
                          .ldc = n,
                          .narrow = n == p->s->rank};
}

static void drop(const model_product *p, model_chunk c, const void *x, void *out, tm_elem out_type, bool add) {
    p->a->kernels->dropout(&(tm_dropout){.type = model_elem(p->a->model),
                                         .out_type = out_type,
                                         .row = c.row,
                                         .rows = c.rows,
                                         .n = p->s->width,
                                         .x = x,
                                         .out = out,
                                         .add = add,
                                         .key = p->key,
                                         .dropped = p->s->dropped});
}

/* p->xa = X' A^T; returns X'. */
static const void *go_in(const model_product *p, model_chunk c, const void *x) {
    const stage_spec *s = p->s;
    if (p->drops) drop(p, c, x, p->dropped, model_elem(p->a->model), false);
    tm_gemm_args g = with_adapter(p, c.rows, s->rank, s->width, 1);
    g.a = p->drops ? p->dropped : x, g.lda = s->width;
    g.b = p->lora_a, g.ldb = s->width, g.b_trans = true, g.c = p->xa;
    p->a->kernels->gemm(&g);
    return g.a;
}

/* Y += scale s X' A^T B^T */
static void come_out(const model_product *p, model_chunk c, void *y, uint64_t ldy, tm_elem type) {
    const stage_spec *s = p->s;
    tm_gemm_args g = with_adapter(p, c.rows, s->columns, s->rank, scale_of(p) * s->lora_scale);
    g.a = p->xa, g.lda = s->rank, g.b = p->lora_b, g.ldb = s->rank, g.b_trans = true;
    g.beta = 1, g.c = y, g.ldc = ldy, g.c_type = type;
    p->a->kernels->gemm(&g);
}

/* Y -= scale s X A0^T B0^T */
static void subtract_first(const model_product *p, model_chunk c, const void *x, void *y, uint64_t ldy, tm_elem type) {
    const stage_spec *s = p->s;
    tm_gemm_args g = with_adapter(p, c.rows, s->rank, s->width, 1);
    g.a = x, g.lda = s->width, g.b = p->first_a, g.ldb = s->width, g.b_trans = true, g.c = p->xa;
    p->a->kernels->gemm(&g);
    g = with_adapter(p, c.rows, s->columns, s->rank, -scale_of(p) * s->lora_scale);
    g.a = p->xa, g.lda = s->rank, g.b = p->first_b, g.ldb = s->rank, g.b_trans = true;
    g.beta = 1, g.c = y, g.ldc = ldy, g.c_type = type;
    p->a->kernels->gemm(&g);
}

static void multiply(const model_product *p, model_chunk c, const void *x, float beta, void *y, uint64_t ldy,
                     tm_elem type) {
    tm_gemm_args g = with_matrix(p, c.rows, false);
    g.b_packed = p->a->packed;
    g.a = x, g.lda = g.k, g.beta = beta, g.c = y, g.ldc = ldy, g.c_type = type;
    p->a->kernels->gemm(&g);
    if (!p->adapted) return;
    if (p->first_a) subtract_first(p, c, x, y, ldy, type);
    (void)go_in(p, c, x);
    come_out(p, c, y, ldy, type);
}

static tm_magnitude with_magnitudes(const model_product *p, model_chunk c) {
    return (tm_magnitude){.type = model_elem(p->a->model),
                          .rows = c.rows,
                          .n = p->s->columns,
                          .scale = p->s->scale,
                          .magnitude = magnitude_of(p),
                          .squares = p->squares,
                          .product = p->product};
}

static void show_input(const model_product *p, model_chunk c, const void *x) {
    uint64_t used = model_used(p->a->batch), rows = tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
    p->a->take_input(p->a->take_ctx, &(tm_product_input){x, c.row, rows, p->s->width});
}

void model_product_forward(const model_product *p, model_chunk c, const void *x, float beta, void *y, uint64_t ldy) {
    if (p->a->take_input) show_input(p, c, x);
    if (!p->adapted || !p->s->magnitude) {
        multiply(p, c, x, beta, y, ldy, model_elem(p->a->model));
        return;
    }
    multiply(p, c, x, 0, p->product, p->s->columns, TM_ELEM_F32);
    tm_magnitude d = with_magnitudes(p, c);
    d.y = y, d.ld_y = ldy, d.add = beta != 0;
    p->a->kernels->magnitude_forward(&d);
}

/* ---- backward ---- */

bool model_product_learns(const model_product *p) {
    return p->a->weight_grad[PART_MATRIX] || p->d_a;
}

void model_product_begin_back(model_product *p, model_chunk c, const void *dy, uint64_t ldy) {
    const stage_spec *s = p->s;
    p->dy = p->d_y = dy, p->ld_dy = p->ld_d_y = ldy;
    if (s->magnitude) {
        tm_magnitude d = with_magnitudes(p, c);
        d.dy = dy, d.ld_y = ldy, d.d_product = p->d_product;
        p->a->kernels->magnitude_backward(&d);
        p->dy = p->d_product, p->ld_dy = s->columns;
    }
    if (!s->rank) return;
    tm_gemm_args g = with_adapter(p, c.rows, s->rank, s->columns, scale_of(p) * s->lora_scale);
    g.a = p->dy, g.lda = p->ld_dy, g.b = p->lora_b, g.ldb = s->rank, g.c = p->g;
    p->a->kernels->gemm(&g);
}

/* dX -= scale s dY B0 A0; what is in xa was used. */
static void first_input_gradient(const model_product *p, model_chunk c, void *dx, tm_elem dx_type) {
    const stage_spec *s = p->s;
    tm_gemm_args g = with_adapter(p, c.rows, s->rank, s->columns, -scale_of(p) * s->lora_scale);
    g.a = p->dy, g.lda = p->ld_dy, g.b = p->first_b, g.ldb = s->rank, g.c = p->xa;
    p->a->kernels->gemm(&g);
    g = with_adapter(p, c.rows, s->width, s->rank, 1);
    g.a = p->xa, g.lda = s->rank, g.b = p->first_a, g.ldb = s->width;
    g.c = dx, g.c_type = dx_type, g.beta = 1;
    p->a->kernels->gemm(&g);
}

void model_product_input_gradient(const model_product *p, model_chunk c, float beta, void *dx, tm_elem dx_type) {
    const stage_spec *s = p->s;
    tm_elem t = model_elem(p->a->model);
    tm_gemm_args g = with_matrix(p, c.rows, true);
    g.b_packed = p->a->packed;
    g.a = p->dy, g.lda = p->ld_dy, g.beta = beta, g.c = dx, g.ldc = g.n, g.c_type = dx_type;
    p->a->kernels->gemm(&g);
    if (!s->rank) return;
    if (p->first_a) first_input_gradient(p, c, dx, dx_type);
    g = with_adapter(p, c.rows, s->width, s->rank, 1);
    g.a = p->g, g.lda = s->rank, g.b = p->lora_a, g.ldb = s->width;
    g.c = p->drops ? p->d_dropped : dx, g.c_type = p->drops ? t : dx_type, g.beta = p->drops ? 0 : 1;
    p->a->kernels->gemm(&g);
    if (p->drops) drop(p, c, p->d_dropped, dx, dx_type, true);
}

/* dW += scale dY[rows, n]^T X[rows, k], written if fresh */
static void matrix_gradient(const model_product *p, model_chunk c, const void *x, bool fresh) {
    uint64_t n = p->s->columns, k = p->s->width;
    tm_elem t = model_elem(p->a->model);
    tm_gemm_args g = {.m = n, .n = k, .k = c.rows, .alpha = scale_of(p), .a_type = t, .b_type = t};
    g.a = p->dy, g.lda = p->ld_dy, g.b = x, g.ldb = k, g.beta = fresh ? 0 : 1;
    if (p->s->transposed) g.m = k, g.n = n, g.a = x, g.lda = k, g.b = p->dy, g.ldb = p->ld_dy;
    g.a_trans = true;
    g.c = p->a->weight_grad[PART_MATRIX], g.ldc = g.n, g.c_type = TM_ELEM_F32;
    p->a->kernels->gemm(&g);
}

/* Of magnitudes: the product again, with the output's gradient as it came in. */
static void magnitude_gradient(const model_product *p, model_chunk c, const void *x) {
    multiply(p, c, x, 0, p->product, p->s->columns, TM_ELEM_F32);
    tm_magnitude d = with_magnitudes(p, c);
    d.dy = p->d_y, d.ld_y = p->ld_d_y, d.d_product = p->d_product, d.d_magnitude = p->d_magnitude;
    p->a->kernels->magnitude_backward(&d);
}

static void adapter_gradients(const model_product *p, model_chunk c, const void *x) {
    const stage_spec *s = p->s;
    x = go_in(p, c, x);
    tm_gemm_args g = with_adapter(p, s->rank, s->width, c.rows, 1);
    g.a = p->g, g.lda = s->rank, g.a_trans = true, g.b = x, g.ldb = s->width;
    g.c = p->d_a, g.c_type = TM_ELEM_F32, g.beta = 1;
    p->a->kernels->gemm(&g);
    g = with_adapter(p, s->columns, s->rank, c.rows, scale_of(p) * s->lora_scale);
    g.a = p->dy, g.lda = p->ld_dy, g.a_trans = true, g.b = p->xa, g.ldb = s->rank;
    g.c = p->d_b, g.c_type = TM_ELEM_F32, g.beta = 1;
    p->a->kernels->gemm(&g);
}

void model_product_weight_gradients(const model_product *p, model_chunk c, const void *x) {
    if (p->a->weight_grad[PART_MATRIX]) matrix_gradient(p, c, x, p->a->weight_grad_fresh[PART_MATRIX] && c.row == 0);
    if (p->d_magnitude) magnitude_gradient(p, c, x);
    if (p->d_a) adapter_gradients(p, c, x);
}

/* ---- work ---- */

double model_adapter_flops(const stage_spec *s, bool backward, const tm_load *load) {
    double in = 2 * load->tokens * (double)(s->width * s->rank),
           out = 2 * load->tokens * (double)(s->columns * s->rank);
    double pairs = s->first_a ? 2 : 1, norms = s->magnitude ? 2 * pairs * (double)(s->width * s->columns) * s->rank : 0;
    if (!s->rank) return 0;
    if (!backward) return pairs * (in + out) + norms;
    double again = s->magnitude ? 2 * load->tokens * (double)(s->width * s->columns) + out : 0;
    if (s->first_a && s->magnitude) again += in + out;
    double first = s->first_a && !(s->without & WITHOUT_PRODUCT) ? in + out : 0;
    return (s->without & WITHOUT_PRODUCT ? 2 : 3) * in + 2 * out + first + norms + again;
}
