/* The rows of the kernel table: arguments to structs, structs to grids. A row may be called for nothing at all (no
 * rows, no elements), which launches nothing. */
#include "device/cuda/queue.h"
#include "kernels/kernel_table.h"

#include <string.h>

static _Thread_local cuda_queue *now;

cuda_queue *cuda_use_queue(cuda_queue *q) {
    cuda_queue *before = now;
    now = q;
    return before;
}

static void keep(tm_status rc) {
    if (now->status == TM_OK) now->status = rc;
}

/* A block a tile: none is left out. */
static void launch_blocks(cuda_kernel k, const void *args, uint64_t x, uint64_t y, uint64_t z, uint32_t threads,
                          uint32_t shared_bytes) {
    if (now->status != TM_OK || x == 0 || y == 0 || z == 0) return;
    if (x > INT32_MAX || y > UINT16_MAX || z > UINT16_MAX) {
        keep(tm_fail(TM_EUNSUPPORTED, "cuda: a kernel of %llu x %llu x %llu blocks is more than a device takes",
                     (unsigned long long)x, (unsigned long long)y, (unsigned long long)z));
        return;
    }
    cuda_launch l = {.kernel = k,
                     .args = args,
                     .grid = {(uint32_t)x, (uint32_t)y, (uint32_t)z},
                     .threads = threads,
                     .shared_bytes = shared_bytes};
    keep(now->launch(now, &l));
}
static void launch(cuda_kernel k, const void *args, uint64_t x, uint64_t y, uint64_t z, uint32_t shared_bytes) {
    launch_blocks(k, args, x, y, z, CUDA_THREADS, shared_bytes);
}
/* Blocks that stride: any number of them does. */
static void launch_strided(cuda_kernel k, const void *args, uint64_t x, uint64_t y, uint32_t shared_bytes) {
    launch(k, args, tm_min_u64(x, now->most_blocks ? now->most_blocks : CUDA_GRID_X), y, 1, shared_bytes);
}

static uint64_t blocks_of(uint64_t n, uint64_t each) {
    return n / each + (n % each != 0);
}
/* A thread an element. */
static void launch_elements(cuda_kernel k, const void *args, uint64_t n) {
    launch_strided(k, args, blocks_of(n, CUDA_THREADS), 1, 0);
}
static void launch_rows(cuda_kernel k, const void *args, uint64_t rows, uint32_t shared_floats) {
    launch_strided(k, args, rows, 1, shared_floats * (uint32_t)sizeof(float));
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static void own_gemm(const tm_gemm_args *g) {
    enum { DEPTH = 16, FLOATS = 2 * DEPTH * (CUDA_GEMM_TILE + 1) };
    cuda_gemm_args a = {.a = g->a,
                        .b = g->b,
                        .c = g->c,
                        .m = g->m,
                        .n = g->n,
                        .k = g->k,
                        .lda = g->lda,
                        .ldb = g->ldb,
                        .ldc = g->ldc,
                        .alpha = g->alpha,
                        .beta = g->beta,
                        .a_type = (int32_t)g->a_type,
                        .b_type = (int32_t)g->b_type,
                        .c_type = (int32_t)g->c_type,
                        .a_trans = g->a_trans,
                        .b_trans = g->b_trans};
    launch(CUDA_K_gemm, &a, blocks_of(g->n, CUDA_GEMM_TILE), blocks_of(g->m, CUDA_GEMM_TILE), 1,
           FLOATS * sizeof(float));
}

void cuda_gemm(const tm_gemm_args *g) {
    if (now->status != TM_OK || g->m == 0 || g->n == 0) return;
    tm_status rc = now->library_gemm ? now->library_gemm(now, g) : TM_EUNSUPPORTED;
    if (rc == TM_EUNSUPPORTED)
        own_gemm(g);
    else
        keep(rc);
}

/* ---- norm ------------------------------------------------------------------------------------------------------ */

/* What kernels lack is refused by the row's name. Jobs ask before they plan (tm_model_needs); this is for who did not. */
static bool lacks(bool something, tm_kernel_feature what) {
    if (something)
        keep(tm_fail(TM_EUNSUPPORTED,
                     "cuda: this build's kernels lack %s; compute it with memory.device \"cpu\" or \"cpu-arena\"",
                     tm_kernel_feature_name(what)));
    return something;
}

static bool norm_lacks(const tm_norm *n) {
    return lacks(n->kind != TM_NORM_RMS || n->groups > 1 || n->ld_x || n->ld_y || !n->weight || n->residual,
                 TM_KERNEL_NORMS);
}

void cuda_norm_forward(const tm_norm *n) {
    cuda_norm_args a = {
        .x = n->x, .w = n->weight, .y = n->y, .rows = n->rows, .n = n->n, .eps = n->eps, .type = (int32_t)n->type};
    if (!norm_lacks(n)) launch_rows(CUDA_K_norm_forward, &a, n->rows, CUDA_WARP);
}

void cuda_norm_backward(const tm_norm *n) {
    cuda_norm_args a = {.x = n->x,
                        .w = n->weight,
                        .dy = n->dy,
                        .dx = n->dx,
                        .inv = n->workspace,
                        .partial = (float *)(void *)((char *)n->workspace + cuda_norm_inv_bytes(n->rows)),
                        .rows = n->rows,
                        .n = n->n,
                        .eps = n->eps,
                        .type = (int32_t)n->type,
                        .dx_add = n->dx_add};
    if (norm_lacks(n) || lacks(n->dy_type != TM_ELEM_F32, TM_KERNEL_NORMS)) return;
    uint64_t blocks = blocks_of(n->rows, CUDA_ROW_BLOCK);
    launch_rows(CUDA_K_norm_backward, &a, n->rows, 2 * CUDA_WARP);
    if (!n->dw) return;
    launch_strided(CUDA_K_norm_columns, &a, blocks_of(n->n, CUDA_THREADS), blocks, 0);
    cuda_column_sum(TM_ELEM_F32, blocks, n->n, a.partial, n->n, n->dw, n->dw_add);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static bool rope_lacks(const tm_rope *r) {
    return lacks(r->rotary != r->head_dim || r->interleaved || r->factor != 1, TM_KERNEL_ROTARY);
}

void cuda_rope_apply(const tm_rope *r, tm_elem t, uint64_t row0, uint64_t rows, uint64_t ld, uint32_t heads, void *x,
                     tm_positions pos, bool inverse) {
    cuda_rope_args a = {.first = pos.first,
                        .x = x,
                        .row0 = row0,
                        .rows = rows,
                        .ld = ld,
                        .head_dim = r->head_dim,
                        .cached = r->cached,
                        .heads = heads,
                        .seq = pos.seq,
                        .type = (int32_t)t,
                        .inverse = inverse};
    if (now->status != TM_OK || rows == 0 || rope_lacks(r) || lacks(pos.begin != NULL, TM_KERNEL_DOCUMENTS)) return;
    keep(now->rope(now, r, &a.table, &a.inv_freq));
    launch_rows(CUDA_K_rope, &a, rows, 0);
}

static cuda_swiglu_args swiglu_args(const tm_glu *g) {
    return (cuda_swiglu_args){.gate_up = g->x,
                              .da = g->dy,
                              .a = g->y,
                              .d_gate_up = g->dx,
                              .rows = g->rows,
                              .f = g->width,
                              .type = (int32_t)g->type};
}

static bool glu_lacks(const tm_glu *g) {
    return lacks(g->plain || g->up || g->act != TM_ACT_SILU, TM_KERNEL_ACTIVATIONS);
}

void cuda_glu_forward(const tm_glu *g) {
    cuda_swiglu_args a = swiglu_args(g);
    if (!glu_lacks(g)) launch_rows(CUDA_K_swiglu_forward, &a, g->rows, 0);
}

void cuda_glu_backward(const tm_glu *g) {
    cuda_swiglu_args a = swiglu_args(g);
    if (!glu_lacks(g)) launch_rows(CUDA_K_swiglu_backward, &a, g->rows, 0);
}

void cuda_softcap(uint64_t rows, uint64_t n, uint64_t ld, float cap, float *x) {
    (void)n, (void)ld, (void)cap, (void)x;
    lacks(rows > 0, TM_KERNEL_SOFTCAPS);
}

void cuda_scale(tm_elem t, uint64_t n, const void *factor, const void *x, void *y) {
    (void)t, (void)factor, (void)x, (void)y;
    lacks(n > 0, TM_KERNEL_SCALES);
}

void cuda_add_bias(tm_elem t, uint64_t rows, uint64_t n, const void *bias, void *x, uint64_t ld) {
    cuda_rows_args a = {.bias = bias, .x = x, .rows = rows, .n = n, .ld = ld, .type = (int32_t)t};
    launch_rows(CUDA_K_add_bias, &a, rows, 0);
}

void cuda_column_sum(tm_elem t, uint64_t rows, uint64_t n, const void *x, uint64_t ld, float *out, bool add) {
    /* x is read only: the struct is shared with add_bias, which writes */
    cuda_rows_args a = {.out = out, .rows = rows, .n = n, .ld = ld, .type = (int32_t)t, .add = add};
    memcpy(&a.x, &x, sizeof x);
    launch_strided(CUDA_K_column_sum, &a, blocks_of(n, CUDA_WARP), 1, 2 * CUDA_SUM_ROWS * CUDA_WARP * sizeof(float));
}

void cuda_gather_rows(tm_elem t, uint64_t rows, uint64_t padded, uint64_t n, const uint32_t *row, const void *src,
                      void *dst) {
    cuda_gather_args a = {
        .row = row, .src = src, .dst = dst, .rows = rows, .padded = padded, .n = n, .type = (int32_t)t};
    launch_rows(CUDA_K_gather, &a, padded, 0);
}

void cuda_scatter_add_rows(uint64_t rows, uint64_t n, const uint32_t *row, const float *src, float *dst) {
    cuda_gather_args a = {.row = row, .src = src, .dst = dst, .rows = rows, .n = n};
    launch_rows(CUDA_K_scatter_add, &a, rows, 0);
}

void cuda_zero(void *p, uint64_t bytes) {
    cuda_zero_args a = {p, bytes};
    launch_elements(CUDA_K_zero, &a, blocks_of(bytes, 4));
}

void cuda_copy(void *to, const void *from, uint64_t bytes) {
    if (now->status == TM_OK && bytes && to != from) keep(now->copy(now, to, from, bytes));
}

void cuda_convert(tm_elem from, tm_elem to, const void *x, void *y, uint64_t n) {
    cuda_convert_args a = {.x = x, .y = y, .n = n, .from = (int32_t)from, .to = (int32_t)to};
    launch_elements(CUDA_K_convert, &a, n);
}

/* ---- vocabulary ------------------------------------------------------------------------------------------------ */

static bool embed_lacks(const tm_embed *e) {
    return lacks((e->scale != 0 && e->scale != 1) || e->add, TM_KERNEL_EMBEDDINGS);
}

void cuda_embed_forward(const tm_embed *e) {
    cuda_embed_args a = {.ids = e->ids,
                         .x = e->weight,
                         .out = e->out,
                         .rows = e->rows,
                         .padded = e->padded,
                         .n = e->n,
                         .first = e->first,
                         .count = e->count,
                         .type = (int32_t)e->type,
                         .clear = e->clear};
    if (!embed_lacks(e)) launch_rows(CUDA_K_embed_forward, &a, e->padded, 0);
}

void cuda_embed_backward(const tm_embed *e) {
    cuda_embed_args a = {.ids = e->ids,
                         .x = e->dout,
                         .grad = e->grad,
                         .rows = e->rows,
                         .n = e->n,
                         .first = e->first,
                         .count = e->count,
                         .type = (int32_t)e->type};
    if (embed_lacks(e)) return;
    if (!e->grad_add) cuda_zero(e->grad, (uint64_t)e->count * e->n * sizeof *e->grad);
    launch_strided(CUDA_K_embed_backward, &a, e->rows, blocks_of(e->n, CUDA_EMBED_COLUMNS),
                   (2 * CUDA_WARP + CUDA_EMBED_WINDOW) * sizeof(uint32_t));
}

static cuda_head_args head_args(const tm_head *h) {
    return (cuda_head_args){.row = h->row,
                            .labels = h->labels,
                            .coefficient = h->coefficient,
                            .logits = h->logits,
                            .state = &h->state->max,
                            .rows = h->rows,
                            .ld = h->ld,
                            .first = h->first,
                            .count = h->count,
                            .type = (int32_t)h->type};
}

void cuda_head_update(const tm_head *h) {
    cuda_head_args a = head_args(h);
    launch_rows(CUDA_K_head_update, &a, h->rows, 2 * CUDA_WARP);
}

void cuda_head_gradient(const tm_head *h) {
    cuda_head_args a = head_args(h);
    if (!lacks(h->softcap != 0, TM_KERNEL_SOFTCAPS)) launch_rows(CUDA_K_head_gradient, &a, h->rows, 0);
}

void cuda_head_begin(uint64_t rows, tm_head_state *state) {
    cuda_head_args a = {.state = &state->max, .rows = rows};
    launch_elements(CUDA_K_head_begin, &a, rows);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

/* Shared memory of the kernels that work on tiles: the matrix, and operands or rows of 16. */
static uint32_t attention_shared(void) {
    enum { SIDE = 16, LD = CUDA_ATTENTION_TILE + 1, WORK = CUDA_ATTENTION_TILE * LD };
    return (CUDA_ATTENTION_TILE * LD + WORK) * (uint32_t)sizeof(float);
}

static cuda_attention_args attention_args(const tm_attention *a) {
    return (cuda_attention_args){.qkv = a->q,
                                 .o = a->o,
                                 .d_o = a->d_o,
                                 .key_mask = a->key_mask,
                                 .position = a->position,
                                 .out = a->o,
                                 .d_qkv = a->d_q,
                                 .cache = a->kv_cache,
                                 .capacity = a->kv_capacity,
                                 .cache_row = a->cache_row,
                                 .cache_from = a->cache_from,
                                 .lse = a->lse,
                                 .delta = a->workspace,
                                 .rows = a->rows,
                                 .seq = a->seq,
                                 .heads = a->heads,
                                 .kv_heads = a->kv_heads,
                                 .head_dim = a->head_dim,
                                 .window = a->window,
                                 .scale = a->scale,
                                 .type = (int32_t)a->type};
}

static bool attention_fits(const tm_attention *a) {
    return !(lacks(a->head_dim > CUDA_MAX_HEAD_DIM, TM_KERNEL_WIDE_HEADS) ||
             lacks(!tm_attention_is_fused(a) || a->kv_add, TM_KERNEL_APART) ||
             lacks(a->begin != NULL, TM_KERNEL_DOCUMENTS) || lacks(a->softcap != 0, TM_KERNEL_SOFTCAPS) ||
             lacks(a->temperature_every != 0, TM_KERNEL_TEMPERATURE) || (a->rope && rope_lacks(a->rope)));
}
_Static_assert(CUDA_MAX_HEAD_DIM == 256, "attention_fits says so");

static void zero_padding(const tm_attention *a, void *x, uint64_t row_bytes) {
    uint64_t used = (uint64_t)a->rows * a->seq;
    if (x && a->padded > used) cuda_zero((char *)x + used * row_bytes, (a->padded - used) * row_bytes);
}

/* Tiles by tensor cores: 16-bit types, heads that are whole there, rows that can be copied 16 bytes at a time. */
static bool by_tensor_cores(const tm_attention *a) {
    uintptr_t all = (uintptr_t)a->q | (uintptr_t)a->d_o;
    return now->tensor_cores && a->type != TM_ELEM_F32 && (a->head_dim == 64 || a->head_dim == 128) && all % 16 == 0;
}

/* Shared memory there: `own` operands of the block's rows; two of `met` rows, twice; and numbers of those rows. */
static uint32_t mma_shared(uint32_t head_dim, uint32_t own, uint32_t met, uint32_t numbers) {
    enum { OWN = 64, PAD = 8 };
    return (uint32_t)sizeof(uint16_t) * (own * OWN + 4 * met) * (head_dim + PAD) +
           2 * numbers * met * (uint32_t)sizeof(float);
}

static void launch_mma(cuda_kernel of_64, cuda_kernel of_128, const tm_attention *a, const cuda_attention_args *k,
                       uint64_t heads, uint32_t shared_bytes) {
    launch_blocks(a->head_dim == 64 ? of_64 : of_128, k, blocks_of(a->seq, CUDA_ATTENTION_TILE), heads, a->rows,
                  CUDA_MMA_THREADS, shared_bytes);
}

/* One query a row: no tile would be more than a 64th full. */
static void launch_cached(const tm_attention *a, const cuda_attention_args *k, uint64_t tiles) {
    enum { QUERY = CUDA_THREADS, SCORES = CUDA_THREADS, SUMS = CUDA_THREADS, REDUCE = 2 * CUDA_WARP };
    launch_rows(CUDA_K_attention_store, k, (uint64_t)a->rows * a->seq, 0);
    if (a->decode)
        launch(CUDA_K_attention_decode, k, a->heads, a->rows, 1, (QUERY + SCORES + SUMS + REDUCE) * sizeof(float));
    else
        launch(CUDA_K_attention_cached, k, tiles, a->heads, a->rows, attention_shared());
}

void cuda_attention_forward(const tm_attention *a) {
    if (now->status != TM_OK || !attention_fits(a)) return;
    cuda_attention_args k = attention_args(a);
    uint64_t tiles = blocks_of(a->seq, CUDA_ATTENTION_TILE);
    if (a->kv_cache)
        launch_cached(a, &k, tiles);
    else if (by_tensor_cores(a))
        launch_mma(CUDA_K_attention_forward_mma_64, CUDA_K_attention_forward_mma_128, a, &k, a->heads,
                   mma_shared(a->head_dim, 1, a->head_dim == 64 ? 64 : 32, 0));
    else
        launch(CUDA_K_attention_forward, &k, tiles, a->heads, a->rows, attention_shared());
    zero_padding(a, a->o, (uint64_t)a->heads * a->head_dim * tm_elem_bytes(a->type));
    zero_padding(a, a->lse, a->heads * sizeof(float));
}

static void launch_backward(const tm_attention *a, const cuda_attention_args *k) {
    uint64_t tiles = blocks_of(a->seq, CUDA_ATTENTION_TILE);
    if (by_tensor_cores(a)) {
        launch_mma(CUDA_K_attention_keys_mma_64, CUDA_K_attention_keys_mma_128, a, k, a->kv_heads,
                   mma_shared(a->head_dim, 2, 32, 2));
        launch_mma(CUDA_K_attention_queries_mma_64, CUDA_K_attention_queries_mma_128, a, k, a->heads,
                   mma_shared(a->head_dim, 2, 32, 0));
    } else {
        launch(CUDA_K_attention_keys, k, tiles, a->kv_heads, a->rows, attention_shared());
        launch(CUDA_K_attention_queries, k, tiles, a->heads, a->rows, attention_shared());
    }
}

void cuda_attention_backward(const tm_attention *a) {
    if (now->status != TM_OK || !attention_fits(a)) return;
    cuda_attention_args k = attention_args(a);
    if (a->rope) {
        k.rope_cached = a->rope->cached;
        keep(now->rope(now, a->rope, &k.rope_table, &k.rope_inv_freq));
    }
    launch_strided(CUDA_K_attention_delta, &k,
                   blocks_of((uint64_t)a->rows * a->seq * a->heads, CUDA_THREADS / CUDA_WARP * CUDA_DELTA_ROWS), 1, 0);
    launch_backward(a, &k);
    zero_padding(a, a->d_q, ((uint64_t)a->heads + 2 * (uint64_t)a->kv_heads) * a->head_dim * tm_elem_bytes(a->type));
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

void cuda_grad_finish(tm_elem t, const float *sum, void *grad, uint64_t n, double *partial) {
    enum { DOUBLES = 2 * CUDA_NORM_PIECE + 16 };
    cuda_finish_args a = {.sum = sum, .g = grad, .partial = partial, .n = n, .type = (int32_t)t};
    launch_strided(CUDA_K_grad_finish, &a, blocks_of(n, CUDA_NORM_BLOCK), 1, DOUBLES * sizeof(double));
}

void cuda_sum_slices(const float *own, const float *others, uint64_t stride, uint32_t ranks, uint32_t me, float *out,
                     uint64_t n) {
    cuda_sum_args a = {.own = own, .others = others, .out = out, .n = n, .stride = stride, .ranks = ranks, .me = me};
    if (n) launch_elements(CUDA_K_sum_slices, &a, n);
}

void cuda_adamw(const cuda_adamw_args *args, uint64_t *nonfinite) {
    cuda_adamw_args a = *args;
    if (now->status != TM_OK || a.n == 0) return;
    keep(now->counter(now, nonfinite, &a.bad));
    launch_elements(CUDA_K_adamw, &a, blocks_of(a.n, CUDA_ADAMW_FEW));
}
