/* The stages of a transformer block (pre-norm, grouped-query attention, gated unit). Weights are [out, in], rows of
 * slots are tokens: forward is Y = X W^T, the input's gradient dX = dY W, the weight's dW = dY^T X summed over tokens
 * in chunks of MODEL_TOKEN_CHUNK, chunks in order. */
#include "model/model_internal.h"

#include <string.h>

/* Of a gradient that somebody wants. */
static void zero_gradient_tail(const tm_stage_args *a, unsigned slot, uint64_t row_bytes) {
    if (a->grad[slot]) model_zero_tail(a, a->grad[slot], row_bytes);
}

static void copy_rows(const tm_stage_args *a, void *to, const void *from, uint64_t row_bytes) {
    if (to != from) a->kernels->copy(to, from, a->batch->tokens * row_bytes);
}

/* ---- norm: its own stage in the head, and where q, k, v or gate, up are separate ---- */

/* The norm of a chunk's rows of slot s->in, without its output. */
static tm_norm norm_of(const tm_stage_args *a, const void *small, model_chunk c) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    return (tm_norm){.type = t,
                     .kind = s->norm_kind,
                     .rows = c.rows,
                     .n = s->width,
                     .eps = s->epsilon,
                     .x = model_row_const(t, a->slot[s->in], c.row, s->width),
                     .weight = model_row_const(t, small, 1, s->norm),
                     .bias = s->norm_bias != NO_VECTOR ? model_row_const(t, small, 1, s->norm_bias) : NULL,
                     .dy_type = TM_ELEM_F32};
}

/* Its backward, from dy into the gradient of slot s->in, or into the workspace if nobody wants that one. */
static void norm_back(const tm_stage_args *a, tm_norm n, model_chunk c, const void *dy, bool add, float *small,
                      char *workspace) {
    const stage_spec *s = model_spec_of(a);
    n.dy = dy;
    if (a->grad[s->in])
        n.dx = model_row(n.type, a->grad[s->in], c.row, s->width), n.dx_add = add;
    else
        n.dx = model_take(&workspace, c.rows * s->width * tm_elem_bytes(n.type));
    n.dw = small ? small + s->norm : NULL;
    n.db = small && s->norm_bias != NO_VECTOR ? small + s->norm_bias : NULL;
    n.dw_add = true;
    n.workspace = workspace;
    a->kernels->norm_backward(&n);
}

static uint64_t norm_bytes(const tm_model *m, const stage_spec *s, uint64_t rows) {
    uint64_t dx = s->without & WITHOUT_INPUT ? tm_round_up(rows * s->width * tm_dtype_bytes(m->compute), 64) : 0;
    return dx + m->sizes.norm_workspace(rows, s->norm_kind == TM_NORM_LAYER ? 2 * s->width : s->width);
}

void norm_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_norm n = norm_of(a, a->weight[0], (model_chunk){0, model_rows(a->batch)});
    n.y = a->slot[s->out];
    a->kernels->norm_forward(&n);
    model_zero_tail(a, a->slot[s->out], s->width * tm_elem_bytes(n.type));
    if (s->rank && !a->batch->bare) model_head_adapter_forward(a);
}

static bool adds_gradient(const tm_stage_args *a, unsigned slot) {
    const tm_stage *s = model_stage_of(a);
    bool adds = false;
    for (unsigned i = 0; i < s->n_backward; i++)
        adds |= s->backward[i].grad && s->backward[i].slot == slot && s->backward[i].access == TM_UPDATE;
    return adds;
}

void norm_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->width;
    bool add = adds_gradient(a, s->in) && !model_fresh(a->grad_fresh, s->in);
    float *small = model_small_gradient(a, 0), *d_a = s->rank ? model_small_gradient(a, 1) : NULL;
    MODEL_CHUNKS(c, model_rows(a->batch)) {
        char *at = a->workspace;
        const float *dy = (const float *)a->grad[s->out] + c.row * h;
        if (s->rank) dy = model_head_adapter_back(a, c, d_a, &at);
        norm_back(a, norm_of(a, a->weight[0], c), c, dy, add, small, at);
    }
    if (!add) zero_gradient_tail(a, s->in, h * tm_elem_bytes(t));
}

uint64_t norm_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = model_chunk_rows(m, rows, seq);
    return (s->rank ? model_head_adapter_workspace(m, s, backward, n) : 0) + (backward ? norm_bytes(m, s, n) : 0);
}

/* ---- post: output = residual + norm(input), times an element that does not learn ---- */

static uint64_t row_bytes_of(const tm_stage_args *a) {
    return model_spec_of(a)->width * tm_elem_bytes(model_elem(a->model));
}

/* Rows of the output, or of its gradient, times the element. */
static void scale_rows(const tm_stage_args *a, uint64_t rows, const void *from, void *to) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    a->kernels->scale(t, rows * s->width, model_row_const(t, a->weight[0], 1, s->scalar), from, to);
}

void post_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_norm n = norm_of(a, a->weight[0], (model_chunk){0, model_rows(a->batch)});
    n.y = a->slot[s->out];
    n.residual = a->slot[s->residual];
    a->kernels->norm_forward(&n);
    model_zero_tail(a, a->slot[s->out], row_bytes_of(a));
    if (s->scalar != NO_VECTOR) scale_rows(a, a->batch->tokens, a->slot[s->out], a->slot[s->out]);
}

void post_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    float *small = model_small_gradient(a, 0);
    bool scaled = s->scalar != NO_VECTOR, norm = small || a->grad[s->in];
    const void *sum =
        a->grad[scaled && a->grad[s->residual] ? s->residual : s->out]; /* its gradient, or what that is scaled from */
    if (scaled && a->grad[s->residual]) scale_rows(a, a->batch->tokens, a->grad[s->out], a->grad[s->residual]);
    MODEL_CHUNKS(c, norm ? model_rows(a->batch) : 0) {
        char *at = a->workspace;
        const void *dy = model_row_const(t, sum, c.row, s->width);
        tm_norm n = norm_of(a, a->weight[0], c);
        if (scaled && !a->grad[s->residual]) {
            void *buf = model_take(&at, c.rows * row_bytes_of(a));
            scale_rows(a, c.rows, dy, buf);
            dy = buf;
        }
        n.dy_type = t;
        norm_back(a, n, c, dy, false, small, at);
    }
    zero_gradient_tail(a, s->in, row_bytes_of(a));
    if (a->grad[s->residual] && !scaled) copy_rows(a, a->grad[s->residual], sum, row_bytes_of(a));
}

uint64_t post_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t scaled = model_chunk_rows(m, rows, seq) * s->width * tm_dtype_bytes(m->compute);
    if (!backward || s->scalar == NO_VECTOR) scaled = 0;
    return norm_workspace(m, s, backward, rows, seq) + tm_round_up(scaled, 64);
}

/* ---- in: (norm and) product, bias, rotation ---- */

/* Of a stage whose only part is the small one. */
static const void *small_of(const tm_stage_args *a, uint64_t element) {
    return model_row_const(model_elem(a->model), a->weight[0], 1, element);
}
static const void *small_at(const tm_stage_args *a, uint64_t element) {
    return model_row_const(model_elem(a->model), a->weight[PART_SMALL], 1, element);
}

/* The chunk's rows that are multiplied: normed, from their slot or computed into buf, or the input as it is. */
static const void *input_rows(const tm_stage_args *a, const stage_spec *p, model_chunk c, void *buf) {
    tm_elem t = model_elem(a->model);
    if (!model_norms_itself(p)) return model_row_const(t, a->slot[p->normed ? p->normed : p->in], c.row, p->width);
    tm_norm n = norm_of(a, a->weight[PART_SMALL], c);
    n.y = buf;
    a->kernels->norm_forward(&n);
    return buf;
}

void in_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *p = model_spec_of(a);
    uint64_t used = model_used(a->batch), rows = model_rows(a->batch);
    tm_positions positions = model_positions(a->batch);
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, false);
    MODEL_CHUNKS(c, rows) {
        char *out = model_row(t, a->slot[p->out], c.row, p->row_columns);
        out += p->column * tm_elem_bytes(t);
        model_product_forward(&product, c, input_rows(a, p, c, at), 0, out, p->row_columns);
        if (p->bias != NO_VECTOR)
            a->kernels->add_bias(t, c.rows, p->columns, small_at(a, p->bias), out, p->row_columns);
        uint64_t real = tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
        if (p->rotated)
            a->kernels->rope_apply(model_rope(a), t, c.row, real, p->row_columns, p->rotated, out, positions, false);
    }
    if (p->column == 0) model_zero_tail(a, a->slot[p->out], p->row_columns * tm_elem_bytes(t));
}

/* The gradient of qkv was turned back where it was made (tm_attention_backward). */
static void in_backward_chunk(model_product *product, model_chunk c, float *small, char *at) {
    const tm_stage_args *a = product->a;
    const stage_spec *p = product->s;
    tm_elem t = model_elem(a->model);
    uint64_t h = p->width;
    bool own = model_norms_itself(p), back = !(p->without & WITHOUT_PRODUCT);
    unsigned to = p->normed ? p->normed : p->in; /* whose gradient the product's is, unless it goes through the norm */
    tm_elem to_type = p->normed ? TM_ELEM_F32 : t;
    void *buf = own ? model_take(&at, c.rows * h * tm_elem_bytes(t)) : NULL;
    const char *dy = model_row_const(t, a->grad[p->out], c.row, p->row_columns);
    dy += p->column * tm_elem_bytes(t);
    model_product_begin_back(product, c, dy, p->row_columns);
    if (model_product_learns(product)) model_product_weight_gradients(product, c, input_rows(a, p, c, buf));
    if (small && p->bias != NO_VECTOR)
        a->kernels->column_sum(t, c.rows, p->columns, dy, p->row_columns, small + p->bias, true);
    if (!back) return;
    void *dx = own ? model_take(&at, c.rows * h * sizeof(float)) : model_row(to_type, a->grad[to], c.row, h);
    bool keep = !own && !model_fresh(a->grad_fresh, to);
    model_product_input_gradient(product, c, keep ? 1 : 0, dx, own ? TM_ELEM_F32 : to_type);
    if (own) norm_back(a, norm_of(a, a->weight[PART_SMALL], c), c, dx, !model_fresh(a->grad_fresh, p->in), small, at);
}

void in_backward(const tm_stage_args *a) {
    const stage_spec *p = model_spec_of(a);
    uint64_t rows = model_rows(a->batch), h = p->width;
    unsigned to = p->normed ? p->normed : p->in;
    uint64_t width = p->normed ? sizeof(float) : tm_elem_bytes(model_elem(a->model));
    bool has_small = model_norms_itself(p) || p->bias != NO_VECTOR;
    float *small = has_small ? model_small_gradient(a, PART_SMALL) : NULL;
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, true);
    MODEL_CHUNKS(c, rows) in_backward_chunk(&product, c, small, at);
    if (model_fresh(a->grad_fresh, to)) zero_gradient_tail(a, to, h * width);
}

uint64_t in_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = model_chunk_rows(m, rows, seq), h = s->width, product = model_product_workspace(m, s, backward, n);
    if (!model_norms_itself(s)) return product;
    uint64_t normed = tm_round_up(n * h * tm_dtype_bytes(m->compute), 64);
    return product + normed + (backward ? tm_round_up(n * h * sizeof(float), 64) + norm_bytes(m, s, n) : 0);
}

/* ---- qk: norms of q and k (and v) by heads, rotation ---- */

/* Columns of the projection, and where attention reads them, normed. */
typedef struct head_columns {
    uint64_t from, n, to, ld_to;
    unsigned slot;
    uint64_t weight; /* NO_VECTOR: ones */
    bool again;      /* values that are keys: their gradient is added to the keys' */
} head_columns;

/* q; k beside it, or k and v together in a slot of their own. */
static unsigned columns_of(const stage_spec *s, head_columns of[3]) {
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    uint64_t v = s->keys_are_values ? q : q + kv;
    of[0] = (head_columns){0, q, 0, s->width, s->out, s->norm, false};
    of[1] = (head_columns){q, kv, q, s->width, s->out, s->norm_k, false};
    if (!s->kv_apart) return 2;
    of[1] = (head_columns){q, kv, 0, 2 * kv, s->values, s->norm_k, false};
    of[2] = (head_columns){v, kv, kv, 2 * kv, s->values, NO_VECTOR, s->keys_are_values};
    return s->values == NO_SLOT ? 1 : 3;
}

/* Of a chunk: rows of the projection. */
static tm_norm head_norm(const tm_stage_args *a, model_chunk c, const head_columns *h) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    tm_norm n = {.type = t, .kind = s->norm_kind, .rows = c.rows, .eps = s->epsilon, .dy_type = t};
    n.n = s->norm_whole ? h->n : s->head_dim;
    n.groups = h->n / n.n;
    n.ld_x = s->row_columns, n.ld_y = h->ld_to;
    n.x = model_row_const(t, model_row_const(t, a->slot[s->in], c.row, s->row_columns), 1, h->from);
    n.weight = h->weight != NO_VECTOR ? small_of(a, h->weight) : NULL;
    return n;
}

static void turn(const tm_stage_args *a, model_chunk c, const head_columns *h) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    uint64_t used = model_used(a->batch), real = tm_min_u64(c.rows, used - tm_min_u64(used, c.row));
    tm_positions positions = model_positions(a->batch);
    void *x = model_row(t, model_row(t, a->slot[h->slot], c.row, h->ld_to), 1, h->to);
    if (s->rope == NO_ROPE) return;
    a->kernels->rope_apply(model_rope(a), t, c.row, real, h->ld_to, (uint32_t)(h->n / s->head_dim), x, positions,
                           false);
}

void qk_forward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    head_columns of[3];
    unsigned n_of = columns_of(s, of);
    MODEL_CHUNKS(c, model_rows(a->batch))
    for (unsigned i = 0; i < n_of; i++) {
        tm_norm n = head_norm(a, c, &of[i]);
        n.y = model_row(t, model_row(t, a->slot[of[i].slot], c.row, of[i].ld_to), 1, of[i].to);
        a->kernels->norm_forward(&n);
        if (i < 2) turn(a, c, &of[i]);
    }
    for (unsigned i = 0; i < n_of; i++)
        if (of[i].to == 0) model_zero_tail(a, a->slot[of[i].slot], of[i].ld_to * tm_elem_bytes(t));
}

/* The gradients of q and k were turned back where they were made. Of values that are not normed attention has written
 * them beside. */
void qk_backward(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    tm_elem t = model_elem(a->model);
    head_columns of[3];
    unsigned n_of = columns_of(s, of);
    float *small = model_small_gradient(a, 0);
    MODEL_CHUNKS(c, a->batch->tokens) { /* the padding's too: nobody else writes these columns */
        char *at = a->workspace;
        void *dx = a->grad[s->in] ? model_row(t, a->grad[s->in], c.row, s->row_columns)
                                  : model_take(&at, c.rows * s->row_columns * tm_elem_bytes(t));
        for (unsigned i = 0; i < n_of; i++) {
            tm_norm n = head_norm(a, c, &of[i]);
            n.dy = model_row_const(t, model_row_const(t, a->grad[of[i].slot], c.row, of[i].ld_to), 1, of[i].to);
            n.dx = model_row(t, dx, 1, of[i].from);
            n.dx_add = of[i].again;
            n.dw = small && of[i].weight != NO_VECTOR ? small + of[i].weight : NULL;
            n.dw_add = true;
            n.workspace = at;
            a->kernels->norm_backward(&n);
        }
    }
}

uint64_t qk_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t widest = s->norm_whole ? (uint64_t)s->heads * s->head_dim : s->head_dim, dx = 0;
    (void)rows, (void)seq;
    if (s->without & WITHOUT_INPUT) dx = tm_round_up(m->token_chunk * s->row_columns * tm_dtype_bytes(m->compute), 64);
    return backward ? dx + m->sizes.norm_workspace(m->token_chunk, widest) : 0;
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
                          .softcap = s->softcap,
                          .temperature = s->temperature,
                          .temperature_every = s->temperature_every};
}

/* Where q, k and v lie: side by side, or v where it was projected and q and k where they were normed. */
static void place_qkv(const tm_stage_args *a, tm_attention *x) {
    const stage_spec *s = model_spec_of(a);
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    if (s->values == s->in) {
        tm_attention_fuse(x, a->slot[s->in], a->grad[s->in]);
        return;
    }
    x->ld_q = x->ld_k = q + kv;
    x->ld_v = q + 2 * kv;
    x->q = a->slot[s->in], x->k = model_row_const(x->type, x->q, 1, q);
    x->v = model_row_const(x->type, a->slot[s->values], 1, q + kv);
    if (!a->grad[s->in]) return;
    x->d_q = a->grad[s->in], x->d_k = model_row(x->type, x->d_q, 1, q);
    x->d_v = model_row(x->type, a->grad[s->values], 1, q + kv);
}

/* Keys and values in a slot of their own, to whose gradient each block that shares them adds. */
static void place_kv_apart(const tm_stage_args *a, tm_attention *x) {
    const stage_spec *s = model_spec_of(a);
    uint64_t kv = (uint64_t)s->kv_heads * s->head_dim;
    x->ld_q = (uint64_t)s->heads * s->head_dim;
    x->ld_k = x->ld_v = 2 * kv;
    x->q = a->slot[s->in], x->k = a->slot[s->values];
    x->v = model_row_const(x->type, x->k, 1, kv);
    if (!a->grad[s->in]) return;
    x->d_q = a->grad[s->in], x->d_k = a->grad[s->values];
    x->d_v = model_row(x->type, x->d_k, 1, kv);
    x->kv_add = !model_fresh(a->grad_fresh, s->values);
}

static tm_attention attention_args(const tm_stage_args *a) {
    const tm_micro_batch *b = a->batch;
    const stage_spec *s = model_spec_of(a);
    tm_attention x = attention_of(a->model, s, b->rows, b->seq);
    x.padded = b->tokens;
    x.rope = model_rope(a);
    if (s->kv_apart)
        place_kv_apart(a, &x);
    else
        place_qkv(a, &x);
    x.key_mask = b->key_mask;
    x.begin = b->begin;
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
    x.cache_row = a->batch->cache_row;
    x.cache_from = a->batch->cache_from;
    x.decode = a->batch->decode;
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
    return (backward ? 10 : 4) * (s->window ? load->window_pairs : load->pairs) * s->heads * s->head_dim;
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

/* What the product is added to; returns its beta. */
static float begin_output(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    if (s->residual == NO_SLOT) return 0;
    copy_rows(a, a->slot[s->out], a->slot[s->residual], s->columns * tm_elem_bytes(model_elem(a->model)));
    return 1;
}

static void end_output(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    add_out_bias(a);
    if (s->residual == NO_SLOT) model_zero_tail(a, a->slot[s->out], s->columns * tm_elem_bytes(model_elem(a->model)));
}

static void residual_gradient(const tm_stage_args *a) {
    const stage_spec *s = model_spec_of(a);
    if (s->residual == NO_SLOT || !a->grad[s->residual]) return;
    copy_rows(a, a->grad[s->residual], a->grad[s->out], s->columns * tm_elem_bytes(model_elem(a->model)));
}

void out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, q = s->width;
    float beta = begin_output(a);
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, false);
    MODEL_CHUNKS(c, model_rows(a->batch))
    model_product_forward(&product, c, model_row_const(t, a->slot[s->in], c.row, q), beta,
                          model_row(t, a->slot[s->out], c.row, h), h);
    end_output(a);
}

void out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, q = s->width;
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, true);
    MODEL_CHUNKS(c, model_rows(a->batch)) {
        model_product_begin_back(&product, c, model_row_const(t, a->grad[s->out], c.row, h), h);
        if (a->grad[s->in]) model_product_input_gradient(&product, c, 0, model_row(t, a->grad[s->in], c.row, q), t);
        if (model_product_learns(&product))
            model_product_weight_gradients(&product, c, model_row_const(t, a->slot[s->in], c.row, q));
    }
    out_bias_gradient(a);
    zero_gradient_tail(a, s->in, q * tm_elem_bytes(t));
    residual_gradient(a);
}

uint64_t out_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    return model_product_workspace(m, s, backward, model_chunk_rows(m, rows, seq));
}

/* ---- glu_out: output = residual + (act(gate) * up) Wd^T + bias, or of act(x); up lies beside the gate, or elsewhere ---- */

static uint64_t glu_input(const stage_spec *s) {
    return s->plain || s->values != NO_SLOT ? s->width : 2 * s->width;
}

static tm_glu glu_of(const tm_stage_args *a, model_chunk c) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    tm_glu g = {.type = t,
                .act = s->activation,
                .plain = s->plain,
                .rows = c.rows,
                .width = s->width,
                .x = model_row_const(t, a->slot[s->in], c.row, glu_input(s))};
    if (s->values == NO_SLOT) return g;
    g.ld_up = s->up_row;
    g.up = model_row_const(t, model_row_const(t, a->slot[s->values], c.row, s->up_row), 1, s->up_column);
    if (a->grad[s->values]) g.d_up = model_row(t, model_row(t, a->grad[s->values], c.row, s->up_row), 1, s->up_column);
    return g;
}

/* The factor's gradient has columns of others beside these. */
static void zero_factor_tail(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    bool wanted = s->values != NO_SLOT && a->grad[s->values];
    for (uint64_t r = model_rows(a->batch); wanted && r < a->batch->tokens; r++)
        a->kernels->zero(model_row(t, model_row(t, a->grad[s->values], r, s->up_row), 1, s->up_column),
                         s->width * tm_elem_bytes(t));
}

void glu_out_forward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns;
    float beta = begin_output(a);
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, false);
    MODEL_CHUNKS(c, model_rows(a->batch)) {
        tm_glu g = glu_of(a, c);
        g.y = at;
        a->kernels->glu_forward(&g);
        model_product_forward(&product, c, at, beta, model_row(t, a->slot[s->out], c.row, h), h);
    }
    end_output(a);
}

/* The activation again, into `act`, and its input's gradient if that is wanted. */
static void glu_back(const model_product *product, model_chunk c, void *act, float *da) {
    const tm_stage_args *a = product->a;
    const stage_spec *s = product->s;
    tm_glu g = glu_of(a, c);
    g.y = act;
    if (!a->grad[s->in]) {
        if (a->slot[s->in]) a->kernels->glu_forward(&g);
        return;
    }
    model_product_input_gradient(product, c, 0, da, TM_ELEM_F32);
    g.dy = da;
    g.dx = model_row(g.type, a->grad[s->in], c.row, glu_input(s));
    a->kernels->glu_backward(&g);
}

void glu_out_backward(const tm_stage_args *a) {
    tm_elem t = model_elem(a->model);
    const stage_spec *s = model_spec_of(a);
    uint64_t h = s->columns, f = s->width;
    char *at = a->workspace;
    model_product product = model_product_open(a, &at, true);
    MODEL_CHUNKS(c, model_rows(a->batch)) {
        char *act = at;
        float *da = model_take(&act, c.rows * f * sizeof *da);
        model_product_begin_back(&product, c, model_row_const(t, a->grad[s->out], c.row, h), h);
        glu_back(&product, c, act, da);
        if (model_product_learns(&product)) model_product_weight_gradients(&product, c, act);
    }
    out_bias_gradient(a);
    zero_gradient_tail(a, s->in, glu_input(s) * tm_elem_bytes(t));
    zero_factor_tail(a);
    residual_gradient(a);
}

uint64_t glu_out_workspace(const tm_model *m, const stage_spec *s, bool backward, uint32_t rows, uint32_t seq) {
    uint64_t n = model_chunk_rows(m, rows, seq) * s->width;
    uint64_t act = tm_round_up(n * tm_dtype_bytes(m->compute), 64);
    act += model_product_workspace(m, s, backward, model_chunk_rows(m, rows, seq));
    return backward ? act + tm_round_up(n * sizeof(float), 64) : act;
}
