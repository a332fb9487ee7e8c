/* Tiled causal attention, and its way in fp32. One item of work is (batch row, head) forward, (batch row, key-value head) backward, one
 * document of the row after the other; within a document keys are the outer loop and queries the inner one, so that a tile of K and V is unpacked once and scratch
 * grows with the queries only (a cache may be much longer):
 *
 *     for key tile k0:  K, V -> fp32, K also transposed
 *         for query tile q0 that sees it:  S = Q K^T;  mask;  online softmax of rows;  O = O * alpha + P V
 *
 * Every sum over keys runs in key order, every sum over queries in (head, query) order, whoever runs the item. */
#include "kernels/attention_internal.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { TILE = TM_ATTENTION_TILE };

static uint64_t padded_dim(const tm_attention *a) {
    return tm_round_up(a->head_dim, GEMM_NR);
}
/* What another row has computed; then the new keys and values go to their positions. */
static void fill_cache(const tm_attention *a) {
    size_t bytes = attention_cache_entry(a) * tm_elem_bytes(a->type);
    bool ring = a->window && a->kv_capacity % TILE == 0 && a->kv_capacity >= tm_attention_ring(a->window, a->seq);
    for (uint64_t b = 0; a->cache_from && b < a->rows; b++)
        if (a->cache_from[b] != UINT32_MAX)
            memcpy(attention_cache_at(a, attention_cache_row(a, b), 0), attention_cache_at(a, a->cache_from[b], 0),
                   tm_min_u64(attention_position(a, b), a->kv_capacity) * bytes);
    for (uint64_t b = 0; b < a->rows; b++) {
        uint64_t position = attention_position(a, b), row = attention_cache_row(a, b);
        TM_ASSERT(ring || position + a->seq <= a->kv_capacity);
        for (uint64_t s = 0; s < a->seq; s++) {
            char *to = attention_cache_at(a, row, position + s);
            memcpy(to, attention_k(a, b, s), bytes / 2);
            memcpy(to + bytes / 2, attention_v(a, b, s), bytes / 2);
        }
    }
}

/* ---- items of work ---- */

/* Tokens [first, first + n) of row b as a row of their own. */
static tm_attention document_of(const tm_attention *a, uint64_t b, uint64_t first, uint64_t n) {
    uint64_t row = b * a->seq + first, o = row * a->heads * a->head_dim;
    tm_attention d = *a;
    d.begin = NULL;
    d.rows = 1, d.seq = (uint32_t)n;
    d.q = attention_q(a, b, first, 0), d.k = attention_k(a, b, first), d.v = attention_v(a, b, first);
    d.o = kernels_at(a->type, a->o, o);
    if (a->lse) d.lse = a->lse + row * a->heads;
    if (a->key_mask) d.key_mask = a->key_mask + row;
    if (!a->d_o) return d;
    d.d_o = kernels_at_const(a->type, a->d_o, o);
    d.d_q = kernels_at(a->type, a->d_q, row * a->ld_q);
    d.d_k = kernels_at(a->type, a->d_k, row * a->ld_k);
    d.d_v = kernels_at(a->type, a->d_v, row * a->ld_v);
    return d;
}

/* `floats` of scratch a thread. */
static void run_item(const tm_attention *a, uint64_t floats, attention_item *run, uint64_t b, uint64_t head) {
    const uint32_t *begin = a->begin ? a->begin + b * a->seq : NULL;
    tm_attention one = *a;
    one.workspace = (float *)a->workspace + (uint64_t)omp_get_thread_num() * floats;
    if (!begin) run(&one, b, head);
    for (uint64_t first = 0, end; begin && first < a->seq; first = end) {
        TM_ASSERT(begin[first] == first);
        for (end = first + 1; end < a->seq && begin[end] == first;) end++;
        tm_attention document = document_of(&one, b, first, end - first);
        run(&document, 0, head);
    }
}

/* ---- fp32 ---- */

/* Rows of d elements as fp32 with rows of dp >= d floats, zeros between: in place where that is what they are. */
typedef struct tile_rows {
    const float *data;
    size_t ld;
} tile_rows;
static tile_rows load_rows(const tm_attention *a, const void *x, uint64_t ld, size_t rows, float *buf) {
    size_t d = a->head_dim, dp = padded_dim(a);
    if (a->type == TM_ELEM_F32 && d == dp) return (tile_rows){x, ld};
    for (size_t i = 0; i < rows; i++) {
        if (a->type == TM_ELEM_F32)
            memcpy(buf + i * dp, (const float *)x + i * ld, d * sizeof *buf);
        else
            kernels_widen(a->type, (const uint16_t *)x + i * ld, buf + i * dp, d);
        memset(buf + i * dp + d, 0, (dp - d) * sizeof *buf);
    }
    return (tile_rows){buf, dp};
}

/* Rows transposed to [d][TILE], columns past `rows` zero. */
static void load_transposed(const tm_attention *a, tile_rows r, size_t rows, float *out) {
    if (rows < TILE) memset(out, 0, (size_t)a->head_dim * TILE * sizeof *out);
    kernels.transpose(r.data, r.ld, rows, a->head_dim, out, TILE);
}

/* ---- forward ---- */

typedef struct forward_scratch {
    float *o, *max, *sum, *k, *kt, *v, *q, *s;
} forward_scratch;

static uint64_t forward_floats(const tm_attention *a) {
    uint64_t dp = padded_dim(a), seq = tm_round_up(a->seq, 16);
    return seq * (dp + 2) + 4 * TILE * dp + TILE * TILE;
}

static forward_scratch forward_carve(const tm_attention *a) {
    uint64_t dp = padded_dim(a), seq = tm_round_up(a->seq, 16);
    forward_scratch w = {.o = a->workspace};
    w.max = w.o + seq * dp;
    w.sum = w.max + seq;
    w.k = w.sum + seq;
    w.kt = w.k + TILE * dp;
    w.v = w.kt + TILE * dp;
    w.q = w.v + TILE * dp;
    w.s = w.q + TILE * dp;
    return w;
}

static void forward_pair(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r, tile_rows v,
                         const forward_scratch *w) {
    size_t dp = padded_dim(a);
    tile_rows q = load_rows(a, attention_q(a, b, r->q0, head), a->ld_q, r->nq, w->q);
    kernels.small_gemm(r->nq, r->columns, a->head_dim, q.data, q.ld, 1, w->kt, TILE, w->s, TILE, false);
    attention_cap(a, r, w->s);
    attention_mask(a, b, r, w->s);
    attention_softmax(a, r, w->s, (attention_sums){w->o, w->max, w->sum, dp});
    kernels.small_gemm(r->nq, dp, r->nk, w->s, TILE, 1, v.data, v.ld, w->o + r->q0 * dp, dp, true);
}

static void forward_item(const tm_attention *a, uint64_t b, uint64_t head) {
    forward_scratch w = forward_carve(a);
    size_t dp = padded_dim(a);
    attention_view kv = attention_view_of(a, b, head / (a->heads / a->kv_heads));
    memset(w.o, 0, a->seq * dp * sizeof *w.o);
    for (uint64_t s = 0; s < a->seq; s++) w.max[s] = -INFINITY, w.sum[s] = 0;
    for (uint64_t k0 = kv.first; k0 < kv.keys; k0 += TILE) {
        size_t nk = (size_t)tm_min_u64(TILE, kv.keys - k0);
        uint64_t at = k0 % kv.ring; /* a tile does not go over the ring's end */
        tile_rows k = load_rows(a, kernels_at_const(a->type, kv.k, at * kv.ld_k), kv.ld_k, nk, w.k);
        tile_rows v = load_rows(a, kernels_at_const(a->type, kv.v, at * kv.ld_v), kv.ld_v, nk, w.v);
        load_transposed(a, k, nk, w.kt);
        attention_pair r;
        for (uint64_t q0 = 0; q0 < a->seq; q0 += TILE)
            if (attention_meet(a, b, q0, k0, kv.keys, GEMM_NR, &r)) forward_pair(a, b, head, &r, v, &w);
    }
    for (uint64_t s = 0; s < a->seq; s++) attention_store_output(a, b, head, s, w.o + s * dp, w.max[s], w.sum[s]);
}

/* One query: tiles of queries would be empty, so keys are met one by one, for all heads of the group. */
static void decode_item(const tm_attention *a, uint64_t b, uint64_t kv_head) {
    forward_scratch w = forward_carve(a);
    size_t d = a->head_dim, group = a->heads / a->kv_heads;
    attention_view kv = attention_view_of(a, b, kv_head);
    float scale = attention_scale(a, kv.keys - 1);
    uint64_t begin = a->window && kv.keys > a->window ? kv.keys - a->window : 0;
    for (size_t g = 0; g < group; g++) {
        uint64_t head = kv_head * group + g;
        float query[TM_MAX_HEAD_DIM], buf[TM_MAX_HEAD_DIM], max = -INFINITY, sum = 0;
        const float *q = kernels_load(a->type, attention_q(a, b, 0, head), 0, query, d);
        memset(w.o, 0, d * sizeof *w.o);
        for (uint64_t k0 = begin; k0 < kv.keys; k0 += TILE) {
            size_t nk = (size_t)tm_min_u64(TILE, kv.keys - k0);
            uint64_t at = k0 % kv.ring;
            for (size_t j = 0; j < TILE; j++) w.s[j] = -INFINITY;
            for (size_t j = 0; j < nk; j++)
                w.s[j] = kernels.dot(q, kernels_load(a->type, kv.k, attention_entry(&kv, at, j) * kv.ld_k, buf, d), d);
            if (a->softcap != 0) kernels.softcap(w.s, scale, a->softcap, nk);
            kernels.scale(kernels.softmax_row(w.s, a->softcap != 0 ? 1 : scale, &max, &sum, TILE), w.o, d);
            for (size_t j = 0; j < nk; j++)
                kernels.axpy(w.s[j], kernels_load(a->type, kv.v, attention_entry(&kv, at, j) * kv.ld_v, buf, d), w.o,
                             d);
        }
        attention_store_output(a, b, head, 0, w.o, max, sum);
    }
}

static void zero_padding(const tm_attention *a, void *x, uint64_t row_bytes) {
    uint64_t used = (uint64_t)a->rows * a->seq;
    if (x && a->padded > used) memset((char *)x + used * row_bytes, 0, (a->padded - used) * row_bytes);
}

/* `bytes` of each of those rows, which are ld elements apart. */
static void zero_columns(const tm_attention *a, void *x, uint64_t ld, uint64_t bytes) {
    for (uint64_t r = (uint64_t)a->rows * a->seq; r < a->padded; r++) memset(kernels_at(a->type, x, r * ld), 0, bytes);
}

/* ---- backward ---- */

typedef struct backward_scratch {
    float *dq, *delta; /* [group][seq][dp], [group][seq] */
    float *k, *kt, *v, *vt, *dk, *dv, *q, *d_o, *s, *dp;
    float *slope; /* of the cap, a tile; where there is one */
} backward_scratch;

static uint64_t backward_floats(const tm_attention *a) {
    uint64_t dp = padded_dim(a), group = a->heads / a->kv_heads, seq = tm_round_up(a->seq, 16);
    return group * seq * (dp + 1) + 8 * TILE * dp + (a->softcap != 0 ? 3U : 2U) * TILE * TILE;
}

static backward_scratch backward_carve(const tm_attention *a) {
    uint64_t dp = padded_dim(a), group = a->heads / a->kv_heads, seq = tm_round_up(a->seq, 16), tile = TILE * dp;
    backward_scratch w = {.dq = a->workspace};
    w.delta = w.dq + group * seq * dp;
    w.k = w.delta + group * seq;
    w.kt = w.k + tile;
    w.v = w.kt + tile;
    w.vt = w.v + tile;
    w.dk = w.vt + tile;
    w.dv = w.dk + tile;
    w.q = w.dv + tile;
    w.d_o = w.q + tile;
    w.s = w.d_o + tile;
    w.dp = w.s + TILE * TILE;
    w.slope = w.dp + TILE * TILE;
    return w;
}

static void backward_pair(const tm_attention *a, uint64_t b, uint64_t head, const attention_pair *r, tile_rows k,
                          const backward_scratch *w, float *dq, const float *delta) {
    size_t d = a->head_dim, dp = padded_dim(a), o_ld = (size_t)a->heads * d;
    tile_rows q = load_rows(a, attention_q(a, b, r->q0, head), a->ld_q, r->nq, w->q);
    tile_rows d_o = load_rows(a, attention_o(a, a->d_o, b, r->q0, head), o_ld, r->nq, w->d_o);
    kernels.small_gemm(r->nq, r->columns, d, q.data, q.ld, 1, w->kt, TILE, w->s, TILE, false);
    attention_cap_with_slopes(a, r, w->s, w->slope);
    attention_mask(a, b, r, w->s);
    kernels.small_gemm(r->nq, r->columns, d, d_o.data, d_o.ld, 1, w->vt, TILE, w->dp, TILE, false);
    attention_gradients_of_scores(a, b, head, r, delta, w->s, w->dp, w->slope);
    kernels.small_gemm(r->nk, dp, r->nq, w->s, 1, TILE, d_o.data, d_o.ld, w->dv, dp, true);
    kernels.small_gemm(r->nk, dp, r->nq, w->dp, 1, TILE, q.data, q.ld, w->dk, dp, true);
    kernels.small_gemm(r->nq, dp, r->nk, w->dp, TILE, 1, k.data, k.ld, dq + r->q0 * dp, dp, true);
}

static void backward_keys(const tm_attention *a, uint64_t b, uint64_t kv_head, const attention_view *kv, uint64_t k0,
                          const backward_scratch *w) {
    size_t dp = padded_dim(a), group = a->heads / a->kv_heads, nk = (size_t)tm_min_u64(TILE, kv->keys - k0);
    tile_rows k = load_rows(a, kernels_at_const(a->type, kv->k, k0 * kv->ld_k), kv->ld_k, nk, w->k);
    tile_rows v = load_rows(a, kernels_at_const(a->type, kv->v, k0 * kv->ld_v), kv->ld_v, nk, w->v);
    load_transposed(a, k, nk, w->kt);
    load_transposed(a, v, nk, w->vt);
    memset(w->dk, 0, TILE * dp * sizeof(float));
    memset(w->dv, 0, TILE * dp * sizeof(float));
    attention_pair r;
    for (size_t g = 0; g < group; g++)
        for (uint64_t q0 = k0 / TILE * TILE; q0 < a->seq; q0 += TILE)
            if (attention_meet(a, b, q0, k0, kv->keys, GEMM_NR, &r))
                backward_pair(a, b, kv_head * group + g, &r, k, w, w->dq + g * a->seq * dp, w->delta + g * a->seq);
    attention_gradient_rows rows = {.x = w->dk, .ld = dp, .s0 = k0, .rows = nk, .head = kv_head};
    attention_store_gradient(a, b, (attention_gradient){a->d_k, a->ld_k, true, a->kv_add}, rows);
    rows.x = w->dv;
    attention_store_gradient(a, b, (attention_gradient){a->d_v, a->ld_v, false, a->kv_add}, rows);
}

static void backward_item(const tm_attention *a, uint64_t b, uint64_t kv_head) {
    backward_scratch w = backward_carve(a);
    size_t dp = padded_dim(a), group = a->heads / a->kv_heads;
    attention_view kv = attention_view_of(a, b, kv_head);
    memset(w.dq, 0, group * a->seq * dp * sizeof *w.dq);
    for (size_t g = 0; g < group; g++) attention_deltas(a, b, kv_head * group + g, w.delta + g * a->seq);
    for (uint64_t k0 = 0; k0 < kv.keys; k0 += TILE) backward_keys(a, b, kv_head, &kv, k0, &w);
    for (size_t g = 0; g < group; g++)
        attention_store_gradient(a, b, (attention_gradient){a->d_q, a->ld_q, true, false},
                                 (attention_gradient_rows){w.dq + g * a->seq * dp, dp, 0, a->seq, kv_head * group + g});
}

/* ---- the ways ---- */

static uint64_t floats_in_fp32(const tm_attention *a, bool backward) {
    return backward ? backward_floats(a) : forward_floats(a);
}
const attention_way attention_in_fp32 = {floats_in_fp32, forward_item, backward_item};

static const attention_way *way_of(const tm_attention *a) {
    const attention_way *other = gemm_attention();
    return a->type == TM_ELEM_BF16 && other ? other : &attention_in_fp32;
}

/* Of whatever way computes a part of it. */
static uint64_t thread_floats(const tm_attention *a, bool backward) {
    return tm_max_u64(floats_in_fp32(a, backward), way_of(a)->floats(a, backward));
}

void tm_attention_forward(const tm_attention *a) {
    bool decode = a->kv_cache && a->decode;
    uint64_t heads = decode ? a->kv_heads : a->heads, items = a->rows * heads, floats = thread_floats(a, false);
    attention_item *run = decode ? decode_item : way_of(a)->forward;
    TM_ASSERT((!a->begin || !a->kv_cache) && (!decode || a->seq == 1));
    if (a->kv_cache) fill_cache(a);
#pragma omp parallel for schedule(dynamic, 1) num_threads(kernels_team()) if (items > 1)
    for (uint64_t i = 0; i < items; i++) run_item(a, floats, run, i / heads, i % heads);
    zero_padding(a, a->o, (uint64_t)a->heads * a->head_dim * tm_elem_bytes(a->type));
    zero_padding(a, a->lse, a->heads * sizeof(float));
}

void tm_attention_backward(const tm_attention *a) {
    TM_ASSERT(!a->kv_cache);
    uint64_t items = (uint64_t)a->rows * a->kv_heads, floats = thread_floats(a, true);
    attention_item *run = way_of(a)->backward;
#pragma omp parallel for schedule(dynamic, 1) num_threads(kernels_team()) if (items > 1)
    for (uint64_t i = 0; i < items; i++) run_item(a, floats, run, i / a->kv_heads, i % a->kv_heads);
    uint64_t head = a->head_dim * tm_elem_bytes(a->type);
    zero_columns(a, a->d_q, a->ld_q, a->heads * head);
    if (a->kv_add) return;
    zero_columns(a, a->d_k, a->ld_k, a->kv_heads * head);
    zero_columns(a, a->d_v, a->ld_v, a->kv_heads * head);
}

uint64_t tm_attention_workspace(const tm_attention *a, bool backward) {
    return kernels_team() * thread_floats(a, backward) * sizeof(float);
}
